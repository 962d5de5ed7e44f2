"""Maintenance windows: nodes emptied when one opens, and returned when it is over.

A window is a reservation that names nodes, so that nothing is placed there that would not end
before it opens.
"""

from __future__ import annotations

from collections.abc import Mapping

from tercio.model.events import AnyEvent, NodeDrainRequested, NodeUncordoned, ReservationRemoved
from tercio.model.ids import NodeName
from tercio.model.node import Cordon, Node
from tercio.model.reservation import MAINTENANCE_OWNER, Reservation

Windows = Mapping[str, Reservation]
Nodes = Mapping[NodeName, Node]


def times(window: Reservation) -> tuple[float, ...]:
    """Return when a window opens and when it is over; nothing for any other reservation."""
    return (window.from_s, window.from_s + window.duration_s) if window.nodes else ()


def due(windows: Windows, nodes: Nodes, name: str, now_s: float) -> list[AnyEvent]:
    """Return what follows from the time for a window: its nodes are emptied, or returned."""
    window = windows.get(name)
    if window is None or not window.nodes or now_s < window.from_s:
        return []
    if now_s >= window.from_s + window.duration_s:
        return ended(windows, nodes, window, now_s, by=MAINTENANCE_OWNER)
    reason = window.reason or f"window {window.name}"
    cordon = Cordon(owner=MAINTENANCE_OWNER, reason=reason, since_s=now_s)
    return [
        NodeDrainRequested(at_s=now_s, node=node, cordon=cordon)
        for node in window.nodes
        if node in nodes and not is_in_maintenance(nodes[node])
    ]


def ended(
    windows: Windows, nodes: Nodes, window: Reservation, now_s: float, *, by: str
) -> list[AnyEvent]:
    """Return what ends a window: its nodes come back, unless another window of theirs is open."""
    others = [
        each
        for each in windows.values()
        if each.name != window.name and any(w.from_s <= now_s for w in each.windows(now_s))
    ]
    events: list[AnyEvent] = [
        NodeUncordoned(at_s=now_s, node=node, owner=MAINTENANCE_OWNER)
        for node in window.nodes
        if node in nodes
        and is_in_maintenance(nodes[node])
        and not any(node in other.nodes for other in others)
    ]
    return [*events, ReservationRemoved(at_s=now_s, name=window.name, by=by)]


def is_in_maintenance(node: Node) -> bool:
    """Whether a maintenance window keeps a node."""
    return any(cordon.owner == MAINTENANCE_OWNER for cordon in node.cordons)
