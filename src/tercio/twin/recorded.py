"""How long jobs really waited, where the log says so: what a twin of the past is held against."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import numpy as np

from tercio.twin.stats import Waits, waits_of
from tercio.twin.trace import Trace


def recorded_waits(trace: Trace) -> Waits | None:
    """Return the waits of the log itself, or None where fewer than half of the jobs have one."""
    found = [wait for job in trace.jobs if (wait := _wait_s(trace.kind, job.columns)) is not None]
    if 2 * len(found) < len(trace.jobs) or not found:
        return None
    return waits_of(np.maximum(np.array(found, np.float64), 0.0))


def _wait_s(kind: str, columns: Mapping[str, str]) -> float | None:
    match kind:
        case "sacct":
            return _between(_instant_s(columns.get("Submit")), _instant_s(columns.get("Start")))
        case "openb":
            names = ("creation_time", "scheduled_time")
            return _between(*(_number(columns.get(name)) for name in names))
        case "swf":
            wait_s = _number(columns.get("wait"))
            return wait_s if wait_s is not None and wait_s >= 0 else None
        case _:
            return None


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _instant_s(text: str | None) -> float | None:
    if text is not None and text.isdigit():
        return float(text)
    try:
        at = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
