"""What `tercio queue history` prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tercio.cli import human
from tercio.cli.output import Column, Listing, Output, show_rows, write_body
from tercio.cli.session import Session
from tercio.model.series_views import QUEUE_AMOUNTS, Amounts, QueuePast, QueuePastRow

_TREND_CELLS: Final = 24
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at an instant, or its means with the course of its use."""

    path: str
    at_s: float | None = None
    used: float | None
    entitled: float | None
    wanted: float | None
    decayed_use: float | None
    running: float | None
    waiting: float | None
    trend: str = ""


def show(session: Session, output: Output, body: bytes, *, is_one: bool) -> None:
    """Print the answer of `/v1/queue-past`; with `is_one` the steps of its first queue."""
    if output.format == "json" and not output.fields:
        write_body(body)
        return
    past = msgspec.json.decode(body, type=QueuePast)
    lines = _steps(past) if is_one else [_means(row) for row in past.rows]
    listing = _listing(is_one=is_one)
    show_rows(session, output, listing, [msgspec.Raw(msgspec.json.encode(line)) for line in lines])


def _listing(*, is_one: bool) -> Listing[_Line]:
    first = (
        Column[_Line]("TIME", "at_s", lambda line: human.local_time(line.at_s or 0.0))
        if is_one
        else Column[_Line]("QUEUE", "path", lambda line: line.path)
    )
    amounts = tuple(
        Column[_Line](name.upper(), name, _number(name), is_right=True)
        for name in QUEUE_AMOUNTS
        if name != "decayed_use"
    )
    past = Column[_Line]("PAST USE", "decayed_use", _past, is_right=True)
    trend = Column[_Line]("USED OVER TIME", "trend", lambda line: line.trend)
    columns = (first, *amounts, past) if is_one else (first, *amounts, past, trend)
    return Listing(columns, _Line, lambda line: line.path, "nothing was seen in that time")


def _number(name: str) -> Callable[[_Line], str]:
    def text(line: _Line) -> str:
        value = getattr(line, name)
        return human.NOTHING if value is None else human.number(round(value, 1))

    return text


def _past(line: _Line) -> str:
    return human.NOTHING if line.decayed_use is None else human.past_use(line.decayed_use)


def _steps(past: QueuePast) -> list[_Line]:
    """The steps of the first queue that something was seen in."""
    if not past.rows:
        return []
    row = past.rows[0]
    return [
        _Line(
            path=row.path,
            at_s=at_s,
            **{name: getattr(row, name)[place] for name in QUEUE_AMOUNTS},
        )
        for place, at_s in enumerate(past.at_s)
        if row.used[place] is not None
    ]


def _means(row: QueuePastRow) -> _Line:
    means = {name: _mean(getattr(row, name)) for name in QUEUE_AMOUNTS}
    # What is left of past use is a state, not a rate: the last one counts.
    means["decayed_use"] = next((v for v in reversed(row.decayed_use) if v is not None), None)
    return _Line(path=row.path, trend=trend(row.used), **means)


def _mean(values: Amounts) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def trend(values: Amounts) -> str:
    """Draw values as blocks, at most 24; the highest is full, a dot is no value.

    >>> trend((0.0, 4.0, None, 8.0))
    '▁▅·█'
    """
    count = min(_TREND_CELLS, len(values))
    parts = [
        _mean(values[at * len(values) // count : (at + 1) * len(values) // count])
        for at in range(count)
    ]
    most = max((part for part in parts if part is not None), default=0.0) or 1.0
    return "".join(
        "·" if part is None else _BLOCKS[round(part / most * (len(_BLOCKS) - 1))] for part in parts
    )
