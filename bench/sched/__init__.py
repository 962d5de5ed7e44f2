"""The scheduler alone, on virtual clusters: the rows of `bars` as a topic of the bench."""

from __future__ import annotations

from bench.sched.bars import ALL
from bench.sched.curves import by_nodes, by_waiting
from bench.table import Row

# What we want, in the order of `ALL`.
BARS = (
    "10,000/s", "5,000 tasks/s", "100 ms", "0.5 s", "1 s", "5 ms", "", "5 s", "0.5 s", "1 s",
    "5,000/s",
)  # fmt: skip


def tables() -> list[tuple[str, list[Row], str]]:
    made = [bar() for bar in ALL]
    rows = [
        Row(what, ours, bar, published)
        for (what, ours, published), bar in zip(made, BARS, strict=True)
    ]
    notes = (
        "p50 / p99 of the CPU of a cycle: of 100 cycles in a row (idle, one job ends), of ten from "
        "the same state (five cold starts), where p99 is the worst. One process, no GPU; others as "
        "published by them, on their machines."
    )
    grown = (
        "A full cluster of nodes with 8 devices; every node runs two jobs; the waiting jobs are "
        "gangs of 1 to 50 nodes of 20 users with 97 time limits. Each cycle follows one event; "
        "p50 / p99 of the CPU of 100 cycles."
    )
    return [
        ("Scheduling decisions", rows, notes),
        ("Cycle time by nodes, 1,000 jobs wait", by_nodes(), grown),
        ("Cycle time by waiting jobs, 1,000 nodes", by_waiting(), grown),
    ]
