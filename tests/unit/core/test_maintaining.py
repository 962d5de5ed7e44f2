"""A maintenance window: nothing that would run into it, drained at its start, back at its end."""

from __future__ import annotations

import pytest

from tercio.core.cluster import Cluster
from tercio.core.story import tell
from tercio.errors import UserError
from tercio.model.commands import AddReservation, CordonNode, RemoveReservation, SubmitJob
from tercio.model.events import NodeUncordoned, subjects
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import JobState, TimeSpec
from tercio.model.reservation import Reservation
from tercio.testing import make_job

from .test_healing import World

HOUR_S = 3600.0


def plan(
    world: World, *nodes: str, after_s: float = HOUR_S, name: str = "w", **more: object
) -> None:
    window = Reservation(
        name=name, from_s=world.now_s + after_s, duration_s=HOUR_S,
        nodes=tuple(NodeName(node) for node in nodes), reason="new firmware", **more,  # type: ignore[arg-type]
    )  # fmt: skip
    world.command(AddReservation(reservation=window))


def submit(world: World, limit_s: float | None, **fields: object) -> JobState:
    world.command(SubmitJob(spec=make_job(time=TimeSpec(limit_s=limit_s), **fields)))
    return next(reversed(world.driver.cluster.jobs.values())).state


def test_only_what_ends_before_the_window_starts_on_its_nodes() -> None:
    world = World(1, spares=0)
    plan(world, "n1")
    assert submit(world, None) is JobState.QUEUED
    assert submit(world, 2 * HOUR_S) is JobState.QUEUED
    assert submit(world, HOUR_S / 2) is JobState.RUNNING


def test_a_job_without_devices_stays_off_too() -> None:
    world = World(1, spares=0)
    plan(world, "n1")
    assert submit(world, None, devices=0) is JobState.QUEUED
    assert submit(world, HOUR_S / 2, devices=0) is JobState.RUNNING


def test_nodes_are_drained_at_the_start_and_returned_at_the_end_also_after_a_restart() -> None:
    world = World(2, spares=0)
    job_id = world.gang()
    plan(world, "n2")
    image = world.driver.cluster.image()
    restored = Cluster.from_image(image)
    assert restored.next_timer_s() == world.now_s + HOUR_S
    world.later(HOUR_S - 1)
    assert world.owners("n2") == []
    world.later(2)
    assert world.owners("n2") == ["maintenance"]
    assert world.owners("n1") == []
    job = world.driver.cluster.jobs[JobId(job_id)]
    assert (job.state, job.retries) == (JobState.QUEUED, 0)
    world.later(HOUR_S)
    assert world.owners("n2") == []
    assert not world.driver.cluster.reservations
    assert job.state is JobState.RUNNING
    entries = [entry for entry in world.entries if "node/n2" in subjects(entry.event)]
    story = "\n".join(line.text for line in tell(entries, "node/n2"))
    assert "maintenance window w of n2 added by root" in story
    assert "drain by maintenance: new firmware" in story
    assert "cordon of maintenance lifted" in story


def test_what_somebody_else_cordoned_stays_and_health_leaves_the_node_alone() -> None:
    world = World(3, spares=0, mode="act")
    plan(world, "n1", after_s=0.0)
    assert world.owners("n1") == ["maintenance"]
    world.command(CordonNode(node=NodeName("n1"), reason="mine"))
    world.fault("n1")
    assert world.state("n1") == "suspect"
    world.later(HOUR_S + 1)
    assert world.owners("n1") == ["user:root"]


def test_a_window_may_end_early_and_another_one_keeps_the_node() -> None:
    world = World(2, spares=0)
    plan(world, "n1", "n2", after_s=0.0)
    plan(world, "n1", after_s=0.0, name="other")
    found = world.command(RemoveReservation(name="w"))
    assert [e.node for e in found if isinstance(e, NodeUncordoned)] == ["n2"]
    assert world.owners("n1") == ["maintenance"]
    world.command(RemoveReservation(name="other"))
    assert world.owners("n1") == []


def test_a_server_that_slept_through_a_window_leaves_no_cordon() -> None:
    world = World(1, spares=0)
    plan(world, "n1")
    world.later(3 * HOUR_S)
    assert world.owners("n1") == []
    assert not world.driver.cluster.reservations


def test_a_window_names_nodes_that_are_there_and_nobody_it_is_for() -> None:
    world = World(1, spares=0)
    with pytest.raises(UserError, match="no node 'n9'"):
        plan(world, "n9")
    with pytest.raises(UserError, match="for nobody"):
        plan(world, "n1", queue=QueuePath("default"))
