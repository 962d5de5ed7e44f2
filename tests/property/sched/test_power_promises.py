"""Random racks with power budgets: a dated promise is kept against whatever comes behind it."""

from __future__ import annotations

import random
import re

import msgspec
import pytest

from tercio.model.ids import JobId
from tercio.model.node import Node
from tercio.model.queue import Policy, PowerBudget, PreemptionPolicy
from tercio.model.reasons import Reason
from tercio.model.snapshot import Snapshot
from tercio.model.units import format_instant
from tercio.sched.plan import Plan
from tercio.testing import rules
from tercio.testing.build import gang, node
from tercio.testing.rounds import Rounds

CASES = 100
BATCH = 25
TYPES = ("H100", "A100")
_NUMBERS = re.compile(r"would draw ([\d.]+)kW .*; the power budget is ([\d.]+)kW")
_PROMISED = re.compile(r"at (\S+), when (\w+) is promised to start")


class Kept:
    """Watches the dated promises of a run in which jobs are never stopped and order is by age."""

    def __init__(self) -> None:
        self.promised: dict[JobId, float] = {}
        self.number: dict[JobId, int] = {}

    def __call__(self, r: Rounds, snapshot: Snapshot, plan: Plan) -> None:
        """Check one cycle: nobody starts behind a promise and makes it later."""
        self.number |= {job_id: job.sequence for job_id, job in snapshot.waiting.items()}
        for start in plan.starts:
            at_s = self.promised.pop(start.job_id, None)
            assert at_s is None or r.now_s <= at_s, f"{start.job_id} starts late: promised {at_s}"
            self.go_first(start.job_id)
        dated = {p.job_id: p.from_s for p in plan.promises if p.from_s is not None}
        for job_id, at_s in sorted(dated.items(), key=lambda pair: self.number[pair[0]]):
            before_s = self.promised.get(job_id)
            assert before_s is None or at_s <= before_s, f"{job_id}: {at_s} after {before_s}"
            if before_s != at_s:
                self.go_first(job_id)
            self.promised[job_id] = at_s
        named = {promise.job_id for promise in plan.promises}
        for job_id, at_s in self.promised.items():
            assert job_id in named, f"{job_id}: nothing is left of its promise for {at_s}"

    def go_first(self, job_id: JobId) -> None:
        """Whoever waited longer and starts, or is promised something better, goes first."""
        later = [other for other in self.promised if self.number[job_id] < self.number[other]]
        for other in later:
            del self.promised[other]


def told(r: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Who waits for power is told of a budget, and of a promise only that it would outlive."""
    promises = {promise.job_id: promise for promise in plan.promises}
    for job_id, job in snapshot.waiting.items():
        decision = plan.briefs[job_id]
        if decision.reason is not Reason.POWER:
            continue
        words = decision.message
        found = _NUMBERS.search(words)
        assert found is not None, words
        assert float(found[1]) > float(found[2]), words
        behind = _PROMISED.search(words)
        if behind is not None:
            promise = promises[JobId(behind[2])]
            limit_s = job.spec.time.limit_s
            assert promise.from_s is not None
            assert limit_s is not None
            assert format_instant(promise.from_s) == behind[1]
            assert r.now_s < promise.from_s < r.now_s + limit_s, words


def rack(rng: random.Random) -> list[Node]:
    """A few nodes that draw differently by type and by node."""
    nodes = []
    for at in range(rng.randint(2, 5)):
        kind = rng.choice(TYPES)
        labels = {"rack": rng.choice(["r1", "r1", "r2"]), "block": "b1"}
        found = node(f"n{at + 1}", rng.choice([1, 2, 4]), device_type=kind, labels=labels)
        watts = rng.choice([700, 700, 400])
        drawing = tuple(msgspec.structs.replace(d, power_w=watts) for d in found.spec.devices)
        spec = msgspec.structs.replace(found.spec, devices=drawing)
        nodes.append(msgspec.structs.replace(found, spec=spec))
    return nodes


def build(seed: int) -> tuple[Rounds, random.Random]:
    """The cluster of a case."""
    rng = random.Random(f"power {seed}")
    nodes = rack(rng)
    full_w = sum(device.power_w for found in nodes for device in found.spec.devices)
    budgets = tuple(
        PowerBudget(domain=domain, power_w=round(full_w * rng.choice([0.3, 0.5, 0.8])))
        for domain in rng.choice([("b1",), ("b1",), ("r1",), ("b1", "r1"), ("r1", "r2")])
    )
    policy = Policy(
        half_life_s=0.0,
        budgets=budgets,
        reservation_depth=rng.choice([1, 1, 2, None]),
        preemption=PreemptionPolicy(grace_s=0.0, min_runtime_s=1e9),
    )
    checks = [Kept(), told, rules.capacity, rules.gangs, rules.explained]
    return Rounds(
        nodes, policy, checks=[*checks, *rules.ALL[-1:]] if seed % 4 == 0 else checks
    ), rng


def play(seed: int) -> Rounds:
    """Let jobs come and end, each with a time limit and none that is stopped."""
    r, rng = build(seed)
    try:
        for at in range(rng.randint(6, 14)):
            limit_s = rng.choice([10.0, 20.0, 50.0, 100.0, 400.0])
            r.submit(
                f"j{at}",
                gang(
                    f"{rng.choice([1, 1, 2, 3])}x{rng.choice([0.5, 1, 1, 2, 4]):g}",
                    device_type=rng.choice(TYPES),
                    limit_s=limit_s,
                ),
                runs_s=limit_s * rng.choice([0.3, 0.9, 1.0, 1.0]),
            )
            if rng.random() < 0.7:
                r.run(r.now_s + rng.choice([0.0, 1.0, 7.0, 30.0]))
        r.run(r.now_s + 4000.0)
    except Exception as problem:
        raise AssertionError(f"case {seed}: {problem}") from problem
    return r


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_nothing_behind_a_promise_takes_its_power(batch: int):
    promised = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        r = play(seed)
        promised += sum(line.detail.startswith("reserved") for line in r.log)
    assert promised > BATCH
