"""Placements: a scheduler's decision of node and devices for each task."""

from __future__ import annotations

import msgspec

from tercio.model.ids import NodeName
from tercio.model.resources import DeviceShare


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where one task goes and what it holds there.

    Attributes:
        task: number in the attempt, from 0, never used twice; at the start of an attempt counted
            through the groups in order.
        group: index of the task's leaf group, in depth-first order.
        node: the node.
        devices: shares held, in index order.
        cpus_milli: cores held, in thousandths.
        memory_bytes: memory held.
        member: which member of the gang it is (its `TERCIO_TASK`), for one that joined a running
            attempt; the same as `task` for the others.
    """

    task: int
    node: NodeName
    group: int = 0
    devices: tuple[DeviceShare, ...] = ()
    cpus_milli: int = 0
    memory_bytes: int = 0
    member: int | None = None

    @property
    def rank(self) -> int:
        """Which member of the gang it is, from 0."""
        return self.task if self.member is None else self.member
