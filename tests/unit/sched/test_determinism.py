"""The same input gives the same plan: in any process, and with or without a memory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import msgspec

from tercio.model.queue import Policy, QueueSpec
from tercio.sched.cycle import schedule
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds


def busy_day() -> Rounds:
    """More classes than are tried one by one, two queues, reclaim, ends and submits."""
    queues = {"a": QueueSpec(guarantee={"devices": 64_000}), "b": QueueSpec()}
    r = Rounds(cluster("2r x 8n x 8g"), Policy(half_life_s=0.0, queues=queues))
    for at in range(32):
        r.submit(f"r{at}", gang("1x4", limit_s=1_000.0 + at), queue="ab"[at % 2])
    r.cycle()
    for at in range(200):
        size = f"{1 + at % 5}x{1 + at % 8}"
        r.submit(f"w{at}", gang(size, limit_s=500.0 + at), queue="ab"[at % 3 % 2],
                 user=f"u{at % 7}", priority=at % 2)  # fmt: skip
    for at in range(6):
        r.cycle()
        running = next(iter(r.running))
        r.finish(running)
        r.submit(f"s{at}", gang("1x1", limit_s=60.0), queue="b")
    r.cycle()
    return r


def digest() -> str:
    """Of every plan and decision of the day."""
    r = busy_day()
    found = hashlib.blake2b(digest_size=16)
    for plan in r.plans:
        found.update(msgspec.json.encode((plan.starts, plan.evictions, plan.promises)))
    last = r.plans[-1]
    found.update(msgspec.json.encode([last.decisions[job] for job in r.waiting]))
    return found.hexdigest()


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    found = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, __file__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    assert len(found) == 1
    assert len(found.pop()) == 32


def test_a_scheduler_that_remembers_plans_as_one_that_does_not() -> None:
    r = busy_day()
    for at in range(5):
        r.finish(next(iter(r.running)))
        snapshot = r.snapshot()
        fresh = schedule(msgspec.structs.replace(snapshot, changes=None), r.policy, r.now_s, 0)
        reasons = {job: (fresh.briefs[job].reason, fresh.briefs[job].message) for job in r.waiting}
        waiting = list(r.waiting)
        plan = r.cycle()
        assert (plan.starts, plan.evictions, plan.promises) == (
            fresh.starts, fresh.evictions, fresh.promises,
        ), at  # fmt: skip
        assert {
            job: (plan.briefs[job].reason, plan.briefs[job].message) for job in waiting
        } == reasons


if __name__ == "__main__":
    print(digest())
