"""Readers of the smaller parts of a job file, one function per key."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

from tercio.errors import UserError
from tercio.formats.cards import find_card, nearest_types
from tercio.formats.cursor import ENVIRONMENT, NAME, Cursor
from tercio.formats.grammar import ARRAY_FORM, JOB_ID, parse_array, parse_signal
from tercio.model.expression import compile_match
from tercio.model.ids import JobId
from tercio.model.job import (
    ArraySpec,
    CheckpointSpec,
    ChecksSpec,
    Dependency,
    DependsWhen,
    EndCause,
    Goodput,
    Mount,
    NodeFilter,
    NotifySpec,
    RetrySpec,
    TimeSpec,
)

RESERVED_ENV: Final = (
    "TERCIO_JOB", "TERCIO_JOB_NAME", "TERCIO_ATTEMPT", "TERCIO_TASK", "TERCIO_TASKS",
    "TERCIO_ARRAY_INDEX", "TERCIO_TASK_DIR", "TERCIO_OUTPUT_DIR", "TERCIO_GRACE_S",
    "TERCIO_CHECKPOINT_DIR", "TERCIO_NODE", "TERCIO_NODES", "TERCIO_GROUP", "TERCIO_PORTS",
)  # fmt: skip
RETRY_CAUSES: Final = (
    EndCause.FAILED,
    EndCause.LAUNCH_FAILED,
    EndCause.NODE_FAILED,
    EndCause.PREEMPTED,
    EndCause.TIME_LIMIT,
)
NOTIFY_EVENTS: Final = (
    "started", "preempted", "requeued", "succeeded", "failed", "cancelled", "finished",
)  # fmt: skip
"""`finished` is each of the three ends."""
LABEL: Final = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
PATH: Final = r"^[^\n\r]*\S[^\n\r]*$"
MOUNT: Final = r"^/[^\s:,]*(:/[^\s:,]*)?(:r[ow])?$"
"""No commas: container programs take several mounts in one word."""
URL: Final = (
    r"^https?://([^\s/?#@]*@)?([^\s/?#@:\[\]]+|\[[0-9A-Fa-f:.]+\])"
    r"(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
    r"([/?#]\S*)?$"
)
"""Scheme, user, host (a name or an address), port from 1 to 65535, and the rest."""
NODE_NAME: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$"
ALLREDUCE_S: Final = 5.0
MAX_GRACE_S: Final = 86400.0

_RETRY_HINTS: Final = {
    "drained": "remove it: a drained job always starts again",
    "requeued": "remove it: a requeued job always starts again",
    "cancelled": "remove it: a cancelled job was meant to end",
    "succeeded": "remove it: a job that succeeded has ended",
    "error": "did you mean 'failed'?",
    "interruption": "did you mean 'preempted' or 'node_failed'?",
}


def read_nodes(at: Cursor) -> NodeFilter | None:
    """Read `nodes`: which nodes may be used."""
    if isinstance(at.node.value, int) and not isinstance(at.node.value, bool):
        fix = "write the size of the gang as tasks; nodes says which nodes may be used"
        raise at.fault(f"{at.shown()} is not a filter of nodes", fix)
    fields = at.fields(("match", "exclude"))
    node_filter = NodeFilter(
        match=fields.read("match", _match, None),
        exclude=fields.read(
            "exclude", lambda a: _words(a, NODE_NAME, "write a list of node names"), ()
        ),
    )
    return node_filter if node_filter != NodeFilter() else None


def read_time(at: Cursor) -> TimeSpec:
    """Read `time`."""
    fields = at.fields(
        ("limit", "expected", "deadline", "earliest", "flexible"),
        moved={"max": "did you mean 'limit'?", "start": "did you mean 'earliest'?"},
    )
    time = TimeSpec(
        limit_s=fields.read("limit", lambda a: a.duration_s(least=1.0), None),
        expected_s=fields.read("expected", lambda a: a.duration_s(least=1.0), None),
        deadline_s=fields.read("deadline", Cursor.instant_s, None),
        earliest_s=fields.read("earliest", Cursor.instant_s, None),
        flexible_s=fields.read("flexible", lambda a: a.duration_s(least=1.0), None),
    )
    deadline = fields.find("deadline")
    if deadline and (time.deadline_s or 0.0) <= (time.earliest_s or -1.0):
        fix = "write a deadline after earliest"
        raise deadline.fault(f"{deadline.shown()} is not after earliest", fix)
    return time


def read_env(at: Cursor) -> dict[str, str]:
    """Read `env`. Values are taken as written: `1.10` stays `1.10`."""
    env: dict[str, str] = {}
    for name, inner in at.mapping("write a mapping such as env: {WANDB_MODE: offline}"):
        _check_variable(inner, name)
        if inner.node.value is None:
            fix = 'write a value, "" for an empty one, or list the name under secrets'
            raise inner.fault("has no value", fix)
        env[name] = inner.word("write one value as text", most=128 * 1024 - 256)
    return env


def read_secrets(at: Cursor, env: Mapping[str, str]) -> tuple[str, ...]:
    """Read `secrets`: names only."""
    fix = "write a list of names such as [HF_TOKEN]; values are given at submit"
    if isinstance(at.node.value, dict):
        raise at.fault("secrets holds values", fix)
    names: list[str] = []
    for row in at.rows(fix, most=256):
        name = row.text(fix)
        _check_variable(row, name)
        if name in env:
            raise row.fault(f"'{name}' also stands in env", "remove one of them")
        if name in names:
            raise row.fault(f"'{name}' stands twice", "remove one of them")
        names.append(name)
    return tuple(names)


def read_path(at: Cursor) -> str:
    """Read a path. Whether it exists is not known here."""
    return at.word("write a path on one line", pattern=PATH)


def read_image(at: Cursor) -> str:
    """Read a container image name."""
    fix = "write an image such as nvcr.io/nvidia/pytorch:24.07-py3"
    return at.text(fix, pattern=r"^[^\s]{1,512}$")


def read_mounts(at: Cursor) -> tuple[Mount, ...]:
    """Read `mounts`: rows `PATH`, `SOURCE:TARGET` or `SOURCE:TARGET:ro`."""
    fix = "write a list such as [/data, '/scratch/x:/x', '/ref:/ref:ro']"
    found: list[Mount] = []
    for row in at.rows(fix, most=256):
        source, *rest = row.word(fix, pattern=MOUNT).split(":")
        mount = Mount(
            source=source,
            target=rest[0] if rest and rest[0] not in ("ro", "rw") else source,
            is_read_only=rest[-1:] == ["ro"],
        )
        if any(mount.target == other.target for other in found):
            raise row.fault(f"'{mount.target}' is mounted twice", "mount each place once")
        found.append(mount)
    return tuple(found)


def read_name(at: Cursor) -> str:
    """Read the name of a reservation."""
    return at.word("write a name such as res-00001", pattern=NAME)


def read_checkpoint(at: Cursor) -> CheckpointSpec:
    """Read `checkpoint`."""
    fields = at.fields(("path", "signal", "grace", "every"))
    grace_s = fields.read("grace", lambda a: a.duration_s(most=MAX_GRACE_S), None)
    return CheckpointSpec(
        path=fields.read("path", read_path, None),
        signal=fields.read("signal", lambda a: a.parsed(parse_signal, "write SIGUSR1"), None),
        grace_s=CheckpointSpec().grace_s if grace_s is None else grace_s,
        every_s=fields.read("every", _every, None),
    )


def read_checks(at: Cursor) -> ChecksSpec:
    """Read `checks`: how long to all-reduce, or `true` for the usual time."""
    fields = at.fields(("allreduce",))
    return ChecksSpec(allreduce_s=fields.read("allreduce", _check_s, None))


def _check_s(at: Cursor) -> float | None:
    if isinstance(at.node.value, bool):
        return ALLREDUCE_S if at.node.value else None
    return at.duration_s(least=1.0, most=600.0)


def read_retry(at: Cursor) -> RetrySpec:
    """Read `retry`."""
    if isinstance(at.node.value, bool | int):
        fix = "write retry: {on: [node_failed, preempted], max: 5}; max: 0 retries nothing"
        raise at.wrong("a mapping", fix)
    fields = at.fields(("on", "max", "backoff"))
    default = RetrySpec()
    return RetrySpec(
        on=fields.read("on", _causes, default.on),
        max=fields.read("max", lambda a: a.integer(0, 1000), default.max),
        backoff_s=fields.read("backoff", lambda a: a.duration_s(most=86400.0), default.backoff_s),
    )


def read_depends_on(at: Cursor) -> tuple[Dependency, ...]:
    """Read `depends_on`: rows `{job, when}`, or bare job ids for `when: ok`."""
    fix = "write a list such as [{job: job-00001, when: ok}]"
    found: list[Dependency] = []
    for row in at.rows(fix, most=1000):
        if isinstance(row.node.value, dict):
            fields = row.fields(("job", "when"))
            dependency = Dependency(
                job=fields.need("job", _job_id, "write the id of a job, such as job-00001"),
                when=fields.read("when", lambda a: a.choice(DependsWhen), DependsWhen.OK),
            )
        else:
            dependency = Dependency(job=_job_id(row))
        if any(dependency.job == other.job for other in found):
            raise row.fault(f"'{dependency.job}' stands twice", "name each job once")
        found.append(dependency)
    return tuple(found)


def read_array(at: Cursor) -> ArraySpec:
    """Read `array`."""
    if not isinstance(at.node.value, str):
        fix = ARRAY_FORM
        if isinstance(at.node.value, int) and not isinstance(at.node.value, bool):
            count = max(at.node.value, 1)
            fix = f'write "0-{count - 1}" for {count} elements, in quotes'
        raise at.wrong("a range of indexes", fix)
    return at.parsed(parse_array, ARRAY_FORM)


def read_sites(at: Cursor) -> tuple[str, ...]:
    """Read `sites`, in order of preference."""
    return _words(at, NAME, "write a list of sites such as [local, hpc]")


def read_speed(at: Cursor, types: tuple[str, ...]) -> tuple[dict[str, float], tuple[Goodput, ...]]:
    """Read `speed`: by device type a relative speed, or a goodput profile."""
    speed: dict[str, float] = {}
    goodput: list[Goodput] = []
    seen: list[str] = []
    for name, inner in at.mapping("write a mapping such as speed: {H100: 1.0, A100: 0.4}"):
        device_type = _device_type(inner, name, types)
        if device_type in seen:
            raise inner.fault(f"'{device_type}' stands twice", "write each type once")
        seen.append(device_type)
        if isinstance(inner.node.value, dict):
            goodput.append(_goodput(inner, device_type))
        else:
            speed[device_type] = inner.number(1e-6, 1e6, "a relative speed")
    return speed, tuple(goodput)


def read_notify(at: Cursor) -> tuple[NotifySpec, ...]:
    """Read `notify`."""
    fix = "write a list such as [{on: [failed, finished], url: https://example.org/hook}]"
    found = []
    for row in at.rows(fix, most=32):
        fields = row.fields(("on", "url"))
        events = fields.need("on", _events, "write when to call, such as on: [failed]")
        url = fields.need("url", _url, "write the address to call, such as https://example.org/h")
        found.append(NotifySpec(on=events, url=url))
    return tuple(found)


def read_labels(at: Cursor) -> dict[str, str]:
    """Read free labels; values are taken as written."""
    labels: dict[str, str] = {}
    for name, inner in at.mapping("write a mapping such as labels: {project: x}"):
        if not re.fullmatch(LABEL, name, re.ASCII):
            fix = "write 1 to 63 letters, digits and . _ / - inside"
            raise inner.fault(f"'{name[:80]}' is not a label's name", fix)
        labels[name] = inner.word("write one value as text", most=256)
    return labels


def _match(at: Cursor) -> str:
    text = at.text("write an expression such as pool == 'a'")
    try:
        return compile_match(text).text
    except UserError as error:
        raise at.fault(error.message, error.hint or "write an expression") from None


def _words(at: Cursor, pattern: str, fix: str) -> tuple[str, ...]:
    words: list[str] = []
    for row in at.rows(fix):
        word = row.word(fix, pattern=pattern)
        if word in words:
            raise row.fault(f"'{word}' stands twice", "remove one of them")
        words.append(word)
    return tuple(words)


def _check_variable(at: Cursor, name: str) -> None:
    if not re.match(ENVIRONMENT, name, re.ASCII) or name.endswith("\n"):
        fix = "write letters, digits and _, not starting with a digit"
        raise at.fault(f"'{name[:80]}' is not a name of a variable", fix)
    if name in RESERVED_ENV:
        raise at.fault(f"'{name}' is set by Tercio", "use another name")


def _every(at: Cursor) -> float | None:
    if at.node.raw == "auto" and isinstance(at.node.value, str):
        return None
    return at.duration_s(least=1.0)


def _causes(at: Cursor) -> tuple[EndCause, ...]:
    options = [cause.value for cause in RETRY_CAUSES]
    causes: list[EndCause] = []
    for row in at.rows("write a list such as [node_failed, preempted]"):
        cause = EndCause(row.option(options, others=_RETRY_HINTS))
        if cause in causes:
            raise row.fault(f"'{cause}' stands twice", "remove one of them")
        causes.append(cause)
    return tuple(causes)


def _events(at: Cursor) -> tuple[str, ...]:
    rows = at.rows("write a list such as [failed, finished]")
    if not rows:
        raise at.fault("is empty", "write when to call, such as [failed, finished]")
    events = [row.option(NOTIFY_EVENTS) for row in rows]
    return tuple(dict.fromkeys(events))


def _url(at: Cursor) -> str:
    return at.text("write an address such as https://example.org/hook", pattern=URL, most=2048)


def _job_id(at: Cursor) -> JobId:
    return JobId(at.text("write the id of a job, such as job-00001", pattern=JOB_ID))


def _device_type(at: Cursor, name: str, types: tuple[str, ...]) -> str:
    card = find_card(name)
    if card:
        return card.type
    if name in types:
        return name
    raise at.fault(f"'{name[:80]}' is not a known device type", nearest_types(name, others=types))


def _goodput(at: Cursor, device_type: str) -> Goodput:
    fields = at.fields(("tasks", "units_per_s"))
    sizes = fields.need(
        "tasks",
        lambda a: [row.integer(1, 100_000) for row in a.rows("write sizes such as [1, 2, 4]")],
        "write the measured gang sizes, such as [1, 2, 4]",
    )
    rates = fields.need(
        "units_per_s",
        lambda a: [row.number(0, 1e18) for row in a.rows("write rates such as [1.0, 1.9]")],
        "write the measured progress per second at each size",
    )
    if not sizes or len(sizes) != len(rates):
        fix = "write one rate for each size"
        raise at.fault(f"{len(sizes)} sizes and {len(rates)} rates", fix)
    if any(a >= b for a, b in itertools.pairwise(sizes)):
        raise at.fault("sizes are not ascending", "write sizes in ascending order")
    return Goodput(type=device_type, tasks=tuple(sizes), units_per_s=tuple(rates))
