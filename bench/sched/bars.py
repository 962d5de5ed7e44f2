"""Speed of scheduling decisions, each beside the best published figure.

Run: `python bench/sched/bars.py [NAME ...]`. Virtual clusters in memory, one process, no GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

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


def warm(r: Rounds) -> tuple[Memory, Snapshot]:
    """A memory that knows the nodes and running jobs, and a snapshot that brings the rest."""
    memory = Memory()
    snapshot = r.snapshot()
    base = msgspec.structs.replace(snapshot, waiting={}, changes=None)
    schedule(base, r.policy, r.now_s, 0, memory)
    changes = Changes(since=snapshot.revision, waiting=tuple(snapshot.waiting))
    following = msgspec.structs.replace(snapshot, revision=snapshot.revision + 1, changes=changes)
    return memory, following


def timed(r: Rounds) -> tuple[float, Plan, Memory]:
    """Seconds of CPU of one cycle on a warm memory."""
    memory, snapshot = warm(r)
    begin = time.process_time()
    plan = schedule(snapshot, r.policy, r.now_s, 0, memory)
    return time.process_time() - begin, plan, memory


def placement() -> Row:
    r = Rounds(cluster("50r x 100n x 8g"), POLICY)
    for at in range(10_000):
        r.submit(f"j{at}", gang("1x1"))
    spent, plan, _ = timed(r)
    assert len(plan.starts) == 10_000
    return "plain placement, 10,000 x 1 on 5,000 x 8", f"{10_000 / spent:,.0f}/s", "680/s"


def topology() -> Row:
    r = Rounds(cluster("50r x 100n x 8g"), POLICY)
    for at in range(2_250):
        r.submit(f"j{at}", gang("4x8", same="rack") if at < 1_000 else gang("4x1", same="rack"))
    spent, plan, _ = timed(r)
    assert len(plan.starts) == 2_250, len(plan.starts)
    return "2,250 rack gangs of 4 on 5,000 nodes", f"{9_000 / spent:,.0f} tasks/s", "492-630/s"


def large_gang() -> Row:
    r = Rounds(cluster("100r x 100n x 8g"), POLICY)
    r.submit("G", gang("512x8"))
    spent, plan, _ = timed(r)
    assert len(plan.starts) == 1
    return "one gang 512 x 8 on 10,000 nodes", f"{spent * 1000:.0f} ms", "49 s"


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
    spent, plan, _ = timed(r)
    assert not plan.evictions
    assert not plan.starts
    return "definite no, 10 x 8 against 4,000 jobs", f"{spent * 1000:.0f} ms", "249.5 s"


def reclaim() -> Row:
    queues = {"S": QueueSpec(), "R": QueueSpec(guarantee={"devices": 2_000_000})}
    r = Rounds(cluster("500n x 8g"), msgspec.structs.replace(POLICY, queues=queues))
    for at in range(4_000):
        r.submit(f"s{at}", gang("1x1"), queue="S")
    r.cycle()
    r.submit("G", gang("250x8"), queue="R")
    spent, plan, _ = timed(r)
    assert len(plan.evictions) == 2_000, len(plan.evictions)
    return "reclaim 250 x 8 from 4,000 jobs", f"{spent * 1000:.0f} ms", "102 s"


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
    begin = time.process_time()
    for at in range(10):
        again = msgspec.structs.replace(
            still, revision=still.revision + at + 1, changes=Changes(since=still.revision + at)
        )
        schedule(again, r.policy, 2.0 + at, 0, memory)
    spent = (time.process_time() - begin) / 10
    return "idle cycle, 10,000 nodes, 20,000 + 10,000 jobs", f"{spent * 1000:.2f} ms", "2.35 s"


def one_end() -> Row:
    r = Rounds(cluster("100r x 100n x 8g"), POLICY)
    for at in range(20_000):
        r.submit(f"r{at}", gang("1x4", limit_s=1e6 + at))
    r.cycle()
    for at in range(10_000):
        r.submit(f"w{at}", gang(f"{1 + at % 50}x8", limit_s=1000.0 + at % 97), user=f"u{at % 20}")
    memory, snapshot = warm(r)
    plan = schedule(snapshot, r.policy, 0.0, 0, memory)
    running = dict(snapshot.running)
    running.pop("r77")  # type: ignore[call-overload]
    changed = msgspec.structs.replace(
        snapshot, promises=plan.promises, running=running, revision=snapshot.revision + 1,
        changes=Changes(since=snapshot.revision, running=("r77",)),  # type: ignore[arg-type]
    )  # fmt: skip
    begin = time.process_time()
    schedule(changed, r.policy, 1.0, 0, memory)
    spent = time.process_time() - begin
    return "one job of 20,000 ends, 10,000 wait", f"{spent * 1000:.0f} ms", "2.35 s"


def cold() -> Row:
    r = Rounds(cluster("100r x 100n x 8g"), POLICY)
    for at in range(20_000):
        r.submit(f"r{at}", gang("1x4", limit_s=1e6 + at))
    r.cycle()
    for at in range(80_000):
        r.submit(f"w{at}", gang(f"{1 + at % 50}x8", limit_s=1000.0 + at % 97), user=f"u{at % 20}")
    snapshot = msgspec.structs.replace(r.snapshot(), changes=None)
    begin = time.process_time()
    schedule(snapshot, r.policy, 0.0, 0, Memory())
    spent = time.process_time() - begin
    return "cold start, 10,000 nodes, 100,000 jobs", f"{spent:.2f} s", "up to 15 min"


def _backfill(nodes: int) -> Row:
    r = Rounds(cluster(f"{nodes}n x 8g"), POLICY)
    for at in range(nodes):
        r.submit(f"r{at}", gang("1x8", limit_s=3600.0 + at * 7 % 86_400))
    r.cycle()
    sizes = (2, 4, 8, 16, 32, 64)
    for at in range(5_000):
        size = f"1x{1 + at % 8}" if at % 5 < 3 else f"{sizes[at % 6]}x8"
        r.submit(f"w{at}", gang(size, limit_s=600.0 * (1 + at % 144)), user=f"u{at % 50}")
    spent, plan, _ = timed(r)
    assert len(plan.promises) == 1
    published = "7.3 s" if nodes == 1_000 else "48-96 s (22.05)"
    return f"backfill, 5,000 waiting, {nodes:,} nodes full", f"{spent * 1000:.0f} ms", published


def backfill_1k() -> Row:
    return _backfill(1_000)


def backfill_4k() -> Row:
    return _backfill(4_000)


def starts() -> Row:
    r = Rounds(cluster("1000n x 8g"), POLICY)
    for at in range(4_000):
        r.submit(f"j{at}", gang("1x2", limit_s=600.0 + at % 100))
    spent, plan, _ = timed(r)
    assert len(plan.starts) == 4_000
    return "4,000 two-device starts on 1,000 nodes", f"{4_000 / spent:,.0f}/s", "330/s"


ALL: tuple[Callable[[], Row], ...] = (
    placement, topology, large_gang, definite_no, reclaim, idle, one_end, cold,
    backfill_1k, backfill_4k, starts,
)  # fmt: skip

if __name__ == "__main__":
    chosen = [bench for bench in ALL if not sys.argv[1:] or bench.__name__ in sys.argv[1:]]
    print(f"{'what':52} {'ours':>16}  published")
    for bench in chosen:
        what, ours, published = bench()
        print(f"{what:52} {ours:>16}  {published}", flush=True)
