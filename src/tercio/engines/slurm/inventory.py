"""From Slurm's facts to nodes of ours. Pure.

Slurm chooses the devices of a job by itself, and sbatch cannot name them. So a device number of
ours is a seat on the node, not an index of Slurm: what others hold is put on seats that none of
our tasks has, and a task learns its real devices from Slurm when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tercio.engines.slurm.drains import is_ours
from tercio.engines.slurm.facts import Partition, ReservedNodes, SlurmJob, SlurmNode
from tercio.engines.slurm.order import Seat
from tercio.engines.slurm.tables import Openness, Phase
from tercio.formats import cards
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import DeviceSpec, NodeSpec

_GPU: Final = "gpu"
_ROUND_S: Final = 60.0
"""Ends of foreign jobs are told by the minute, so that no poll makes news of a second."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What tasks of ours hold on one node, as Slurm counts it.

    Attributes:
        seats: device numbers of tasks that Slurm has started.
        waiting_seats: those of tasks that it has not.
    """

    seats: tuple[int, ...] = ()
    waiting_seats: tuple[int, ...] = ()
    cpus: int = 0
    memory_bytes: int = 0


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change from poll to poll.

    Attributes:
        name: of the site.
        prefix: put before Slurm's node names, so that names are unique over sites.
        partitions: to use, in order of preference; empty for the default one.
        device_types: type by partition, for nodes whose GRES has no type.
        fixed: labels of every node, as whoever added the site said.
        labels: topology labels by Slurm's node name.
        owner: the mark of this server.
    """

    name: SiteName
    prefix: str = ""
    owner: str = ""
    partitions: tuple[str, ...] = ()
    device_types: dict[str, str] = {}
    fixed: dict[str, str] = {}
    labels: dict[str, dict[str, str]] = {}


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what is reported of it, and how to order work there.

    `is_registered` says whether it has answered the controller since that started.
    """

    spec: NodeSpec
    seat: Seat
    openness: Openness
    why: str
    is_registered: bool


def chosen_partitions(site: Site, partitions: Sequence[Partition]) -> tuple[Partition, ...]:
    """Return the partitions to use, best first; all named ones, else the default one.

    A cluster without a default partition offers the first that is up.
    """
    if site.partitions:
        by_name = {partition.name: partition for partition in partitions}
        return tuple(by_name[name] for name in site.partitions if name in by_name)
    default = [partition for partition in partitions if partition.is_default]
    return tuple(default or [partition for partition in partitions if partition.is_up][:1])


def node_views(
    site: Site,
    *,
    nodes: Sequence[SlurmNode],
    jobs: Sequence[SlurmJob],
    partitions: Sequence[Partition],
    reservations: Sequence[ReservedNodes],
    held: Mapping[str, Held],
    now_s: float,
) -> dict[NodeName, NodeView]:
    """Return the nodes of the chosen partitions by our names.

    `jobs` are the foreign ones that run; `held` is what ours hold, by Slurm's node name.
    """
    chosen = chosen_partitions(site, partitions)
    of_node = {name: part for part in reversed(chosen) for name in part.nodes}
    by_node: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        if job.phase is not Phase.WAITING:
            for name in job.nodes:
                by_node.setdefault(name, []).append(job)
    reserved = {name: each for each in reservations for name in each.nodes}
    found: dict[NodeName, NodeView] = {}
    for node in nodes:
        partition = of_node.get(node.name)
        if partition is None or node.openness is Openness.ABSENT:
            continue
        why = node.why
        if not why and not partition.is_up:
            why = f"partition {partition.name} is not up in Slurm"
        if not why and node.name in reserved:
            kept = reserved[node.name]
            why = f"reserved in Slurm ({kept.name}) for {kept.holders}"
        view = _view(
            site,
            node,
            partition,
            foreign=by_node.get(node.name, ()),
            held=held.get(node.name, Held()),
            now_s=now_s,
        )
        openness = node.openness
        if is_ours(node, site.owner) and openness is Openness.CLOSED:
            # Its cordon is Tercio's own already, and is not to stand in its own way when lifted.
            why, openness = "", Openness.OPEN
        if why and openness is Openness.OPEN:
            openness = Openness.CLOSED
        closed = why if openness is Openness.CLOSED else ""
        found[view.spec.name] = msgspec.structs.replace(
            view, spec=msgspec.structs.replace(view.spec, closed=closed), openness=openness, why=why
        )
    return found


def _view(
    site: Site,
    node: SlurmNode,
    partition: Partition,
    *,
    foreign: Sequence[SlurmJob],
    held: Held,
    now_s: float,
) -> NodeView:
    gres_types = tuple(
        each.type for each in node.gres if each.name == _GPU for _ in range(each.count)
    )
    used = sum(each.count for each in node.gres_used if each.name == _GPU)
    seats = foreign_seats(len(gres_types), used - len(held.seats), held)
    others_cpus = max(0, node.cpus_used - held.cpus)
    others_bytes = max(0, node.memory_used_bytes - held.memory_bytes)
    labels = site.fixed | site.labels.get(node.name, {})
    labels["partition"] = partition.name
    labels |= {f"feature-{word}": "yes" for word in node.features}
    spec = NodeSpec(
        name=NodeName(site.prefix + node.name),
        site=site.name,
        devices=tuple(
            _device(index, kind, site.device_types.get(partition.name, ""), node.features)
            for index, kind in enumerate(gres_types)
        ),
        # Never 0, which would say that nothing is known.
        cpus_milli=max(1, (node.cpus - others_cpus) * 1000),
        memory_bytes=max(1, node.memory_bytes - others_bytes),
        labels=labels,
        address=node.address or node.name,
        foreign_devices=seats,
        foreign_ends_s=_ends(len(seats), foreign, now_s),
    )
    seat = Seat(
        node=node.name,
        partition=partition.name,
        gres_types=gres_types,
        memory_bytes=node.memory_bytes,
    )
    return NodeView(
        spec=spec, seat=seat, openness=node.openness, why=node.why,
        is_registered=node.is_registered,
    )  # fmt: skip


def foreign_seats(count: int, taken: int, held: Held) -> tuple[int, ...]:
    """Return the seats on which to show `taken` foreign devices: the last that we do not hold.

    Where too few are left, a task of ours that Slurm has not started has lost its seat.
    """
    if taken <= 0:
        return ()
    free = [seat for seat in range(count) if seat not in held.seats]
    order = [seat for seat in reversed(free) if seat not in held.waiting_seats]
    order += [seat for seat in reversed(free) if seat in held.waiting_seats]
    return tuple(sorted(order[:taken]))


def _ends(count: int, foreign: Sequence[SlurmJob], now_s: float) -> tuple[float, ...]:
    """Return when each foreign device comes free by walltime, soonest first; 0.0 for unknown."""
    ends: list[float] = []
    for job in foreign:
        devices = sum(each.count for each in job.gres if each.name == _GPU)
        end_s = 0.0 if job.left_s is None else now_s + job.left_s
        ends += [round(end_s / _ROUND_S) * _ROUND_S] * devices
    ends.sort(key=lambda end_s: (end_s == 0.0, end_s))
    return tuple((*ends, *([0.0] * count))[:count]) if any(ends) else ()


def _device(index: int, gres_type: str, named: str, features: Sequence[str]) -> DeviceSpec:
    name = gres_type or named
    if not name:
        name = next((word for word in features if cards.find_card(word)), "GPU")
    kind = cards.canonical_type(name)
    return DeviceSpec(
        type=kind,
        index=index,
        vendor=cards.vendor_of(kind) or "nvidia",
        card_bytes=cards.card_bytes(name),
    )
