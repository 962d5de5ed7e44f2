"""Nodes and devices as numpy columns, changed by one operation that can be undone exactly.

Rows are nodes in order of first report. Everything is an integer, so that giving back what was
taken restores the columns bit by bit; `state_hash` proves it in tests. `touched` is the log of
changed rows: whoever caches something per row reads the log from where it last stopped, and so
pays for the change and not for the cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tercio.model.ids import JobId, NodeName
from tercio.model.node import DeviceSpec, MigProfile, Node, NodeSpec, SliceFault
from tercio.model.placement import TaskPlacement
from tercio.model.resources import CPU_DEVICE, WHOLE_DEVICE_MILLI, DeviceShare
from tercio.model.topology import ISLAND, NODE, SITE, domain_of
from tercio.sched.mig import Profiles, can_be_whole, own_profiles, packaged_profiles

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

UNLIMITED: Final = 1 << 40
"""Slots, cores or bytes of a node that does not count them."""

_MAX_LOG: Final = 1 << 16


class DeviceKind(NamedTuple):
    """Devices that no request can tell apart.

    `own_profiles` None stands for the packaged table of the type.
    """

    type: str
    vendor: str
    card_bytes: int
    memory_bytes: int
    own_profiles: Profiles | None = ()
    can_be_whole: bool = True

    @property
    def profiles(self) -> Profiles:
        """What it may be cut into; empty when it cannot be cut."""
        if self.own_profiles is None:
            return packaged_profiles(self.type, self.card_bytes)
        return self.own_profiles

    def profile(self, name: str | None) -> MigProfile | None:
        """Return one of its profiles by name."""
        return next((profile for profile in self.profiles if profile.name == name), None)


def device_kind(device: DeviceSpec, fault: SliceFault | None = None) -> DeviceKind:
    """Return what requests can tell about a device."""
    if device.mig is None:
        return DeviceKind(device.type, device.vendor, device.card_bytes, device.memory_bytes)
    return DeviceKind(
        device.type,
        device.vendor,
        device.card_bytes,
        device.memory_bytes,
        own_profiles(device, fault),
        can_be_whole(device, fault),
    )


def node_kinds(node: Node) -> list[DeviceKind]:
    """Return what requests can tell about the devices of a node."""
    faults = node.slice_faults
    return [
        device_kind(device, node.slice_fault(device.index) if faults else None)
        for device in node.spec.devices
    ]


class Table:
    """The columns.

    Attributes:
        names, specs, nodes: by row; `row_of` is the inverse of `names`.
        kinds: device kinds, in order of first report.
        placeable: rows that take new work.
        trial: rows that take small jobs that may be evicted, and no others.
        cpus_free, memory_free, slots_free: what is left, [rows].
        cpus_share, memory_share: most that goes with one device by default, [rows].
        tasks_held: tasks on the node, running or planned, [rows].
        kind: kind of each device or -1, [rows, devices].
        usable: healthy and not in foreign use, [rows, devices].
        holders: shares that hold the device, [rows, devices].
        milli_free, card_free: what is left of the device, [rows, devices].
        island: link domain of each device, [rows, devices].
        power: most the device may draw, in watts, [rows, devices].
        mig_used: bits of the memory slices that MIG shares hold, [rows, devices].
        untouched: usable devices that nobody holds, [kinds, rows].
        untouched_total: the same on placeable rows, [kinds].
        model: number of the row's hardware; rows with equal numbers differ only in name, labels
            and what happens to them, [rows].
        tasks: running tasks by row.
    """

    def __init__(self, levels: Sequence[str], cpus_share: int, memory_share: int) -> None:
        self.levels = tuple(levels)
        self._default_share = (cpus_share, memory_share)
        self.names: list[NodeName] = []
        self.nodes: list[Node] = []
        self.row_of: dict[NodeName, int] = {}
        self.kinds: list[DeviceKind] = []
        self._kind_of: dict[DeviceKind, int] = {}
        self.models: dict[tuple[object, ...], int] = {}
        self.tasks: list[dict[tuple[JobId, int], TaskPlacement]] = []
        self.domain_names: dict[str, list[str]] = {level: [] for level in self.levels}
        self._domain_of: dict[str, dict[str, int]] = {level: {} for level in self.levels}
        self._columns(0, 1, 0)
        self.epoch = 0
        self.touched: list[int] = []
        self.committed: list[int] = []
        self.fact_changes: list[int] = []
        self.facts_version = 0
        self.version = 0
        self._node_levels: tuple[int, list[str]] = (-1, [])
        self._whole: dict[tuple[int, int], DeviceShare] = {}

    # Shape of the columns.

    def _columns(self, rows: int, width: int, kinds: int) -> None:
        """Allocate empty columns."""
        self._capacity, self._width = rows, width
        int64: Callable[[tuple[int, ...]], Ints] = lambda shape: np.zeros(shape, np.int64)  # noqa: E731
        self._rows: dict[str, Ints] = {
            name: int64((rows,))
            for name in (
                "cpus_free", "memory_free", "slots_free", "cpus_total", "memory_total",
                "cpus_share", "memory_share", "tasks_held", "device_count", "model",
            )
        }  # fmt: skip
        self._placeable: Flags = np.zeros((rows,), np.bool_)
        self._trial: Flags = np.zeros((rows,), np.bool_)
        self._grid: dict[str, Ints] = {
            name: int64((rows, width))
            for name in ("holders", "milli_free", "card_free", "card_total", "mig_used", "power")
        }
        self._kind = np.full((rows, width), -1, np.int64)
        self._island: Ints = int64((rows, width))
        self._usable: Flags = np.zeros((rows, width), np.bool_)
        self._untouched: Ints = int64((kinds, rows))
        self._domains: dict[str, Ints] = {
            level: np.full((rows,), -1, np.int64) for level in self.levels
        }
        self.untouched_total: list[int] = [0] * kinds
        self._publish()

    def _publish(self) -> None:
        """Point the public columns at the rows in use."""
        n = len(self.names)
        rows, grid = self._rows, self._grid
        self.count = n
        self.cpus_free, self.memory_free = rows["cpus_free"][:n], rows["memory_free"][:n]
        self.cpus_total, self.memory_total = rows["cpus_total"][:n], rows["memory_total"][:n]
        self.slots_free, self.tasks_held = rows["slots_free"][:n], rows["tasks_held"][:n]
        self.cpus_share, self.memory_share = rows["cpus_share"][:n], rows["memory_share"][:n]
        self.device_count, self.model = rows["device_count"][:n], rows["model"][:n]
        self.placeable: Flags = self._placeable[:n]
        self.trial: Flags = self._trial[:n]
        self.kind, self.island, self.usable = self._kind[:n], self._island[:n], self._usable[:n]
        self.holders, self.mig_used = grid["holders"][:n], grid["mig_used"][:n]
        self.milli_free, self.card_free = grid["milli_free"][:n], grid["card_free"][:n]
        self.card_total, self.power = grid["card_total"][:n], grid["power"][:n]
        self.untouched = self._untouched[:, :n]
        self.domains = {level: column[:n] for level, column in self._domains.items()}

    def _grow(self, rows: int, width: int, kinds: int) -> None:
        """Make room, keeping what is there."""
        rows = rows if rows <= self._capacity else max(rows, 2 * self._capacity)
        width = max(width, self._width)
        more, wider = rows - self._capacity, width - self._width
        if more > 0 or wider > 0:
            for name, column in self._rows.items():
                self._rows[name] = np.pad(column, (0, more))
            self._placeable = np.pad(self._placeable, (0, more))
            self._trial = np.pad(self._trial, (0, more))
            for name, square in self._grid.items():
                self._grid[name] = np.pad(square, ((0, more), (0, wider)))
            self._kind = np.pad(self._kind, ((0, more), (0, wider)), constant_values=-1)
            self._island = np.pad(self._island, ((0, more), (0, wider)))
            self._usable = np.pad(self._usable, ((0, more), (0, wider)))
            for level, column in self._domains.items():
                self._domains[level] = np.pad(column, (0, more), constant_values=-1)
        extra = max(0, kinds - len(self._untouched))
        if more > 0 or extra:
            self._untouched = np.pad(self._untouched, ((0, extra), (0, more)))
        self.untouched_total += [0] * extra
        self._capacity, self._width = rows, width
        self._publish()

    def _kind_id(self, node: Node, device: DeviceSpec) -> int:
        kind = device_kind(device, node.slice_fault(device.index) if node.slice_faults else None)
        found = self._kind_of.get(kind)
        if found is None:
            found = self._kind_of[kind] = len(self.kinds)
            self.kinds.append(kind)
        return found

    # Facts.

    def add_nodes(self, nodes: Iterable[Node]) -> None:
        """Append rows."""
        added = list(nodes)
        width = max((len(n.spec.devices) for n in added), default=0)
        for node in added:
            for device in node.spec.devices:
                self._kind_id(node, device)
        first = len(self.names)
        for node in added:
            self.row_of[node.name] = len(self.names)
            self.names.append(node.name)
            self.nodes.append(node)
            self.tasks.append({})
        self._grow(len(self.names), width, len(self.kinds))
        self._publish()
        for row in range(first, len(self.names)):
            self._load(row)
        self.epoch += 1
        self.facts_version += 1

    def set_node(self, row: int, node: Node) -> None:
        """Replace the facts of a row; what its tasks hold is kept."""
        self._count_untouched(row, -1)
        for device in node.spec.devices:
            self._kind_id(node, device)
        self.nodes[row] = node
        if len(node.spec.devices) > self._width or len(self.kinds) > len(self._untouched):
            self._grow(self._capacity, len(node.spec.devices), len(self.kinds))
        self._load(row)
        self.fact_changes.append(row)
        self.facts_version += 1
        self._touch(row)

    def _load(self, row: int) -> None:
        """Fill one row from its node and its running tasks."""
        node, spec = self.nodes[row], self.nodes[row].spec
        count = len(spec.devices)
        cpus = spec.cpus_milli or UNLIMITED
        memory = spec.memory_bytes or UNLIMITED << 20
        self.cpus_free[row] = self.cpus_total[row] = cpus
        self.memory_free[row] = self.memory_total[row] = memory
        self.slots_free[row] = UNLIMITED if spec.slots is None else spec.slots
        self.cpus_share[row] = min(self._default_share[0], cpus // max(count, 1))
        self.memory_share[row] = min(self._default_share[1], memory // max(count, 1))
        self.tasks_held[row] = 0
        self.device_count[row] = count
        self.placeable[row] = node.is_placeable
        self.trial[row] = bool(node.trial)
        for level in self.levels:
            self.domains[level][row] = self._domain_id(level, spec)
        self._load_devices(row, node)
        kinds = tuple(self.kind[row].tolist())
        hardware = (kinds, spec.cpus_milli, spec.memory_bytes, spec.slots)
        self.model[row] = self.models.setdefault(hardware, len(self.models))
        self._count_untouched(row, +1)
        for placement in self.tasks[row].values():
            self._apply(row, placement, +1)

    def _load_devices(self, row: int, node: Node) -> None:
        spec, count = node.spec, len(node.spec.devices)
        foreign = set(spec.foreign_devices)
        self.kind[row] = -1
        self.usable[row] = False
        for column in (
            self.holders, self.milli_free, self.card_free, self.card_total, self.power,
        ):  # fmt: skip
            column[row] = 0
        self.mig_used[row] = 0
        if not count:
            return
        devices = spec.devices
        self.kind[row, :count] = [self._kind_id(node, d) for d in devices]
        self.usable[row, :count] = [d.healthy and d.index not in foreign for d in devices]
        self.island[row, :count] = [d.island for d in devices]
        self.power[row, :count] = [d.power_w for d in devices]
        if node.caps is not None:
            self.power[row, :count] = [node.ceiling_w(index) for index in range(count)]
        self.milli_free[row, :count] = WHOLE_DEVICE_MILLI
        self.card_total[row, :count] = self.card_free[row, :count] = [
            d.memory_bytes for d in devices
        ]

    def _domain_id(self, level: str, spec: NodeSpec) -> int:
        name = domain_of(spec, level)
        if name is None:
            return -1
        ids = self._domain_of[level]
        found = ids.get(name)
        if found is None:
            found = ids[name] = len(ids)
            self.domain_names[level].append(name)
        return found

    def is_untouched(self, row: int, device: int) -> bool:
        """Whether nobody holds a usable device."""
        return bool(self.usable[row, device]) and not self.holders.item(row, device)

    def _count_untouched(self, row: int, sign: int) -> None:
        free = self.usable[row] & (self.holders[row] == 0) & (self.kind[row] >= 0)
        counts = np.bincount(self.kind[row][free], minlength=len(self._untouched))
        if sign > 0:
            self.untouched[:, row] = counts
        if self.placeable[row]:
            for kind in np.flatnonzero(counts).tolist():
                self.untouched_total[kind] += sign * int(counts[kind])

    # Holding.

    def hold(self, row: int, job: JobId, placement: TaskPlacement) -> None:
        """Record a running task and take what it holds."""
        self.tasks[row][job, placement.task] = placement
        self.apply(row, placement, +1)

    def release(self, row: int, job: JobId, placement: TaskPlacement) -> None:
        """Forget a running task and give back what it held."""
        del self.tasks[row][job, placement.task]
        self.apply(row, placement, -1)

    def commit(self, row: int, job: JobId, placement: TaskPlacement, sign: int) -> None:
        """Record or forget a running task whose holding was applied before."""
        if sign > 0:
            self.tasks[row][job, placement.task] = placement
        else:
            del self.tasks[row][job, placement.task]
        self.committed.append(row)

    def apply(self, row: int, placement: TaskPlacement, sign: int) -> None:
        """Take (+1) or give back (-1) what one task holds; the two are exact inverses."""
        self._apply(row, placement, sign)
        self._touch(row)

    def _touch(self, row: int) -> None:
        self.version += 1
        self.touched.append(row)
        if len(self.touched) > max(_MAX_LOG, 4 * self.count):
            self.epoch += 1
            self.touched.clear()
            self.committed.clear()
            self.fact_changes.clear()

    def _apply(self, row: int, placement: TaskPlacement, sign: int) -> None:
        cpus, memory, slots, held = (
            self.cpus_free, self.memory_free, self.slots_free, self.tasks_held,
        )  # fmt: skip
        cpus[row] = cpus.item(row) - sign * placement.cpus_milli
        memory[row] = memory.item(row) - sign * placement.memory_bytes
        slots[row] = slots.item(row) - sign
        held[row] = held.item(row) + sign
        for share in placement.devices:
            at = share.index
            if at >= self._width:
                continue  # the node lost this device since it was given
            before = self.holders.item(row, at)
            self.holders[row, at] = before + sign
            self.milli_free[row, at] = self.milli_free.item(row, at) - sign * share.milli
            self.card_free[row, at] = self.card_free.item(row, at) - sign * share.memory_bytes
            if share.mig_size:
                self.mig_used[row, at] ^= share.slice_bits
            if (before == 0 or before + sign == 0) and self.usable.item(row, at):
                kind = self.kind.item(row, at)
                self.untouched[kind, row] = self.untouched.item(kind, row) - sign
                if self.placeable.item(row):
                    self.untouched_total[kind] -= sign

    # Reading.

    def kinds_of(self, wanted: Callable[[DeviceKind], bool]) -> tuple[int, ...]:
        """Return the ids of the kinds that satisfy a test."""
        return tuple(i for i, kind in enumerate(self.kinds) if wanted(kind))

    def whole(self, row: int, at: int) -> DeviceShare:
        """Return the share that a whole device is; equal ones are one object."""
        key = (at, self.card_total.item(row, at))
        found = self._whole.get(key)
        if found is None:
            found = self._whole[key] = DeviceShare(
                index=at, milli=WHOLE_DEVICE_MILLI, memory_bytes=key[1]
            )
        return found

    def types(self) -> list[str]:
        """Accelerator types in order of first report; CPU devices only when asked by name."""
        found = dict.fromkeys(kind.type for kind in self.kinds)
        return [name for name in found if name != CPU_DEVICE]

    def type_of(self, row: int, share: DeviceShare) -> str:
        """Return the type of the device a share stands on."""
        devices = self.nodes[row].spec.devices
        return devices[share.index].type if share.index < len(devices) else "unknown"

    def has_host_room(self, row: int, task: TaskPlacement) -> bool:
        """Whether a node has the cores, the memory and the slot that one more task takes."""
        return (
            task.cpus_milli <= self.cpus_free.item(row)
            and task.memory_bytes <= self.memory_free.item(row)
            and self.slots_free.item(row) > 0
        )

    def node_levels(self) -> list[str]:
        """Levels above the node, small to large, that have domains in this cluster."""
        version, found = self._node_levels
        if version != self.facts_version:
            found = [
                level
                for level in self.levels
                if level not in (ISLAND, NODE, SITE) and self.domain_names[level]
            ]
            self._node_levels = (self.facts_version, found)
        return found

    def state_hash(self) -> str:
        """Digest of everything that placing and evicting changes."""
        digest = hashlib.blake2b(digest_size=16)
        for column in (
            self.cpus_free, self.memory_free, self.slots_free, self.tasks_held, self.holders,
            self.milli_free, self.card_free, self.mig_used, self.untouched,
        ):  # fmt: skip
            digest.update(np.ascontiguousarray(column).tobytes())
        digest.update(repr(self.untouched_total).encode())
        return digest.hexdigest()
