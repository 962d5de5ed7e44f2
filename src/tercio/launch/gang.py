"""The members of one attempt: who is where, by which address and with how many devices."""

from __future__ import annotations

from collections.abc import Mapping

from tercio.errors import InvariantViolation
from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobSpec, TaskGroup
from tercio.model.node import DeviceSpec, NodeSpec
from tercio.model.placement import TaskPlacement
from tercio.model.resources import WHOLE_DEVICE_MILLI

LOOPBACK = "127.0.0.1"
CPU_VENDOR = "cpu"


class Gang:
    """A placed attempt, seen the way rendezvous needs it.

    Members are positions in `tasks`, which are in task order; ranks follow that order.
    """

    __slots__ = (
        "_groups",
        "accelerators",
        "addresses",
        "attempt",
        "device_counts",
        "first_devices",
        "job_id",
        "local_indexes",
        "node_indexes",
        "node_names",
        "nodes",
        "ports",
        "spec",
        "tasks",
    )  # fmt: skip

    def __init__(
        self,
        spec: JobSpec,
        *,
        job_id: JobId,
        attempt: int,
        tasks: tuple[TaskPlacement, ...],
        nodes: Mapping[NodeName, NodeSpec],
        ports: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.spec = spec
        self.job_id = job_id
        self.attempt = attempt
        self.tasks = tasks
        self.node_names = tuple(dict.fromkeys(task.node for task in tasks))
        self.nodes = tuple(nodes[name] for name in self.node_names)
        by_name = {name: index for index, name in enumerate(self.node_names)}
        self.node_indexes = tuple(by_name[task.node] for task in tasks)
        # A gang on one node meets on loopback: that works without any name service.
        is_alone = len(self.node_names) == 1
        self.addresses = tuple(LOOPBACK if is_alone else nodes[t.node].address for t in tasks)
        self.device_counts = tuple(len(task.devices) for task in tasks)
        self.accelerators = tuple(_accelerators(task, nodes[task.node]) for task in tasks)
        self.first_devices = tuple(_first_device(task, nodes[task.node]) for task in tasks)
        self.ports = tuple(ports[task.task] for task in tasks)
        seen: dict[NodeName, int] = {}
        local = []
        for task in tasks:
            local.append(seen.get(task.node, 0))
            seen[task.node] = local[-1] + 1
        self.local_indexes = tuple(local)
        self._groups = leaf_groups(spec)
        if not tasks or any(len(own) < 2 for own in self.ports):
            raise InvariantViolation(f"{job_id}: a task was placed without its ports")

    @property
    def size(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @property
    def master(self) -> tuple[str, int]:
        """Address and port of the rendezvous: the first port of task 0."""
        return self.addresses[0], self.ports[0][0]

    def endpoint(self, member: int) -> tuple[str, int]:
        """Address and port of a member's own server: its second port."""
        return self.addresses[member], self.ports[member][1]

    def group(self, member: int) -> TaskGroup:
        """The task group of a member."""
        return self._groups[self.tasks[member].group]

    def ranks(self, member: int) -> int:
        """Processes that a launcher starts in a member: one per device, at least one."""
        return max(1, self.device_counts[member])

    def devices_on_node(self, member: int) -> int:
        """Devices of the whole job on the node of a member."""
        node = self.node_indexes[member]
        return sum(
            count
            for count, index in zip(self.device_counts, self.node_indexes, strict=True)
            if index == node
        )


def _accelerators(task: TaskPlacement, node: NodeSpec) -> float:
    """Devices of a task that are not declared CPU devices; parts of one count as such."""
    vendors = {device.index: device.vendor for device in node.devices}
    whole = sum(share.milli for share in task.devices if vendors.get(share.index) != CPU_VENDOR)
    return whole / WHOLE_DEVICE_MILLI


def _first_device(task: TaskPlacement, node: NodeSpec) -> DeviceSpec | None:
    """The first device of a task as its node reports it, None for a task without one."""
    if not task.devices:
        return None
    first = task.devices[0].index
    return next((device for device in node.devices if device.index == first), None)


def leaf_groups(spec: JobSpec) -> tuple[TaskGroup, ...]:
    """Return the groups that have tasks, in depth-first order."""
    found: list[TaskGroup] = []

    def visit(groups: tuple[TaskGroup, ...]) -> None:
        for group in groups:
            if group.subgroups:
                visit(group.subgroups)
            else:
                found.append(group)

    visit(spec.groups)
    return tuple(found)
