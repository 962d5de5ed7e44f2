"""Gangs of gangs and leaders, from the job file to the orders and back after a lost node."""

from __future__ import annotations

from tercio.core.commands import to_events
from tercio.core.plans import plan_job
from tercio.core.views import job_view
from tercio.formats.native import read_job
from tercio.model.commands import SubmitJob
from tercio.model.effects import LaunchTask
from tercio.model.events import AnyEvent, NodeFenced, NodeLost, TaskExited, TaskStarted
from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobState

from .site import ANA, Site

TEXT = """
name: nested
framework: torch
run: python train.py
groups:
  - name: head
    per_task: {cpus: 1}
  - name: work
    topology: {same: rack, leader: head}
    subgroups:
      - {name: left, tasks: 2, topology: {same: rack}, per_task: {devices: "H100:4", cpus: 1}}
      - {name: right, tasks: 2, topology: {same: rack}, per_task: {devices: "H100:4", cpus: 1}}
      - {name: spare, tasks: 2, topology: {same: rack}, per_task: {devices: "H100:4", cpus: 1}}
    min_subgroups: 2
"""


def launch(site: Site, events: list[AnyEvent]) -> list[LaunchTask]:
    """Step, let every ordered task start, and return the orders."""
    site.now_s += 1
    step = site.driver.step(events, site.now_s)
    assert not step.refused
    orders = [effect for effect in step.effects if isinstance(effect, LaunchTask)]
    site.driver.step(
        [
            TaskStarted(
                at_s=site.now_s, job_id=o.job_id, attempt=o.attempt, task=o.task,
                effect_id=o.effect_id,
            )
            for o in orders
        ],
        site.now_s,
    )  # fmt: skip
    return orders


def test_a_gang_of_gangs_runs_beside_its_leader_with_ranks_in_order():
    site = Site()
    (spec,) = read_job(TEXT, source="job.yaml").specs
    assert plan_job(site.driver, spec, ANA, site.now_s).outcome == "now"
    orders = launch(site, to_events(site.cluster, SubmitJob(spec=spec), ANA, site.now_s))
    # One rack holds 16 devices: two of the three gangs, and the leader.
    assert len(orders) == 5
    assert len({site.cluster.nodes[o.node].spec.labels["rack"] for o in orders}) == 1
    ranks = [(o.env["RANK"], o.env["WORLD_SIZE"], o.env["TERCIO_GROUP"]) for o in orders]
    assert ranks == [
        ("0", "5", "head"), ("1", "5", "left"), ("2", "5", "left"), ("3", "5", "right"),
        ("4", "5", "right"),
    ]  # fmt: skip
    for node in {o.node for o in orders}:
        local = [int(o.env["LOCAL_RANK"]) for o in orders if o.node == node]
        assert local == list(range(len(local)))
    masters = {(o.env["MASTER_ADDR"], o.env["MASTER_PORT"]) for o in orders}
    assert len(masters) == 1
    job = site.cluster.jobs[JobId(orders[0].job_id)]
    view = job_view(site.driver, job, is_full=True)
    assert [task.group for task in view.tasks] == ["head", "left", "left", "right", "right"]
    assert view.task_count == 5


def test_it_starts_again_as_a_whole_where_there_is_room_when_a_node_is_lost():
    site = Site()
    (spec,) = read_job(TEXT, source="job.yaml").specs
    orders = launch(site, to_events(site.cluster, SubmitJob(spec=spec), ANA, site.now_s))
    job_id = JobId(orders[0].job_id)
    rack = site.cluster.nodes[orders[0].node].spec.labels["rack"]
    lost = next(o.node for o in orders if o.env["TERCIO_GROUP"] == "left")
    found: list[LaunchTask] = []
    found += launch(site, [NodeLost(at_s=site.now_s, node=NodeName(lost), reason="no answer")])
    found += launch(site, [NodeFenced(at_s=site.now_s, node=NodeName(lost), reason="off")])
    for _ in range(4):
        site.now_s += 60
        found += launch(site, stopped(site, job_id))
    job = site.cluster.jobs[job_id]
    assert (job.state, job.attempt) == (JobState.RUNNING, 2)
    again = [o for o in found if o.attempt == 2]
    assert [o.env["TERCIO_GROUP"] for o in again] == ["head", "left", "left", "right", "right"]
    racks = {site.cluster.nodes[o.node].spec.labels["rack"] for o in again}
    assert len(racks) == 1
    assert racks != {rack}


def stopped(site: Site, job_id: JobId) -> list[AnyEvent]:
    """The ends of the tasks that were told to stop."""
    job = site.cluster.jobs[job_id]
    if job.state is not JobState.STOPPING:
        return []
    return [
        TaskExited(at_s=site.now_s, job_id=job_id, attempt=job.attempt, task=t.placement.task,
                   exit_code=143)
        for t in job.live_tasks
    ]  # fmt: skip
