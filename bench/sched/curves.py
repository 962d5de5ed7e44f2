"""How the time of a cycle grows with the cluster and with the queue, when one thing changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.sched.bars import milliseconds
from bench.table import Row
from tercio.model.queue import Policy
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

NODES = (1_000, 2_000, 5_000, 10_000)
WAITING = (1_000, 10_000, 100_000)
CYCLES = 100


def full_cluster(nodes: int, waiting: int) -> Rounds:
    """A full cluster with jobs waiting, after its first cycles."""
    r = Rounds(cluster(f"{nodes // 100}r x 100n x 8g"), Policy(half_life_s=0.0))
    for at in range(2 * nodes):
        r.submit(f"r{at}", gang("1x4", limit_s=1e6 + at))
    r.cycle()
    for at in range(waiting):
        spec = gang(f"{1 + at % 50}x8", limit_s=1000.0 + at % 97)
        r.submit(f"w{at}", spec, user=f"u{at % 20}")
    r.cycle()
    r.cycle()
    return r


def spent_ms(r: Rounds, change: Callable[[int], object]) -> str:
    """p50 and p99 of the CPU of a cycle after each change."""
    found = []
    for at in range(CYCLES):
        change(at)
        begin_s = time.process_time()
        r.cycle()
        found.append(time.process_time() - begin_s)
    return milliseconds(found)


def _row(what: str, nodes: int, waiting: int) -> Row:
    r = full_cluster(nodes, waiting)
    ends = spent_ms(r, lambda at: r.finish(f"r{7 * at}"))
    submits = spent_ms(r, lambda at: r.submit(f"s{at}", gang("2x8", limit_s=1000.0), user="u1"))
    idle = spent_ms(r, lambda _: None)
    return Row(what, f"a job ends {ends}; a submit {submits}; nothing {idle}")


def by_nodes() -> list[Row]:
    return [_row(f"{nodes:,} nodes, {2 * nodes:,} running", nodes, 1_000) for nodes in NODES]


def by_waiting() -> list[Row]:
    return [_row(f"{waiting:,} waiting", 1_000, waiting) for waiting in WAITING]
