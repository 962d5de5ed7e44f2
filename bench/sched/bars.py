"""Speed of scheduling decisions, each beside the best published figure.

Run: `python bench/sched/bars.py [NAME ...]`. Virtual clusters in memory, one process, no GPU. CPU
time is measured, so that other work on the machine counts little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from tercio.model.queue import Policy, PreemptionPolicy, QueueSpec
from tercio.model.snapshot import Changes, Snapshot
from tercio.sched.cycle import schedule
from tercio.sched.memory import Memory
from tercio.sched.plan import Plan
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

POLICY = Policy(
    half_life_s=0.0,
    preemption=PreemptionPolicy(grace_s=0, min_runtime_s=0, max_evictions_per_job_per_hour=None),
)
Row = tuple[str, str, str]

RUNS = 10
"""How often one cycle from the same state is measured."""
CYCLES = 100
"""How many cycles in a row are measured where one follows the other."""


def quantiles(found: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 by nearest rank; of fewer than a hundred, p99 is the worst."""
    ranked = sorted(found)
    return ranked[(len(ranked) - 1) // 2], ranked[max(0, -(-99 * len(ranked) // 100) - 1)]


def milliseconds(found: Sequence[float]) -> str:
    """p50 / p99 of times in seconds."""
    return " / ".join(f"{1000 * each:,.{0 if each > 0.1 else 1}f} ms" for each in quantiles(found))


def rate(count: int, found: Sequence[float], unit: str = "") -> str:
    """How many a second, at the p50 / p99 of the time for `count`."""
    return " / ".join(f"{count / each:,.0f}{unit}/s" for each in quantiles(found))


def warm(r: Rounds) -> tuple[Memory, Snapshot]:
    """A memory that knows the nodes and running jobs, and a snapshot that brings the rest."""
    memory = Memory()
    snapshot = r.snapshot()
    base = msgspec.structs.replace(snapshot, waiting={}, changes=None)
    schedule(base, r.policy, r.now_s, 0, memory)
    changes = Changes(since=snapshot.revision, waiting=tuple(snapshot.waiting))
    following = msgspec.structs.replace(snapshot, revision=snapshot.revision + 1, changes=changes)
    return memory, following


def timed(r: Rounds) -> tuple[list[float], Plan]:
    """Seconds of CPU of one cycle on a warm memory, each time from the same state; its plan."""
    found = []
    for _ in range(RUNS):
        memory, snapshot = warm(r)
        begin = time.process_time()
        plan = schedule(snapshot, r.policy, r.now_s, 0, memory)
        found.append(time.process_time() - begin)
    return found, plan


def placement() -> Row:
    r = Rounds(cluster("50r x 100n x 8g"), POLICY)
    for at in range(10_000):
        r.submit(f"j{at}", gang("1x1"))
    spent, plan = timed(r)
    assert len(plan.starts) == 10_000
    return "plain placement, 10,000 x 1 on 5,000 x 8", rate(10_000, spent), "680/s"


def topology() -> Row:
    r = Rounds(cluster("50r x 100n x 8g"), POLICY)
    for at in range(2_250):
        r.submit(f"j{at}", gang("4x8", same="rack") if at < 1_000 else gang("4x1", same="rack"))
    spent, plan = timed(r)
    assert len(plan.starts) == 2_250, len(plan.starts)
    return "2,250 rack gangs of 4 on 5,000 nodes", rate(9_000, spent, " tasks"), "492-630/s"


def large_gang() -> Row:
    r = Rounds(cluster("100r x 100n x 8g"), POLICY)
    r.submit("G", gang("512x8"))
    spent, plan = timed(r)
    assert len(plan.starts) == 1
    return "one gang 512 x 8 on 10,000 nodes", milliseconds(spent), "49 s"


def definite_no() -> Row:
    total = 4_000
    queues = {
        "S": QueueSpec(guarantee={"devices": (total - 79) * 1000}, weight=0),
        "R": QueueSpec(guarantee={"devices": total * 1000}),
    }
    r = Rounds(cluster("500n x 8g"), msgspec.structs.replace(POLICY, queues=queues))
    for at in range(total):
        r.submit(f"s{at}", gang("1x1"), queue="S")
    r.cycle()
    r.submit("G", gang("10x8"), queue="R")
    spent, plan = timed(r)
    assert not plan.evictions
    assert not plan.starts
    return "definite no, 10 x 8 against 4,000 jobs", milliseconds(spent), "249.5 s"


def reclaim() -> Row:
    queues = {"S": QueueSpec(), "R": QueueSpec(guarantee={"devices": 2_000_000})}
    r = Rounds(cluster("500n x 8g"), msgspec.structs.replace(POLICY, queues=queues))
    for at in range(4_000):
        r.submit(f"s{at}", gang("1x1"), queue="S")
    r.cycle()
    r.submit("G", gang("250x8"), queue="R")
    spent, plan = timed(r)
    assert len(plan.evictions) == 2_000, len(plan.evictions)
    return "reclaim 250 x 8 from 4,000 jobs", milliseconds(spent), "102 s"


def idle() -> Row:
    r = Rounds(cluster("100r x 100n x 8g"), POLICY)
    for at in range(20_000):
        r.submit(f"r{at}", gang("1x4", limit_s=1e6 + at))
    r.cycle()
    for at in range(10_000):
        r.submit(f"w{at}", gang(f"{1 + at % 50}x8", limit_s=1000.0 + at % 97), user=f"u{at % 20}")
    memory, snapshot = warm(r)
    plan = schedule(snapshot, r.policy, 0.0, 0, memory)
    still = msgspec.structs.replace(
        snapshot, promises=plan.promises, revision=snapshot.revision + 1,
        changes=Changes(since=snapshot.revision),
    )  # fmt: skip
    schedule(still, r.policy, 1.0, 0, memory)
    spent = []
    for at in range(CYCLES):
        again = msgspec.structs.replace(
            still, revision=still.revision + at + 1, changes=Changes(since=still.revision + at)
        )
        begin = time.process_time()
        schedule(again, r.policy, 2.0 + at / CYCLES, 0, memory)
        spent.append(time.process_time() - begin)
    return "idle cycle, 10,000 nodes, 20,000 + 10,000 jobs", milliseconds(spent), "2.35 s"


def one_end() -> Row:
    r = Rounds(cluster("100r x 100n x 8g"), POLICY)
    for at in range(20_000):
        r.submit(f"r{at}", gang("1x4", limit_s=1e6 + at))
    r.cycle()
    for at in range(10_000):
        r.submit(f"w{at}", gang(f"{1 + at % 50}x8", limit_s=1000.0 + at % 97), user=f"u{at % 20}")
    r.cycle()
    spent = []
    for at in range(CYCLES):
        r.finish(f"r{7 * at}")
        begin = time.process_time()
        r.cycle()
        spent.append(time.process_time() - begin)
    return "one job of 20,000 ends, 10,000 wait", milliseconds(spent), "2.35 s"


def cold() -> Row:
    r = Rounds(cluster("100r x 100n x 8g"), POLICY)
    for at in range(20_000):
        r.submit(f"r{at}", gang("1x4", limit_s=1e6 + at))
    r.cycle()
    for at in range(80_000):
        r.submit(f"w{at}", gang(f"{1 + at % 50}x8", limit_s=1000.0 + at % 97), user=f"u{at % 20}")
    snapshot = msgspec.structs.replace(r.snapshot(), changes=None)
    spent = []
    for _ in range(RUNS // 2):
        begin = time.process_time()
        schedule(snapshot, r.policy, 0.0, 0, Memory())
        spent.append(time.process_time() - begin)
    return "cold start, 10,000 nodes, 100,000 jobs", milliseconds(spent), "up to 15 min"


def _backfill(nodes: int) -> Row:
    r = Rounds(cluster(f"{nodes}n x 8g"), POLICY)
    for at in range(nodes):
        r.submit(f"r{at}", gang("1x8", limit_s=3600.0 + at * 7 % 86_400))
    r.cycle()
    sizes = (2, 4, 8, 16, 32, 64)
    for at in range(5_000):
        size = f"1x{1 + at % 8}" if at % 5 < 3 else f"{sizes[at % 6]}x8"
        r.submit(f"w{at}", gang(size, limit_s=600.0 * (1 + at % 144)), user=f"u{at % 50}")
    spent, plan = timed(r)
    assert len(plan.promises) == 1
    published = "7.3 s" if nodes == 1_000 else "48-96 s (22.05)"
    return f"backfill, 5,000 waiting, {nodes:,} nodes full", milliseconds(spent), published


def backfill_1k() -> Row:
    return _backfill(1_000)


def backfill_4k() -> Row:
    return _backfill(4_000)


def starts() -> Row:
    r = Rounds(cluster("1000n x 8g"), POLICY)
    for at in range(4_000):
        r.submit(f"j{at}", gang("1x2", limit_s=600.0 + at % 100))
    spent, plan = timed(r)
    assert len(plan.starts) == 4_000
    return "4,000 two-device starts on 1,000 nodes", rate(4_000, spent), "330/s"


ALL: tuple[Callable[[], Row], ...] = (
    placement, topology, large_gang, definite_no, reclaim, idle, one_end, cold,
    backfill_1k, backfill_4k, starts,
)  # fmt: skip

if __name__ == "__main__":
    chosen = [bench for bench in ALL if not sys.argv[1:] or bench.__name__ in sys.argv[1:]]
    print(f"{'what':50} {'ours, p50 / p99':>26}  published")
    for bench in chosen:
        what, ours, published = bench()
        print(f"{what:50} {ours:>26}  {published}", flush=True)
