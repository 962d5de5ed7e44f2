"""Placements: a scheduler's decision of node and devices for each task."""

from __future__ import annotations

import msgspec

from tercio.model.ids import NodeName
from tercio.model.resources import DeviceShare


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one task goes and what it holds there.

    Attributes:
        task: index in the job, from 0, counted through the groups in order.
        group: index of the task's leaf group, in depth-first order.
        node: the node.
        devices: shares held, in index order.
        cpus_milli: cores held, in thousandths.
        memory_bytes: memory held.
    """

    task: int
    node: NodeName
    group: int = 0
    devices: tuple[DeviceShare, ...] = ()
    cpus_milli: int = 0
    memory_bytes: int = 0
