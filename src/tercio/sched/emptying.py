"""When enough is free for a blocked job, by counting: ends given back on paper, node by node.

For whole devices without a wish where they stand together, the count is the whole truth: a job
fits when the nodes together hold its tasks, and more free devices never make it fit less. So its
earliest start is found without a trial placement and without touching the columns.
"""

from __future__ import annotations

import numpy as np

from tercio.model.placement import TaskPlacement
from tercio.model.topology import SITE, TopologyRequest
from tercio.sched.feasible import Fit
from tercio.sched.need import Branch, Leaf, Mode, Shape
from tercio.sched.table import Flags


class _Row:
    """What would be free on a node."""

    __slots__ = ("cpus", "fits", "freed", "memory", "slots", "untouched")

    def __init__(self, fit: Fit, row: int, fits: int) -> None:
        table = fit.table
        self.untouched = sum([table.untouched.item(kind, row) for kind in fit.kinds])
        self.cpus = table.cpus_free.item(row)
        self.memory = table.memory_free.item(row)
        self.slots = table.slots_free.item(row)
        self.freed: dict[int, int] = {}
        self.fits = fits


class Emptying:
    """Counts the tasks of one need that fit while others leave.

    Attributes:
        room: tasks that fit by now, each node's counted up to those wanted.
    """

    @property
    def is_enough(self) -> bool:
        """Whether all that are wanted fit by now."""
        return self.room >= self._wanted

    def __init__(self, fit: Fit, wanted: int, within: Flags | None) -> None:
        self._fit = fit.refresh()
        self._wanted = wanted
        fits = np.minimum(fit.fits, wanted)
        open_rows = fit.open & (fit.possible > 0)
        if within is not None:
            fits, open_rows = np.where(within, fits, 0), open_rows & within
        self._fits, self._is_open = fits, open_rows
        self._rows: dict[int, _Row] = {}
        self.room = int(fits.sum())

    def give_back(self, row: int, task: TaskPlacement) -> None:
        """Let a task leave its node."""
        if not self._is_open.item(row):
            return
        fit, table = self._fit, self._fit.table
        found = self._rows.get(row)
        if found is None:
            found = self._rows[row] = _Row(fit, row, self._fits.item(row))
        found.cpus += task.cpus_milli
        found.memory += task.memory_bytes
        found.slots += 1
        width = table.holders.shape[1]
        for share in task.devices:
            at = share.index
            if at >= width or not table.usable.item(row, at):
                continue
            if table.kind.item(row, at) not in fit.kinds:
                continue
            gone = found.freed[at] = found.freed.get(at, 0) + 1
            found.untouched += gone == table.holders.item(row, at)
        fits = fit.whole_tasks(row, found.untouched, found.cpus, found.memory, found.slots)
        fits = min(fits, self._wanted)
        self.room += fits - found.fits
        found.fits = fits


def is_counted(shape: Shape, fit: Fit) -> bool:
    """Whether a count alone decides if a shape of this need fits where nothing is promised."""
    if len(shape.leaves) != 1 or len(fit.table.domain_names.get(SITE, ())) > 1:
        return False
    need = fit.need
    if need.mode is not Mode.WHOLE or need.exclusive or len(fit.refresh().kinds) != 1:
        return False
    group: Branch | Leaf = shape.root
    while isinstance(group, Branch):
        if not _is_free(group.topology):
            return False
        (group,) = group.children
    return _is_free(group.topology)


def _is_free(topology: TopologyRequest | None) -> bool:
    if topology is None:
        return True
    return (topology.same, topology.spread, topology.slice, topology.leader) == (None,) * 4
