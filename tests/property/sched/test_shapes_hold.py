"""Guarantees by shape under random work: what is owed can be had at any time."""

from __future__ import annotations

import random

import msgspec
import pytest
from test_fuzz import guarantees_stand

from tercio.model.ids import JobId, QueuePath
from tercio.model.queue import AcrossQueues, Policy, PreemptionPolicy, QueueSpec
from tercio.model.reasons import Outcome, Reason
from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.sched.cycle import schedule
from tercio.sched.plan import Plan
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

FOUND: tuple[int, ...] = (467, 1093, 1259, 3088)
CASES = 120
BATCH = 30
PROBE = JobId("probe")


def build(seed: int) -> Rounds:
    rng = random.Random(seed)
    racks, nodes = rng.choice([(1, 3), (1, 4), (2, 2), (3, 2), (2, 3)])
    size = rng.choice([2, 4])
    total = racks * nodes
    level = rng.choice(["node", "node", "rack"]) if racks > 1 else "node"
    most = racks if level == "rack" else total
    left, queues = most, {}
    for name in ("s", "t")[: rng.randint(1, 2)]:
        count = rng.randint(1, max(1, left // 2))
        left -= count
        queues[name] = QueueSpec(guarantee_shape={level: count}, weight=rng.choice([0, 1]))
    spare = left * (nodes if level == "rack" else 1) * size
    for name in ("a", "b"):
        guarantee = rng.randint(0, spare // 2) * 1000
        queues[name] = QueueSpec(
            guarantee={"devices": guarantee} if guarantee else {}, weight=rng.choice([0, 1, 2])
        )
    policy = Policy(
        half_life_s=0.0,
        queues=queues,
        default_queue=QueuePath("a"),
        reservation_depth=rng.choice([0, 1, None]),
        preemption=PreemptionPolicy(
            across_queues=rng.choice(list(AcrossQueues)),
            grace_s=0.0,
            min_runtime_s=0.0,
            max_evictions_per_job_per_hour=None,
        ),
    )
    checks = [*rules.ALL, shapes_can_be_had, guarantees_stand]
    r = Rounds(cluster(f"{racks}r x {nodes}n x {size}g"), policy, checks=checks)
    for at in range(rng.randint(4, 14)):
        r.submit(
            f"j{at}",
            gang(
                f"{rng.choice([1, 1, 1, 2, 3])}x{rng.choice([0.5, 1, 1, 2, size]):g}",
                limit_s=rng.choice([None, 10.0, 20.0]),
                same=rng.choice([None, None, "rack"]),
                tasks_max=rng.choice([None, None, 4]),
            ),
            queue=rng.choice(list(queues)), priority=rng.choice([-5, 0, 0, 5]),
            preemptible=rng.random() < 0.8, runs_s=rng.choice([None, 5.0, 15.0]),
            dies_s=rng.choice([0.0, 0.0, 3.0]),
        )  # fmt: skip
        if rng.random() < 0.7:
            r.run(r.now_s + rng.choice([0.0, 1.0, 7.0]))
    return r


def domains_touched(snapshot: Snapshot, level: str, jobs: list[RunningJob]) -> set[str]:
    touched = set()
    for job in jobs:
        for task in job.tasks:
            spec = snapshot.nodes[task.node].spec
            if task.devices:
                touched.add(spec.name if level == "node" else spec.labels[level])
    return touched


def shapes_can_be_had(r: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """A queue inside its shape that asks for the rest of it starts, now or after evictions."""
    nodes = list(snapshot.nodes.values())
    for path, queue in r.policy.queues.items():
        for level, count in queue.guarantee_shape.items():
            inside = 1 if level == "node" else sum(n.spec.labels["rack"] == "r1" for n in nodes)
            own = [j for j in snapshot.running.values() if j.queue == path]
            owed = count - len(domains_touched(snapshot, level, own))
            if owed <= 0:
                continue
            devices = len(nodes[0].spec.devices)
            for size, same in ((owed * inside, None), (inside, None if inside == 1 else level)):
                probe = WaitingJob(
                    job_id=PROBE, spec=gang(f"{size}x{devices}", same=same),
                    queue=QueuePath(path), user="ana", tenant="default", priority=-100,
                    is_preemptible=True, submitted_s=r.now_s, sequence=10**6,
                )  # fmt: skip
                asked = msgspec.structs.replace(
                    snapshot, waiting={PROBE: probe}, promises=(), changes=None
                )
                trial = schedule(asked, r.policy, r.now_s, 0)
                decision = trial.decisions[PROBE]
                is_had = decision.outcome is Outcome.PLACED or decision.reason is Reason.PREEMPTING
                assert is_had, f"{path} asks for {size} nodes ({same}): {decision.message}"
                losers = [snapshot.running[e.job_id].queue for e in trial.evictions]
                assert path not in losers, f"{path} takes from itself"
                guarantees_stand(r, asked, trial)


def play(seed: int) -> None:
    try:
        r = build(seed)
        r.run(r.now_s + 60.0)
    except Exception as problem:
        raise AssertionError(f"case {seed}: {problem}") from problem


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_what_is_owed_can_be_had(batch: int):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        play(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_found_cases(seed: int):
    play(seed)
