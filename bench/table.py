"""Rows of a bench table, printed and written to docs/bench.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure.

    Attributes:
        what: what was measured, and in which shape.
        ours: our figure with its unit.
        bar: what we want, or empty.
        others: published or measured figures of other systems, or empty.
    """

    what: str
    ours: str
    bar: str = ""
    others: str = ""


def markdown(title: str, rows: Sequence[Row], notes: str = "") -> str:
    """Return a section with one table."""
    lines = [f"## {title}", "", "| what | ours | bar | others |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.ours} | {row.bar} | {row.others} |" for row in rows]
    return "\n".join([*lines, "", *([notes, ""] if notes else [])])


def plain(title: str, rows: Sequence[Row]) -> str:
    """Return the same, aligned for a terminal."""
    cells = [("what", "ours", "bar", "others")]
    cells += [(row.what, row.ours, row.bar, row.others) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return "\n".join(
        [
            title,
            *(
                "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
                for row in cells
            ),
        ]
    )
