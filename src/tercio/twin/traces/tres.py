"""The small languages inside a Slurm accounting row: TRES lists, times, limits, job ids.

Source: the sacct and slurm.conf manual pages of SchedMD (TRES, "JOB STATE CODES", time forms).
"""

from __future__ import annotations

import datetime
import re
from typing import Final, NamedTuple

from tercio.formats.cards import canonical_type
from tercio.twin.traces.source import DEVICES_MAX, Row

_SUFFIXES: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_AMOUNT: Final = re.compile(r"^(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)$", re.IGNORECASE | re.ASCII)
_LIMIT: Final = re.compile(r"^(?:(\d{1,6})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?$", re.ASCII)
_ID: Final = re.compile(
    r"^(?P<base>\d{1,12})(?:_(?P<element>\d{1,9}|\[[^\]]*\]))?(?:\+(?P<part>\d{1,4}))?"
    r"(?P<step>\..+)?$",
    re.ASCII,
)
NO_TIME: Final = frozenset({"", "Unknown", "None", "N/A"})
_EPOCH_MAX_S: Final = 1e11


class Tres(NamedTuple):
    """What a TRES list says.

    Attributes:
        devices, device_type: of all nodes; the type is None where it is not one.
        cpus: cores, None where not listed.
        memory_bytes: None where not listed.
        nodes: None where not listed.
        is_shared: a part of the request is a share of a device (shard, mps).
    """

    devices: int = 0
    device_type: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    nodes: int | None = None
    is_shared: bool = False


class JobNumber(NamedTuple):
    """The parts of a Slurm job id: `123_4+1.batch`."""

    base: str
    element: str | None
    part: str | None
    step: str | None


def parse_job_number(row: Row, field: str) -> JobNumber:
    """Read the id of a job, an array element, a component or a step.

    Raises:
        RowFault: it is none of them.
    """
    match = _ID.match(row.text(field))
    if match is None:
        raise row.fault(field, "a job id such as 1234, 1234_5, 1234+0 or 1234.batch")
    return JobNumber(match["base"], match["element"], match["part"], match["step"])


def parse_tres(row: Row, field: str) -> Tres:
    """Read a list such as `cpu=8,gres/gpu:h100=4,gres/gpu=4,mem=64G,node=2`.

    Raises:
        RowFault: a part is no pair of a name and an amount.
    """
    plain, typed = 0, dict[str, int]()
    cpus: float | None = None
    memory_bytes: int | None = None
    nodes: int | None = None
    is_shared = False
    for pair in filter(None, row.text(field).split(",")):
        name, sign, text = pair.strip().rpartition("=")
        if not sign:
            raise row.fault(field, "a list such as cpu=8,gres/gpu=4,mem=64G,node=1")
        if name == "gres/gpu":
            plain = _count(row, field, text)
        elif name.startswith("gres/gpu:"):
            typed[name.removeprefix("gres/gpu:")] = _count(row, field, text)
        elif name == "cpu":
            cpus = amount(row, field, text, base=1000)
        elif name == "mem":
            # A bare number of memory is MiB in Slurm.
            unit = 1 if text[-1:].isalpha() else 1 << 20
            memory_bytes = int(amount(row, field, text) * unit)
        elif name == "node":
            nodes = max(_count(row, field, text), 1)
        elif name.startswith(("gres/shard", "gres/mps")):
            is_shared = True
    devices = plain or sum(typed.values())
    kind = canonical_type(next(iter(typed))) if len(typed) == 1 and devices else None
    return Tres(devices, kind, cpus, memory_bytes, nodes, is_shared)


def amount(row: Row, field: str, text: str, *, base: int = 1024) -> float:
    """Read `64G` or `1.5K`.

    Raises:
        RowFault: it is no amount.
    """
    match = _AMOUNT.match(text.strip())
    if match is None:
        raise row.fault(field, f"a list of amounts ({text[:20]!r} is none)")
    return float(match[1]) * float(base ** _SUFFIXES[match[2].upper()])


def _count(row: Row, field: str, text: str) -> int:
    value = amount(row, field, text, base=1000)
    if value != int(value) or value > DEVICES_MAX:
        raise row.fault(field, f"a list of whole counts of at most {DEVICES_MAX}")
    return int(value)


def parse_time_s(row: Row, field: str) -> float | None:
    """Read an instant as sacct prints it, or seconds since the epoch; None for `Unknown`.

    Raises:
        RowFault: it is no instant.
    """
    text = row.text(field)
    if text in NO_TIME:
        return None
    if text.isascii() and text.isdigit() and float(text) < _EPOCH_MAX_S:
        return float(text)
    try:
        at = datetime.datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        raise row.fault(field, "a time such as 2026-11-30T08:00:00, or Unknown") from None


def parse_limit_s(row: Row, field: str) -> float | None:
    """Read `1-00:00:00`, `08:00:00`, `30:00` (minutes) or minutes; None for no limit.

    Raises:
        RowFault: it is no limit.
    """
    text = row.text(field)
    if text in NO_TIME or text.upper() in {"UNLIMITED", "PARTITION_LIMIT", "INVALID"}:
        return None
    match = _LIMIT.match(text)
    if match is None:
        raise row.fault(field, "a time limit such as 1-00:00:00, 08:00:00 or UNLIMITED")
    days, first, second, third = match.groups()
    if days is not None:
        clock = int(first) * 3600 + int(second or 0) * 60 + int(third or 0)
        return float(int(days) * 86400 + clock)
    if third is not None:
        return float(int(first) * 3600 + int(second) * 60 + int(third))
    return float(int(first) * 60 + int(second or 0))
