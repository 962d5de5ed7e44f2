"""What one task needs on one node, and the shape of a whole job, compiled from its description."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from tercio.model.job import JobSpec, NodeFilter, TaskGroup
from tercio.model.queue import Policy
from tercio.model.resources import (
    CPU_DEVICE,
    CPUS,
    DEVICES,
    MEMORY,
    WHOLE_DEVICE_MILLI,
    Amounts,
    DeviceRequest,
)
from tercio.model.topology import TopologyRequest
from tercio.sched.mig import usual_milli
from tercio.sched.table import DeviceKind, Table

MAX_COMBINATIONS: Final = 24
"""Most combinations of device alternatives tried for one job."""

_MOST_COUNTS: Final = 8
"""Most counts of one range that are all tried."""

CORE_MILLI: Final = 1000
"""What a task without devices gets when it names no cores."""


ANY: Final = "any"
"""Type of a need that every accelerator serves."""


class Mode(IntEnum):
    """How a task uses devices."""

    NONE = 0
    WHOLE = 1
    SHARE = 2
    MIG = 3


class Need(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """What one task needs. Equal needs share their cached columns.

    Attributes:
        mode: how it uses devices.
        type: device type, or None when no device is wanted.
        shut_types: types that do not serve though any type would: limits close them.
        vendor, card_bytes, card_at_least, mig_profile: further conditions on the device.
        count: whole devices or MIG slices.
        milli, card_memory_bytes: share of one device by thousandths or by memory.
        cpus_milli, memory_bytes: explicit amounts, or None for the share that goes with devices.
        exclusive: whether the task takes the whole node.
        is_least: whether it is the least that the request allows: others are stopped for that
            only, and only that is promised.
        is_large: whether nodes on trial are not for it; only told apart while there are some.
        nodes: which nodes may be used.
        sites: allowed sites, or empty for any.
        runs_image: whether it runs in a container.
        pools: device types that serve it, which are the pools it competes in; `none` without
            devices.
    """

    mode: Mode
    type: str | None = None
    shut_types: tuple[str, ...] = ()
    vendor: str | None = None
    card_bytes: int | None = None
    card_at_least: bool = False
    mig_profile: str | None = None
    count: int = 0
    milli: int = 0
    card_memory_bytes: int = 0
    cpus_milli: int | None = None
    memory_bytes: int | None = None
    exclusive: bool = False
    is_least: bool = True
    is_large: bool = False
    nodes: NodeFilter | None = None
    sites: tuple[str, ...] = ()
    runs_image: bool = False
    pools: tuple[str, ...] = ()

    def takes(self, kind: DeviceKind) -> bool:
        """Whether a device of this kind serves the need."""
        wrong = kind.type == CPU_DEVICE if self.type == ANY else kind.type != self.type
        if (
            wrong
            or kind.type in self.shut_types
            or (self.vendor is not None and kind.vendor != self.vendor)
        ):
            return False
        if self.card_bytes is not None and not (
            kind.card_bytes >= self.card_bytes
            if self.card_at_least
            else kind.card_bytes == self.card_bytes
        ):
            return False
        if self.mig_profile is not None:
            return kind.profile(self.mig_profile) is not None
        if not kind.can_be_whole:
            return False
        return not self.card_memory_bytes or kind.memory_bytes >= self.card_memory_bytes

    @property
    def device_milli(self) -> int:
        """Thousandths of devices that one task takes, as far as the node does not decide it."""
        match self.mode:
            case Mode.NONE:
                return 0
            case Mode.WHOLE:
                return self.count * WHOLE_DEVICE_MILLI
            case Mode.SHARE:
                return self.milli
            case Mode.MIG:
                return self.count * usual_milli(self.mig_profile or "1g")

    @property
    def words(self) -> str:
        """What one task needs of devices, for people: `4 H100`, `0.5 of an A100`, `no device`."""
        kind = "device" if self.type in (None, ANY) else self.type or ""
        if self.card_bytes is not None:
            size = f"{self.card_bytes // 10**9}GB"
            kind = f"{kind}-{size}" + (" or larger" if self.card_at_least else "")
        match self.mode:
            case Mode.NONE:
                return "no device"
            case Mode.WHOLE:
                return f"{self.count} {kind}"
            case Mode.MIG:
                return f"{self.count} {kind}/{self.mig_profile}"
            case Mode.SHARE if self.card_memory_bytes:
                return f"{self.card_memory_bytes / 1024**3:.4g}GiB of one {kind}"
            case Mode.SHARE:
                return f"{self.milli / WHOLE_DEVICE_MILLI:g} of one {kind}"


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One group of identical tasks: its size, its alternatives, its place among the leaves.

    `is_optional`: the job may start without it, because some group above needs not all its parts.
    """

    index: int
    name: str
    tasks: int
    tasks_max: int
    needs: tuple[Need, ...]
    topology: TopologyRequest | None
    is_optional: bool = False


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A group of groups. `minimum` is how many of its children must start."""

    topology: TopologyRequest | None
    children: tuple[Branch | Leaf, ...]
    minimum: int


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A whole job, compiled for the device types that the cluster has.

    Attributes:
        root: the tree of groups.
        leaves: its leaves in depth-first order.
        combinations: which alternative each leaf takes, in order of preference.
        sites: allowed sites in order of preference, or empty.
        speeds: relative speed by combination; empty when the job gives none.
        number: equal for equal shapes of one memory.
        is_single: whether it is one task that stands anywhere.
    """

    root: Branch
    leaves: tuple[Leaf, ...]
    combinations: tuple[tuple[int, ...], ...]
    sites: tuple[str, ...]
    speeds: tuple[float, ...] = ()
    number: int = 0
    is_single: bool = False

    def needs(self, combination: Sequence[int]) -> tuple[Need, ...]:
        """The need of each leaf in one combination."""
        if len(self.leaves) == 1:
            return (self.leaves[0].needs[combination[0]],)
        return tuple(leaf.needs[i] for leaf, i in zip(self.leaves, combination, strict=True))

    def is_least(self, combination: Sequence[int]) -> bool:
        """Whether every group has the fewest devices of its alternative."""
        return all(need.is_least for need in self.needs(combination))

    @property
    def is_elastic(self) -> bool:
        """Whether some group may have more tasks than it must."""
        return any(leaf.tasks_max > leaf.tasks for leaf in self.leaves)

    @property
    def task_count(self) -> int:
        """Tasks at the minimum size, with every branch whole."""
        return sum(leaf.tasks for leaf in self.leaves)


def compile_shape(
    spec: JobSpec,
    table: Table,
    number: int = 0,
    *,
    is_ordered: bool = False,
    is_large: bool = False,
) -> Shape:
    """Compile a job. Alternatives of any type become one alternative per type of the cluster.

    `is_large`: nodes on trial are not for it.
    `is_ordered`: a blocked head may close a pool. Then a single task of any type, which takes the
    best place of all types, may also be tried type by type where some are closed.
    """
    leaves: list[Leaf] = []

    def visit(group: TaskGroup, *, optional: bool = False) -> Branch | Leaf:
        if group.subgroups:
            least = group.min_subgroups or len(group.subgroups)
            some = optional or least < len(group.subgroups)
            parts = tuple(visit(sub, optional=some) for sub in group.subgroups)
            children = _led(group.subgroups, parts, table.levels)
            minimum = least if some else len(children)
            return Branch(topology=group.topology, children=children, minimum=minimum)
        leaf = Leaf(
            index=len(leaves),
            name=group.name,
            tasks=group.tasks,
            tasks_max=max(group.tasks, group.tasks_max or 0),
            needs=tuple(
                msgspec.structs.replace(need, is_large=is_large) if is_large else need
                for need in _needs(spec, group, table, is_ordered=is_ordered)
            ),
            topology=group.topology,
            is_optional=optional,
        )
        leaves.append(leaf)
        return leaf

    children = _led(spec.groups, tuple(visit(group) for group in spec.groups), table.levels)
    root = Branch(topology=spec.topology, children=children, minimum=len(children))
    ranks = sorted(itertools.product(*(range(len(leaf.needs)) for leaf in leaves[:4])), key=sum)
    if len(ranks) > MAX_COMBINATIONS:
        # The last has the least of everything: what fits nowhere else may fit there.
        ranks = [*ranks[: MAX_COMBINATIONS - 1], ranks[-1]]
    combinations = tuple(
        (*rank, *(min(rank[-1], len(leaf.needs) - 1) for leaf in leaves[4:])) for rank in ranks
    )
    if spec.speed:
        # Fastest first; equal ones stay in the order that was written.
        combinations = tuple(sorted(combinations, key=lambda c: -speed_of(spec, _types(leaves, c))))
    return Shape(
        root=root,
        leaves=tuple(leaves),
        combinations=combinations,
        sites=spec.sites,
        speeds=tuple(speed_of(spec, _types(leaves, c)) for c in combinations) if spec.speed else (),
        number=number,
        is_single=_is_single(spec, leaves),
    )


def is_small(spec: JobSpec) -> bool:
    """Whether a job is one task and stays one: what a node on trial may be tried with."""
    return spec.task_count == 1 and all((group.tasks_max or 1) == 1 for group in spec.groups)


def _is_single(spec: JobSpec, leaves: Sequence[Leaf]) -> bool:
    """Whether a job is one task without a wish where it stands beside others."""
    if len(leaves) != 1 or len(spec.groups) != 1 or spec.groups[0].subgroups:
        return False
    return leaves[0].tasks_max == 1 and leaves[0].topology is None and spec.topology is None


def speed_of(spec: JobSpec, types: Iterable[str]) -> float:
    """Relative speed of a job on devices of these types: that of the slowest; 1 when not given."""
    return min((spec.speed.get(name, 1.0) for name in types), default=1.0)


def _types(leaves: Sequence[Leaf], combination: Sequence[int]) -> list[str]:
    needs = [leaf.needs[at] for leaf, at in zip(leaves, combination, strict=True)]
    return [need.type for need in needs if need.type is not None]


def _led(
    groups: Sequence[TaskGroup], children: Sequence[Branch | Leaf], levels: Sequence[str]
) -> tuple[Branch | Leaf, ...]:
    """Join each leader with the groups that name it, those of small domains inside the others."""
    at = {group.name: number for number, group in enumerate(groups) if group.name}
    followers: dict[int, list[tuple[str, int]]] = {}
    for number, group in enumerate(groups):
        asked = group.topology
        leader = at.get(asked.leader or "") if asked is not None else None
        if asked is not None and leader is not None and leader != number:
            followers.setdefault(leader, []).append((asked.same or asked.prefer or "", number))
    joined: dict[int, Branch | Leaf] = {}
    for leader, found in followers.items():
        together: Branch | Leaf = children[leader]
        found.sort(key=lambda pair: levels.index(pair[0]) if pair[0] in levels else len(levels))
        for level, number in found:
            asked = groups[number].topology
            is_hard = asked is not None and asked.same is not None
            both = TopologyRequest(same=level) if is_hard else TopologyRequest(prefer=level)
            own = children[number]
            rest = None if asked is None else msgspec.structs.replace(asked, same=None, leader=None)
            own = msgspec.structs.replace(own, topology=rest)
            together = Branch(topology=both, children=(together, own), minimum=2)
        joined[leader] = together
    taken = {number for found in followers.values() for _, number in found}
    return tuple(
        joined.get(number, child) for number, child in enumerate(children) if number not in taken
    )


def _needs(spec: JobSpec, group: TaskGroup, table: Table, *, is_ordered: bool) -> tuple[Need, ...]:
    found: dict[Need, None] = {}
    is_single = max(group.tasks, group.tasks_max or 0) == 1
    for request in group.per_task.devices:
        for count in counts_of(request):
            if request.type or request.is_none:
                found[_need(spec, group, request, request.type or "", count=count, table=table)] = (
                    None
                )
                continue
            # Tasks of a gang get devices of one type; a single task takes the best place.
            best = _need(spec, group, request, ANY, count=count, table=table)
            types = [name for name in best.pools if name != ANY]
            if is_single or not types:
                found[best] = None
            if not is_single or (is_ordered and len(types) > 1):
                for name in types:
                    found[_need(spec, group, request, name, count=count, table=table)] = None
    return tuple(found)


def counts_of(request: DeviceRequest) -> tuple[int, ...]:
    """Return the counts that a request is tried with: one, or those of a range, largest first.

    Of a long range only the powers of two and what is half-way between them.

    >>> counts_of(DeviceRequest(type="H100", count=2, count_max=5))
    (5, 4, 3, 2)
    """
    least, most = request.count, max(request.count, request.count_max or 0)
    counts = list(range(least, most + 1))
    if len(counts) > _MOST_COUNTS:
        steps = {scale << power for power in range(most.bit_length()) for scale in (2, 3)}
        counts = sorted({least, most} | {count for count in steps if least < count < most})
    return tuple(reversed(counts))


def _need(
    spec: JobSpec, group: TaskGroup, request: DeviceRequest, name: str, *, count: int, table: Table
) -> Need:
    mode = Mode.WHOLE
    if request.is_none:
        mode = Mode.NONE
    elif request.mig_profile:
        mode = Mode.MIG
    elif request.is_shared:
        mode = Mode.SHARE
    ask = group.per_task
    need = Need(
        mode=mode,
        type=None if mode is Mode.NONE else name,
        vendor=request.vendor,
        card_bytes=request.card_bytes,
        card_at_least=request.card_at_least,
        mig_profile=request.mig_profile,
        count=count,
        milli=request.share_milli,
        card_memory_bytes=request.share_memory_bytes,
        cpus_milli=ask.cpus_milli,
        memory_bytes=_memory_bytes(ask.memory_bytes, ask.shm_bytes),
        exclusive=group.exclusive,
        is_least=count == request.count,
        nodes=spec.nodes,
        sites=spec.sites,
        runs_image=spec.image is not None,
        pools=(name,) if mode is not Mode.NONE else ("none",),
    )
    if name != ANY:
        return need
    types = dict.fromkeys(table.kinds[kind].type for kind in table.kinds_of(need.takes))
    return msgspec.structs.replace(need, pools=tuple(types) or (ANY,))


def without_type(needs: Sequence[Need], name: str) -> tuple[Need, ...] | None:
    """The needs, those of any type without this one; None when no need would be another."""
    found = tuple(
        msgspec.structs.replace(need, shut_types=(*need.shut_types, name))
        if need.type == ANY and name in need.pools and name not in need.shut_types
        else need
        for need in needs
    )
    return None if found == tuple(needs) else found


def _memory_bytes(memory_bytes: int | None, shm_bytes: int | None) -> int | None:
    """Shared memory is part of the task's memory; nothing said leaves it to the policy."""
    if memory_bytes is None and shm_bytes is None:
        return None
    return max(memory_bytes or 0, shm_bytes or 0)


def task_amounts(need: Need, policy: Policy) -> Amounts:
    """Quota amounts of one task, with the policy's share where the need names none.

    An estimate where the node decides (exclusive nodes, memory shares): what is placed is
    charged exactly.
    """
    milli = need.device_milli
    if need.mode is Mode.SHARE and not milli:
        milli = 1
    share = policy.default_share
    cpus = need.cpus_milli
    memory = need.memory_bytes
    if cpus is None:
        cpus = share.cpus_milli_per_device * milli // WHOLE_DEVICE_MILLI if milli else CORE_MILLI
    if memory is None:
        memory = share.memory_bytes_per_device * milli // WHOLE_DEVICE_MILLI
    amounts = {CPUS: cpus, MEMORY: memory}
    if need.type is not None and milli:
        amounts[DEVICES] = milli
        if need.type != ANY:
            amounts[need.type] = milli
    return amounts


def job_amounts(shape: Shape, combination: Sequence[int], policy: Policy) -> Amounts:
    """Quota amounts of the job at its minimum size in one combination of alternatives.

    Of groups of which not all must start, the smallest count.
    """
    needs = shape.needs(combination)

    def amounts_of(group: Branch | Leaf) -> Amounts:
        if isinstance(group, Leaf):
            each = task_amounts(needs[group.index], policy)
            return {name: group.tasks * amount for name, amount in each.items()}
        parts = [amounts_of(child) for child in group.children]
        if group.minimum < len(parts):
            parts = sorted(parts, key=lambda part: part.get(DEVICES, 0))[: group.minimum]
        total: Amounts = {}
        for part in parts:
            for name, amount in part.items():
                total[name] = total.get(name, 0) + amount
        return total

    return amounts_of(shape.root)
