"""Running jobs followed by what their tasks mark and what their devices say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tercio.core.cluster import Cluster
from tercio.engines.base import TaskRef
from tercio.engines.local.engine import LocalEngine
from tercio.engines.local.records import TASK
from tercio.engines.local.settings import LocalSettings
from tercio.engines.marks import MARKS
from tercio.errors import EngineError
from tercio.model.events import (
    AnyEvent,
    FaultCleared,
    FaultFound,
    HealthPolicyChanged,
    JobHung,
    JobIdled,
    JobPlaced,
    JobSubmitted,
    NodeReported,
    RankPaceChanged,
    ServerStarted,
    TaskExited,
    TaskStarted,
)
from tercio.model.ids import EffectId, JobId, NodeName, QueuePath, SiteName
from tercio.model.job import EndCause
from tercio.model.placement import TaskPlacement
from tercio.model.readings import DeviceTelemetry, NodeReading
from tercio.model.resources import DeviceShare
from tercio.runtime.progress import Progress
from tercio.runtime.steps import steps_of
from tercio.runtime.telemetry import Telemetry
from tercio.runtime.turn import admitted
from tercio.testing import make_job, make_node

JOB = JobId("job-00001")
RANKS = 4


class FarEngine(LocalEngine):
    """An engine of another machine, which at times cannot be asked."""

    is_silent = False

    async def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        if self.is_silent:
            raise EngineError("no answer", engine="far", operation="marks", retryable=True)
        return await super().marks(wanted)


class Site:
    """One node with a running gang of four, whose marks are files, and a clock."""

    def __init__(self, path: Path, **settings: str | float) -> None:
        self.now_s = 1000.0
        self.cluster = Cluster()
        self.facts: list[AnyEvent] = []
        self.tasks = path
        self.apply(ServerStarted(at_s=self.now_s, epoch=1, version="t"))
        node = make_node("n1", devices=RANKS)
        self.apply(NodeReported(at_s=self.now_s, spec=node))
        self.apply(HealthPolicyChanged(at_s=self.now_s, version=1, settings=settings, by="root"))
        self.telemetry = Telemetry(
            cluster=lambda: self.cluster, deliver=self.deliver, now=lambda: self.now_s, poll_s=10.0
        )
        self.engine = FarEngine(
            site=node.site,
            settings=LocalSettings(tasks_dir=str(path)),
            clock=lambda: self.now_s,
            read_node=lambda _: node,
        )
        self.site = node.site
        self.restart()
        self.run()

    def restart(self) -> None:
        self.progress = Progress(
            cluster=lambda: self.cluster,
            engines={SiteName(self.site): self.engine},
            telemetry=self.telemetry,
            deliver=self.deliver,
            now=lambda: self.now_s,
        )

    def apply(self, event: AnyEvent) -> None:
        self.cluster.apply(event)

    def deliver(self, event: AnyEvent) -> None:
        admissible = admitted(self.cluster, event, self.now_s)
        if admissible is not None:
            self.facts.append(admissible)
            self.apply(admissible)

    def run(self) -> None:
        self.apply(
            JobSubmitted(
                at_s=self.now_s, job_id=JOB, spec=make_job(tasks=RANKS), queue=QueuePath("default"),
                user="ana", tenant="default",
            )
        )  # fmt: skip
        tasks = tuple(
            TaskPlacement(
                task=n, node=NodeName("n1"), cpus_milli=1000, devices=(DeviceShare(index=n),)
            )
            for n in range(RANKS)
        )
        self.apply(JobPlaced(at_s=self.now_s, job_id=JOB, attempt=1, tasks=tasks))
        for n in range(RANKS):
            (self.tasks / JOB / "1" / str(n) / TASK).mkdir(parents=True)
            effect = EffectId(f"launch:{JOB}/1/{n}")
            started = TaskStarted(at_s=self.now_s, job_id=JOB, attempt=1, task=n, effect_id=effect)
            self.apply(started)

    def mark(self, task: int, text: str) -> None:
        with (self.tasks / JOB / "1" / str(task) / TASK / MARKS).open("a") as file:
            file.write(text)

    def steps(self, count: int, *, slow: int | None = None, ranks: int = RANKS) -> None:
        for _ in range(count):
            self.now_s += 1.0
            for rank in range(ranks):
                own_s = 0.5 * (1.3 if rank == slow else 1.0)
                self.mark(rank, f"{self.now_s} step {int(self.now_s)} own {own_s}\n")

    def read(self, **fields: object) -> None:
        devices = tuple(
            DeviceTelemetry(index=n, uuid=f"n1-{n}", power_limit_w=700.0, **fields)
            for n in range(RANKS)
        )
        self.telemetry.take((NodeName("n1"),), NodeReading(at_s=0.0, devices=devices))

    def look(self, after_s: float = 0.0) -> list[AnyEvent]:
        self.now_s += after_s
        before = len(self.facts)
        asyncio.run(self.progress.look())
        return self.facts[before:]


def test_steps_by_rank_are_told_while_it_runs_and_after_its_end(tmp_path: Path) -> None:
    site = Site(tmp_path)
    job = site.cluster.jobs[JOB]
    assert steps_of(job, site.progress.progress_of(JOB, 1)).groups == ()
    site.steps(40, slow=2)
    site.look()
    steps = steps_of(job, site.progress.progress_of(JOB, 1))
    (group,) = steps.groups
    assert (steps.attempt, steps.has_own, group.per_column, len(group.first)) == (1, True, 1, 40)
    assert [(row.rank, row.node, row.ratio, row.is_slow) for row in group.rows] == [
        (0, "n1", 1.0, False), (1, "n1", 1.0, False), (2, "n1", 1.3, True), (3, "n1", 1.0, False),
    ]  # fmt: skip
    assert group.rows[2].own_s == (0.65,) * 40
    for n in range(RANKS):
        site.apply(TaskExited(at_s=site.now_s, job_id=JOB, attempt=1, task=n, exit_code=0))
    site.look()
    assert steps_of(job, site.progress.progress_of(JOB, 1)) == steps


def test_a_slow_task_is_told_once_with_its_cause_and_again_when_it_recovers(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.steps(40, slow=2)
    site.read(throttle_mask=0x40, utilization_ratio=1.0)
    pace, fault = site.look()
    assert isinstance(pace, RankPaceChanged)
    assert (pace.task, pace.ratio) == (2, 1.3)
    assert pace.words == "GPU 2 is held down by its hardware"
    assert isinstance(fault, FaultFound)
    assert (fault.fault.title, fault.fault.action, fault.fault.job) == ("straggler", "observe", JOB)
    site.steps(10, slow=2)
    assert not site.look()
    site.restart()
    assert not site.look(), "a server that starts again tells nothing twice"
    site.steps(30)
    again, cleared = site.look()
    assert isinstance(again, RankPaceChanged)
    assert again.ratio == 1.0
    assert isinstance(cleared, FaultCleared)


def test_what_an_attempt_said_of_a_node_ends_with_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.steps(40, slow=2)
    site.look()
    for n in range(RANKS):
        site.apply(TaskExited(at_s=site.now_s, job_id=JOB, attempt=1, task=n, exit_code=0))
    site.restart()
    assert [type(event) for event in site.look()] == [FaultCleared]


@pytest.mark.parametrize(("mode", "held_by"), [("shadow", "shadow"), ("act", "")])
def test_a_hang_is_told_with_what_holds_it(tmp_path: Path, mode: str, held_by: str) -> None:
    site = Site(tmp_path, mode=mode)
    site.steps(30)
    site.steps(1, ranks=3)
    assert not site.look(after_s=299.0)
    hung, fault = site.look(after_s=2.0)
    assert isinstance(hung, JobHung)
    assert (hung.tasks, hung.held_by, hung.limit_s) == ((3,), held_by, 300.0)
    assert isinstance(fault, FaultFound)
    assert fault.fault.meaning == f"the others of {JOB} wait for task 3"
    assert not site.look(after_s=100.0)
    if held_by:
        site.steps(1)
        (over,) = site.look()
        assert isinstance(over, JobHung)
        assert over.is_over
    else:
        assert site.cluster.jobs[JOB].stop_cause is not None


def test_a_silent_site_is_no_silent_job(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="act")
    site.steps(30)
    site.look()
    site.engine.is_silent = True
    for _ in range(100):
        assert not site.look(after_s=10.0)
    site.engine.is_silent = False
    # Nothing new when it answers again: the silence of the job itself begins only now.
    assert not site.look(after_s=10.0)
    assert not site.look(after_s=280.0)
    assert [type(event) for event in site.look(after_s=40.0)][:1] == [JobHung]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.steps(30)
    site.look()
    site.mark(0, "1035.0 st")
    site.look()
    site.mark(0, "ep 31\n")
    assert not site.look(after_s=1035.0 + 299.0 - site.now_s)
    assert site.look(after_s=2.0)


def test_a_job_without_marks_that_spins_is_told_of_and_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="act")
    for _ in range(61):
        site.now_s += 10.0
        site.read(utilization_ratio=1.0, power_w=130.0)
        found = site.look()
    (hung,) = found
    assert isinstance(hung, JobHung)
    assert (hung.phase, hung.held_by) == ("collective", "no_marks")
    assert site.cluster.jobs[JOB].stop_cause is None
    site.now_s += 10.0
    site.read(utilization_ratio=1.0, power_w=600.0)
    (over,) = site.look()
    assert isinstance(over, JobHung)
    assert over.is_over


def idle_events(found: list[AnyEvent]) -> list[JobIdled]:
    return [event for event in found if isinstance(event, JobIdled)]


def poll(site: Site, seconds: float, **fields: object) -> list[AnyEvent]:
    found: list[AnyEvent] = []
    for _ in range(int(seconds / 10.0)):
        site.now_s += 10.0
        site.read(**fields)
        found += site.look()
    return found


def test_an_idle_job_is_warned_then_reclaimed_across_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="act", idle_limit_s=600.0, idle_grace_s=120.0)
    poll(site, 100.0, utilization_ratio=0.9)
    assert not poll(site, 600.0, utilization_ratio=0.0)
    (warned,) = idle_events(poll(site, 20.0, utilization_ratio=0.0))
    assert warned.stop_s == warned.at_s + 120.0
    site.restart()
    assert not poll(site, 100.0, utilization_ratio=0.0)
    (reclaimed,) = idle_events(poll(site, 20.0, utilization_ratio=0.0))
    assert reclaimed.is_reclaimed
    assert site.cluster.jobs[JOB].stop_cause is EndCause.IDLE


def test_one_busy_device_a_step_or_no_reading_is_not_idle(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="act", idle_limit_s=600.0)
    for _ in range(100):
        site.now_s += 10.0
        site.mark(0, f"{site.now_s} step\n")
        site.read(utilization_ratio=0.0)
        assert not idle_events(site.look())
    poll(site, 300.0, utilization_ratio=0.0)
    site.now_s += 40.0  # the node is silent for longer than a reading holds
    site.look()
    assert not idle_events(poll(site, 590.0, utilization_ratio=0.0))


def test_in_shadow_an_idle_job_is_told_of_and_never_stopped(tmp_path: Path) -> None:
    site = Site(tmp_path, idle_limit_s=600.0, idle_grace_s=60.0)
    (warned,) = idle_events(poll(site, 3600.0, utilization_ratio=0.01))
    assert warned.stop_s is None
    (over,) = idle_events(poll(site, 10.0, utilization_ratio=0.5))
    assert over.is_over


def taken_out(found: list[AnyEvent]) -> list[FaultFound]:
    return [
        event
        for event in found
        if isinstance(event, FaultFound) and event.fault.action == "inspect_hw"
    ]


def slow_for(site: Site, polls: int, **fields: object) -> list[FaultFound]:
    found: list[AnyEvent] = []
    for _ in range(polls):
        site.steps(20, slow=2)
        site.read(**fields)
        found += site.look()
    return taken_out(found)


def test_a_slow_node_is_taken_out_once_that_costs_less_than_it_saves(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="act", suspects="act")
    hot = {"throttle_mask": 0x40, "utilization_ratio": 1.0}
    for rank in range(RANKS):
        site.mark(rank, "1000.5 step 0\n")
    assert not slow_for(site, 12, **hot), "nothing was saved: all would be done again"
    site.mark(0, f"{site.now_s} checkpoint begin\n{site.now_s} checkpoint end\n")
    (found,) = slow_for(site, 1, **hot)
    assert "1.30 times as long and has cost more than a restart" in found.fault.meaning
    assert found.fault.meaning.endswith("GPU 2 is held down by its hardware")
    assert not slow_for(site, 3, **hot), "it is asked for once"


@pytest.mark.parametrize(
    ("settings", "mask"),
    [
        ({"mode": "act"}, 0x40),
        ({"mode": "shadow", "suspects": "act"}, 0x40),
        ({"mode": "act", "suspects": "act"}, 0),
    ],
    ids=["observe", "shadow", "no cause"],
)
def test_a_slow_node_stays_where_the_policy_or_the_evidence_says_so(
    tmp_path: Path, settings: dict[str, str], mask: int
) -> None:
    site = Site(tmp_path, **settings)
    site.mark(0, "1000.5 checkpoint begin\n1000.5 checkpoint end\n")
    assert not slow_for(site, 12, throttle_mask=mask, utilization_ratio=1.0)


@pytest.mark.parametrize(("suspects", "action"), [("observe", "observe"), ("act", "inspect_hw")])
def test_the_node_that_a_hang_waits_for_is_taken_out_by_policy(
    tmp_path: Path, suspects: str, action: str
) -> None:
    site = Site(tmp_path, mode="act", suspects=suspects)
    site.steps(30)
    site.steps(1, ranks=3)
    site.look()
    _, fault = site.look(after_s=301.0)
    assert isinstance(fault, FaultFound)
    assert fault.fault.action == action
