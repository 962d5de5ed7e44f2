"""Members of a running gang that are lost and replaced alone, and tasks that join."""

from __future__ import annotations

import pytest

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.core.members import REPAIR_GRACE_S, check_repair
from tercio.core.story import tell
from tercio.errors import UserError
from tercio.model.effects import LaunchTask
from tercio.model.events import (
    AnyEvent,
    Entry,
    JobSubmitted,
    JobSuspendRequested,
    NodeFenced,
    NodeLost,
    NodeReported,
    RepairTimedOut,
    ServerStarted,
    TaskExited,
    TaskLaunchFailed,
    TasksAdded,
    TaskStarted,
)
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import (
    EndCause,
    Framework,
    JobSpec,
    JobState,
    Repair,
    RetrySpec,
    TaskGroup,
    TimeSpec,
)
from tercio.model.topology import TopologyRequest
from tercio.testing import make_job, make_node

JOB = JobId("job-00001")


class Live:
    """The driver with two or more nodes of two devices; every task starts at once."""

    def __init__(self, nodes: int = 3) -> None:
        self.driver = Driver(Cluster(), settings=DriverSettings(is_validating=True))
        self.now_s = 1000.0
        self.entries: list[Entry] = []
        self.launches: list[LaunchTask] = []
        specs = [make_node(f"n{at + 1}", devices=2) for at in range(nodes)]
        self.do(
            ServerStarted(at_s=self.now_s, epoch=1, version="test"),
            *(NodeReported(at_s=self.now_s, spec=spec) for spec in specs),
        )

    def do(self, *events: AnyEvent, starts: bool = True) -> None:
        step = self.driver.step(events, self.now_s)
        assert not step.refused
        self.entries += step.entries
        launched = [e for e in step.effects if isinstance(e, LaunchTask)]
        self.launches += launched
        if launched and starts:
            self.do(*(self.started(order) for order in launched))

    def started(self, order: LaunchTask) -> TaskStarted:
        return TaskStarted(
            at_s=self.now_s, job_id=order.job_id, attempt=order.attempt, task=order.task,
            effect_id=order.effect_id,
        )  # fmt: skip

    def submit(self, spec: JobSpec) -> JobId:
        job_id = JobId(f"job-{self.driver.cluster.jobs_submitted + 1:05}")
        self.do(
            JobSubmitted(
                at_s=self.now_s, job_id=job_id, spec=spec, queue=QueuePath("default"),
                user="ana", tenant="default",
            )
        )  # fmt: skip
        return job_id

    def exit(self, task: int, code: int | None = 0, *, is_lost: bool = False) -> None:
        attempt = self.job.attempt
        self.do(
            TaskExited(
                at_s=self.now_s, job_id=JOB, attempt=attempt, task=task, exit_code=code,
                is_lost=is_lost,
            )
        )  # fmt: skip

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.do()

    @property
    def job(self):  # type: ignore[no-untyped-def]
        return self.driver.cluster.jobs[JOB]

    def live(self) -> list[tuple[int, int, str]]:
        return [(t.placement.task, t.placement.rank, t.placement.node) for t in self.job.live_tasks]


def gang(tasks: int = 3, **fields: object) -> JobSpec:
    fields = {"repair": Repair.TASK, "retry": RetrySpec(backoff_s=30.0)} | fields
    return make_job("a", tasks=tasks, devices=2, **fields)


def test_a_lost_node_costs_one_member_only() -> None:
    live = Live(nodes=4)
    live.submit(gang())
    assert [task for task, _, _ in live.live()] == [0, 1, 2]
    lost = live.job.tasks[1].placement.node
    live.do(NodeLost(at_s=live.now_s, node=lost, reason="no answer"))
    assert len(live.live()) == 3, "it may still run there"
    live.do(NodeFenced(at_s=live.now_s, node=lost, reason="off"))
    assert live.job.state is JobState.RUNNING
    assert live.job.attempt == 1
    assert live.job.retries == 1
    assert sum(isinstance(entry.event, TasksAdded) for entry in live.entries) == 1
    (added,) = (order for order in live.launches if order.task == 3)
    assert added.effect_id == f"launch:{JOB}/1/3"
    assert (added.env["TERCIO_TASK"], added.env["TERCIO_TASKS"]) == ("1", "3")
    assert added.node != lost
    for task in (0, 2, 3):
        live.exit(task)
    assert live.job.state is JobState.SUCCEEDED
    story = [line.text for line in tell(live.entries, JOB)]
    assert f"lost member 1 replaced: 1 task on {added.node}" in story


def test_a_program_that_failed_is_started_again_after_a_pause() -> None:
    live = Live()
    live.submit(gang(2, retry=RetrySpec(on=(EndCause.FAILED,), max=1, backoff_s=30.0)))
    live.exit(0, 1)
    assert live.live() == [(1, 1, "n2")]
    assert live.job.message == "task 0 on n1 exited with code 1"
    live.later(29)
    assert len(live.live()) == 1
    live.later(1)
    assert [(task, rank) for task, rank, _ in live.live()] == [(1, 1), (2, 0)]
    live.exit(2, 1)
    assert live.job.state is JobState.STOPPING, "one retry is all it has"


def test_a_cause_that_is_not_retried_stops_all() -> None:
    live = Live()
    live.submit(gang(2))
    live.exit(0, 1)
    assert live.job.state is JobState.STOPPING


def test_the_last_member_is_the_whole_gang() -> None:
    live = Live()
    live.submit(gang(1))
    live.exit(0, None, is_lost=True)
    assert live.job.state is JobState.QUEUED
    assert live.job.cause is EndCause.NODE_FAILED


def test_without_room_the_gang_is_released_whole_after_a_grace() -> None:
    live = Live(nodes=2)
    live.submit(gang(2))
    live.do(NodeLost(at_s=live.now_s, node=NodeName("n2"), reason="no answer"))
    live.do(NodeFenced(at_s=live.now_s, node=NodeName("n2"), reason="off"))
    assert live.job.state is JobState.RUNNING
    restored = Cluster.from_image(live.driver.cluster.image())
    assert restored.state_hash() == live.driver.cluster.state_hash()
    assert any(e.at_s for e in restored.due(live.now_s + REPAIR_GRACE_S)), "the timer comes back"
    live.later(REPAIR_GRACE_S - 1)
    assert live.job.state is JobState.RUNNING
    live.later(1)
    assert live.job.state is JobState.STOPPING
    assert live.job.stop_cause is EndCause.NODE_FAILED
    assert RepairTimedOut(at_s=live.now_s, job_id=JOB, attempt=1) in [
        entry.event for entry in live.entries
    ]
    live.exit(0, None)
    assert live.job.state is JobState.QUEUED
    assert live.job.retries == 1, "one loss, counted once"


def test_the_others_ending_well_does_not_make_an_incomplete_gang_a_success() -> None:
    live = Live(nodes=2)
    live.submit(gang(2))
    live.do(NodeLost(at_s=live.now_s, node=NodeName("n2"), reason="no answer"))
    live.do(NodeFenced(at_s=live.now_s, node=NodeName("n2"), reason="off"))
    live.exit(0)
    assert live.job.state is JobState.QUEUED
    assert live.job.cause is EndCause.NODE_FAILED


def test_nobody_joins_a_paused_job() -> None:
    live = Live()
    live.submit(gang(2))
    live.do(JobSuspendRequested(at_s=live.now_s, job_id=JOB, by="ana"))
    live.exit(0, None, is_lost=True)
    assert live.job.state is JobState.STOPPING, "a paused gang is not repaired member by member"


def elastic(**fields: object) -> JobSpec:
    spec = make_job("e", tasks=1, devices=2, **fields)
    group = spec.groups[0]
    return JobSpec(
        name="e", run=spec.run, retry=spec.retry,
        framework=fields.get("framework", Framework.PLAIN),  # type: ignore[arg-type]
        groups=(TaskGroup(tasks=1, tasks_max=3, per_task=group.per_task),),
    )  # fmt: skip


def test_the_expected_end_counts_the_speed_of_the_devices() -> None:
    live = Live(nodes=1)
    spec = make_job("s", devices=2, time=TimeSpec(expected_s=100.0), speed={"H100": 0.5})
    live.submit(spec)
    assert live.driver.cluster.snapshot().running[JOB].expected_end_s == live.now_s + 200


def grown(live: Live) -> list[int]:
    return [rank for _, rank, _ in live.live()]


def test_an_elastic_job_grows_when_a_node_comes() -> None:
    live = Live(nodes=1)
    live.submit(elastic())
    assert grown(live) == [0]
    live.later(50)
    live.do(NodeReported(at_s=live.now_s, spec=make_node("n2", devices=2)))
    assert grown(live) == [0, 1]
    assert live.launches[-1].env["TERCIO_TASKS"] == "2"
    live.later(100)
    live.exit(1)
    live.do(NodeReported(at_s=live.now_s, spec=make_node("n3", devices=2)))
    assert grown(live) == [0], "a job some of whose tasks are done does not grow"
    live.later(100)
    live.exit(0)
    assert live.job.state is JobState.SUCCEEDED
    used = live.driver.cluster.ledger.usage_ms[0]["ana"]["default"]["H100"]
    assert used == 2 * (250 + 100) * 1000, "a task counts from when it joined"


def test_frameworks_that_count_their_ranks_once_do_not_grow() -> None:
    live = Live(nodes=1)
    live.submit(elastic(framework=Framework.TORCHRUN))
    live.do(NodeReported(at_s=live.now_s, spec=make_node("n2", devices=2)))
    assert grown(live) == [0]


def test_a_task_that_cannot_join_is_no_fault_of_the_job() -> None:
    live = Live(nodes=1)
    live.submit(elastic())
    live.do(NodeReported(at_s=live.now_s, spec=make_node("n2", devices=2)), starts=False)
    order = live.launches[-1]
    refused = TaskLaunchFailed(
        at_s=live.now_s, job_id=JOB, attempt=1, task=order.task, effect_id=order.effect_id,
        message="no luck",
    )  # fmt: skip
    live.do(refused)
    assert live.job.state is JobState.RUNNING
    assert grown(live) == [0]
    live.later(599)
    assert grown(live) == [0], "not at once again"
    live.later(1)
    assert grown(live) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"framework": Framework.TORCHRUN}, "framework torchrun"),
        ({"topology": TopologyRequest(same="island")}, "same: island"),
        ({"topology": TopologyRequest(spread="rack")}, "spread"),
    ],
)
def test_repair_task_is_refused_where_nobody_could_join(
    fields: dict[str, object], word: str
) -> None:
    with pytest.raises(UserError, match=word) as refused:
        check_repair(gang(2, **fields))
    assert refused.value.field == "repair"
