"""Health events: faults, where nodes stand, the cordons and restarts that follow, spares.

What to do is decided in `core.healing`; here the decided facts change the state.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.core import attempts, fleet
from tercio.core.state import State
from tercio.errors import InvariantViolation
from tercio.health.machine import CORDONED_STATES
from tercio.health.machine import NodeState as HealthMark
from tercio.model.effects import Notify, RepairNode
from tercio.model.events import (
    AnyEvent,
    FaultCleared,
    FaultFound,
    HealthBreakerMoved,
    HealthDecided,
    HealthPolicyChanged,
    NodeHealthChanged,
    NodeRepairEnded,
    SpareActivated,
)
from tercio.model.health import HEALTH_OWNER, SPARE_OWNER, HealthRecord
from tercio.model.ids import EffectId, NodeName
from tercio.model.job import EndCause
from tercio.model.node import SPARE, Cordon

FAULTS_KEPT: Final = 200
"""Faults kept of one node; older ones are in the journal."""
NOTICE_TIMEOUT_S: Final = 60.0
REPAIR_MARGIN_S: Final = 60.0


def take(state: State, event: AnyEvent) -> None:
    """Take one of this module's events in."""
    health = state.health
    health.revision += 1
    match event:
        case FaultFound(node=node, fault=fault):
            known = health.faults.setdefault(node, [])
            kept = [each for each in known if each.id != fault.id]
            health.faults[node] = [*kept, fault][-FAULTS_KEPT:]
        case FaultCleared(node=node, fault_id=fault_id):
            health.faults[node] = [
                msgspec.structs.replace(each, cleared_at_s=event.at_s)
                if each.id == fault_id and each.cleared_at_s is None
                else each
                for each in health.faults.get(node, [])
            ]
        case NodeHealthChanged():
            _changed(state, event)
        case SpareActivated():
            _activated(state, event)
        case NodeRepairEnded():
            _repaired(state, event)
        case HealthPolicyChanged():
            health.settings, health.version = event.settings, event.version
            for name in state.nodes:
                fleet.settle(state, name)
        case HealthBreakerMoved(is_open=is_open):
            health.breaker_open_s = event.at_s if is_open else None
            if not is_open:
                health.breaker_reset_s = event.at_s
        case HealthDecided(node=node):
            _told(state, event)
        case _:
            raise InvariantViolation(f"no rule for event {type(event).__name__}")


def _changed(state: State, event: NodeHealthChanged) -> None:
    """Keep the record, and bring cordon, jobs and spare in line with where the node stands."""
    health, name, record = state.health, event.node, event.record
    before = health.records.get(name, HealthRecord())
    was_out = HealthMark(before.state) in CORDONED_STATES
    is_out = HealthMark(record.state) in CORDONED_STATES
    health.records[name] = record
    if name not in state.nodes:
        return
    if is_out and not was_out:
        _take_out(state, event)
    elif was_out and not is_out:
        fleet.lift_cordon(state, name, HEALTH_OWNER)
        if record.replaced_by is not None:
            # The spare that stood in goes on; this one is kept ready in its place.
            reason = f"kept ready: {record.replaced_by} took its place"
            cordon = Cordon(owner=SPARE_OWNER, reason=reason, since_s=event.at_s)
            fleet.put_cordon(state, name, cordon)
            health.records[name] = msgspec.structs.replace(record, replaced_by=None)
    if before.state != record.state:
        fleet.settle(state, name)
    started = len(record.repairs) > len(before.repairs)
    if started and record.state == HealthMark.REPAIRING:
        _order_repair(state, name, record)


def _take_out(state: State, event: NodeHealthChanged) -> None:
    """Cordon the node, stop the jobs on it to run elsewhere, and tell who wants to know."""
    name, record = event.node, event.record
    fleet.put_cordon(state, name, fleet.health_cordon(record, event.at_s))
    if state.jobs_on(name):
        _ready_a_spare(state, name)
    for job_id in state.jobs_on(name):
        job = state.jobs[job_id]
        if job.stop_cause is None:
            why = f"{name} was taken out: {record.reason}"
            attempts.stop(state, job, EndCause.QUARANTINED, why)
    url = state.health.settings.get("webhook")
    if url:
        state.issue(
            Notify(
                effect_id=EffectId(f"notify:health/{name}/{record.state}/{state.health.revision}"),
                epoch=state.epoch,
                deadline_s=state.now_s + NOTICE_TIMEOUT_S,
                url=str(url),
                body={
                    "schema": "tercio/v1",
                    "kind": "NodeNotice",
                    "node": name,
                    "event": record.state,
                    "reason": record.reason,
                    "by": event.by,
                    "jobs": ",".join(event.jobs),
                },
            )
        )


def _order_repair(state: State, name: NodeName, record: HealthRecord) -> None:
    repair = record.repairs[-1]
    timeout_s = float(state.health.settings.get("repair_timeout_s", 1800.0))
    state.issue(
        RepairNode(
            effect_id=EffectId(f"repair:{name}/{int(repair.at_s * 1000)}"),
            epoch=state.epoch,
            deadline_s=state.now_s + timeout_s + REPAIR_MARGIN_S,
            node=name,
            action=repair.action,
            reason=record.reason,
            serial=repair.cause[2],
        )
    )


def _repaired(state: State, event: NodeRepairEnded) -> None:
    """Note how the repair ended; where the node goes from there is decided next."""
    state.close_effect(event.effect_id)
    record = state.health.records.get(event.node)
    if record is None or record.state != HealthMark.REPAIRING or not record.repairs:
        return
    *earlier, last = record.repairs
    last = msgspec.structs.replace(last, succeeded=event.succeeded)
    record = msgspec.structs.replace(record, repairs=(*earlier, last))
    state.health.records[event.node] = record


def _activated(state: State, event: SpareActivated) -> None:
    fleet.lift_cordon(state, event.node, SPARE_OWNER)
    _empty_spare(state, event.node)
    record = state.health.records.get(event.replaces, HealthRecord())
    state.health.records[event.replaces] = msgspec.structs.replace(record, replaced_by=event.node)
    job = state.jobs.get(event.job_id)
    if job is not None and event.replaces in job.last_nodes:
        # The spare is of its place from now on: before any new work, the job may start there.
        job.last_nodes = tuple(
            event.node if name == event.replaces else name for name in job.last_nodes
        )
        state.refresh(job)


def _empty_spare(state: State, name: NodeName) -> None:
    """Stop what ran on a spare while it waited: it knew that it could be evicted."""
    for job_id in state.jobs_on(name):
        job = state.jobs[job_id]
        if job.stop_cause is None:
            why = f"the spare {name} is needed in the place of a broken node"
            attempts.stop(state, job, EndCause.REQUEUED, why)


def _ready_a_spare(state: State, name: NodeName) -> None:
    """Empty a working spare like a lost node while the jobs of that stop, unless one is idle."""
    pool = state.nodes[name].spec.pool
    spares = [n for n in state.nodes.values() if n.trial == SPARE and n.spec.pool == pool]
    ready = [node for node in spares if node.is_placeable]
    if ready and all(state.jobs_on(node.name) for node in ready):
        _empty_spare(state, ready[0].name)


def _told(state: State, event: HealthDecided) -> None:
    """Remember what was said of the node, so that it is said once."""
    record = state.health.records.get(event.node, HealthRecord())
    key = said_key(event.order, event.action, event.reason, event.evidence, event.held_by)
    state.health.records[event.node] = msgspec.structs.replace(record, said=key)


def said_key(order: str, action: str, reason: str, evidence: tuple[str, ...], held_by: str) -> str:
    """Return the key of a decision: two with the same key say the same."""
    return "|".join((order, action, reason, ",".join(evidence), held_by))
