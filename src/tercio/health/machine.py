"""The health of a node: its states, and the moves between them.

Quarantined and repairing imply a cordon owned by `health`. Only the owner of a cordon lifts it:
what another healer or a person cordoned stays cordoned.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tercio.errors import IllegalTransition


class NodeState(StrEnum):
    """Where a node stands between healthy and gone."""

    OK = "ok"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    REPAIRING = "repairing"
    PROBATION = "probation"
    RETIRED = "retired"


# States in which the health policy keeps the node from new work.
CORDONED_STATES = frozenset({NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.RETIRED})
# States that count against the drain budget: capacity that automation took away and owes back.
BUDGETED_STATES = frozenset({NodeState.QUARANTINED, NodeState.REPAIRING})

TRANSITIONS: dict[tuple[NodeState, NodeState], str] = {
    (NodeState.OK, NodeState.SUSPECT): "a fault asks for attention",
    (NodeState.OK, NodeState.QUARANTINED): "a fault asks for a repair",
    (NodeState.SUSPECT, NodeState.OK): "the fault cleared or stayed away",
    (NodeState.SUSPECT, NodeState.QUARANTINED): "a repair may start, or an operator says so",
    (NodeState.QUARANTINED, NodeState.REPAIRING): "the node is empty and the repair starts",
    (NodeState.QUARANTINED, NodeState.PROBATION): "the fault cleared, or a person repaired it",
    (NodeState.QUARANTINED, NodeState.OK): "an operator returns the node",
    (NodeState.QUARANTINED, NodeState.RETIRED): "an operator retires the node",
    (NodeState.REPAIRING, NodeState.PROBATION): "the repair worked and the checks passed",
    (NodeState.REPAIRING, NodeState.QUARANTINED): "the repair failed",
    (NodeState.REPAIRING, NodeState.RETIRED): "an operator retires the node",
    (NodeState.PROBATION, NodeState.OK): "no fault during the probation",
    (NodeState.PROBATION, NodeState.QUARANTINED): "a fault during the probation",
    (NodeState.RETIRED, NodeState.PROBATION): "an operator brings the node back",
}


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """One move of one node: why, on what evidence, by whom."""

    node: str
    start: NodeState
    finish: NodeState
    at_s: float
    reason: str
    actor: str
    evidence: tuple[str, ...] = ()


def check_transition(node: str, start: NodeState, finish: NodeState, story: list[str]) -> None:
    """Refuse a move that the table does not hold.

    Raises:
        IllegalTransition: with the node's story, so that the message is the bug report.
    """
    if (start, finish) not in TRANSITIONS:
        raise IllegalTransition(f"node {node}", start, finish, story=story)
