"""The scheduler alone, on virtual clusters: the rows of `bars` as a topic of the bench."""

from __future__ import annotations

from bench.sched.bars import ALL
from bench.table import Row


def tables() -> list[tuple[str, list[Row], str]]:
    made = [bar() for bar in ALL]
    rows = [Row(what, ours, "", published) for what, ours, published in made]
    notes = "One process, no GPU; others as published by them, on their machines."
    return [("Scheduling decisions", rows, notes)]
