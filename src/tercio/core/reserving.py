"""Reservations: who may make one, and what makes no sense."""

from __future__ import annotations

from typing import Final

from tercio.core import maintaining
from tercio.core.cluster import Cluster
from tercio.errors import UserError, did_you_mean
from tercio.model.commands import AddReservation, RemoveReservation
from tercio.model.events import AnyEvent, ReservationAdded, ReservationRemoved
from tercio.model.identity import Principal, Role
from tercio.model.ids import QueuePath
from tercio.model.node import NodeSpec
from tercio.model.queue import walk_queues
from tercio.model.reservation import Reservation
from tercio.model.topology import ISLAND, domain_of
from tercio.model.units import format_instant

WINDOWS_LOOKED_AT: Final = 60
"""Windows of a repeated reservation that are held against the others."""


def add(
    cluster: Cluster, command: AddReservation, principal: Principal, now_s: float
) -> list[AnyEvent]:
    """Return the event of a new reservation.

    Raises:
        UserError: `invalid`, `not_found` or `conflict`, naming the field.
    """
    wanted = command.reservation
    if wanted.name in cluster.reservations:
        raise UserError(
            f"reservation '{wanted.name}' exists",
            code="conflict",
            hint=f"choose another name, or `tercio reserve remove {wanted.name}` first",
            field="name",
        )
    if wanted.nodes:
        _check_maintenance(cluster, wanted, now_s)
        return [ReservationAdded(at_s=now_s, reservation=wanted, by=principal.user)]
    _check_holder(cluster, wanted)
    _check_times(wanted, now_s)
    _check_amount(cluster, wanted)
    return [ReservationAdded(at_s=now_s, reservation=wanted, by=principal.user)]


def overbooked(cluster: Cluster, wanted: Reservation, now_s: float) -> str | None:
    """Return a warning where this reservation and others ask at once for more than there is.

    The first such instant in the next `WINDOWS_LOOKED_AT` windows is told. It is no error: nodes
    may come until then.
    """
    others = [r for r in cluster.reservations.values() if r.name != wanted.name]
    for window in wanted.windows(now_s, WINDOWS_LOOKED_AT) if not wanted.nodes else ():
        from_s = max(now_s, window.from_s)
        starts = [w.from_s for r in others for w in r.windows(from_s) if w.from_s < window.until_s]
        for at_s in sorted({from_s, *(max(from_s, start_s) for start_s in starts)}):
            open_then = [r for r in others if _is_open(r, at_s)]
            for kind in dict.fromkeys((wanted.type, None)):
                warning = _too_much(cluster, wanted, open_then, kind, at_s)
                if warning is not None:
                    return warning
    return None


def _too_much(
    cluster: Cluster, wanted: Reservation, others: list[Reservation], kind: str | None, at_s: float
) -> str | None:
    """Whether reservations of one type, or of any, ask for more than the nodes left have."""
    out = {node for other in others for node in other.nodes}
    specs = [node.spec for name, node in cluster.nodes.items() if name not in out]
    same = [r for r in others if not r.nodes and (kind is None or r.type == kind)]
    total = sum(_devices(spec, kind) for spec in specs)
    asked = sum(_asked(r, specs) for r in (wanted, *same))
    if asked <= total:
        return None
    names = [r.name for r in others if r.nodes or r in same]
    return (
        f"from {format_instant(at_s)} on, reservations ask for {asked} {kind or 'devices'} and the "
        f"cluster has {total}; open with it: {', '.join(names)}"
    )


def _is_open(other: Reservation, at_s: float) -> bool:
    return any(window.from_s <= at_s for window in other.windows(at_s))


def _asked(wanted: Reservation, specs: list[NodeSpec]) -> int:
    """Devices that a reservation names; of a shape, those of its smallest domains."""
    asked = wanted.devices
    for level, count in wanted.shape.items():
        sizes: dict[str, int] = {}
        for spec in specs:
            domain = domain_of(spec, level)
            if domain is not None and (size := _devices(spec, wanted.type)):
                sizes[domain] = sizes.get(domain, 0) + size
        asked += sum(sorted(sizes.values())[:count])
    return asked


def remove(
    cluster: Cluster, command: RemoveReservation, principal: Principal, now_s: float
) -> list[AnyEvent]:
    """Return the event that ends a reservation.

    Raises:
        UserError: `not_found`, with the nearest name.
    """
    found = find(cluster, command.name)
    if found.nodes:
        windows, nodes = cluster.reservations, cluster.nodes
        return maintaining.ended(windows, nodes, found, now_s, by=principal.user)
    return [ReservationRemoved(at_s=now_s, name=command.name, by=principal.user)]


def find(cluster: Cluster, name: str, *, field: str | None = None) -> Reservation:
    """Return a reservation by name.

    Raises:
        UserError: `not_found`, with the nearest name.
    """
    found = cluster.reservations.get(name)
    if found is None:
        hint = did_you_mean(name, cluster.reservations) or "`tercio reserve list` lists them"
        raise UserError(f"no reservation '{name}'", code="not_found", hint=hint, field=field)
    return found


def check_use(cluster: Cluster, name: str, queue: QueuePath, principal: Principal) -> None:
    """Allow a job to name a reservation: its holder's jobs, and those of operators.

    Raises:
        UserError: `not_found` or `forbidden`.
    """
    found = find(cluster, name, field="reservation")
    if found.is_held_by(queue, principal.user) or principal.has_role(Role.OPERATOR):
        return
    holder = f"queue {found.queue}" if found.queue is not None else f"user {found.user}"
    raise UserError(
        f"reservation '{name}' is for {holder}",
        code="forbidden",
        hint="submit to that queue, or remove `reservation`",
        field="reservation",
    )


def _check_maintenance(cluster: Cluster, wanted: Reservation, now_s: float) -> None:
    is_more = wanted.queue or wanted.user or wanted.devices or wanted.shape or wanted.every_s
    if is_more:
        raise UserError(
            "a maintenance window is of nodes, once, and for nobody",
            hint="leave out queue, user, gpus, shape and every",
            field="nodes",
        )
    for name in wanted.nodes:
        if name not in cluster.nodes:
            hint = did_you_mean(name, cluster.nodes) or "`tercio node list` lists them"
            raise UserError(f"no node '{name}'", code="not_found", hint=hint, field="nodes")
    _check_times(wanted, now_s)


def _check_holder(cluster: Cluster, wanted: Reservation) -> None:
    if (wanted.queue is None) == (wanted.user is None):
        raise UserError(
            "a reservation is for one queue or for one user",
            hint="give either --queue or --user",
            field="queue",
        )
    queues = walk_queues(cluster.policy)
    if wanted.queue is not None and wanted.queue not in queues:
        hint = did_you_mean(wanted.queue, queues) or f"queues: {', '.join(list(queues)[:8])}"
        raise UserError(f"no queue '{wanted.queue}'", code="not_found", hint=hint, field="queue")


def _check_times(wanted: Reservation, now_s: float) -> None:
    if wanted.duration_s <= 0:
        raise UserError("a window takes time", hint="write --for 4h", field="duration_s")
    if wanted.every_s is not None and wanted.every_s < wanted.duration_s:
        raise UserError(
            "windows of one reservation overlap",
            hint="make `every` at least as long as `for`",
            field="every_s",
        )
    if not wanted.windows(now_s):
        raise UserError(
            "the reservation is over already",
            hint="give a start and a length that reach into the future",
            field="from_s",
        )


def _check_amount(cluster: Cluster, wanted: Reservation) -> None:
    """Refuse more than the whole cluster could ever keep."""
    if bool(wanted.devices) == bool(wanted.shape):
        raise UserError(
            "a reservation is either by count or by shape",
            hint="give either --gpus H100:16 or --shape node=2",
            field="devices",
        )
    specs = [node.spec for node in cluster.nodes.values()]
    types = list(dict.fromkeys(d.type for spec in specs for d in spec.devices))
    if wanted.type is not None and wanted.type not in types:
        hint = did_you_mean(wanted.type, types) or f"the cluster has {', '.join(types)}"
        raise UserError(f"no node has {wanted.type}", code="never_fits", hint=hint, field="type")
    total = sum(_devices(spec, wanted.type) for spec in specs)
    if wanted.devices > total:
        kind = wanted.type or "devices"
        raise UserError(
            f"{wanted.devices} {kind} are more than the cluster's {total}",
            code="never_fits",
            hint=f"reserve at most {total}",
            field="devices",
        )
    for level, count in wanted.shape.items():
        _check_level(cluster, wanted, level, count, specs)


def _check_level(
    cluster: Cluster, wanted: Reservation, level: str, count: int, specs: list[NodeSpec]
) -> None:
    levels = [name for name in cluster.policy.topology if name != ISLAND]
    if level not in levels:
        hint = did_you_mean(level, levels) or f"levels: {', '.join(levels)}"
        raise UserError(f"'{level}' is no level of the topology", hint=hint, field="shape")
    domains = {
        domain: None
        for spec in specs
        if _devices(spec, wanted.type) and (domain := domain_of(spec, level)) is not None
    }
    if count < 1 or count > len(domains):
        raise UserError(
            f"{count} x {level}: the cluster has {len(domains)} with such devices",
            code="never_fits",
            hint=f"reserve from 1 to {len(domains)}" if domains else "reserve by count instead",
            field="shape",
        )


def _devices(spec: NodeSpec, kind: str | None) -> int:
    return sum(kind is None or device.type == kind for device in spec.devices)
