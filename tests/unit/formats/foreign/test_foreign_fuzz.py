"""Whatever stands in a file: a reader converts it or says what is wrong; no key goes in silence.

Texts are the corpus with bytes, lines and values changed, and files built of the formats' own
keys with values of every form.
"""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from losing import CORPUS, KINDS, silent_keys

from tercio.errors import UserError
from tercio.formats.files import read_any
from tercio.formats.foreign.detect import KINDS as KNOWN
from tercio.formats.foreign.detect import detect, read_foreign
from tercio.formats.foreign.sbatch_options import KNOWN as OPTIONS
from tercio.formats.foreign.write import WRITERS, write_native
from tercio.formats.native import read_job_object

TEXTS = [path.read_text(encoding="utf-8") for _, path in CORPUS]
WORDS = [
    "", "0", "-1", "1", "1..", "..", "..8", "8..1", "a", "A:1", ":", "80GB", "..80GB:x", "H100:0.5",
    "null", "true", "[]", "{}", "[[]]", "{a: {}}", "[null]", "é", "'", '"', "$(A)", "&a *a", "a,b",
    "1e999", "9" * 40, "9:9:9:9", "n[1-", "n[9-1]", "afterok:", "@", "USR1@x", "%", "0-0%0", "=",
    "h100:" , "gpu:", "gpu:a:b:c", "²", "1_0", "0x10", "~", "---", "#", "\t", "TERCIO_A=1",
]  # fmt: skip
KEYS = {
    "sky": """name workdir num_nodes envs secrets file_mounts volumes setup run service pool config
        event_callback inputs outputs resources execution unknown""",
    "dstack": """name image python docker nvcc user entrypoint working_dir env shell commands ports
        repos files volumes registry_auth privileged priority resources nodes groups backends
        regions availability_zones instance_types reservation spot_policy retry max_duration
        stop_duration max_price creation_policy idle_duration utilization_policy startup_order
        stop_criteria schedule fleets tags unknown""",
}
INNER = {
    "sky": """infra cloud region zone accelerators cpus memory instance_type use_spot disk_size
        disk_tier network_tier ports labels image_id autostop job_recovery priority
        priority_class any_of ordered unknown""",
    "dstack": "cpu memory disk shm_size gpu unknown",
}
FIXED = {"sky": {"run": "train"}, "dstack": {"type": "task", "commands": ["train"]}}
SETTINGS = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

SCALARS = st.one_of(
    st.sampled_from(WORDS), st.integers(-2, 20), st.booleans(), st.floats(0.1, 9), st.none()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "count", "min", "max", "a", "H100", "A:1", ""]),
                        inner, max_size=3),
    ),
    max_leaves=5,
)  # fmt: skip


def check(text, source="file.yaml"):
    """Read a text by every door: converted, or refused with a hint."""
    detect(text, source)
    doors = [lambda: read_any(text, source=source, now_s=1.8e9)]
    doors += [lambda k=kind: converted(text, k) for kind in KNOWN[1:]]
    for door in doors:
        try:
            door()
        except UserError as error:
            assert error.message
            assert error.hint, error.message


def converted(text, kind):
    found = read_foreign(text, source="f", kind=kind, now_s=1.8e9)
    assert write_native(found.jobs) or not found.jobs
    for job in found.jobs:
        for spec in read_job_object(dict(job)).specs:
            for writer in WRITERS.values():
                writer(spec)


def mutated(text, rng):
    lines = text.split("\n")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        line, word = lines[at], rng.choice(WORDS)
        cut = rng.randint(0, len(line))
        match rng.randrange(7):
            case 0:
                lines[at] = line[:cut] + word + line[cut:]
            case 1:
                lines[at] = line[:cut] + line[cut + rng.randint(1, 5) :]
            case 2:
                lines.insert(at, line)
            case 3:
                del lines[at]
            case 4 if ":" in line:
                lines[at] = f"{line.partition(':')[0]}: {word}"
            case 5 if "=" in line:
                lines[at] = f"{line.partition('=')[0]}={word}"
            case _:
                lines[at] = rng.choice(TEXTS).split("\n")[0] if rng.random() < 0.2 else f" {line}"
        lines = lines or [""]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_file_is_read_or_refused_with_a_hint(seed):
    rng = random.Random(seed)
    for text in TEXTS:
        check(mutated(text, rng))


@SETTINGS
@given(st.text(max_size=60), st.sampled_from(["a.sbatch", "a.yaml", "-"]))
def test_any_text_is_read_or_refused_with_a_hint(text, source):
    check(text, source)
    check(f"#!/bin/sh\n#SBATCH {text}\n", source)


@SETTINGS
@given(st.lists(st.tuples(st.sampled_from(sorted(OPTIONS)), st.sampled_from(WORDS)), max_size=4))
def test_any_options_are_read_or_refused_with_a_hint(options):
    lines = [f"#SBATCH --{name}={value}" for name, value in options]
    check("\n".join(["#!/bin/bash", *lines, "train"]), "a.sbatch")


@st.composite
def files(draw, kind):
    keys = KEYS[kind].split()
    made = dict(FIXED[kind])
    for key in draw(st.lists(st.sampled_from(keys), max_size=4, unique=True)):
        made[key] = draw(VALUES)
    if draw(st.booleans()):
        inner = st.sampled_from(INNER[kind].split())
        made["resources"] = draw(st.dictionaries(inner, VALUES, max_size=4))
    return json.dumps(made)


@st.composite
def manifests(draw):
    container = draw(
        st.dictionaries(
            st.sampled_from(["command", "args", "image", "env", "resources", "ports", "x"]),
            VALUES, max_size=4,
        )
    )  # fmt: skip
    pod = draw(
        st.dictionaries(
            st.sampled_from(["nodeSelector", "restartPolicy", "volumes", "nodeName", "x"]),
            VALUES, max_size=2,
        )
    )  # fmt: skip
    spec = draw(
        st.dictionaries(
            st.sampled_from(["completions", "parallelism", "backoffLimit", "suspend", "x",
                             "activeDeadlineSeconds", "completionMode"]),
            VALUES, max_size=3,
        )
    )  # fmt: skip
    body = {**pod, "containers": [{"command": ["train"], **container}]}
    template = {"metadata": draw(VALUES), "spec": body}
    made = {"apiVersion": "batch/v1", "kind": "Job", "spec": {**spec, "template": template}}
    return json.dumps(made)


@SETTINGS
@given(st.data())
@pytest.mark.parametrize("kind", KINDS[1:])
def test_built_files_are_read_or_refused_and_lose_no_key_in_silence(kind, data):
    text = data.draw(manifests() if kind == "kubernetes" else files(kind))
    check(text)
    assert silent_keys(text, kind) == []
