"""A policy in shadow of a live journal: its decisions are those of a replay under that policy."""

from __future__ import annotations

import random

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.model.effects import LaunchTask, StopTask
from tercio.model.events import (
    Entry,
    FaultFound,
    HealthPolicyChanged,
    JobCancelRequested,
    JobHeld,
    JobPlaced,
    JobReleased,
    JobResumeRequested,
    JobsForgotten,
    JobSubmitted,
    JobSuspendRequested,
    NodeLost,
    NodeReported,
    PolicyChanged,
    ServerStarted,
    TaskExited,
    TaskStarted,
)
from tercio.model.health import FaultFact
from tercio.model.ids import JobId, NodeName, QueuePath, job_id
from tercio.model.job import (
    CheckpointSpec,
    EndCause,
    JobSpec,
    JobState,
    RetrySpec,
    TaskGroup,
    TimeSpec,
)
from tercio.model.queue import Policy, PreemptionPolicy, QueueOrder, QueueSpec, WithinQueue
from tercio.model.resources import DeviceRequest, Request
from tercio.testing.factories import make_node, make_nodes
from tercio.twin.policies import from_policy
from tercio.twin.replay import run
from tercio.twin.result import JobRecord, percentile
from tercio.twin.shadow import Shadow
from tercio.twin.trace import Trace, TraceJob

HOUR_S = 3600.0
FOREVER_S = 1e9
STRICT = Policy(
    reservation_depth=0,
    half_life_s=0.0,
    queues={"default": QueueSpec(order=QueueOrder.STRICT)},
    preemption=PreemptionPolicy(within_queue=WithinQueue.OFF),
)
BACKFILL = msgspec.structs.replace(
    STRICT, reservation_depth=1, queues={"default": QueueSpec(order=QueueOrder.BACKFILL)}
)
CAPPED = msgspec.structs.replace(
    STRICT, queues={"default": QueueSpec(order=QueueOrder.STRICT, limit={"H100": 3000})}
)
URGENT = msgspec.structs.replace(
    BACKFILL,
    preemption=PreemptionPolicy(
        within_queue=WithinQueue.LOWER_PRIORITY,
        min_runtime_s=0.0,
        max_evictions_per_job_per_hour=None,
    ),
)


def workload(seed: int, jobs: int = 80) -> Trace:
    draw = random.Random(seed)
    at_s, rows = 1000.0, []
    for number in range(jobs):
        at_s += draw.expovariate(1 / 300)
        run_s = draw.lognormvariate(6.5, 1.0)
        rows.append(
            TraceJob(
                id=f"j{number}", submit_s=at_s, run_s=run_s, limit_s=2 * run_s + 60, user="ana",
                devices_per_task=draw.choice([1, 1, 2, 4]), tasks=draw.choice([1, 1, 1, 2]),
                queue="default", priority=draw.choice([0, 0, 0, 5]),
            )
        )  # fmt: skip
    return Trace(jobs=tuple(rows), source="drawn", kind="drawn")


def journal_of(trace: Trace, policy: Policy) -> tuple[list[Entry], tuple[JobRecord, ...]]:
    entries: list[Entry] = []
    result = run(trace, make_nodes(2, devices=4), discipline(policy), journal=entries)
    return [saving(entry) for entry in entries], result.jobs


def saving(entry: Entry) -> Entry:
    """The same entry of jobs that save their work, as those of a replay do."""
    event = entry.event
    if not isinstance(event, JobSubmitted):
        return entry
    checkpoint = msgspec.structs.replace(event.spec.checkpoint, path="ck")
    spec = msgspec.structs.replace(event.spec, checkpoint=checkpoint)
    return msgspec.structs.replace(entry, event=msgspec.structs.replace(event, spec=spec))


def discipline(policy: Policy):
    found = from_policy("p", policy)
    return msgspec.structs.replace(found, priority_of=lambda job: job.priority)


def shadow_of(entries, policy, *, begin=4, page=7, lag_s=FOREVER_S) -> Shadow:
    """A shadow that began after some entries and has read all the others, page by page."""
    cluster = Cluster()
    for entry in entries[:begin]:
        cluster.apply(entry.event)
    shadow = Shadow(cluster.image(), policy, seq=entries[begin - 1].seq, lag_s=lag_s)
    rest = entries[begin:]
    for at in range(0, len(rest), page):
        shadow.take(rest[at : at + page])
    shadow.settle()
    return shadow


def starts_of(shadow: Shadow) -> list[float | None]:
    jobs = shadow.loop.driver.cluster.jobs.values()
    return [job.past[0].held[0].start_s if job.past else job.placed_s for job in jobs]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", [BACKFILL, URGENT, STRICT], ids=["backfill", "urgent", "same"])
def test_it_decides_as_a_replay_under_its_policy(seed, policy):
    entries, live = journal_of(workload(seed), STRICT)
    _, other = journal_of(workload(seed), policy)
    shadow = shadow_of(entries, policy)
    assert starts_of(shadow) == pytest.approx([job.start_s for job in other], abs=0.1)
    total = shadow.report().total
    gaps = [new.start_s - old.start_s for old, new in zip(live, other, strict=True)]
    assert total.earlier == sum(gap < -5 for gap in gaps)
    assert total.later == sum(gap > 5 for gap in gaps)
    assert total.earlier_s == pytest.approx(sum(-gap for gap in gaps if gap < -5), rel=1e-3)
    assert total.later_s == pytest.approx(sum(gap for gap in gaps if gap > 5), rel=1e-3)
    assert total.jobs == len(live)
    assert total.shadow_waits.mean_s == pytest.approx(
        sum(job.start_s - job.submit_s for job in other) / len(other), abs=0.1
    )
    assert total.live_waits.p95_s == percentile([job.start_s - job.submit_s for job in live], 95)
    evictions = sum(job.evictions for job in other)
    assert (total.live_evictions, total.shadow_evictions) == (0, evictions)
    assert (total.spared, total.struck) == (0, evictions)
    assert bool(total.earlier) is (policy is not STRICT)
    assert bool(evictions) is (policy is URGENT)
    assert shadow.report().guessed == 0


def test_it_may_begin_in_the_middle_and_does_not_count_what_ran_then():
    entries, live = journal_of(workload(1), STRICT)
    begin = len(entries) // 2
    placed = {e.event.job_id for e in entries[:begin] if isinstance(e.event, JobPlaced)}
    shadow = shadow_of(entries, STRICT, begin=begin)
    total = shadow.report().total
    assert (total.jobs, total.earlier, total.later) == (len(live) - len(placed), 0, 0)
    assert 10 < total.jobs < 70
    hasty = shadow_of(entries, BACKFILL, begin=begin).report().total
    assert hasty.earlier > 0
    assert hasty.shadow_waits.mean_s < hasty.live_waits.mean_s


def test_evictions_that_it_would_not_have_made_are_counted():
    entries, live = journal_of(workload(1), URGENT)
    evictions = sum(job.evictions for job in live)
    shadow = shadow_of(entries, BACKFILL)
    total = shadow.report().total
    assert (total.live_evictions, total.spared) == (evictions, evictions)
    assert evictions > 0
    assert (total.shadow_evictions, total.struck, total.jobs) == (0, 0, len(live))
    ended = [job.state for job in shadow.loop.driver.cluster.jobs.values()]
    assert ended == [JobState.SUCCEEDED] * len(live)


@pytest.mark.parametrize(("path", "ended_s"), [("ck", 160.0), (None, 210.0)])
def test_a_job_that_saves_nothing_begins_anew_when_it_is_evicted(path, ended_s):
    """There it ran from 0 to 100; here it is evicted at 50 for one that ran for 60."""
    live = Live()
    retry = RetrySpec(max=5, backoff_s=0.0)
    first = live.submit(0.0, 4, checkpoint=CheckpointSpec(path=path), retry=retry)
    urgent = live.submit(50.0, 4, priority=5)
    live.end(100.0, first)
    live.end(160.0, urgent)
    live.do(1000.0)
    shadow = live.shadow(URGENT, now_s=1000.0)
    assert job_in(shadow, first).state is JobState.SUCCEEDED
    assert (job_in(shadow, first).attempt, job_in(shadow, first).ended_s) == (2, ended_s)


@pytest.mark.parametrize(
    ("speed", "ran_s"), [({"H100": 1.0, "A100": 0.25}, 20.0), ({}, 80.0)], ids=["named", "silent"]
)
def test_a_job_that_names_its_speeds_runs_as_long_as_the_device_makes_it(speed, ran_s):
    """There one of a queue that is not here has the H100; here it runs on that, not on the A100."""
    other = msgspec.structs.replace(STRICT, queues={**STRICT.queues, "other": QueueSpec()})
    live = Live(other)
    node = make_node("n2", type="A100", devices=4)
    live.do(0.0, NodeReported(at_s=0.0, spec=node))
    live.begin_now()
    first = live.submit(0.0, 4, queue="other")
    both = (DeviceRequest(type="H100", count=4), DeviceRequest(type="A100", count=4))
    job = live.submit(10.0, 4, devices=both, speed=speed)
    live.end(90.0, job)
    live.end(200.0, first)
    shadow = live.shadow(STRICT, now_s=1000.0)
    found = job_in(shadow, job)
    assert (found.state, found.last_nodes) == (JobState.SUCCEEDED, ("n1",))
    assert found.ended_s == 10.0 + ran_s


def test_pages_do_not_matter():
    entries, _ = journal_of(workload(2), STRICT)
    one, many = (shadow_of(entries, URGENT, page=page) for page in (1, 10_000))
    assert starts_of(one) == pytest.approx(starts_of(many), abs=1e-6)
    assert one.report().total.earlier == many.report().total.earlier


class Live:
    """A server of one node of four devices that starts jobs in strict order; answers at once."""

    def __init__(self, policy: Policy = STRICT) -> None:
        self.driver = Driver(Cluster(), settings=DriverSettings(tells_waiting=False))
        self.entries: list[Entry] = []
        self.jobs = 0
        node = make_node("n1", devices=4)
        self.do(0.0, ServerStarted(at_s=0.0, epoch=1, version="t"),
                PolicyChanged(at_s=0.0, version=1, policy=policy, by="t"),
                NodeReported(at_s=0.0, spec=node))  # fmt: skip
        self.begin_now()

    def do(self, at_s: float, *events) -> None:
        while True:
            step = self.driver.step(events, at_s)
            self.entries += step.entries
            events = [e for effect in step.effects for e in self._answer(effect, at_s)]
            if not events:
                return

    def _answer(self, effect, at_s: float):
        if isinstance(effect, LaunchTask):
            yield TaskStarted(at_s=at_s, job_id=effect.job_id, attempt=effect.attempt,
                              task=effect.task, effect_id=effect.effect_id)  # fmt: skip
        if isinstance(effect, StopTask):
            yield TaskExited(at_s=at_s, job_id=effect.job_id, attempt=effect.attempt,
                             task=effect.task, signal=15)  # fmt: skip

    def submit(
        self, at_s: float, count: int, *, queue: str = "default", tasks: int = 1,
        devices: tuple[DeviceRequest, ...] = (), **fields,
    ) -> JobId:  # fmt: skip
        self.jobs += 1
        request = Request(devices=devices or (DeviceRequest(type="H100", count=count),))
        group = TaskGroup(tasks=tasks, per_task=request)
        spec = JobSpec(name=f"job{self.jobs}", groups=(group,), **fields)
        name, path = job_id(self.jobs), QueuePath(queue)
        self.do(at_s, JobSubmitted(at_s=at_s, job_id=name, spec=spec, queue=path, user="ana",
                                   tenant="default"))  # fmt: skip
        return job_id(self.jobs)

    def end(self, at_s: float, job: JobId, *, task: int = 0, code: int = 0) -> None:
        attempt = self.driver.cluster.jobs[job].attempt
        self.do(at_s, TaskExited(at_s=at_s, job_id=job, attempt=attempt, task=task,
                                 exit_code=code))  # fmt: skip

    def shadow(
        self, policy: Policy = BACKFILL, *, lag_s: float = FOREVER_S, now_s: float = 0.0
    ) -> Shadow:
        shadow = Shadow(self.image, policy, seq=self.begin, lag_s=lag_s)
        shadow.take(self.entries[self.begin :])
        shadow.settle(now_s)
        return shadow

    def begin_now(self) -> None:
        self.image, self.begin = self.driver.cluster.image(), len(self.entries)


def job_in(shadow: Shadow, job: JobId):
    return shadow.loop.driver.cluster.jobs[job]


def blocked() -> tuple[Live, JobId, JobId, JobId]:
    """Strict order: the third job, which would fit beside the first, waits behind the second."""
    live = Live()
    first = live.submit(0.0, 3, time=TimeSpec(limit_s=HOUR_S))
    whole = live.submit(1.0, 4, time=TimeSpec(limit_s=HOUR_S))
    small = live.submit(2.0, 1, time=TimeSpec(limit_s=HOUR_S / 2))
    return live, first, whole, small


def test_a_start_before_its_time_holds_the_shadow_up_until_the_run_time_is_known():
    live, first, whole, small = blocked()
    live.end(1000.0, first)
    shadow = live.shadow()
    report = shadow.report()
    assert (report.waits_for, report.as_of_s) == (small, pytest.approx(2.0, abs=0.01))
    assert report.seq == live.entries[-1].seq
    live.end(2000.0, whole)  # now the small one starts there
    shadow = live.shadow(now_s=2300.0)
    assert shadow.report().waits_for == small
    assert shadow.report().as_of_s == pytest.approx(302.0, abs=0.01)
    assert job_in(shadow, first).state is JobState.RUNNING
    live.end(2600.0, small)
    shadow = live.shadow()
    assert job_in(shadow, small).ended_s == pytest.approx(602.0, abs=0.01)
    assert shadow.report().as_of_s == 2600.0
    assert shadow.report().recent[0].what == "earlier"
    assert shadow.report().total.earlier_s == pytest.approx(1998.0, abs=0.01)


def test_after_the_lag_a_run_time_is_guessed_and_set_right_when_it_is_known():
    live, first, _, small = blocked()
    live.end(1000.0, first)
    shadow = live.shadow(lag_s=500.0)
    report = shadow.report()
    assert (report.guessed, report.waits_for, report.as_of_s) == (1, None, 1000.0)
    ended_s = job_in(shadow, small).ended_s
    assert 2.0 < ended_s < 1000.0, "its limit was taken for a hint"
    now = {row.job: row.what for row in report.now}
    assert now == {small: "runs here only"}


def test_a_job_that_says_nothing_of_its_run_time_lasts_until_more_is_known():
    live = Live(CAPPED)
    first = live.submit(0.0, 3)
    other = live.submit(2.0, 1)  # above the limit of its queue
    live.end(6000.0, first)
    shadow = live.shadow(lag_s=100.0)
    assert job_in(shadow, other).state is JobState.RUNNING
    assert shadow.report().guessed == 1
    live.end(6500.0, other)
    shadow = live.shadow(lag_s=100.0)
    assert job_in(shadow, other).state is JobState.SUCCEEDED
    assert shadow.report().total.earlier_s == pytest.approx(5998.0)


def test_time_may_pass_without_entries():
    live, first, *_ = blocked()
    shadow = live.shadow(STRICT)
    shadow.settle(500.0)
    assert shadow.report().as_of_s == 500.0
    live.end(400.0, first)  # durable late
    shadow.take(live.entries[shadow.seq - live.entries[0].seq + 1 :])
    shadow.settle()
    assert job_in(shadow, first).state is JobState.SUCCEEDED


def test_ends_are_those_that_were():
    live = Live()
    again = RetrySpec(max=1, on=(EndCause.FAILED,), backoff_s=0.0)
    twice = live.submit(0.0, 1, retry=again)
    fails = live.submit(0.0, 1)
    stopped = live.submit(0.0, 1)
    limited = live.submit(0.0, 1, time=TimeSpec(limit_s=50.0))
    live.do(50.0)
    live.end(100.0, twice, code=3)
    live.end(150.0, fails, code=9)
    live.do(170.0, JobCancelRequested(at_s=170.0, job_id=stopped, by="ana"))
    live.end(300.0, twice)
    for policy in (STRICT, BACKFILL):
        shadow = live.shadow(policy)
        jobs = [job_in(shadow, job) for job in (twice, fails, stopped, limited)]
        assert [(job.state.value, job.ended_s) for job in jobs] == [
            ("succeeded", 300.0), ("failed", 150.0), ("cancelled", 170.0), ("failed", 50.0),
        ]  # fmt: skip
        assert (jobs[0].attempt, jobs[1].exit_code) == (2, 9)
        assert shadow.report().recent == ()


def test_what_people_ask_for_is_asked_for_here():
    live = Live()
    held = live.submit(0.0, 1)
    live.do(10.0, JobSuspendRequested(at_s=10.0, job_id=held, by="ana"))
    live.do(40.0, JobResumeRequested(at_s=40.0, job_id=held, by="ana"))
    whole = live.submit(41.0, 4)
    live.do(42.0, JobHeld(at_s=42.0, job_id=whole, by="ana"))
    late = live.submit(43.0, 1)
    live.do(60.0, JobCancelRequested(at_s=60.0, job_id=whole, by="ana"))
    live.end(100.0, held)
    live.end(101.0, late)
    shadow = live.shadow()
    assert job_in(shadow, held).ended_s == 100.0, "what it was suspended is no work"
    assert job_in(shadow, whole).state is JobState.CANCELLED
    assert shadow.report().passed_over == 0

    live, first, _, small = blocked()
    live.do(10.0, JobHeld(at_s=10.0, job_id=small, by="ana"))
    live.do(20.0, JobReleased(at_s=20.0, job_id=small, by="ana"))
    live.end(30.0, first)
    live.end(40.0, job_id(2))
    live.end(60.0, small)
    report = live.shadow().report()
    assert report.passed_over == 1, "it runs here already: it cannot be held"


def test_it_may_begin_while_a_gang_comes_to_its_end():
    live = Live()
    gang = live.submit(0.0, 2, tasks=2)
    live.end(10.0, gang, task=1)
    live.begin_now()
    live.end(60.0, gang, task=0)
    assert job_in(live.shadow(), gang).ended_s == 60.0


def test_a_job_that_was_suspended_when_it_began_goes_on_when_it_is_cancelled_there():
    live = Live()
    job = live.submit(0.0, 1)
    live.do(10.0, JobSuspendRequested(at_s=10.0, job_id=job, by="ana"))
    live.begin_now()
    live.do(30.0, JobCancelRequested(at_s=30.0, job_id=job, by="ana"))
    shadow = live.shadow(now_s=90.0)
    assert job_in(shadow, job).state is JobState.CANCELLED
    assert shadow.report().passed_over == 0


def test_a_lost_node_is_lost_here_too_and_comes_back():
    live = Live()
    keeps = CheckpointSpec(path="ck")
    job = live.submit(0.0, 1, checkpoint=keeps, retry=RetrySpec(max=5, backoff_s=0.0))
    live.do(100.0, NodeLost(at_s=100.0, node=NodeName("n1"), reason="gone"))
    live.do(400.0)  # the deadline of the fence
    live.do(500.0, NodeReported(at_s=500.0, spec=make_node("n1", devices=4)))
    live.end(600.0, job)
    shadow = live.shadow()
    assert job_in(shadow, job).attempt == 2
    assert job_in(shadow, job).state is JobState.SUCCEEDED
    assert shadow.loop.driver.cluster.nodes["n1"].is_placeable


def test_what_health_decides_there_is_taken_as_it_is():
    live = Live()
    settings = {"mode": "act"}
    live.do(1.0, HealthPolicyChanged(at_s=1.0, version=1, settings=settings, by="t"))
    job = live.submit(2.0, 1)
    fault = FaultFact(
        id="f1", at_s=50.0, fault_class="xid", code="79", severity="fatal", action="reboot_node",
        serial="S", device=0, meaning="the GPU has fallen off the bus",
    )  # fmt: skip
    live.do(50.0, FaultFound(at_s=50.0, node=NodeName("n1"), fault=fault))
    there = live.driver.cluster
    assert there.jobs[job].cause is EndCause.QUARANTINED
    here = live.shadow().loop.driver.cluster
    assert here.jobs[job].cause is EndCause.QUARANTINED
    assert here.jobs[job].state is JobState.QUEUED
    assert not here.nodes[NodeName("n1")].is_placeable
    assert here.health.records == there.health.records


def test_a_queue_that_the_policy_does_not_have_refuses():
    policy = msgspec.structs.replace(
        STRICT, queues={**STRICT.queues, "old": QueueSpec(order=QueueOrder.STRICT)}
    )
    live = Live(policy)
    old = live.submit(0.0, 1, queue="old")
    live.submit(1.0, 1)
    live.end(9.0, old)
    report = live.shadow(STRICT).report()
    assert [(row.queue, row.jobs, row.refused) for row in report.queues] == [
        ("default", 1, 0), ("old", 0, 1),
    ]  # fmt: skip
    assert report.recent[0].what == "refused"


def test_ended_jobs_are_forgotten_and_the_live_policy_is_followed_by_number():
    live = Live()
    jobs = [live.submit(float(number), 4) for number in range(3)]
    for number, job in enumerate(jobs):
        live.end(10.0 + number, job)
    live.do(20.0, PolicyChanged(at_s=20.0, version=2, policy=BACKFILL, by="t"))
    live.do(21.0, JobsForgotten(at_s=21.0, job_ids=tuple(jobs)))
    shadow = live.shadow()
    assert not shadow.loop.driver.cluster.jobs
    assert (shadow.report().live_version, shadow.report().live_changes) == (2, 1)
    assert shadow.loop.driver.cluster.policy == BACKFILL
