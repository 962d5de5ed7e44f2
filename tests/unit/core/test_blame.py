"""Blame for failures, the lemons that follow from it, and parts to send back."""

from __future__ import annotations

import pytest

from tercio.core.cluster import Cluster
from tercio.core.rma import rma_report
from tercio.model.commands import CordonNode, SubmitJob
from tercio.model.events import JobHung, NodeFenced, NodeLost, NodeReported, TaskExited
from tercio.model.ids import JobId, NodeName
from tercio.model.job import EndCause, NodeFilter, RetrySpec
from tercio.testing import make_job, make_node

from .test_healing import World

DAY_S = 86_400.0
N2 = NodeName("n2")


def blames(world: World) -> list[tuple[str, float]]:
    return [(each.node, each.weight) for each in world.driver.cluster.health.blames]


def lose(world: World, node: str = "n2") -> None:
    name = NodeName(node)
    world.step([NodeLost(at_s=world.now_s, node=name, reason="no answer")])
    world.step([NodeFenced(at_s=world.now_s, node=name, reason="power is off")])
    world.step([NodeReported(at_s=world.now_s, spec=make_node(node, devices=1))])


def fail(world: World, job_id: str, task: int = 0) -> None:
    job = world.driver.cluster.jobs[JobId(job_id)]
    world.step(
        [TaskExited(at_s=world.now_s, job_id=job.id, attempt=job.attempt, task=task, exit_code=1)]
    )


def test_three_losses_in_a_week_make_a_lemon_that_waits_for_a_person() -> None:
    world = World(4, spares=0, mode="act", repairs="command")
    world.gang()
    for _ in range(2):
        lose(world, "n1")
        world.later(DAY_S)
    assert world.state("n1") == "ok"
    lose(world, "n1")
    assert blames(world) == [("n1", 1.0)] * 3
    assert world.state("n1") == "quarantined"
    record = world.driver.cluster.health.records[NodeName("n1")]
    assert record.reason == "lemon: 3 failures in 7 days"
    assert "needs a person" in record.said
    image = world.driver.cluster.image()
    assert Cluster.from_image(image).image() == image


def test_a_lemon_beyond_the_drain_budget_stays_in_service() -> None:
    world = World(4, spares=0, mode="act", drain_budget_min=0, drain_budget_ratio=0.0)
    world.gang()
    for _ in range(3):
        world.later(3600.0)
        lose(world, "n1")
    assert world.state("n1") == "suspect"
    assert "drain_budget" in world.driver.cluster.health.records[NodeName("n1")].said


def test_a_job_that_fails_everywhere_blames_no_node() -> None:
    world = World(4, spares=0, mode="act")
    retry = RetrySpec(on=(EndCause.FAILED,), max=1, backoff_s=0.0)
    world.command(SubmitJob(spec=make_job(tasks=2, retry=retry)))
    for _ in range(2):
        fail(world, "job-00001")
        world.later(1.0)
    assert world.driver.cluster.jobs[JobId("job-00001")].state.value == "failed"
    assert not blames(world)


def test_a_job_that_fails_here_and_succeeds_elsewhere_blames_where_it_failed() -> None:
    world = World(4, spares=0, mode="act")
    retry = RetrySpec(on=(EndCause.FAILED,), max=1, backoff_s=10.0)
    world.command(SubmitJob(spec=make_job(tasks=2, retry=retry)))
    fail(world, "job-00001")
    world.command(SubmitJob(spec=make_job(tasks=2)))  # takes n1 and n2 meanwhile
    world.later(20.0)
    assert world.nodes_of("job-00001") == ["n3", "n4"]
    for task in range(2):
        job = world.driver.cluster.jobs[JobId("job-00001")]
        world.step(
            [
                TaskExited(
                    at_s=world.now_s, job_id=job.id, attempt=job.attempt, task=task, exit_code=0
                )
            ]
        )
    assert blames(world) == [("n1", 0.5), ("n2", 0.5)]


def test_a_device_finding_names_the_culprit() -> None:
    world = World(mode="act")
    job_id = world.gang()
    world.fault("n2", job=job_id)
    assert blames(world) == [("n2", 1.0)]


@pytest.mark.parametrize(
    ("tasks", "told"), [((1,), [("n2", 1.0)]), ((), [("n1", 0.5), ("n2", 0.5)])]
)
def test_a_hang_blames_whom_all_waited_for(
    tasks: tuple[int, ...], told: list[tuple[str, float]]
) -> None:
    world = World(mode="act")
    job_id = JobId(world.gang())
    event = JobHung(
        at_s=world.now_s, job_id=job_id, attempt=1, last_progress_s=0.0, limit_s=1.0, phase="step",
        tasks=tasks,
    )  # fmt: skip
    world.step([event])
    assert blames(world) == told


def test_a_loss_under_a_cordon_is_nobodys_failure() -> None:
    world = World(4, spares=0)
    world.gang()
    world.command(CordonNode(node=NodeName("n1")))
    lose(world, "n1")
    assert not blames(world)


def test_users_who_exclude_a_node_add_to_its_blame() -> None:
    from tercio.core.healing import book_of

    world = World(4, spares=0)
    world.gang()
    lose(world, "n1")
    world.command(SubmitJob(spec=make_job(nodes=NodeFilter(exclude=("n1",)))))
    book = book_of(world.driver.cluster, world.now_s)
    assert book.record("n1").excluded_by == 1
    assert book.record("n1").seen_s == 1_000.0


def test_a_part_is_to_be_replaced_when_its_faults_repeat_on_whatever_node() -> None:
    world = World(4, spares=0)
    world.fault("n1", serial="S1")
    world.later(3600.0)
    world.fault("n2", serial="S1", evidence="NVRM: Xid ...")
    world.fault("n3", serial="S3", code="31", severity="error", action="restart_app")
    report = rma_report(world.driver.cluster, since_s=0.0, now_s=world.now_s)
    first, second = report.rows
    assert (first.serial, first.advice, first.nodes) == ("S1", "replace", ("n1", "n2"))
    assert (first.faults, first.codes, first.evidence) == (2, ("Xid 79 x2",), "NVRM: Xid ...")
    assert (second.serial, second.advice) == ("S3", "watch")
    assert not rma_report(world.driver.cluster, since_s=world.now_s + 1, now_s=world.now_s).rows
