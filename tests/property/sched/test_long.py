"""Hours of virtual time with node loss and return, policy edits, overruns and early ends."""

from __future__ import annotations

import random

import msgspec
import pytest
from test_fuzz import guarantees_stand, policy_of

from tercio.model.limits import Limits, OwnerLimit
from tercio.model.node import NodeState
from tercio.model.snapshot import Snapshot
from tercio.sched.plan import Plan
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

HELD = Limits(per_user=OwnerLimit(amounts={"devices": 20_000, "running_jobs": 14}))
SAMPLE = 25
"""Every so many cycles the plan is compared with that of a scheduler that remembers nothing."""


def sampled(r: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    if len(r.plans) % SAMPLE == 0:
        rules.same_without_memory(r, snapshot, plan)


@pytest.mark.parametrize("seed", range(3))
def test_hours_of_random_work(seed: int):
    rng = random.Random(1000 + seed)
    policy = policy_of(rng)
    names = ("a", "b", "c")
    while set(policy.queues) != set(names):
        policy = policy_of(rng)
    policy = msgspec.structs.replace(policy, limits=HELD)
    checks = [sampled, rules.capacity, rules.gangs, rules.additions, rules.evictions_enable,
              rules.explained, rules.owners, guarantees_stand]  # fmt: skip
    r = Rounds(cluster("2r x 4n x 4g"), policy, checks=checks)
    for at in range(250):
        limit_s = rng.choice([None, 200.0, 600.0])
        runs_s = rng.choice([30.0, 150.0, 400.0])
        r.submit(
            f"j{at}",
            gang(
                f"{rng.choice([1, 1, 1, 2, 3])}x{rng.choice([0.5, 1, 1, 2, 4]):g}",
                limit_s=limit_s,
                expected_s=rng.choice([None, runs_s, runs_s / 2, runs_s * 2]),
                same=rng.choice([None, None, "rack"]),
                tasks_max=5 if at % 7 == 3 else None,
            ),
            queue=rng.choice(names), priority=rng.choice([-5, 0, 0, 5]),
            preemptible=rng.random() < 0.8, runs_s=runs_s, dies_s=rng.choice([0.0, 5.0]),
        )  # fmt: skip
        if at % 9 == 5:
            several = [job for job in r.running.values() if len(job.tasks) > 1]
            steady = [job for job in several if not (job.is_stopping or job.stopping_tasks)]
            if steady:
                r.lose_task(steady[0].job_id, steady[0].tasks[0].task, is_repaired=True)
        if at % 25 == 10:
            name = rng.choice(list(r.nodes))
            r.set_state(name, NodeState.CORDONED, cordon=True)
        if at % 25 == 20:
            for name in r.nodes:
                r.set_state(name, NodeState.READY)
        if at % 60 == 50:
            edited = policy_of(rng)
            if set(edited.queues) == set(names):
                r.set_policy(
                    msgspec.structs.replace(edited, limits=HELD if at % 120 == 50 else Limits())
                )
        if at % 10 == 0:
            r.settle()
        r.run(r.now_s + rng.choice([1.0, 10.0, 60.0]))
    for name in r.nodes:
        r.set_state(name, NodeState.READY)
    r.run(r.now_s + 40_000.0)
    stuck = [j for j in r.waiting if r.reason(j) not in ("WaitingForShare", "NeverFits",
             "QueueLimit", "Order", "NoFreeDevices")]  # fmt: skip
    assert not stuck, [r.why(j).message for j in stuck]
