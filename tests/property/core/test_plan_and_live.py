"""`plan` and live agree: what a dry run promised is what happens when nothing comes between."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings
from tercio.core.plans import plan_job, what_if
from tercio.errors import UserError
from tercio.model.commands import AddReservation, CancelJob, SetPolicy, SubmitJob
from tercio.model.effects import LaunchTask, StopTask
from tercio.model.events import (
    AnyEvent,
    JobEvicted,
    JobPlaced,
    NodeReported,
    ServerStarted,
    TaskExited,
    TaskStarted,
)
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId
from tercio.model.job import ArraySpec, IndexRange, JobSpec, JobState, TimeSpec
from tercio.model.queue import AcrossQueues, QueueOrder
from tercio.model.reservation import Reservation
from tercio.model.topology import TopologyRequest
from tercio.testing import make_job, make_node, make_policy, make_principal, make_queue

ROOT = make_principal("root", Role.ADMIN)
USERS = (make_principal("ana"), make_principal("bob"))
QUEUES = ("a", "b", "c")


class World:
    """A driver whose engine does at once what it is told."""

    def __init__(self, nodes: list[tuple[int, str]], policy: SetPolicy) -> None:
        self.driver = Driver(Cluster(), settings=DriverSettings(is_validating=True))
        self.now_s = 1000.0
        start: list[AnyEvent] = [ServerStarted(at_s=self.now_s, epoch=1, version="test")]
        for number, (devices, rack) in enumerate(nodes):
            spec = make_node(f"n{number}", devices=devices, labels={"rack": rack})
            start.append(NodeReported(at_s=self.now_s, spec=spec))
        self.step(start)
        self.command(policy, ROOT)

    def step(self, events: list[AnyEvent]) -> list[AnyEvent]:
        """Step until nothing is left to do; return every event that was journalled."""
        seen: list[AnyEvent] = []
        while True:
            step = self.driver.step(events, self.now_s)
            assert not step.refused, step.refused
            seen += [entry.event for entry in step.entries]
            events = [self._answer(e) for e in step.effects if isinstance(e, LaunchTask | StopTask)]
            if not events:
                return seen

    def _answer(self, effect: LaunchTask | StopTask) -> AnyEvent:
        fields = {
            "at_s": self.now_s,
            "job_id": effect.job_id,
            "attempt": effect.attempt,
            "task": effect.task,
        }
        if isinstance(effect, LaunchTask):
            return TaskStarted(**fields, effect_id=effect.effect_id)
        return TaskExited(**fields, exit_code=0)

    def command(self, command: object, principal: Principal) -> list[AnyEvent]:
        events = to_events(self.driver.cluster, command, principal, self.now_s)  # type: ignore[arg-type]
        return self.step(events)


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    tasks = draw(st.integers(1, 4))
    same = draw(st.sampled_from([None, None, "rack", "node"]))
    limit_s = draw(st.sampled_from([None, 60.0, 600.0]))
    spec = make_job(
        tasks=tasks,
        devices=draw(st.sampled_from([0.5, 1, 1, 2, 4, 5])),
        type=draw(st.sampled_from(["H100", "H100", "H100", "A100", None])),
        cpus=None,
        memory_gib=None,
        queue=draw(st.sampled_from(QUEUES)),
        priority=draw(st.integers(0, 2)),
        preemptible=draw(st.sampled_from([None, True, False])),
        topology=TopologyRequest(same=same) if same else None,
        time=TimeSpec(limit_s=limit_s),
        wait_for_capacity=True,
    )
    if tasks == 1 and draw(st.integers(0, 4)) == 0:
        array = ArraySpec(
            ranges=(IndexRange(start=0, stop=3),), concurrency=draw(st.integers(1, 3))
        )
        spec = msgspec.structs.replace(spec, array=array)
    return spec


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A small cluster with a policy, some running and some waiting jobs, at rest."""
    nodes = draw(st.lists(st.tuples(st.sampled_from([2, 4]), st.sampled_from(["r1", "r2"])),
                          min_size=1, max_size=4))  # fmt: skip
    queues = {
        name: make_queue(
            guarantee=draw(st.sampled_from([{}, {"H100": 2000}, {"H100": 4000}])),
            limit=draw(st.sampled_from([{}, {}, {"H100": 6000}])),
            weight=draw(st.integers(0, 2)),
            order=draw(st.sampled_from(list(QueueOrder))),
        )
        for name in QUEUES
    }
    policy = make_policy(
        queues,
        across_queues=draw(st.sampled_from(list(AcrossQueues))),
        reservation_depth=draw(st.sampled_from([0, 1, 2, None])),
        overcommit=True,
    )
    world = World(nodes, SetPolicy(policy=policy))
    if draw(st.integers(0, 3)) == 0:
        kept = Reservation(
            name="kept", queue="a", devices=2, type="H100",
            from_s=1000.0 + draw(st.integers(0, 300)), duration_s=200.0,
        )  # fmt: skip
        world.command(AddReservation(reservation=kept), ROOT)
    for spec in draw(st.lists(jobs(), max_size=6)):
        world.now_s += draw(st.sampled_from([0.0, 1.0, 30.0]))
        made = world.command(SubmitJob(spec=spec), draw(st.sampled_from(USERS)))
        if draw(st.integers(0, 4)) == 0:
            (job_id,) = [e.job_id for e in made if type(e).__name__ == "JobSubmitted"]
            world.command(CancelJob(job_id=job_id), ROOT)
    return world


few = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@few
@given(worlds(), jobs(), st.sampled_from(USERS))
def test_a_submit_does_what_its_plan_promised(world: World, spec: JobSpec, user: Principal) -> None:
    before = world.driver.cluster.state_hash()
    view = plan_job(world.driver, spec, user, world.now_s)
    assert world.driver.cluster.state_hash() == before, "a plan changed something"
    events = to_events(world.driver.cluster, SubmitJob(spec=spec), user, world.now_s)
    step = world.driver.step(events, world.now_s)
    (job_id,) = [e.job_id for e in events]  # type: ignore[union-attr]
    made = [entry.event for entry in step.entries]
    placed = [e for e in made if isinstance(e, JobPlaced) and e.job_id.startswith(job_id)]
    assert bool(placed) == (view.outcome == "now"), view
    if placed:
        nodes = tuple(dict.fromkeys(task.node for task in placed[0].tasks))
        assert nodes == view.decision.nodes
        assert placed[0].label == view.decision.start.label  # type: ignore[union-attr]
    else:
        live = world.driver.decisions[job_id]
        told = msgspec.structs.replace(view.decision, job=job_id, start=live.start)
        # What the sentence calls the planned job, live has another name for.
        named = msgspec.json.encode(told).replace(b"job-planned", job_id.encode())
        assert named == msgspec.json.encode(live)
        if live.start is not None:
            assert view.decision.start == live.start
    evicted = [e.job_id for e in made if isinstance(e, JobEvicted) and _is_for(e, job_id)]
    assert tuple(evicted) == view.evicts


def _is_for(event: JobEvicted, job_id: JobId) -> bool:
    return event.for_job is not None and event.for_job.partition(".")[0] == job_id


@few
@given(worlds(), st.data())
def test_what_if_says_what_a_job_submitted_so_would_have_got(
    world: World, data: st.DataObject
) -> None:
    waiting = [
        job
        for job in world.driver.cluster.jobs.values()
        if job.state is JobState.QUEUED and job.array is None and job.attempt == 0
    ]
    if not waiting:
        return
    job = data.draw(st.sampled_from(waiting))
    user = next(u for u in USERS if u.user == job.user)
    tasks = data.draw(st.integers(1, 3))
    try:
        view = what_if(world.driver, job, {"tasks": str(tasks)}, user, world.now_s)
    except UserError as error:
        raise AssertionError(error.message) from error
    assert view.decision.job == job.id
    (group,) = job.spec.groups
    if group.tasks == tasks:
        # Nothing was changed: at rest, what waits goes on waiting for the same reason.
        assert view.outcome != "now", view
        assert view.decision.reason == world.driver.decisions[job.id].reason
