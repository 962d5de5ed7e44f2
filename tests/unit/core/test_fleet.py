"""Nodes: lost, fenced, returned, cordoned, drained, removed."""

from __future__ import annotations

import msgspec

from tercio.model.effects import StopTask
from tercio.model.events import (
    NodeCordoned,
    NodeDrainRequested,
    NodeFenced,
    NodeLost,
    NodeRemoved,
    NodeReported,
    NodeUncordoned,
)
from tercio.model.ids import NodeName
from tercio.model.job import EndCause, JobState, RetrySpec
from tercio.model.node import Cordon, NodeState
from tercio.testing import make_job, make_node

from .machine import Machine


def test_a_node_lost_again_gets_a_whole_new_deadline(machine: Machine) -> None:
    job_id = machine.run()
    node = NodeName("n1")
    machine.do(NodeLost(at_s=machine.now_s, node=node, reason="no answer"))
    machine.now_s += 200
    machine.do(NodeReported(at_s=machine.now_s, spec=make_node("n1")))
    lost_s = machine.now_s
    machine.do(NodeLost(at_s=lost_s, node=node, reason="no answer"))
    assert machine.cluster.due(lost_s + 150) == []
    assert [type(e) for e in machine.cluster.due(lost_s + 301)] == [NodeFenced]
    assert machine.state(job_id) is JobState.RUNNING


def test_a_lost_node_keeps_its_tasks_until_it_is_fenced(machine: Machine) -> None:
    job_id = machine.run()
    machine.do(NodeLost(at_s=machine.now_s, node=NodeName("n1"), reason="no answer"))
    assert machine.cluster.nodes[NodeName("n1")].state is NodeState.DOWN
    assert machine.state(job_id) is JobState.RUNNING
    (due,) = machine.cluster.due(machine.now_s + 400)
    assert isinstance(due, NodeFenced)
    machine.do(due)
    job = machine.cluster.jobs[job_id]
    assert (job.state, job.cause) == (JobState.QUEUED, EndCause.NODE_FAILED)


def test_a_lost_node_that_returns_in_time_loses_nothing(machine: Machine) -> None:
    job_id = machine.run()
    machine.do(NodeLost(at_s=machine.now_s, node=NodeName("n1"), reason="no answer"))
    machine.do(NodeReported(at_s=machine.now_s, spec=make_node("n1")))
    assert machine.cluster.due(machine.now_s + 400) == []
    assert machine.state(job_id) is JobState.RUNNING


def test_drain_empties_the_node_and_requeues_its_jobs(machine: Machine) -> None:
    job_id = machine.run(make_job(retry=RetrySpec(on=())))
    cordon = Cordon(owner="user:op", reason="new fan", since_s=machine.now_s)
    effects = machine.do(NodeDrainRequested(at_s=machine.now_s, node=NodeName("n1"), cordon=cordon))
    assert [type(e) for e in effects] == [StopTask]
    assert machine.cluster.nodes[NodeName("n1")].state is NodeState.DRAINING
    machine.exit(job_id, code=None, signal=15)
    assert machine.cluster.nodes[NodeName("n1")].state is NodeState.CORDONED
    assert machine.state(job_id) is JobState.QUEUED
    machine.do(NodeUncordoned(at_s=machine.now_s, node=NodeName("n1"), owner="user:op"))
    assert machine.cluster.nodes[NodeName("n1")].is_placeable


def test_every_cordon_must_be_lifted_by_its_owner(machine: Machine) -> None:
    for owner in ("health", "user:op"):
        machine.do(
            NodeCordoned(at_s=machine.now_s, node=NodeName("n1"), cordon=Cordon(owner=owner))
        )
    machine.do(NodeUncordoned(at_s=machine.now_s, node=NodeName("n1"), owner="user:op"))
    assert machine.cluster.nodes[NodeName("n1")].state is NodeState.CORDONED


def test_a_removed_node_ends_its_tasks(machine: Machine) -> None:
    job_id = machine.run()
    machine.do(NodeRemoved(at_s=machine.now_s, node=NodeName("n1")))
    assert machine.state(job_id) is JobState.QUEUED
    assert not machine.cluster.nodes


def test_a_node_that_its_engine_closes_takes_no_work_until_the_engine_opens_it(
    machine: Machine,
) -> None:
    node = NodeName("n1")
    closed = msgspec.structs.replace(make_node("n1"), closed="drain in Slurm: fan")
    machine.do(NodeReported(at_s=machine.now_s, spec=closed))
    found = machine.cluster.nodes[node]
    assert (found.state, found.reason) == (NodeState.CORDONED, "drain in Slurm: fan")
    machine.do(NodeUncordoned(at_s=machine.now_s, node=node, owner="user:ana"))
    assert machine.cluster.nodes[node].state is NodeState.CORDONED
    other = msgspec.structs.replace(closed, closed="maint in Slurm")
    machine.do(NodeReported(at_s=machine.now_s, spec=other))
    (cordon,) = machine.cluster.nodes[node].cordons
    assert (cordon.owner, cordon.reason) == ("engine", "maint in Slurm")
    machine.do(NodeReported(at_s=machine.now_s, spec=make_node("n1")))
    assert machine.cluster.nodes[node].state is NodeState.READY
