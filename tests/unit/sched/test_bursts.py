"""Many urgent jobs on a full cluster: who stops, and how much is tried for it."""

from __future__ import annotations

import msgspec
import pytest

from tercio.model.queue import Policy, PreemptionPolicy, QueueSpec
from tercio.sched import clearing
from tercio.sched.cycle import schedule
from tercio.sched.memory import Memory
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

AT_ONCE = PreemptionPolicy(grace_s=0.0, min_runtime_s=0.0, max_evictions_per_job_per_hour=None)


def full(
    nodes: int, *, limit_s: float | None = None, queues: dict[str, QueueSpec] | None = None
) -> Rounds:
    """Every node holds two jobs of four devices."""
    policy = Policy(half_life_s=0.0, preemption=AT_ONCE, queues=queues or {})
    r = Rounds(cluster(f"2r x {nodes // 2}n x 8g"), policy, checks=rules.ALL)
    for at in range(2 * nodes):
        r.submit(f"low{at}", gang("1x4", limit_s=limit_s), user=f"u{at}", dies_s=30.0)
    r.cycle()
    return r


def test_an_urgent_job_is_not_counted_on_devices_that_are_promised_to_another():
    """Each takes two nodes of its own; nobody is stopped for nothing."""
    r = full(60)
    for at in range(6):
        r.submit(f"high{at}", gang("2x6"), priority=5)
    plan = r.cycle()
    assert len(plan.evictions) == 24
    nodes = [task.node for promise in plan.promises if promise.evicting for task in promise.tasks]
    assert len(set(nodes)) == len(nodes) == 12
    r.run(100.0)
    assert all(f"high{at}" in r.running for at in range(6))
    assert len(r.evicted()) == 24


@pytest.mark.parametrize("nodes", [40, 80])
def test_what_is_tried_for_an_urgent_job_grows_with_the_cluster_not_with_its_square(nodes: int):
    """Work is counted in changes of the columns: each victim is taken away a few times."""
    r = full(nodes)
    for at in range(4):
        r.submit(f"high{at}", gang("2x6"), priority=5)
    memory = Memory()
    snapshot = msgspec.structs.replace(r.snapshot(), changes=None)
    schedule(msgspec.structs.replace(snapshot, waiting={}), r.policy, r.now_s, 0, memory)
    before = memory.table.version
    plan = schedule(snapshot, r.policy, r.now_s, 0, memory)
    assert len(plan.evictions) == 16
    victims = 2 * nodes
    assert memory.table.version - before < victims + 4 * 8 * victims


def test_jobs_that_differ_only_in_their_time_limits_are_told_the_same_once() -> None:
    """Each kind is held against the limits once, however many time limits there are."""
    queues = {"default": QueueSpec(user_limit={"devices": 8_000})}
    r = full(40, limit_s=1e6, queues=queues)
    r.submit("head", gang("1x8", limit_s=100.0), user="ben")
    for at in range(400):
        r.submit(f"w{at}", gang(f"{2 + at % 4}x8", limit_s=1000.0 + at), user="bob")
    memory = Memory()
    plan = schedule(
        msgspec.structs.replace(r.snapshot(), changes=None), r.policy, r.now_s, 0, memory
    )
    assert [promise.job_id for promise in plan.promises] == ["head"]
    told = {id(found.verdict): found.verdict for found in memory.class_of.values()}
    assert len(memory.classes) == 401
    reasons = sorted(str(each.reason) for each in told.values() if each)
    assert reasons == ["NeverFits"] * 4 + ["NoFreeDevices"]


def test_a_burst_of_urgent_jobs_is_served_over_several_cycles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cycle searches only so much; the rest is told so, asks for a cycle, and has its turn."""
    monkeypatch.setattr(clearing, "MOST_WORK", 2_000)
    r = full(20)
    for at in range(16):
        r.submit(f"high{at}", gang("1x8", limit_s=1_000.0 + at), priority=5)
    plan = r.cycle()
    served = len(plan.evictions) // 2
    assert 4 <= served < 16
    assert plan.wake_at_s == clearing.SOON_S
    assert r.reason(f"high{served}") == "SearchBudget"
    assert "goes on next cycle" in r.why(f"high{served}").message
    r.settle()
    assert len(r.evicted()) == len(set(r.evicted())) == 32
    r.run(100.0)
    assert all(f"high{at}" in r.running for at in range(16))


def test_many_that_cannot_be_helped_do_not_starve_one_behind_them_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clearing, "MOST_WORK", 500)
    r = Rounds(cluster("20n x 8g"), Policy(half_life_s=0.0, preemption=AT_ONCE), checks=rules.ALL)
    for at in range(20):
        r.submit(f"firm{at}", gang("1x4"), preemptible=False)
        r.submit(f"low{at}", gang("1x4"), preemptible=at < 10)
    r.cycle()
    for at in range(20):
        r.submit(f"large{at}", gang(f"{11 + at % 10}x{7 + at // 10}"), priority=9)
    r.submit("small", gang("1x4"), priority=5)
    plan = r.cycle()
    assert not plan.evictions
    assert r.reason("small") == "SearchBudget"
    assert plan.wake_at_s == clearing.TURN_S
    r.run(20 * clearing.TURN_S)
    assert r.reason("small") == "Running"
    assert len(r.evicted()) == 1


@pytest.mark.parametrize("urgent", [100, 200])
def test_work_of_a_cycle_does_not_grow_with_the_burst(urgent: int) -> None:
    r = full(100)
    for at in range(urgent):
        r.submit(f"high{at}", gang("2x6", limit_s=1_000.0 + at), priority=5)
    memory = Memory()
    snapshot = msgspec.structs.replace(r.snapshot(), changes=None)
    schedule(msgspec.structs.replace(snapshot, waiting={}), r.policy, r.now_s, 0, memory)
    before = memory.table.version
    plan = schedule(snapshot, r.policy, r.now_s, 0, memory)
    assert len(plan.evictions) == 200  # every node is freed for one of the first fifty
    assert memory.table.version - before < 35_000  # those after them are told so together
