"""Guarantees by shape: enough whole domains stay free of what cannot be reclaimed.

After HiveD (Zhao et al., OSDI 2020), whose invariant is that at every level there are at least as
many free cells as are owed. Here a cell is a domain that is up and whole, and no cell belongs to
anybody for good. A start is refused when afterwards so many cells could be broken for good that
those that are owed would not be left.

How many cells a queue can break for good is a bound that holds however its jobs end: reclaim may
leave it any set of jobs inside its guarantee, so the most cells that such a set touches count,
each cell at the price of the cheapest job on it (a job over several cells is cheap on each). A
queue without a guarantee breaks none for good, except with jobs that may not be evicted, and so
borrows whole domains freely. Queues without a shape are counted together, since they may share
cells. Work without devices is not counted: a shape is about devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from tercio.model.ids import JobId, QueuePath
from tercio.model.placement import TaskPlacement
from tercio.model.queue import AcrossQueues, Policy
from tercio.model.reasons import Reason
from tercio.model.resources import DEVICES, WHOLE_DEVICE_MILLI
from tercio.model.shape import PREFIX, shape_levels
from tercio.model.snapshot import RunningJob, WaitingJob
from tercio.model.topology import ISLAND
from tercio.sched.fairshare import QueueNode, QueueTree, owed
from tercio.sched.gang import Gang
from tercio.sched.need import Shape
from tercio.sched.owners import Blocked
from tercio.sched.table import Flags, Ints, Table


class Tenant(NamedTuple):
    """Whose work it is: its queue, whether it may not be evicted, and whether tasks of it may."""

    queue: QueueNode
    is_firm: bool
    is_elastic: bool


def tenant_of(tree: QueueTree, job: WaitingJob | RunningJob) -> Tenant:
    """Return whose a job is."""
    is_elastic = any(group.tasks_max is not None for group in job.spec.groups)
    return Tenant(tree.at(job.queue), not job.is_preemptible, is_elastic)


class _Stand(NamedTuple):
    """The cells that one job touches by level, each with the least that keeps it there.

    That is an equal part of the job's devices in thousandths; of an elastic job, which may lose
    tasks one by one, its smallest task there.
    """

    tenant: Tenant
    price: Mapping[str, Mapping[int, int]]


class _Tract:
    """Cells of one level that a queue's jobs touch: broken for good, or at a price."""

    __slots__ = ("firm", "price")

    def __init__(self) -> None:
        self.firm: set[int] = set()
        self.price: dict[int, int] = {}

    def add(self, stand: _Stand, level: str, *, is_firm: bool) -> None:
        if is_firm:
            self.firm.update(stand.price[level])
            return
        for cell, price in stand.price[level].items():
            self.price[cell] = min(price, self.price.get(cell, price))


class Ground:
    """The cells of every level that some queue is guaranteed, and what stands on them."""

    def __init__(
        self, table: Table, tree: QueueTree, policy: Policy, capacity: Mapping[str, int]
    ) -> None:
        self._table = table
        self._tree = tree
        self._capacity = capacity
        self._is_kept = policy.preemption.across_queues is AcrossQueues.OFF
        levels = shape_levels(policy.queues)
        self.levels = tuple(level for level in reversed(table.levels) if level in levels)
        self._grid = {level: cells_of(table, level) for level in self.levels}
        self._count = {level: len(_known(grid)) for level, grid in self._grid.items()}
        self._claims = _claims(tree, self._grid)
        self._stands: dict[JobId, list[_Stand]] = {}
        self._tracts: dict[tuple[str, str], _Tract] = {}

    # What stands where.

    def add(self, tenant: Tenant, job_id: JobId, tasks: Iterable[TaskPlacement]) -> None:
        """Count the devices of some tasks of a job, beside those that it has."""
        self._put(job_id, self._stand(tenant, tasks))

    def _put(self, job_id: JobId, stand: _Stand) -> None:
        self._stands.setdefault(job_id, []).append(stand)
        for node in stand.tenant.queue.lineage():
            for level in self.levels:
                tract = self._tracts.setdefault((node.path, level), _Tract())
                tract.add(stand, level, is_firm=self._is_kept or stand.tenant.is_firm)

    def without(self, jobs: Collection[JobId]) -> Ground:
        """The same ground as if some jobs had ended."""
        other = object.__new__(Ground)
        other.__dict__.update(self.__dict__)
        other._stands, other._tracts = {}, {}
        for job_id, stands in self._stands.items():
            for stand in stands if job_id not in jobs else ():
                other._put(job_id, stand)
        return other

    def _stand(self, tenant: Tenant, tasks: Iterable[TaskPlacement]) -> _Stand:
        total = 0
        found: dict[str, dict[int, int]] = {level: {} for level in self.levels}
        for task in tasks:
            row = self._table.row_of.get(task.node)
            milli = sum(share.milli for share in task.devices)
            total += milli
            for level, grid in self._grid.items():
                cells = found[level]
                for share in task.devices:
                    if row is None or share.index >= grid.shape[1]:
                        continue
                    cell = grid.item(row, share.index)
                    if cell >= 0:
                        cells[cell] = min(milli, cells.get(cell, milli))
        if not tenant.is_elastic:
            found = {
                level: dict.fromkeys(cells, total // max(len(cells), 1))
                for level, cells in found.items()
            }
        return _Stand(tenant, found)

    # What may start.

    def is_bound(self, tenant: Tenant) -> bool:
        """Whether anything of this tenant could break a cell for good."""
        if self._is_kept or tenant.is_firm:
            return True
        return any(self._guarantee(node) for node in tenant.queue.lineage())

    def refusal(self, tenant: Tenant, tasks: Iterable[TaskPlacement]) -> Blocked | None:
        """Return the level of which too few whole domains would be left, or None."""
        if not self.is_bound(tenant):
            return None
        stand = self._stand(tenant, tasks)
        for level in self.levels:
            before = self._broken(level)
            after = self._broken(level, stand)
            if after > max(before, self._count[level]):
                return self._blocked(level, before)
        return None

    def _blocked(self, level: str, broken: int) -> Blocked:
        tops = [node.path for node in self._tree.root.children.values()]
        owners = [path for path in tops if self._claims.get(path, {}).get(level)]
        owed_cells = sum(self._claims[path][level] for path in owners)
        queue = QueuePath(" with ".join(owners))
        return Blocked(
            Reason.SHAPE, queue, "shape", f"{PREFIX}{level}",
            max(0, broken - owed_cells) * WHOLE_DEVICE_MILLI,
            owed_cells * WHOLE_DEVICE_MILLI, self._count[level] * WHOLE_DEVICE_MILLI,
        )  # fmt: skip

    def _broken(
        self, level: str, stand: _Stand | None = None, more: tuple[QueueNode, int] | None = None
    ) -> int:
        """Cells that are owed or can be broken for good, with one more job, or so many cells."""
        return self._of_children(self._tree.root, level, stand, more)

    def _of_children(
        self, node: QueueNode, level: str, stand: _Stand | None, more: tuple[QueueNode, int] | None
    ) -> int:
        plain: list[QueueNode] = []
        total = 0
        for child in node.children.values():
            if child.path not in self._claims:
                plain.append(child)
                continue
            own = self._touched([child], level, stand, more)
            below = self._of_children(child, level, stand, more)
            total += max(own, below, self._claims[child.path].get(level, 0))
        apart = sum(self._touched([child], level, stand, more) for child in plain)
        return total + min(apart, self._touched(plain, level, stand, more))

    def _touched(
        self,
        queues: Collection[QueueNode],
        level: str,
        stand: _Stand | None,
        more: tuple[QueueNode, int] | None,
    ) -> int:
        """The most cells that jobs of these queues can hold on to, whichever of them end."""
        tract, budget, extra = _Tract(), Fraction(0), 0
        for node in queues:
            budget += self._guarantee(node)
            known = self._tracts.get((node.path, level))
            if known is not None:
                tract.firm |= known.firm
                for cell, price in known.price.items():
                    tract.price[cell] = min(price, tract.price.get(cell, price))
            if stand is not None and node in stand.tenant.queue.lineage():
                tract.add(stand, level, is_firm=self._is_kept or stand.tenant.is_firm)
            if more is not None and node in more[0].lineage():
                extra = more[1]
        found = len(tract.firm) + extra
        spent = 0
        for price in sorted(p for cell, p in tract.price.items() if cell not in tract.firm):
            spent += price
            if spent > budget:
                break
            found += 1
        return found

    def _guarantee(self, node: QueueNode) -> Fraction:
        return owed(node.spec.guarantee, DEVICES, self._capacity)

    def open_rows(self, tenant: Tenant, room: Ints, cells: int) -> Flags:
        """Rows on which a job surely leaves enough whole domains.

        Those of cells that its queue has broken already, and of as many more as it may break, up
        to `cells`: cells broken by others first, then those with most room (tasks by row).
        """
        rows: Flags = np.ones(self._table.count, np.bool_)
        for level in self.levels:
            grid = self._grid[level]
            allowed = {-1}
            for node in tenant.queue.lineage()[:1]:
                tract = self._tracts.get((node.path, level), _Tract())
                allowed |= tract.firm if tenant.is_firm else tract.firm | set(tract.price)
            spare = self._spare(level, tenant.queue, cells)
            if spare:
                allowed.update(self._nearest(level, rows, room, allowed)[:spare])
            rows &= np.isin(grid, sorted(allowed)).any(axis=1) | (self._table.device_count == 0)
        return rows

    def _spare(self, level: str, queue: QueueNode, most: int) -> int:
        limit = max(self._count[level], self._broken(level))
        low, high = 0, min(most, self._count[level])
        while low < high:
            middle = (low + high + 1) // 2
            if self._broken(level, None, (queue, middle)) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _nearest(self, level: str, rows: Flags, room: Ints, taken: Collection[int]) -> list[int]:
        grid = self._grid[level]
        broken: set[int] = set()
        for node in self._tree.root.children.values():
            tract = self._tracts.get((node.path, level))
            if tract is not None and node.path not in self._claims:
                broken |= tract.firm | (set(tract.price) if self._guarantee(node) else set())
        total: dict[int, int] = {}
        for row in np.flatnonzero(rows & (room > 0)).tolist():
            for cell in dict.fromkeys(grid[row].tolist()):
                if cell >= 0 and cell not in taken:
                    total[cell] = total.get(cell, 0) + room.item(row)
        return sorted(total, key=lambda cell: (cell not in broken, -total[cell], cell))


def cells_of(table: Table, level: str) -> Ints:
    """The cell of each device, [rows, devices]; -1 where the domain is not whole and up."""
    has = table.kind >= 0
    width = table.kind.shape[1]
    if level == ISLAND:
        ids = np.arange(table.count)[:, None] * (int(table.island.max(initial=0)) + 1)
        grid: Ints = np.where(has, ids + table.island, -1)
    else:
        column = table.domains.get(level, np.full(table.count, -1, np.int64))
        grid = np.where(has, np.repeat(column[:, None], width, axis=1), -1)
    out = has & ~(table.usable & table.placeable[:, None])
    grid[np.isin(grid, np.unique(grid[out]))] = -1
    return grid


def _known(grid: Ints) -> Ints:
    found: Ints = np.unique(grid[grid >= 0])
    return found


def _claims(tree: QueueTree, grids: Mapping[str, Ints]) -> dict[str, dict[str, int]]:
    """Cells owed by queue and level; a larger domain is owed as all the smaller ones in it."""
    claims: dict[str, dict[str, int]] = {}
    levels = list(grids)  # large to small
    for node in tree.nodes():
        shape = {level: n for level, n in node.spec.guarantee_shape.items() if n}
        if not shape:
            continue
        own: dict[str, int] = {}
        for at, level in enumerate(levels):
            own[level] = shape.get(level, 0) + sum(
                shape.get(larger, 0) * _most_inside(grids[larger], grids[level])
                for larger in levels[:at]
            )
        claims[node.path] = own
        for above in node.lineage()[1:]:
            claims.setdefault(above.path, {})
    return claims


def _most_inside(larger: Ints, smaller: Ints) -> int:
    """Most cells of a smaller level that one cell of a larger one has."""
    both = np.stack((larger.ravel(), smaller.ravel()), axis=1)
    pairs = np.unique(both[(both >= 0).all(axis=1)], axis=0)
    return int(np.bincount(pairs[:, 0]).max()) if len(pairs) else 0


def place_on(
    ground: Ground | None,
    tenant: Tenant,
    gang: Gang,
    shape: Shape,
    *,
    most: Mapping[int, int],
    within: Flags | None = None,
) -> tuple[tuple[TaskPlacement, ...] | None, Blocked | None]:
    """Place a job so that every shape that is guaranteed can still be had.

    Returns its tasks, or None and the guarantee that stands in the way, when one does.
    """
    mark = gang.statement.mark()
    tasks = gang.place(shape, most, within)
    if ground is None or tasks is None:
        return tasks, None
    blocked = ground.refusal(tenant, tasks)
    if blocked is None:
        return tasks, None
    gang.statement.rollback(mark)
    room = np.zeros(gang.table.count, np.int64)
    for need in gang.needs:
        room = np.maximum(room, gang.room.columns(need)[0])
    rows = ground.open_rows(tenant, room, len(tasks) * gang.table.kind.shape[1])
    tasks = gang.place(shape, most, rows if within is None else rows & within)
    if tasks is None:
        return None, blocked
    if ground.refusal(tenant, tasks) is not None:
        gang.statement.rollback(mark)
        return None, blocked
    return tasks, None
