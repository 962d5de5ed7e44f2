"""Pools: the sets of nodes for which waiting jobs compete, by device type.

Where no waiting job names nodes or sites or has an image, a pool is a device type (`none` for
jobs without devices). Where some do, the nodes of a type fall into parts that every job can use
wholly or not at all, and each part is a pool: a job stands in the pools of all parts that it can
use. So jobs of disjoint nodes never stand in each other's way. The parts beyond `MOST_PARTS` are
joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from tercio.model.ids import JobId
from tercio.model.job import NodeFilter
from tercio.model.placement import TaskPlacement
from tercio.sched.classes import JobClass
from tercio.sched.fairshare import QueueNode
from tercio.sched.feasible import Fit
from tercio.sched.need import Need
from tercio.sched.table import Flags, Ints, Table

MOST_PARTS: Final = 16
"""Most parts of the nodes that are told apart: the largest ones, and all others together."""

NO_DEVICE: Final = "none"

Pool = tuple[str, int]
"""Device type and part of the nodes."""

_Filter = tuple[NodeFilter | None, tuple[str, ...], bool]


class Pools:
    """Follows the node filters of the waiting classes, and says in which pools they stand.

    Attributes:
        strict: in this cycle, the blocked head by queue of strict order and pool.
        closed: the blocked head by pool, where nothing may pass any head.
    """

    def __init__(self, table: Table, fit: Callable[[Need], Fit]) -> None:
        self._table = table
        self._fit = fit
        self._filters: dict[_Filter, dict[int, Need]] = {}
        self._part: Ints | None = None
        self._version: tuple[int, int] = (-1, -1)
        self._of_need: dict[Need, tuple[Pool, ...]] = {}
        self._of_needs: dict[tuple[Need, ...], tuple[Pool, ...]] = {}
        self.strict: dict[tuple[str, Pool], JobId] = {}
        self.closed: dict[Pool, JobId] = {}

    def add(self, job_class: JobClass) -> None:
        """Count a class that begins to wait."""
        need = job_class.needs[0]
        if need.nodes is not None or need.sites or need.runs_image:
            self._filters.setdefault(_filter(need), {})[job_class.number] = need
            self._version = (-1, -1)

    def remove(self, job_class: JobClass) -> None:
        """Count a class out that waits no longer."""
        need = job_class.needs[0]
        of_filter = self._filters.get(_filter(need))
        if of_filter is None:
            return
        of_filter.pop(job_class.number, None)
        if not of_filter:
            del self._filters[_filter(need)]
            self._version = (-1, -1)

    def of(self, job_class: JobClass) -> tuple[Pool, ...]:
        """Return the pools in which a class competes."""
        return self.of_needs(job_class.needs)

    def of_needs(self, needs: tuple[Need, ...]) -> tuple[Pool, ...]:
        """Return the pools in which tasks of these needs compete."""
        self._refresh()
        known = self._of_needs.get(needs)
        if known is not None:
            return known
        found: dict[Pool, None] = {}
        for need in needs:
            pools = self._of_need.get(need)
            if pools is None:
                pools = self._of_need[need] = self._pools(need)
            found.update(dict.fromkeys(pools))
        known = self._of_needs[needs] = tuple(found)
        return known

    def of_tasks(self, tasks: Iterable[TaskPlacement]) -> tuple[Pool, ...]:
        """Return the pools on whose nodes tasks stand."""
        self._refresh()
        table, found = self._table, dict[Pool, None]()
        for task in tasks:
            row = table.row_of.get(task.node)
            if row is None:
                continue
            part = 0 if self._part is None else self._part.item(row)
            types = [table.type_of(row, share) for share in task.devices] or [NO_DEVICE]
            found.update(dict.fromkeys((name, part) for name in types))
        return tuple(found)

    def open_anew(self) -> None:
        """Begin a cycle in which no head is blocked yet."""
        self.strict.clear()
        self.closed.clear()

    def closed_by(self, needs: tuple[Need, ...], queue: QueueNode) -> JobId | None:
        """Return the blocked job that nobody later may pass on the pools of these needs."""
        for pool in self.of_needs(needs):
            if pool in self.closed:
                return self.closed[pool]
            for node in queue.lineage():
                if (node.path, pool) in self.strict:
                    return self.strict[node.path, pool]
        return None

    def rows_outside(self, pools: Iterable[Pool]) -> Flags:
        """Return the rows that belong to none of these pools."""
        self._refresh()
        outside: Flags = np.ones(self._table.count, np.bool_)
        for name, part in pools:
            inside = self._has(name)
            if self._part is not None:
                inside = np.logical_and(inside, self._part == part)
            outside &= np.logical_not(inside)
        return outside

    def _refresh(self) -> None:
        table = self._table
        version = (table.facts_version, table.count)
        if version == self._version:
            return
        self._version = version
        self._of_need.clear()
        self._of_needs.clear()
        self._part = None
        if not self._filters:
            return
        masks = [self._allowed(next(iter(needs.values()))) for needs in self._filters.values()]
        _, first, part, sizes = np.unique(
            np.packbits(np.array(masks), axis=0),
            axis=1, return_index=True, return_inverse=True, return_counts=True,
        )  # fmt: skip
        # Among parts of a size the first node decides, not in which order the filters came: the
        # numbers must be those that a scheduler without memory would give.
        order = np.lexsort((first, -sizes))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self._part = np.minimum(rank[part.reshape(-1)], MOST_PARTS - 1)

    def _allowed(self, need: Need) -> Flags:
        return self._fit(need).refresh().allowed

    def _has(self, name: str) -> Flags:
        """Rows that have devices of a type; all of them for jobs without devices."""
        table = self._table
        if name == NO_DEVICE:
            every: Flags = np.ones(table.count, np.bool_)
            return every
        kinds = [at for at, kind in enumerate(table.kinds) if kind.type == name]
        found: Flags = np.zeros(table.count, np.bool_)
        found |= np.isin(table.kind, kinds).any(axis=1)
        return found

    def _pools(self, need: Need) -> tuple[Pool, ...]:
        if self._part is None:
            return tuple((name, 0) for name in need.pools)
        allowed = self._allowed(need)
        found: list[Pool] = []
        for name in need.pools:
            parts = np.unique(self._part[allowed & self._has(name)]).tolist()
            found += [(name, part) for part in parts] or [(name, -1)]
        return tuple(found)


def _filter(need: Need) -> _Filter:
    return need.nodes, need.sites, need.runs_image
