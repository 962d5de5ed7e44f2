"""What `tercio show JOB --steps` prints: the pace of each rank."""

from __future__ import annotations

from statistics import median
from typing import Final

import msgspec

from tercio.cli import human
from tercio.cli.output import Column, Listing, Output, show_rows, write_body
from tercio.cli.session import Session
from tercio.model.series_views import JobSteps, StepGroup, StepRow

_CELLS: Final = 24
_SHADES: Final = "·░▒▓█"
_SHADE_RATIO: Final = 0.05
"""Slowness from one shade to the next."""


class _Rank(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    rank: int
    task: int
    node: str
    own_s: float | None
    ratio: float | None
    is_slow: bool
    trend: str


_LISTING: Final[Listing[_Rank]] = Listing(
    (
        Column("GROUP", "group", lambda row: row.group or human.NOTHING, is_wide=True),
        Column("RANK", "rank", lambda row: str(row.rank), is_right=True),
        Column("TASK", "task", lambda row: str(row.task), is_wide=True, is_right=True),
        Column("NODE", "node", lambda row: row.node),
        Column("OWN TIME", "own_s", lambda row: _seconds(row.own_s), is_right=True),
        Column("OFF MEDIAN", "ratio", lambda row: _off(row.ratio), is_right=True),
        Column("PACE", "is_slow", lambda row: "! slow" if row.is_slow else "ok"),
        Column("OVER TIME", "trend", lambda row: row.trend),
    ),
    _Rank,
    lambda row: str(row.rank),
    "the job marked no step; see TERCIO_MARKS in 'tercio help job-file'",
)


def show(session: Session, output: Output, body: bytes) -> None:
    """Print the answer of `/v1/jobs/{job}/steps`."""
    if output.format == "json" and not output.fields:
        write_body(body)
        return
    found = msgspec.json.decode(body, type=JobSteps)
    rows = [
        _Rank(
            group=group.name,
            rank=row.rank,
            task=row.task,
            node=row.node,
            own_s=next((value for value in reversed(row.own_s) if value is not None), None),
            ratio=row.ratio,
            is_slow=row.is_slow,
            trend=text,
        )
        for group in found.groups
        for row, text in zip(group.rows, trends(group), strict=True)
    ]
    show_rows(session, output, _LISTING, [msgspec.Raw(msgspec.json.encode(row)) for row in rows])
    if output.is_table and rows and not found.has_own:
        session.note("the ranks do not tell their own time: their wait for the others is in it")


def trends(group: StepGroup) -> list[str]:
    """Return the slowness of each rank over time, at most 24 cells; `·` is as the median."""
    middles = [_median([row.own_s[at] for row in group.rows]) for at in range(len(group.first))]
    count = min(_CELLS, len(middles))
    return ["".join(_cell(row, middles, at, count) for at in range(count)) for row in group.rows]


def _cell(row: StepRow, middles: list[float | None], at: int, count: int) -> str:
    start, stop = at * len(middles) // count, (at + 1) * len(middles) // count
    ratios = [
        own_s / middle
        for own_s, middle in zip(row.own_s[start:stop], middles[start:stop], strict=True)
        if own_s is not None and middle
    ]
    if not ratios:
        return " "
    place = round((max(1.0, sum(ratios) / len(ratios)) - 1) / _SHADE_RATIO)
    return _SHADES[min(place, len(_SHADES) - 1)]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _seconds(value: float | None) -> str:
    return human.NOTHING if value is None else f"{value:.3g} s"


def _off(ratio: float | None) -> str:
    return human.NOTHING if ratio is None else f"{(ratio - 1) * 100:+.1f} %"
