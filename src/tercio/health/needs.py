"""What a node asks for: its open faults, judged by their history, and its record as a lemon."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tercio.health.finding import PASSIVE_ACTIONS, Action, Severity
from tercio.health.history import Fault, Origin, Wave, judge_repeats
from tercio.health.lemon import Blame, judge_lemon
from tercio.health.machine import NodeState
from tercio.health.policy import HealthPolicy, escalate
from tercio.health.record import Need, NodeRecord

_LEMON_CLASS = "lemon"


def asks_for_repair(need: Need | None) -> bool:
    """Return whether a need touches the node itself, not only the job on it."""
    return (
        need is not None
        and need.action not in PASSIVE_ACTIONS
        and need.action is not Action.RESTART_APP
    )


def need_of_node(
    node: NodeRecord,
    *,
    history: Sequence[Fault],
    blames: Sequence[Blame],
    waves: Sequence[Wave],
    policy: HealthPolicy,
    now_s: float,
    software: Collection[str] = (),
) -> Need | None:
    """Return the most demanding need of a node, or None for a node that needs nothing.

    Args:
        node: the node.
        history: faults of the fleet.
        blames: blame of this node.
        waves: fleet-wide waves; their faults are software and ask nothing of the node.
        policy: limits of automation.
        now_s: seconds since the epoch.
        software: ids of faults of waves that have passed; they ask nothing either.
    """
    in_wave = {(w.fault_class, w.code) for w in waves if node.name in w.nodes}
    needs = [
        _need_of_fault(node, fault, history=history, policy=policy, now_s=now_s)
        for fault in node.open_faults()
        if fault.cause[:2] not in in_wave and fault.id not in software
    ]
    lemon = _need_of_lemon(node, blames, policy=policy, now_s=now_s)
    if lemon is not None:
        needs.append(lemon)
    return max(needs, key=lambda n: (n.action.rank, n.severity.rank, -n.at_s), default=None)


def _need_of_fault(
    node: NodeRecord,
    fault: Fault,
    *,
    history: Sequence[Fault],
    policy: HealthPolicy,
    now_s: float,
) -> Need:
    came_back = node.state is NodeState.PROBATION and fault.cause[:2] == node.quarantine_code
    # The fault that the repair was for has come back: it counts double.
    again = (msgspec.structs.replace(fault, id=f"{fault.id}+"),) if came_back else ()
    verdict = judge_repeats(fault, (*history, *again), rules=policy.repeat_rules)
    action, reason = fault.action, fault.words or f"{fault.fault_class} {fault.code}"
    evidence: tuple[str, ...] = (fault.id,)
    is_harder = verdict.origin is Origin.HARDWARE and verdict.action.rank >= action.rank
    if is_harder or verdict.origin is Origin.APPLICATION:
        action, reason = verdict.action, verdict.reason
        evidence = tuple(e for e in verdict.evidence if not e.endswith("+"))
    if action not in PASSIVE_ACTIONS and action is not Action.RESTART_APP:
        escalated, why = escalate(
            action, node.repairs, cause=fault.cause, now_s=now_s, policy=policy
        )
        if escalated is not action:
            action, reason = escalated, f"{reason}; {why}"
    return Need(
        action=action,
        severity=fault.severity,
        reason=reason,
        cause=fault.cause,
        evidence=evidence,
        at_s=fault.at_s,
    )


def _need_of_lemon(
    node: NodeRecord, blames: Sequence[Blame], *, policy: HealthPolicy, now_s: float
) -> Need | None:
    own = [b for b in blames if b.at_s > node.handled_s]
    if not own:
        return None
    verdict = judge_lemon(
        own,
        node=node.name,
        exposure_s=now_s - node.seen_s,
        now_s=now_s,
        excluded_by=node.excluded_by,
        rule=policy.lemon,
    )
    if not verdict.is_lemon:
        return None
    return Need(
        action=Action.INSPECT_HW,
        severity=Severity.WARNING,
        reason=f"lemon: {verdict.reason}",
        cause=(_LEMON_CLASS, node.name, ""),
        evidence=tuple(dict.fromkeys(b.cause for b in own)),
        at_s=own[-1].at_s,
    )
