"""The ledger: what every node gives out, and who has used how much.

Exact: devices in thousandths, cores in thousandths, memory in bytes, past use in integer
device-milliseconds. `reserve` refuses what does not fit, so that no decision, however made,
can hand a device out twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from tercio.errors import InvariantViolation
from tercio.model.ids import NodeName, QueuePath
from tercio.model.limits import DAY_S, MAX_WINDOW_DAYS, OwnerKind, owner_key
from tercio.model.node import NodeSpec
from tercio.model.placement import TaskPlacement
from tercio.model.resources import WHOLE_DEVICE_MILLI, DeviceShare

_REBASE_HALF_LIVES: Final = 64.0
FIRST_PORT: Final = 20_000  # below Linux's ephemeral range, which starts at 32768
LAST_PORT: Final = 31_999
PORTS_PER_TASK: Final = 4


class NodeUse(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """What is given out on one node. Lists are by device index.

    `device_slices` holds the bits of the memory slices that MIG shares hold: a device is cut,
    or it is whole or in shares, never both.
    """

    device_milli: list[int] = []
    device_memory_bytes: list[int] = []
    device_slices: list[int] = []
    cpus_milli: int = 0
    memory_bytes: int = 0
    task_count: int = 0
    ports: dict[int, str] = {}
    next_port: int = FIRST_PORT


Usage = dict[int, dict[str, dict[str, dict[str, int]]]]
"""Device-milliseconds by day since the epoch, user, queue and device type."""


class Ledger(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """See the module's description.

    Attributes:
        nodes: use by node name, also of nodes that are down while tasks may run there.
        usage_ms: finished device time.
        spent_ms: the same by owner (`user:ana`, `tenant:acme`) and day since the epoch, as far
            back as a window may reach.
        decayed: past use by queue in device-seconds, as seen at `decayed_at_s`: a charge
            later than that is stored larger by the growth that decay will take away.
        decayed_at_s: see `decayed`.
        first_port: where a new node's ports begin.
    """

    nodes: dict[NodeName, NodeUse] = {}
    usage_ms: Usage = {}
    spent_ms: dict[str, dict[int, int]] = {}
    decayed: dict[QueuePath, float] = {}
    decayed_at_s: float = 0.0
    first_port: int = FIRST_PORT

    def obstacle(self, spec: NodeSpec, tasks: Iterable[TaskPlacement]) -> str | None:
        """Return why these tasks do not fit on the node together, or None when they do."""
        use = self.nodes.get(spec.name) or NodeUse()
        devices, known = spec.devices, len(use.device_slices)
        held: dict[int, tuple[int, int, int]] = {}
        cpus, memory_bytes, count = use.cpus_milli, use.memory_bytes, use.task_count
        for task in tasks:
            cpus += task.cpus_milli
            memory_bytes += task.memory_bytes
            count += 1
            for share in task.devices:
                at = share.index
                if at >= len(devices):
                    return f"{spec.name} has no device {at}"
                milli, memory, slices = held.get(at) or (
                    (use.device_milli[at], use.device_memory_bytes[at], use.device_slices[at])
                    if at < known
                    else (0, 0, 0)
                )
                if slices or share.mig_size:
                    clash = _clash(share, milli, slices)
                    if clash:
                        return f"device {at} of {spec.name} {clash}"
                    slices |= share.slice_bits
                milli += share.milli
                memory += share.memory_bytes
                held[at] = (milli, memory, slices)
                total_bytes = devices[at].memory_bytes
                if milli > WHOLE_DEVICE_MILLI or (total_bytes and memory > total_bytes):
                    return f"device {at} of {spec.name} is taken"
        if spec.cpus_milli and cpus > spec.cpus_milli:
            return f"{spec.name} has not enough cores"
        if spec.memory_bytes and memory_bytes > spec.memory_bytes:
            return f"{spec.name} has not enough memory"
        if spec.slots is not None and count > spec.slots:
            return f"{spec.name} takes {spec.slots} tasks at most"
        return None

    def hold(self, spec: NodeSpec, task: TaskPlacement) -> None:
        """Take what the task holds from the node.

        Raises:
            InvariantViolation: it does not fit.
        """
        obstacle = self.obstacle(spec, (task,))
        if obstacle:
            raise InvariantViolation(f"placement does not fit: {obstacle}")
        use = self._use_of(spec.name)
        if len(use.device_slices) < len(spec.devices):
            use.device_milli = _padded(use.device_milli, len(spec.devices))
            use.device_memory_bytes = _padded(use.device_memory_bytes, len(spec.devices))
            use.device_slices = _padded(use.device_slices, len(spec.devices))
        _add(use, task, sign=1)

    def release(self, task: TaskPlacement, ports: tuple[int, ...]) -> None:
        """Give back what the task held on its node."""
        use = self.nodes[task.node]
        _add(use, task, sign=-1)
        for port in ports:
            del use.ports[port]

    def _use_of(self, node: NodeName) -> NodeUse:
        found = self.nodes.get(node)
        if found is None:
            found = self.nodes[node] = NodeUse(next_port=self.first_port)
        return found

    def begin_ports(self, first_port: int) -> None:
        """Hand out ports from here on, on every node."""
        self.first_port = first_port
        for use in self.nodes.values():
            use.next_port = first_port

    def take_ports(self, node: NodeName, holder: str) -> tuple[int, ...]:
        """Return ports of the node that no other live task has, for `holder`.

        They move on with every call, so that a retry never meets a port in TIME_WAIT or one
        that something foreign holds.
        """
        use = self._use_of(node)
        found: list[int] = []
        port = use.next_port
        for _ in range(LAST_PORT - FIRST_PORT + 1):
            if len(found) == PORTS_PER_TASK:
                break
            if port not in use.ports:
                found.append(port)
            port = port + 1 if port < LAST_PORT else FIRST_PORT
        if len(found) < PORTS_PER_TASK:
            raise InvariantViolation(f"{node}: no free rendezvous ports")
        use.next_port = port
        for port in found:
            use.ports[port] = holder
        return tuple(found)

    def add_usage(
        self,
        *,
        user: str,
        tenant: str,
        queue: str,
        type: str,
        milli: int,
        start_s: float,
        stop_s: float,
    ) -> None:
        """Record that `milli` thousandths of a device of this type were held in the window."""
        for day, ms in split_by_day(start_s, stop_s):
            row = self.usage_ms.setdefault(day, {}).setdefault(user, {}).setdefault(queue, {})
            row[type] = row.get(type, 0) + ms * milli // WHOLE_DEVICE_MILLI
            for key in (owner_key(OwnerKind.USER, user), owner_key(OwnerKind.TENANT, tenant)):
                self._spend(key, day, ms * milli // WHOLE_DEVICE_MILLI)

    def _spend(self, key: str, day: int, ms: int) -> None:
        days = self.spent_ms.setdefault(key, {})
        if day not in days:
            for old in [other for other in days if other <= day - MAX_WINDOW_DAYS]:
                del days[old]
        days[day] = days.get(day, 0) + ms

    def charge(self, queue: QueuePath, device_s: float, *, at_s: float, half_life_s: float) -> None:
        """Add past use to a queue; negative to correct an earlier charge. Decays with time."""
        if half_life_s <= 0 or device_s == 0:
            return
        if not self.decayed:
            self.decayed_at_s = at_s
        age = (at_s - self.decayed_at_s) / half_life_s
        if age > _REBASE_HALF_LIVES:
            factor = math.exp2(-age)
            self.decayed = {path: use * factor for path, use in self.decayed.items()}
            self.decayed_at_s, age = at_s, 0.0
        self.decayed[queue] = self.decayed.get(queue, 0.0) + device_s * math.exp2(age)


def split_by_day(start_s: float, stop_s: float) -> list[tuple[int, int]]:
    """Split a window into whole milliseconds per day; the parts add up to the whole exactly.

    >>> split_by_day(86399.5, 86401.0)
    [(0, 500), (1, 1000)]
    """
    start_ms, stop_ms = round(start_s * 1000), round(stop_s * 1000)
    first = start_ms // (DAY_S * 1000)
    if start_ms < stop_ms <= (first + 1) * DAY_S * 1000:
        return [(first, stop_ms - start_ms)]
    parts = []
    while start_ms < stop_ms:
        day = start_ms // (DAY_S * 1000)
        end = min(stop_ms, (day + 1) * DAY_S * 1000)
        parts.append((day, end - start_ms))
        start_ms = end
    return parts


def _padded(values: list[int], length: int) -> list[int]:
    return values + [0] * (length - len(values))


def _clash(share: DeviceShare, milli: int, slices: int) -> str:
    """Why a share cannot stand on a device beside what is held there; empty when it can."""
    if not share.slice_bits:
        return "is cut into slices" if slices else ""
    if milli and not slices:
        return "is in use uncut"
    return "has no such slice free" if slices & share.slice_bits else ""


def _add(use: NodeUse, task: TaskPlacement, *, sign: int) -> None:
    for share in task.devices:
        use.device_milli[share.index] += sign * share.milli
        use.device_memory_bytes[share.index] += sign * share.memory_bytes
        if share.slice_bits:
            use.device_slices[share.index] ^= share.slice_bits
    use.cpus_milli += sign * task.cpus_milli
    use.memory_bytes += sign * task.memory_bytes
    use.task_count += sign
