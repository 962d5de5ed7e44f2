"""Nodes: reported, lost, fenced, removed, cordoned, drained."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.core import attempts, blame, slicing
from tercio.core.state import FENCE_TIMER, State
from tercio.health.machine import CORDONED_STATES
from tercio.health.policy import Work
from tercio.model.events import (
    NodeCordoned,
    NodeDrainRequested,
    NodeFenced,
    NodeLost,
    NodeRemoved,
    NodeReported,
    NodeUncordoned,
)
from tercio.model.health import HEALTH_OWNER, SPARE_LABEL, SPARE_OWNER, HealthRecord
from tercio.model.ids import NodeName
from tercio.model.job import EndCause
from tercio.model.node import PROBATION, SPARE, Cordon, Node, NodeSpec, NodeState

ENGINE: Final = "engine"
"""Owner of the cordon that follows the engine's own word; nobody else lifts it."""


def reported(state: State, event: NodeReported) -> None:
    """A node is there and answers; its facts may be new."""
    spec = event.spec
    before = state.nodes.get(spec.name)
    if before is not None and before.spec == spec and before.lost_s is None:
        return
    state.health.known_since.setdefault(spec.name, event.at_s)
    kept = before.cordons if before is not None else _of_health(state, spec.name)
    cordons = _engine_cordon(_cordons(event, before, kept), spec.closed, event.at_s)
    node = Node(
        spec=spec,
        state=before.state if before else NodeState.UNKNOWN,
        cordons=cordons,
        slice_faults=before.slice_faults if before else (),
        caps=before.caps if before else None,
    )
    _settle(state, node)
    state.wear.count(event.at_s, nodes=len(state.nodes))
    slicing.reported(state, spec.name)


def _engine_cordon(cordons: tuple[Cordon, ...], closed: str, at_s: float) -> tuple[Cordon, ...]:
    """Put on or take off the cordon that the engine's own operator made."""
    own = next((cordon for cordon in cordons if cordon.owner == ENGINE), None)
    if own is not None and own.reason == closed:
        return cordons
    others = tuple(cordon for cordon in cordons if cordon is not own)
    return (*others, Cordon(owner=ENGINE, reason=closed, since_s=at_s)) if closed else others


def health_cordon(record: HealthRecord, since_s: float) -> Cordon:
    """Return the cordon of a node that stands as this record says, in a state that needs one."""
    reason = f"{record.state}: {record.reason}"
    return Cordon(owner=HEALTH_OWNER, reason=reason, since_s=since_s, is_draining=True)


def _of_health(state: State, name: NodeName) -> tuple[Cordon, ...]:
    """A node that its engine took away and brings again stands where health had put it."""
    record = state.health.records.get(name)
    if record is None or record.state not in CORDONED_STATES:
        return ()
    return (health_cordon(record, record.since_s),)


def _cordons(
    event: NodeReported, before: Node | None, kept: tuple[Cordon, ...]
) -> tuple[Cordon, ...]:
    """A node that its label makes a spare is kept ready from then on, until the label goes."""
    was_spare = before is not None and _is_spare(before.spec)
    is_spare = _is_spare(event.spec)
    if is_spare == was_spare:
        return kept
    others = tuple(cordon for cordon in kept if cordon.owner != SPARE_OWNER)
    reason = "kept ready for a job that loses a node"
    ready = Cordon(owner=SPARE_OWNER, reason=reason, since_s=event.at_s)
    return (*others, ready) if is_spare else others


def _is_spare(spec: NodeSpec) -> bool:
    return spec.labels.get(SPARE_LABEL) == "true"


def lost(state: State, event: NodeLost) -> None:
    """Contact is lost. Its tasks may still run: nothing of theirs is replaced before a fence."""
    node = state.nodes[event.node]
    if node.lost_s is not None:
        return
    state.set_timer(event.at_s + state.policy.fence_after_s, FENCE_TIMER, node.name)
    _settle(state, msgspec.structs.replace(node, lost_s=event.at_s, reason=event.reason))


def fenced(state: State, event: NodeFenced) -> None:
    """Nothing of ours can still run on the lost node."""
    state.wear.count(event.at_s, nodes=len(state.nodes), failures=1)
    blame.note_loss(state, event.node)
    attempts.lose_tasks(state, event.node, event.at_s, event.reason)


def removed(state: State, event: NodeRemoved) -> None:
    """The engine no longer has the node, so nothing runs there."""
    attempts.lose_tasks(state, event.node, event.at_s, "the node was removed")
    state.nodes.pop(event.node, None)
    state.wear.count(event.at_s, nodes=len(state.nodes))
    state.changed_nodes[event.node] = None
    state.revision += 1
    state.facts_version += 1


def cordoned(state: State, event: NodeCordoned) -> None:
    """Keep new work off the node."""
    put_cordon(state, event.node, event.cordon)


def uncordoned(state: State, event: NodeUncordoned) -> None:
    """Lift the cordon of one owner."""
    lift_cordon(state, event.node, event.owner)


def drain(state: State, event: NodeDrainRequested) -> None:
    """Cordon the node and stop its jobs with grace; they go back to their queues."""
    put_cordon(state, event.node, msgspec.structs.replace(event.cordon, is_draining=True))
    for job_id in state.jobs_on(event.node):
        job = state.jobs[job_id]
        if job.stop_cause is None:
            attempts.stop(state, job, EndCause.DRAINED, f"{event.node} is being drained")


def lift_cordon(state: State, name: NodeName, owner: str) -> None:
    """Take the cordon of one owner away, if it has one."""
    node = state.nodes[name]
    left = tuple(cordon for cordon in node.cordons if cordon.owner != owner)
    if left != node.cordons:
        _settle(state, msgspec.structs.replace(node, cordons=left, reason=""))


def put_cordon(state: State, name: NodeName, cordon: Cordon) -> None:
    """Add a cordon, in the place of an earlier one of the same owner."""
    node = state.nodes[name]
    others = tuple(held for held in node.cordons if held.owner != cordon.owner)
    _settle(state, msgspec.structs.replace(node, cordons=(*others, cordon)))


def settle_drained(state: State, name: NodeName) -> None:
    """Note that a draining node became empty."""
    node = state.nodes.get(name)
    if node is not None and node.state is NodeState.DRAINING:
        _settle(state, node)


def settle(state: State, name: NodeName) -> None:
    """Give a node the state that its health and the policy make, if that is another."""
    node = state.nodes[name]
    if _trial(state, node) != node.trial:
        _settle(state, node)


def _trial(state: State, node: Node) -> str:
    """Return why only small jobs that may be evicted run on a node, empty for all jobs."""
    settings = state.health.settings
    is_spare = any(cordon.owner == SPARE_OWNER for cordon in node.cordons)
    if is_spare and settings.get("spare_work", Work.NONE) == Work.SMALL:
        return SPARE
    record = state.health.records.get(node.name)
    is_tried = record is not None and record.state == PROBATION
    return PROBATION if is_tried and settings.get("probation_work", Work.SMALL) != Work.ALL else ""


def _settle(state: State, node: Node) -> None:
    """Give the node the state that its contact, cordons and jobs make."""
    node = msgspec.structs.replace(node, trial=_trial(state, node))
    if node.lost_s is not None:
        found = NodeState.DOWN
    elif any(c.is_draining for c in node.cordons) and state.jobs_by_node.get(node.name):
        found = NodeState.DRAINING
    elif node.closing_cordons:
        found = NodeState.CORDONED
    else:
        found = NodeState.READY
    reason = node.reason if node.lost_s is not None else ""
    if node.cordons and not reason:
        reason = node.cordons[-1].reason
    elif found is NodeState.READY and node.trial and not reason:
        reason = f"on {node.trial}: single tasks that may be evicted, no others"
    state.put_node(msgspec.structs.replace(node, state=found, reason=reason))
