"""Nodes that a job suspects, nodes on probation, and spares that work while they wait."""

from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.model.commands import MoveNode, SetHealthPolicy, SubmitJob
from tercio.model.events import FaultCleared, JobHung
from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobState
from tercio.model.reasons import Reason
from tercio.testing import make_job

from .test_healing import World


def submit(world: World, name: str, *, tasks: int = 1, preemptible: bool = True) -> JobId:
    before = dict.fromkeys(world.driver.cluster.jobs)
    world.command(SubmitJob(spec=make_job(name, tasks=tasks, preemptible=preemptible)))
    return next(job_id for job_id in world.driver.cluster.jobs if job_id not in before)


def hang(world: World, job_id: str) -> None:
    """What following a job says when the others wait for its task on n2."""
    world.step(
        [
            JobHung(
                at_s=world.now_s, job_id=JobId(job_id), attempt=1, last_progress_s=world.now_s,
                limit_s=300.0, phase="step", tasks=(1,),
            )
        ]
    )  # fmt: skip


def test_a_hang_moves_the_gang_to_the_spare_and_the_suspect_goes_on_trial() -> None:
    world = World(mode="act", suspects="act")
    job_id = world.gang()
    said = {
        "id": f"n2/job/{job_id}/1/hang/1", "fault_class": "job", "code": "hang", "device": None,
        "serial": None, "severity": "warning", "action": "inspect_hw",
        "meaning": f"the others of {job_id} wait for task 1",
    }  # fmt: skip
    events = world.fault("n2", **said)
    assert world.state("n2") == "quarantined", events
    assert sorted(world.nodes_of(job_id)) == ["n1", "n3"]
    assert world.driver.cluster.jobs[JobId(job_id)].attempt == 2
    cleared = FaultCleared(at_s=world.now_s, node=NodeName("n2"), fault_id=str(said["id"]))
    world.step([cleared])
    assert world.state("n2") == "probation"
    assert world.owners("n2") == ["spare"]


def test_a_job_that_hung_gets_the_spare_too() -> None:
    world = World(mode="act", suspects="act")
    job_id = world.gang()
    world.command(MoveNode(node=NodeName("n3"), to="quarantine"))
    hang(world, job_id)
    assert sorted(world.nodes_of(job_id)) == ["n1", "n2"], "no spare: it starts again in place"
    world.command(MoveNode(node=NodeName("n3"), to="return"))
    world.fault(
        "n2", id="n2/job/x/2/hang/1", fault_class="job", code="hang", device=None, serial=None,
        severity="warning", action="inspect_hw", meaning="the others wait for task 1",
    )  # fmt: skip
    assert sorted(world.nodes_of(job_id)) == ["n1", "n3"]


def test_a_suspect_in_quarantine_asks_for_no_person() -> None:
    world = World(mode="act")
    world.gang()
    events = world.fault(
        "n2", id="n2/job/x/1/hang/1", fault_class="job", code="hang", device=None, serial=None,
        severity="warning", action="inspect_hw", meaning="the others wait for task 1",
    )  # fmt: skip
    assert not any("needs a person" in repr(event) for event in events)


def on_probation(**settings: str) -> World:
    """Two nodes, the second on probation."""
    world = World(nodes=2, spares=0, mode="act", **settings)
    world.command(MoveNode(node=NodeName("n2"), to="quarantine"))
    world.command(MoveNode(node=NodeName("n2"), to="probation"))
    assert world.state("n2") == "probation"
    return world


def test_a_node_on_probation_takes_single_tasks_that_may_be_evicted_and_no_others() -> None:
    world = on_probation()
    gang = submit(world, "gang", tasks=2)
    jobs = world.driver.cluster.jobs
    assert jobs[gang].state is JobState.QUEUED
    told = world.driver.decisions[gang]
    assert told.reason is Reason.HEALTH
    assert "n2 (probation)" in told.message
    firm = submit(world, "firm", preemptible=False)
    assert world.nodes_of(firm) == ["n1"]
    assert jobs[submit(world, "firm-too", preemptible=False)].state is JobState.QUEUED
    assert world.nodes_of(submit(world, "small")) == ["n2"]


def test_a_job_that_only_a_node_on_probation_could_take_says_how_to_return_it() -> None:
    world = World(nodes=1, spares=0, mode="act")
    world.command(MoveNode(node=NodeName("n1"), to="quarantine"))
    world.command(MoveNode(node=NodeName("n1"), to="probation"))
    firm = submit(world, "firm", preemptible=False)
    change = world.driver.decisions[firm].change
    assert change is not None
    assert (change.what, change.to) == ("return", "n1")


def test_probation_ends_the_limit_and_so_does_the_policy() -> None:
    world = on_probation()
    gang = submit(world, "gang", tasks=2)
    world.later(86_401.0)
    assert sorted(world.nodes_of(gang)) == ["n1", "n2"]
    other = on_probation()
    waiting = submit(other, "gang", tasks=2)
    other.command(SetHealthPolicy(settings={"probation_work": "all"}))
    assert sorted(other.nodes_of(waiting)) == ["n1", "n2"]


def test_a_spare_works_while_it_waits_and_is_free_when_it_is_needed() -> None:
    world = World(mode="act", spare_work="small")
    gang = world.gang()
    assert world.owners("n3") == ["spare"]
    small = submit(world, "small")
    assert world.nodes_of(small) == ["n3"]
    world.fault("n2", job=gang)
    assert sorted(world.nodes_of(gang)) == ["n1", "n3"]
    stopped = world.driver.cluster.jobs[small]
    assert stopped.state is JobState.QUEUED
    assert stopped.retries == 0


def test_without_the_policy_a_spare_does_nothing() -> None:
    world = World(mode="act")
    world.gang()
    small = submit(world, "small")
    assert world.driver.cluster.jobs[small].state is JobState.QUEUED
    world.command(SetHealthPolicy(settings={"spare_work": "small"}))
    assert world.nodes_of(small) == ["n3"]


@pytest.mark.parametrize("settings", [{"spare_work": "all"}, {"probation_work": "none"}])
def test_work_that_makes_no_sense_is_refused(settings: dict[str, str]) -> None:
    world = World(mode="act")
    with pytest.raises(UserError) as caught:
        world.command(SetHealthPolicy(settings=dict(settings)))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("give ")
