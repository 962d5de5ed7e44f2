"""Job files as people write them, twenty or more of each kind: what they become, and what is told.

`files/expected.txt` holds a line for each job and the fields that are changed (~), dropped (-) or
refused (!), so that a reader that changes its mind shows it there.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from losing import CORPUS, FILES, KINDS, silent_keys

from tercio.errors import UserError
from tercio.formats.files import read_any
from tercio.formats.foreign.detect import detect, read_foreign
from tercio.formats.foreign.draft import Fate
from tercio.formats.foreign.write import TARGETS, WRITERS, write_native
from tercio.formats.native import read_job, read_job_object

MARKS = {Fate.CHANGED: "~", Fate.DROPPED: "-", Fate.REFUSED: "!"}
IDS = [f"{kind}/{path.name}" for kind, path in CORPUS]


def converted(kind, path):
    text = path.read_text(encoding="utf-8")
    return read_foreign(text, source=path.name, kind=kind, now_s=1.8e9)


def summary(spec):
    group = spec.groups[0]
    asked = " | ".join(
        f"{request.type or request.vendor or 'any'}"
        + (f"/{request.mig_profile}" if request.mig_profile else "")
        + f":{request.count or request.share_milli}"
        for request in group.per_task.devices
        if request.count or request.share_milli
    )
    memory = group.per_task.memory_bytes
    cells = {
        "name": spec.name, "tasks": group.tasks, "devices": asked or None,
        "cpus": group.per_task.cpus_milli and f"{group.per_task.cpus_milli / 1000:g}",
        "memory": memory and f"{memory / 1024**2:g}M",
        "limit": spec.time.limit_s and f"{spec.time.limit_s:g}s",
        "array": spec.array and spec.array.size, "image": spec.image,
        "mounts": ",".join(f"{mount.source}:{mount.target}" for mount in spec.mounts),
        "shm": group.per_task.shm_bytes and f"{group.per_task.shm_bytes / 1024**2:g}M",
        "retry": ",".join(cause.value for cause in spec.retry.on) + f"x{spec.retry.max}",
        "env": ",".join(spec.env), "secrets": ",".join(spec.secrets),
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in cells.items() if value)


def told(kind, path):
    found = converted(kind, path)
    lines = [f"{kind}/{path.name}" + (" held" if found.is_held else "")]
    lines += [
        f"  {summary(spec)}" for job in found.jobs for spec in read_job_object(dict(job)).specs
    ]
    fields = " ".join(f"{MARKS[loss.fate]}{loss.field}" for loss in found.losses)
    return "\n".join([*lines, f"  {fields or 'nothing is lost'}"]) + "\n"


def test_twenty_of_each_kind_are_not_refused():
    lines = [told(kind, path) for kind, path in CORPUS]
    taken = [line for line in lines if " !" not in line]
    assert all(sum(line.startswith(kind) for line in taken) >= 20 for kind in KINDS)


@pytest.mark.parametrize(("kind", "path"), CORPUS, ids=IDS)
def test_each_becomes_what_is_written_down(kind, path):
    expected = (FILES / "expected.txt").read_text(encoding="utf-8").split("\n\n")
    assert told(kind, path) in [f"{block.rstrip()}\n" for block in expected]


@pytest.mark.parametrize(("kind", "path"), CORPUS, ids=IDS)
def test_each_is_recognised_and_none_of_its_keys_is_lost_in_silence(kind, path):
    text = path.read_text(encoding="utf-8")
    assert detect(text, path.name) == kind
    assert silent_keys(text, kind) == []


@pytest.mark.parametrize(("kind", "path"), CORPUS, ids=IDS)
def test_each_converts_to_a_native_file_that_means_the_same_and_warns_of_nothing(kind, path):
    found = converted(kind, path)
    direct = [spec for job in found.jobs for spec in read_job_object(dict(job)).specs]
    again = read_job(write_native(found.jobs), source=path.name)
    assert [spec.name for spec in again.specs] == [spec.name for spec in direct]
    assert again.warnings == ()
    for old, new in zip(direct, again.specs, strict=True):
        assert (new.groups, new.env, new.retry, new.array) == (
            old.groups, old.env, old.retry, old.array,
        )  # fmt: skip
        for target in TARGETS[1:]:
            assert WRITERS[target](new).text


@pytest.mark.parametrize(("kind", "path"), CORPUS, ids=IDS)
def test_each_is_submitted_or_refused_by_name(kind, path):
    text = path.read_text(encoding="utf-8")
    refused = [loss for loss in converted(kind, path).losses if loss.fate is Fate.REFUSED]
    if not refused:
        warnings = read_any(text, source=path.name, now_s=1.8e9).warnings
        assert not [warning for warning in warnings if "retry.max is 0" in warning]
        return
    with pytest.raises(UserError) as caught:
        read_any(text, source=path.name, now_s=1.8e9)
    assert (caught.value.code, caught.value.field) == ("unsupported", refused[0].field)


# The fields that files in public repositories use, with how many of the files use them, and
# forms of their values: SkyPilot 315 files, dstack 290, batch scripts 122.
SBATCH = {
    "job-name": (120, ["a", "My_job"]), "nodes": (118, ["2", "2-4"]), "time": (115, ["4:00:00"]),
    "output": (110, ["%x-%j.out"]), "ntasks-per-node": (85, ["8"]), "partition": (80, ["a,b"]),
    "exclusive": (70, [None, "user"]), "gpus-per-node": (60, ["8", "h100:8"]),
    "account": (55, ["a"]), "error": (50, ["e"]), "gres": (45, ["gpu:8", "gpu:a100:4"]),
    "cpus-per-task": (40, ["16"]), "mem": (40, ["0", "64G", "4000"]), "gpus": (9, ["16"]),
    "signal": (9, ["B:USR1@90"]), "qos": (9, ["high"]), "array": (8, ["0-9%2", "1,3,5"]),
    "dependency": (8, ["afterok:12", "singleton"]), "requeue": (8, [None]),
    "no-requeue": (5, [None]), "export": (8, ["ALL", "NONE", "ALL,A=1"]),
    "open-mode": (7, ["append"]), "constraint": (6, ["a100", "ib&new"]), "chdir": (6, ["/x"]),
    "nodelist": (5, ["n[1-2]"]), "exclude": (5, ["n7"]), "hint": (4, ["nomultithread"]),
    "container-image": (4, ["nvcr.io#nvidia/nemo:24"]), "container-mounts": (4, ["/a:/b"]),
    "wait-all-nodes": (3, ["1"]), "segment": (3, ["2"]),
}  # fmt: skip
SKY_TOP = {
    "setup": (261, ["pip"]), "name": (147, ["a", "My_Job"]), "envs": (127, ["{A: 1, B: null}"]),
    "num_nodes": (98, ["2"]), "file_mounts": (97, ["{/d: s3://b}", "{/d: {source: s3://b}}"]),
    "workdir": (72, [".", "{url: u, ref: main}"]), "service": (54, ["{replicas: 2}"]),
    "secrets": (36, ["{T: null}", "[T]"]), "config": (18, ["{kubernetes: {pod_config: {}}}"]),
    "volumes": (7, ["{/v: name}"]), "pool": (6, ["{workers: 2}"]), "run": (334, ["train"]),
}  # fmt: skip
SKY_RESOURCES = {
    "accelerators": (201, ["H100:8", "{H100: 8, A100: 8}", "[L4:1, T4:1]", "{L4:1, H100:1}"]),
    "cpus": (104, ["4", "4+"]), "infra": (102, ["aws/us-east-1", "slurm/hpc/p", '"*"']),
    "ports": (92, ["8080", "[80, 81]"]), "memory": (78, ["32", "32+", "64GB"]),
    "image_id": (52, ["docker:a/b:c", "ami-123"]), "disk_size": (52, ["256"]),
    "disk_tier": (49, ["best"]), "use_spot": (31, ["true"]), "network_tier": (22, ["best"]),
    "any_of": (18, ["[{infra: aws}, {infra: gcp}]"]), "instance_type": (11, ["p5"]),
}  # fmt: skip
DSTACK_TOP = {
    "name": (290, ["a"]), "commands": (200, ["[a]", "[a, b]"]), "image": (120, ["a/b:c"]),
    "python": (60, ['"3.12"']), "env": (150, ["[A=1, T]", "{A: 1}"]), "ports": (40, ["[80]"]),
    "nodes": (40, ["2"]), "retry": (10, ["true", "{on_events: [error]}"]),
    "max_duration": (8, ["2h", "off"]), "spot_policy": (20, ["auto"]), "files": (10, ["[a]"]),
    "volumes": (20, ["[/a:/b]"]), "backends": (15, ["[aws]"]), "priority": (5, ["50"]),
}  # fmt: skip
DSTACK_RESOURCES = {
    "gpu": (161, ["24GB", "1", "H100:8", "MI300X:8", "1..8", "A100:80GB", "amd:192GB:8",
                  "{name: [H100, H200], memory: 80GB.., count: 4}"]),
    "shm_size": (45, ["16GB"]), "memory": (27, ["32GB", "64GB.."]), "disk": (25, ["100GB.."]),
    "cpu": (17, ["8", "8..16", '"x86:4.."']),
}  # fmt: skip


def flattened(table, form):
    return [
        (key, count / len(values), form.format(key, value))
        for key, (count, values) in table.items()
        for value in values
    ]


def yaml_pair(rows, resources, lead):
    inside = [f"  {text}" for key, text in rows if key in resources]
    outside = [text for key, text in rows if key not in resources]
    return "\n".join([*lead, *outside, *(["resources:", *inside] if inside else [])]) + "\n"


def sbatch_pair(rows):
    return "\n".join(["#!/bin/bash", *(text for _, text in rows), "train"]) + "\n"


def sbatch_rows():
    return [
        (key, weight, text.replace("=None", ""))
        for key, weight, text in flattened(SBATCH, "#SBATCH --{}={}")
    ]


@pytest.mark.parametrize(
    ("kind", "rows", "write", "share"),
    [
        ("sbatch", sbatch_rows(), sbatch_pair, "122 batch scripts | 100 %"),
        ("sky", flattened(SKY_TOP, "{}: {}") + flattened(SKY_RESOURCES, "{}: {}"),
         lambda rows: yaml_pair(rows, SKY_RESOURCES, []), "315 of SkyPilot | 93.9 %"),
        ("dstack", flattened(DSTACK_TOP, "{}: {}") + flattened(DSTACK_RESOURCES, "{}: {}"),
         lambda rows: yaml_pair(
             rows, DSTACK_RESOURCES,
             ["type: task", *(["commands: [a]"] if "commands" not in dict(rows) else [])],
         ),
         "290 of dstack, of them 106 tasks | 100 %"),
    ],
)  # fmt: skip
def test_the_combinations_that_files_use_are_accepted_and_the_rest_is_named(
    kind, rows, write, share
):
    """Every pair of fields, weighed by how often its two fields are used.

    SkyPilot's services and pools are refused by name, and so is every pair with one of them. The
    page for those who come from other tools tells the share.
    """
    unread = {"service", "pool"}
    uses = [(key in unread, weight) for key, weight, _ in rows]
    assert sum(w for is_unread, w in uses if is_unread) <= 0.05 * sum(w for _, w in uses)
    accepted = total = 0.0
    for (key, weight, text), (other, other_weight, other_text) in itertools.combinations(rows, 2):
        if key == other:
            continue
        found = read_foreign(
            write([(key, text), (other, other_text)]), source="f", kind=kind, now_s=1.8e9
        )
        for job in found.jobs:
            assert read_job_object(dict(job)).specs
        refused = [loss.field for loss in found.losses if loss.fate is Fate.REFUSED]
        assert set(refused) == {key, other} & unread
        total += weight * other_weight
        accepted += 0.0 if refused else weight * other_weight
    percent = f"{100 * accepted / total:.1f}".removesuffix(".0")
    assert share.endswith(f"| {percent} %")
    assert share in (Path(__file__).parents[4] / "docs" / "coming-from.md").read_text("utf-8")
