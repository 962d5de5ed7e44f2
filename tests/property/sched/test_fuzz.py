"""Random small clusters against the rules that never break, and against an exhaustive optimum.

Every case is a number: `TERCIO_FUZZ=1234 pytest tests/property/sched -k one` plays one of them.
Seeds that once failed stay in `FOUND`.
"""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from tercio.model.ids import JobId
from tercio.model.limits import DeviceTime, Limits, OwnerLimit
from tercio.model.node import NodeState
from tercio.model.queue import (
    AcrossQueues,
    Policy,
    PreemptionPolicy,
    QueueOrder,
    QueueSpec,
)
from tercio.model.reasons import Reason
from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.sched import preempt
from tercio.sched.cycle import schedule
from tercio.sched.plan import Plan
from tercio.testing import rules
from tercio.testing.build import cheap_from, cluster, gang
from tercio.testing.rounds import Rounds

FOUND: tuple[int, ...] = (929, 3114, 3294)
CASES = 1200
BATCH = 50


def policy_of(rng: random.Random) -> Policy:
    def queue() -> QueueSpec:
        guarantee = rng.choice([0, 0, 1, 2, 4])
        limit = rng.choice([None, None, None, 4, 8])
        return QueueSpec(
            guarantee={"devices": guarantee * 1000} if guarantee else {},
            limit={} if limit is None else {"devices": max(limit, guarantee) * 1000},
            weight=rng.choice([0, 1, 1, 2]),
            order=rng.choice([QueueOrder.BACKFILL, QueueOrder.BACKFILL, QueueOrder.STRICT]),
        )

    queues = {name: queue() for name in ("a", "b", "c")[: rng.randint(1, 3)]}
    return Policy(
        half_life_s=0.0,
        queues=queues,
        default_queue="a",  # type: ignore[arg-type]
        overcommit=True,
        reservation_depth=rng.choice([0, 1, 1, 2, None]),
        max_overtake_s=rng.choice([50.0, 3600.0]),
        preemption=PreemptionPolicy(
            across_queues=rng.choice(list(AcrossQueues)),
            grace_s=0.0,
            min_runtime_s=rng.choice([0.0, 0.0, 20.0]),
            max_evictions_per_job_per_hour=rng.choice([None, 1, 2]),
        ),
    )


def limits_of(seed: int) -> Limits:
    """Limits of users and tenants in one case of four, drawn apart so that old cases stay."""
    rng = random.Random(f"limits {seed}")
    if seed % 4 != 3:
        return Limits()

    def limit() -> OwnerLimit:
        amounts = rng.choice([{}, {"devices": 2000}, {"devices": 4000}, {"running_jobs": 2}])
        budget = DeviceTime(amount_ms=rng.choice([20_000, 80_000, 200_000]), days=1)
        return OwnerLimit(amounts=amounts, device_time=rng.choice([None, budget]))

    return Limits(per_user=limit(), per_tenant=limit(), users={"ben": limit()})


def build(seed: int, checks: tuple[object, ...] = ()) -> Rounds:
    rng = random.Random(seed)
    # Flexible jobs in one case of three, drawn apart so that old cases stay.
    prices = random.Random(f"prices {seed}") if seed % 3 == 1 else None
    racks, nodes = rng.choice([(1, 1), (1, 2), (2, 1), (2, 2), (1, 3)])
    size = rng.choice([1, 2, 4])
    r = Rounds(
        cluster(f"{racks}r x {nodes}n x {size}g", slots=rng.choice([None, None, 3])),
        msgspec.structs.replace(policy_of(rng), limits=limits_of(seed)),
        checks=[*rules.ALL, *checks],  # type: ignore[list-item]
    )
    for at in range(rng.randint(2, 8)):
        tasks = rng.choice([1, 1, 1, 2, 2, 3])
        devices = rng.choice([0, 0.5, 1, 1, 2, 4])
        limit_s = rng.choice([None, 10.0, 20.0, 40.0])
        r.submit(
            f"j{at}",
            gang(
                f"{tasks}x{devices:g}",
                limit_s=limit_s,
                same=rng.choice([None, None, None, "rack"]),
                prefer=rng.choice([None, None, "rack"]),
                tasks_max=rng.choice([None, None, None, tasks + 2]),
            ),
            queue=rng.choice(list(r.policy.queues)),
            user=rng.choice(["ana", "ben"]),
            priority=rng.choice([-5, 0, 0, 5]),
            preemptible=rng.random() < 0.8,
            runs_s=rng.choice([None, 5.0, 15.0, 30.0]),
            dies_s=rng.choice([0.0, 0.0, 3.0]),
            cheaper=prices and cheap_from(r.now_s + prices.choice([-1.0, 3.0, 12.0, 40.0])),
        )
        if rng.random() < 0.6:
            r.run(r.now_s + rng.choice([0.0, 1.0, 7.0]))
        if rng.random() < 0.1:
            r.set_state(rng.choice(list(r.nodes)), NodeState.CORDONED, cordon=True)
    return r


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_rules_hold_in_random_small_clusters(batch: int):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        play(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_found_cases(seed: int):
    play(seed)


def play(seed: int) -> Rounds:
    try:
        r = build(seed, (nothing_hidden, guarantees_stand))
        r.run(r.now_s + 200.0)
        hour = [line for line in r.log if line.what == "evict"]
        assert len(hour) <= 3 * len(r.behaviour), f"{len(hour)} evictions"
        once_for_one_cause(r)
    except Exception as problem:
        raise AssertionError(f"case {seed}: {problem}") from problem
    return r


def once_for_one_cause(r: Rounds) -> None:
    """Rule 5: nobody is stopped twice so that one and the same wait of a job may end.

    Nodes that went away may break a promise, so cases in which some did are left out.
    """
    if not all(node.is_placeable for node in r.nodes.values()):
        return
    stopped: dict[str, set[str]] = {}
    for line in r.log:
        if line.what == "start":
            stopped.pop(line.job, None)
        elif line.what == "evict":
            seen = stopped.setdefault(line.detail, set())
            assert line.job not in seen, f"{line.job} is stopped twice for {line.detail}"
            seen.add(line.job)


def definite(r: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 9: where every legal set of victims, tried one by one, has one that helps, a plan of
    the quick search has one too, or says that its budget ran out."""
    if plan.evictions or plan.starts:
        return
    quick = preempt.EXACT_VICTIMS, preempt.PUT_BACK_VICTIMS, preempt.Search._is_enough
    try:
        preempt.EXACT_VICTIMS = 12  # type: ignore[misc]
        preempt.Search._is_enough = lambda self, victims: True  # type: ignore[method-assign]
        full = schedule(msgspec.structs.replace(snapshot, changes=None), r.policy, r.now_s, r.seed)
    finally:
        preempt.EXACT_VICTIMS, preempt.PUT_BACK_VICTIMS = quick[:2]  # type: ignore[misc]
        preempt.Search._is_enough = quick[2]  # type: ignore[method-assign]
    for eviction in full.evictions[:1]:
        said = plan.decisions[eviction.for_job or JobId("")]
        assert said.reason is Reason.SEARCH_BUDGET, f"{eviction} is possible; told: {said.message}"


@pytest.mark.parametrize("put_back", [0, 96], ids=["by-node", "put-back"])
@pytest.mark.parametrize("batch", range(4))
def test_a_no_is_definite_or_says_that_the_search_ran_out(
    put_back: int, batch: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preempt, "EXACT_VICTIMS", 0)
    monkeypatch.setattr(preempt, "PUT_BACK_VICTIMS", put_back)
    for seed in range(50_000 + batch * 25, 50_000 + (batch + 1) * 25):
        try:
            r = build(seed, (definite, guarantees_stand))
            r.run(r.now_s + 60.0)
        except Exception as problem:
            raise AssertionError(f"case {seed}: {problem}") from problem


def nothing_hidden(r: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 6, for the plainest jobs: one task, no limit in the way, nothing promised, nobody
    ahead. If devices for it are free on one node after the plan, it must have started."""
    if plan.promises or snapshot.promises or r.policy.reservation_depth == 0:
        return
    free: dict[str, int] = {}
    for name, node in snapshot.nodes.items():
        if node.is_placeable:
            free[name] = len(node.spec.devices)
    held: dict[str, set[int]] = {}
    tasks: dict[str, int] = {}
    everyone = [t for j in snapshot.running.values() for t in j.tasks]
    everyone += [t for s in plan.starts for t in s.tasks]
    for task in everyone:
        held.setdefault(task.node, set()).update(s.index for s in task.devices)
        tasks[task.node] = tasks.get(task.node, 0) + 1
    for job_id, job in snapshot.waiting.items():
        if job_id not in plan.decisions or any(s.job_id == job_id for s in plan.starts):
            continue
        group = job.spec.groups[0]
        request = group.per_task.devices[0]
        if group.tasks != 1 or request.count < 1 or job.spec.topology or group.topology:
            continue
        decision = plan.decisions[job_id]
        if decision.reason in ("QueueLimit", "UserLimit", "Order", "NeverFits", "Constraint"):
            continue
        if decision.reason == "WaitingForShare" and not job.is_preemptible:
            continue
        for name, count in free.items():
            slots = snapshot.nodes[name].spec.slots  # type: ignore[index]
            if slots is not None and tasks.get(name, 0) >= slots:
                continue
            left = count - len(held.get(name, ()))
            assert left < request.count, f"{job_id} fits on {name} and waits: {decision.message}"


def guarantees_stand(r: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 3: no queue loses to another while it stands at or below its guarantee."""
    victims: dict[str, list[RunningJob]] = {}
    for eviction in plan.evictions:
        job = snapshot.running[eviction.job_id]
        owner = snapshot.waiting.get(eviction.for_job or JobId(""))
        if owner is not None and owner.queue != job.queue and not eviction.tasks:
            victims.setdefault(job.queue, []).append(job)
    started = {s.job_id for s in plan.starts}
    for queue, jobs in victims.items():
        guarantee = r.policy.queues[queue].guarantee.get("devices", 0)
        use = rules.use_of(snapshot.running, queue)
        use += sum(
            share.milli
            for start in plan.starts
            if snapshot.waiting[start.job_id].queue == queue
            for task in start.tasks
            for share in task.devices
        )
        # What was freed for a job of the queue counts as held by it.
        use += sum(
            share.milli
            for promise in plan.promises
            if promise.evicting and (owner := waiting_in(snapshot, promise.job_id)) is not None
            and owner.queue == queue
            for task in promise.tasks
            for share in task.devices
        )  # fmt: skip
        gone = sorted(milli_of(job) for job in jobs)
        assert use - sum(gone[:-1]) > guarantee or not gone[-1], (queue, use, gone, started)


def waiting_in(snapshot: Snapshot, job_id: JobId) -> WaitingJob | None:
    return snapshot.waiting.get(job_id)


def milli_of(job: RunningJob) -> int:
    return sum(share.milli for task in job.tasks for share in task.devices)


# Against an exhaustive optimum.


@pytest.mark.parametrize("batch", range(20))
def test_victims_are_minimal_and_placement_is_complete(batch: int):
    for seed in range(batch * 40, (batch + 1) * 40):
        compare(seed)


def compare(seed: int) -> None:
    """One queue, whole-device jobs on one or two nodes, one newcomer of high priority: the
    scheduler must stop the cheapest set that lets it start, and nobody when none does."""
    rng = random.Random(seed)
    nodes, size = rng.choice([(1, 4), (2, 2), (2, 4), (3, 2)])
    policy = Policy(
        half_life_s=0.0,
        preemption=PreemptionPolicy(
            grace_s=0.0, min_runtime_s=0.0, max_evictions_per_job_per_hour=None
        ),
    )
    r = Rounds(cluster(f"{nodes}n x {size}g"), policy)
    for at in range(rng.randint(2, 6)):
        r.submit(
            f"v{at}", gang(f"{rng.choice([1, 1, 2])}x{rng.randint(1, size)}"),
            priority=rng.choice([0, 1, 2]), preemptible=rng.random() < 0.85,
        )  # fmt: skip
        r.settle()
        r.now_s += 1.0
    for job_id in list(r.waiting):
        r.cancel(job_id)
    tasks, devices = rng.choice([(1, size), (2, size), (nodes, size), (1, 1), (2, 1)])
    before = dict(r.running)
    r.submit("high", gang(f"{tasks}x{devices}"), priority=9)
    plan = r.cycle()
    best = cheapest(r, before, tasks, devices)
    found = sorted(e.job_id for e in plan.evictions)
    started = any(s.job_id == "high" for s in plan.starts)
    if best is None:
        assert not plan.evictions, f"case {seed}: {found} stopped for nothing"
        assert not started, seed
        return
    assert cost_of(before, found) == best, f"case {seed}: {found} cost {cost_of(before, found)}"
    assert started is (best == (0, 0, ())), seed


def cost_of(running: dict[JobId, RunningJob], jobs: list[JobId]) -> tuple[object, ...]:
    chosen = [running[j] for j in jobs]
    priorities = tuple(sorted((j.priority for j in chosen), reverse=True))
    return (sum(milli_of(j) for j in chosen), len(chosen), priorities)


def cheapest(
    r: Rounds, running: dict[JobId, RunningJob], tasks: int, devices: int
) -> tuple[object, ...] | None:
    candidates = [j for j, job in running.items() if job.is_preemptible]
    best: tuple[object, ...] | None = None
    for count in range(len(candidates) + 1):
        for chosen in itertools.combinations(candidates, count):
            left = {j: job for j, job in running.items() if j not in chosen}
            room = 0
            for name, node in r.nodes.items():
                used = sum(
                    len(t.devices) for job in left.values() for t in job.tasks if t.node == name
                )
                room += (len(node.spec.devices) - used) // devices
            if room >= tasks:
                price = cost_of(running, list(chosen))
                if best is None or price < best:  # type: ignore[operator]
                    best = price
    return best


def test_same_plan_after_a_round_trip_of_the_snapshot():
    """A plan depends on values only: a snapshot rebuilt from bytes gives the same one."""
    r = build(7)
    snapshot = r.snapshot()
    copies = {
        name: msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=RunningJob)
        for name, job in snapshot.running.items()
    }
    again = msgspec.structs.replace(snapshot, running=copies, changes=None)
    first = schedule(msgspec.structs.replace(snapshot, changes=None), r.policy, r.now_s, 0)
    second = schedule(again, r.policy, r.now_s, 0)
    assert first.starts == second.starts
    assert first.promises == second.promises
