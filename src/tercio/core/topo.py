"""Free capacity by domain, and the largest gang that would fit in one domain of each level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tercio.core.driver import Driver
from tercio.core.ledger import NodeUse
from tercio.model.node import Node
from tercio.model.queue import DefaultShare
from tercio.model.resources import CPU_DEVICE
from tercio.model.sharing_views import DomainView, LargestGang, TopologyView
from tercio.model.topology import ISLAND, NODE, domain_of
from tercio.sched.mig import slices_left
from tercio.sched.table import device_kind

_UNLIMITED = 1 << 40


class _Domain:
    """Sums over the nodes of one domain. Devices are whole ones."""

    __slots__ = ("fits", "free", "nodes", "slices", "total", "up")

    def __init__(self) -> None:
        self.nodes = 0
        self.up = 0
        self.total: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.fits: dict[str, int] = {}
        self.slices: dict[str, int] = {}


def topology_view(
    driver: Driver,
    *,
    devices: int | None = None,
    has_nodes: bool = True,
    site: str | None = None,
) -> TopologyView:
    """Return free capacity and the largest gangs.

    Args:
        driver: whose cluster is meant.
        devices: whole devices of each task of the gang; None for all devices of a node, as
            many as the largest node of the type has.
        has_nodes: whether the level `node` is listed domain by domain.
        site: whose nodes count; None for all.

    A task takes the policy's default share of cores and memory with it. Promises and
    reservations are not taken out: this is what is free, not what a job may have.
    """
    cluster = driver.cluster
    nodes = [node for node in cluster.nodes.values() if site is None or node.spec.site == site]
    levels = [level for level in reversed(cluster.policy.topology) if level != ISLAND]
    per_task = {kind: devices or most for kind, most in _largest_nodes(nodes).items()}
    found: dict[str, dict[str, _Domain]] = {level: {} for level in levels}
    for node in nodes:
        use = cluster.ledger.nodes.get(node.name, NodeUse())
        free = _free(node, use)
        fits = {
            kind: _tasks(node, use, free.get(kind, 0), count, cluster.policy.default_share)
            for kind, count in per_task.items()
        }
        slices = _slices(node, use)
        for level in levels:
            name = domain_of(node.spec, level)
            if name is not None:
                _add(found[level].setdefault(name, _Domain()), node, (free, fits, slices))
    return TopologyView(
        levels=tuple(level for level in levels if found[level]),
        per_task=per_task,
        rows=tuple(
            _view(level, name, domain)
            for level in levels
            if level != NODE or has_nodes
            for name, domain in found[level].items()
        ),
        largest=tuple(
            LargestGang(level=level, type=kind, tasks=domain.fits[kind], domain=name)
            for level in levels
            for kind in per_task
            for name, domain in _best(found[level], kind)
        ),
    )


def _largest_nodes(nodes: Iterable[Node]) -> dict[str, int]:
    most: dict[str, int] = {}
    for node in nodes:
        counts: dict[str, int] = {}
        for device in node.spec.devices:
            counts[device.type] = counts.get(device.type, 0) + 1
        for kind, count in counts.items():
            most[kind] = max(most.get(kind, 0), count)
    return dict(sorted(most.items(), key=lambda pair: pair[0] == CPU_DEVICE))


def _free(node: Node, use: NodeUse) -> dict[str, int]:
    """Whole devices that nobody holds, by type; none on a node that takes no work."""
    free: dict[str, int] = {}
    if not node.is_placeable:
        return free
    for device in node.spec.devices:
        taken = use.device_milli[device.index] if device.index < len(use.device_milli) else 0
        if device.healthy and not taken and device.index not in node.spec.foreign_devices:
            free[device.type] = free.get(device.type, 0) + 1
    return free


def _tasks(node: Node, use: NodeUse, free: int, count: int, share: DefaultShare) -> int:
    """Tasks of `count` devices that fit on the node beside what runs there."""
    spec = node.spec
    fits = free // count
    if not fits:
        return 0
    # A task never takes more than the node's own proportion, as when it is placed.
    total = max(len(spec.devices), 1)
    cpus = min(share.cpus_milli_per_device, spec.cpus_milli // total) * count
    memory = min(share.memory_bytes_per_device, spec.memory_bytes // total) * count
    if cpus:
        fits = min(fits, (spec.cpus_milli - use.cpus_milli) // cpus)
    if memory:
        fits = min(fits, (spec.memory_bytes - use.memory_bytes) // memory)
    slots = _UNLIMITED if spec.slots is None else spec.slots - use.task_count
    return max(0, min(fits, slots))


def _slices(node: Node, use: NodeUse) -> dict[str, int]:
    """Slices that still fit on the cards of which tasks hold slices, by type and profile."""
    found: dict[str, int] = {}
    if not node.is_placeable:
        return found
    for device in node.spec.devices:
        used = use.device_slices[device.index] if device.index < len(use.device_slices) else 0
        kind = device_kind(device, node.slice_fault(device.index))
        for profile in kind.profiles if used and device.healthy else ():
            name = f"{device.type}/{profile.name}"
            found[name] = found.get(name, 0) + slices_left(kind.profiles, profile, used)
    return found


def _add(domain: _Domain, node: Node, amounts: Sequence[dict[str, int]]) -> None:
    domain.nodes += 1
    domain.up += int(node.is_placeable)
    for device in node.spec.devices:
        domain.total[device.type] = domain.total.get(device.type, 0) + 1
    for sums, found in zip((domain.free, domain.fits, domain.slices), amounts, strict=True):
        for kind, amount in found.items():
            sums[kind] = sums.get(kind, 0) + amount


def _best(domains: dict[str, _Domain], kind: str) -> list[tuple[str, _Domain]]:
    """The domain with room for the largest gang of a type; the first among equals."""
    having = [(name, domain) for name, domain in domains.items() if kind in domain.total]
    return [max(having, key=lambda pair: pair[1].fits[kind])] if having else []


def _view(level: str, name: str, domain: _Domain) -> DomainView:
    return DomainView(
        level=level,
        name=name,
        nodes=domain.nodes,
        up=domain.up,
        total={kind: float(count) for kind, count in domain.total.items()},
        free={kind: float(domain.free.get(kind, 0)) for kind in domain.total},
        fits={kind: domain.fits.get(kind, 0) for kind in domain.total},
        slices={name: count for name, count in domain.slices.items() if count},
    )
