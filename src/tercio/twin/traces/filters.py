"""Choosing jobs of a trace by its own columns: `cluster=103959`, `num_gpu>=8`.

>>> parse_filter("num_gpu>=8")
Filter(column='num_gpu', operator='>=', value='8')
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.twin.trace import Trace, TraceJob

_FORM: Final = re.compile(r"^\s*([^=!<>]+?)\s*(!=|>=|<=|=|>|<)(.*)$", re.DOTALL)
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Filter(msgspec.Struct, frozen=True):
    """One condition on a column. Numbers compare as numbers, everything else as text."""

    column: str
    operator: str
    value: str


def parse_filter(text: str) -> Filter:
    """Read `COLUMN=VALUE`, or one with `!=`, `<`, `<=`, `>` or `>=`.

    Raises:
        UserError: the text has no operator.
    """
    match = _FORM.match(text)
    if match is None:
        raise UserError(
            f"--filter {text!r} is not a condition",
            field="filter",
            hint="write COLUMN=VALUE, such as cluster=103959, or num_gpu>=8",
        )
    column, sign, value = match.groups()
    return Filter(column, sign, value.strip())


def apply_filters(trace: Trace, filters: Sequence[Filter]) -> Trace:
    """Return the trace with the jobs that meet every condition; the rest is counted.

    Raises:
        UserError: a column that no job has, or no job is left.
    """
    if not filters:
        return trace
    known: dict[str, None] = {}
    for job in trace.jobs:
        known.update(dict.fromkeys(job.columns))
    for condition in filters:
        if condition.column not in known:
            raise UserError(
                f"--filter: no column {condition.column!r} in {trace.source}",
                field="filter",
                hint=did_you_mean(condition.column, known) or f"columns: {', '.join(known)}",
            )
    jobs = tuple(job for job in trace.jobs if all(_meets(job, one) for one in filters))
    if not jobs:
        wanted = " and ".join(f"{f.column}{f.operator}{f.value}" for f in filters)
        raise UserError(f"no job of {trace.source} has {wanted}", field="filter")
    left = len(trace.jobs) - len(jobs)
    warnings = (*trace.warnings, f"left out {left:,} rows: --filter") if left else trace.warnings
    return msgspec.structs.replace(trace, jobs=jobs, warnings=warnings)


def _meets(job: TraceJob, condition: Filter) -> bool:
    value = job.columns.get(condition.column)
    if value is None:
        return condition.operator == "!="
    value = value.strip()
    compare = _COMPARE[condition.operator]
    try:
        return compare(float(value), float(condition.value))
    except ValueError:
        return compare(value, condition.value)
