"""Placing a whole job, all or nothing, at every nesting level.

A group that demands one domain (`same`) tries the domains in which all its leaves fit by count,
tightest first; inside it, tasks go to as few sub-domains as possible and the last of them is the
one that fits best. Everything happens in a statement: what fails leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.topology import ISLAND, NODE, SITE, SliceRequest, TopologyRequest
from tercio.sched.devices import task_on
from tercio.sched.feasible import NO_PLACE, Fit
from tercio.sched.holds import Hold, Holds
from tercio.sched.need import Branch, Leaf, Need, Shape
from tercio.sched.statement import Statement
from tercio.sched.table import Flags, Ints, Table

DOMAIN_BUDGET: Final = 64
"""Most different domains really tried for one group; equal ones count once."""


class Room:
    """What the tasks of one attempt see: the fits of each need, promises of others taken out."""

    def __init__(
        self,
        fits: Mapping[Need, Fit],
        holds: Holds,
        bound: tuple[Hold, ...] = (),
    ) -> None:
        self._fits = fits
        self._holds = holds
        self.bound = bound
        self._merged: dict[Need, tuple[int, Ints, Ints]] = {}

    def fit(self, need: Need) -> Fit:
        """The cached columns of a need."""
        return self._fits[need]

    def columns(self, need: Need) -> tuple[Ints, Ints]:
        """Tasks that fit and preference, by row, as they are now."""
        fit = self._fits[need].refresh()
        if not self.bound:
            return fit.fits, fit.key
        version = fit.table.version
        known = self._merged.get(need)
        if known is not None and known[0] == version:
            return known[1], known[2]
        view = self._holds.view(self.bound)
        fits, key = fit.fits.copy(), fit.key.copy()
        fits[view.rows] = fit.count(view)
        key[view.rows] = np.where(fits[view.rows] > 0, key[view.rows], NO_PLACE)
        self._merged[need] = (version, fits, key)
        return fits, key

    def is_short_of_devices(self, need: Need, tasks: int) -> bool:
        """Whether fewer whole devices are free and not promised than so many tasks take."""
        fit = self._fits[need].refresh()
        if fit.is_short_of_devices(tasks):
            return True
        return bool(self.bound) and fit.is_short_of_devices(
            tasks, self._holds.view(self.bound).kept
        )

    def kept(self, row: int) -> frozenset[int]:
        """Devices of a row that are promised to others."""
        return self._holds.kept(self.bound, row) if self.bound else frozenset()


class Gang:
    """One attempt to place one job in one combination of alternatives.

    Attributes:
        is_least: of groups of which not all must start, no more than must are placed.
    """

    def __init__(
        self, table: Table, room: Room, statement: Statement, job: JobId, needs: Sequence[Need]
    ) -> None:
        self.table = table
        self.room = room
        self.statement = statement
        self.job = job
        self.needs = needs
        self.is_least = False
        self.placed: list[TaskPlacement] = []
        self._is_scarcest_first = False

    def place(
        self, shape: Shape, most: Mapping[int, int], within: Flags | None = None
    ) -> tuple[TaskPlacement, ...] | None:
        """Place the job, elastic leaves up to `most` tasks (by leaf), or leave no trace.

        `within` restricts it to some rows.
        """
        self._most = most
        if shape.is_single and len(self.table.domain_names.get(SITE, ())) <= 1:
            self.placed.clear()
            return tuple(self.placed) if self._leaf(shape.leaves[0], within, None) else None
        mark = self.statement.mark()
        for self._is_scarcest_first in (False, True) if len(shape.leaves) > 1 else (False,):
            for site in self._sites(shape):
                mask = site if within is None else within if site is None else site & within
                self.placed.clear()
                if self._group(shape.root, mask, None):
                    return self._numbered(mark)
                self.statement.rollback(mark)
        return None

    def would_place(self, shape: Shape) -> bool:
        """Whether the job can be placed at its least size; leaves no trace."""
        mark, self.is_least = self.statement.mark(), True
        placed = self.place(shape, {leaf.index: leaf.tasks for leaf in shape.leaves})
        self.statement.rollback(mark)
        return placed is not None

    def _numbered(self, mark: int) -> tuple[TaskPlacement, ...]:
        """Number the tasks through the leaves in order, also in the statement."""
        if len(self.placed) == 1:
            return (self.placed[0],)
        ordered = sorted(self.placed, key=lambda task: task.group)
        if all(task.task == at for at, task in enumerate(ordered)):
            return tuple(ordered)
        numbered = tuple(
            TaskPlacement(
                task=at, node=t.node, group=t.group, devices=t.devices,
                cpus_milli=t.cpus_milli, memory_bytes=t.memory_bytes,
            )
            for at, t in enumerate(ordered)
        )  # fmt: skip
        self.statement.rollback(mark)
        for task in numbered:
            self.statement.place(self.table.row_of[task.node], self.job, task)
        return numbered

    def _sites(self, shape: Shape) -> Iterator[Flags | None]:
        """A gang never spans sites: one mask per allowed site, in order of preference."""
        names = self.table.domain_names.get(SITE, [])
        if len(names) <= 1:
            yield None
            return
        wanted = [names.index(s) for s in shape.sites if s in names] or range(len(names))
        for site in wanted:
            yield self.table.domains[SITE] == site

    # Groups.

    def _group(self, group: Branch | Leaf, mask: Flags | None, island: str | None) -> bool:
        topology = group.topology
        if topology is None or topology.same is None:
            return self._preferring(group, mask, island)
        if topology.same == ISLAND:
            return self._in_one(group, mask, NODE, ISLAND)
        return self._in_one(group, mask, topology.same, island)

    def _preferring(self, group: Branch | Leaf, mask: Flags | None, island: str | None) -> bool:
        """Inside the smallest domain from the preferred level up that holds it, else anywhere."""
        topology = group.topology
        if topology is not None and topology.prefer is not None:
            mark, count = self.statement.mark(), len(self.placed)
            for level in self._levels_from(topology.prefer, topology.same):
                narrow = ISLAND if level == ISLAND else island
                at = NODE if level == ISLAND else level
                if self._in_one(group, mask, at, narrow, is_last=True):
                    return True
                self._undo(mark, count)
        return self._inside(group, mask, island)

    def _levels_from(self, level: str, below: str | None) -> list[str]:
        levels = self.table.levels
        if level not in levels:
            return []
        end = levels.index(below) if below in levels else len(levels)
        return list(levels[levels.index(level) : end])

    def _undo(self, mark: int, count: int) -> None:
        self.statement.rollback(mark)
        del self.placed[count:]

    def _in_one(
        self,
        group: Branch | Leaf,
        mask: Flags | None,
        level: str,
        island: str | None,
        *,
        is_last: bool = False,
    ) -> bool:
        """Place the group inside one domain of a level; `is_last`: it prefers nothing smaller."""
        domain = self.table.domains.get(level)
        if domain is None:
            return False
        mark, count = self.statement.mark(), len(self.placed)
        for chosen in self._domains(group, mask, domain):
            inside = domain == chosen
            narrower = inside if mask is None else inside & mask
            if (self._inside if is_last else self._preferring)(group, narrower, island):
                return True
            self._undo(mark, count)
        return False

    def _domains(self, group: Branch | Leaf, mask: Flags | None, domain: Ints) -> Iterator[int]:
        """Domains that hold every leaf by count, tightest first; equal ones only once."""
        leaves = list(_leaves(group))
        known = domain >= 0 if mask is None else (domain >= 0) & mask
        ids = domain[known]
        if not len(ids):
            return
        size = int(ids.max()) + 1
        enough = np.ones(size, np.bool_)
        spare = np.zeros(size, np.int64)
        columns = []
        every = not (isinstance(group, Branch) and group.minimum < len(group.children))
        for leaf in leaves:
            fits, _ = self.room.columns(self.needs[leaf.index])
            most = self._most.get(leaf.index, leaf.tasks)
            clipped = np.minimum(fits, max(most, leaf.tasks))
            columns.append(fits)
            cap = np.bincount(ids, clipped[known], size).astype(np.int64)
            if every:
                enough &= cap >= leaf.tasks
            spare += np.where(cap >= most, cap - most, (1 << 32) - cap)
        order = np.flatnonzero(enough)
        if not len(order):
            return
        order = order[np.argsort(spare[order], kind="stable")]
        if len(leaves) == 1 and self._is_flat(group):
            # The count is the whole truth: the first one holds it.
            yield from order[:DOMAIN_BUDGET].tolist()
            return
        seen: dict[bytes, None] = {}
        for chosen in order.tolist():
            where = np.flatnonzero(known & (domain == chosen))
            # More than a leaf needs may be what another of them is left: nothing is clipped here.
            rows = np.stack([column[where] for column in columns])
            like = rows[:, np.lexsort(rows)].tobytes()
            if like in seen:
                continue
            seen[like] = None
            if len(seen) > DOMAIN_BUDGET:
                return
            yield chosen

    def _is_flat(self, group: Branch | Leaf) -> bool:
        while isinstance(group, Branch):
            group = group.children[0]
        return group.topology is None

    def _inside(self, group: Branch | Leaf, mask: Flags | None, island: str | None) -> bool:
        if isinstance(group, Leaf):
            return self._leaf(group, mask, island)
        started = 0
        for child in self._ordered(group, mask):
            if self.is_least and started == group.minimum:
                break
            mark, count = self.statement.mark(), len(self.placed)
            if self._group(child, mask, island):
                started += 1
            elif group.minimum == len(group.children):
                return False
            else:
                self._undo(mark, count)
        return started >= group.minimum

    def _ordered(self, group: Branch, mask: Flags | None) -> Sequence[Branch | Leaf]:
        """The children as the job names them; the smallest first where not all are placed.

        When that order left no room for one of them, those with the fewest nodes to spare come
        first: a task that may go anywhere must not take the only place of another.
        """
        if self.is_least and group.minimum < len(group.children):
            return sorted(group.children, key=self._devices)
        if not self._is_scarcest_first:
            return group.children

        def spare(child: Branch | Leaf) -> tuple[int, bool]:
            is_free = child.topology is None
            return min(self._spare(leaf, mask) for leaf in _leaves(child)), is_free

        return sorted(group.children, key=spare)

    def _spare(self, leaf: Leaf, mask: Flags | None) -> int:
        """Nodes that take tasks of a leaf beyond the fewest that hold all that must."""
        fits, _ = self.room.columns(self.needs[leaf.index])
        some = fits > 0 if mask is None else (fits > 0) & mask
        if leaf.topology is not None and leaf.topology.same in self.table.domains:
            some &= self.table.domains[leaf.topology.same] >= 0
        room = np.sort(fits[some])[::-1]
        return len(room) - int(np.searchsorted(np.cumsum(room), leaf.tasks)) - 1

    def _devices(self, group: Branch | Leaf) -> int:
        """Thousandths of devices of a group at its minimum."""
        return sum(leaf.tasks * self.needs[leaf.index].device_milli for leaf in _leaves(group))

    # Leaves.

    def _leaf(self, leaf: Leaf, mask: Flags | None, island: str | None) -> bool:
        need = self.needs[leaf.index]
        fits, key = self.room.columns(need)
        topology = leaf.topology
        if leaf.tasks == leaf.tasks_max == 1 and not (topology and topology.spread):
            row = self._one_row(key, mask)
            return row is not None and self._materialise(leaf, [(row, 1)], island)
        if mask is not None:
            fits = np.where(mask, fits, 0)
        most = self._most.get(leaf.index, leaf.tasks)
        rows = np.flatnonzero(fits)
        total = int(np.minimum(fits[rows], most).sum())
        if total < leaf.tasks:
            return False
        count = min(most, total)
        chosen = self._choose(rows, fits, key, count, topology)
        if not chosen:
            return False
        return self._materialise(leaf, chosen, island)

    def _one_row(self, key: Ints, mask: Flags | None) -> int | None:
        """The best row for a single task; among equals, the one in the fullest small domain."""
        if not len(key):
            return None
        masked = key if mask is None else np.where(mask, key, NO_PLACE)
        row = int(masked.argmin())
        best = masked.item(row)
        if best == NO_PLACE:
            return None
        levels = self.table.node_levels()
        if levels:
            domain = self.table.domains[levels[0]]
            if len(self.table.domain_names[levels[0]]) > 1:
                equal = np.flatnonzero(masked == best)
                free = np.bincount(domain[equal] + 1)
                row = int(equal[free[domain[equal] + 1].argmin()])
        return row

    def _choose(
        self,
        rows: Ints,
        fits: Ints,
        key: Ints,
        count: int,
        topology: TopologyRequest | None,
    ) -> list[tuple[int, int]]:
        """Rows and how many tasks each takes, in task order."""
        if topology is not None and topology.spread is not None:
            return self._spread(rows, fits, key, count, topology.spread)
        if topology is not None and topology.slice is not None:
            return self._slices(rows, fits, key, count, topology.slice)
        # Unasked, a gang stays inside the smallest domain that holds it.
        levels = self.table.node_levels()
        for at, level in enumerate(levels):
            domain = self.table.domains[level][rows]
            cap = np.bincount(domain + 1, np.minimum(fits[rows], count))
            cap[0] = 0  # nodes without this label are in no domain
            holding = np.flatnonzero(cap >= count)
            if len(holding):
                tight = int(holding[cap[holding].argmin()])
                return self._down(rows[domain + 1 == tight], fits, key, count, levels[:at])
        return self._down(rows, fits, key, count, levels)

    def _down(
        self, rows: Ints, fits: Ints, key: Ints, count: int, levels: Sequence[str]
    ) -> list[tuple[int, int]]:
        """Go down the levels: fewest sub-domains, best fit for the last."""
        if not levels:
            return _nodes(rows, fits, key, count)
        domain = self.table.domains[levels[-1]][rows] + 1
        cap = np.bincount(domain, np.minimum(fits[rows], count)).astype(np.int64)
        found: list[tuple[int, int]] = []
        left = count
        while left > 0:
            holding = np.flatnonzero(cap >= left)
            chosen = int(holding[cap[holding].argmin()] if len(holding) else cap.argmax())
            take = min(left, int(cap[chosen]))
            if take <= 0:
                break
            found += self._down(rows[domain == chosen], fits, key, take, levels[:-1])
            cap[chosen] = 0
            left -= take
        return found

    def _spread(
        self, rows: Ints, fits: Ints, key: Ints, count: int, level: str
    ) -> list[tuple[int, int]]:
        """Give each domain of the level as equal a part as its room allows."""
        domain = self.table.domains[NODE if level == ISLAND else level][rows]
        cap = np.bincount(domain + 1, np.minimum(fits[rows], count)).astype(np.int64)
        cap[0] = 0
        part = np.zeros(len(cap), np.int64)
        for _ in range(count):
            open_ids = np.flatnonzero(part < cap)
            if not len(open_ids):
                return []
            part[open_ids[part[open_ids].argmin()]] += 1
        found: list[tuple[int, int]] = []
        for chosen in np.flatnonzero(part).tolist():
            found += _nodes(rows[domain + 1 == chosen], fits, key, int(part[chosen]))
        return found

    def _slices(
        self, rows: Ints, fits: Ints, key: Ints, count: int, chunk: SliceRequest
    ) -> list[tuple[int, int]]:
        """Every `chunk.tasks` consecutive tasks inside one domain of the level."""
        size, level = chunk.tasks, chunk.same
        domain = self.table.domains[NODE if level == ISLAND else level][rows]
        cap = np.bincount(domain + 1, np.minimum(fits[rows], count)).astype(np.int64) // size
        cap[0] = 0
        found: list[tuple[int, int]] = []
        left, rest = divmod(count, size)
        while left > 0:
            holding = np.flatnonzero(cap >= left)
            chosen = int(holding[cap[holding].argmin()] if len(holding) else cap.argmax())
            take = min(left, int(cap[chosen]))
            if take <= 0:
                return []
            found += _nodes(rows[domain + 1 == chosen], fits, key, take * size)
            cap[chosen] = 0
            left -= take
        if rest:
            used = dict(found)
            free = fits.copy()
            for row, taken in used.items():
                free[row] -= taken
            caps = np.bincount(domain + 1, np.minimum(free[rows], rest))
            caps[0] = 0
            holding = np.flatnonzero(caps >= rest)
            if not len(holding):
                return []
            chosen = int(holding[caps[holding].argmin()])
            inside = rows[(domain + 1 == chosen) & (free[rows] > 0)]
            found += _nodes(inside, free, key, rest)
        return found

    def _materialise(
        self, leaf: Leaf, chosen: Sequence[tuple[int, int]], island: str | None
    ) -> bool:
        """Choose devices and take them, task by task."""
        fit = self.room.fit(self.needs[leaf.index])
        for row, count in chosen:
            kept = self.room.kept(row)
            for _ in range(count):
                task = task_on(
                    fit,
                    row,
                    task=len(self.placed),
                    group=leaf.index,
                    kept=kept,
                    one_island=island == ISLAND,
                )
                if task is None:
                    return False
                self.statement.place(row, self.job, task)
                self.placed.append(task)
        return True


def _nodes(rows: Ints, fits: Ints, key: Ints, count: int) -> list[tuple[int, int]]:
    """Fill as few nodes as possible; the last one is the one that fits best."""
    room = np.minimum(fits[rows], count)
    order = np.lexsort((key[rows], -room))
    filled = np.cumsum(room[order])
    whole = int(np.searchsorted(filled, count, side="right"))
    # Rows before `whole` are used up entirely; the rest goes where it leaves least over.
    found = [(int(rows[at]), int(room[at])) for at in order[:whole]]
    rest = count - (int(filled[whole - 1]) if whole else 0)
    if rest > 0:
        behind = order[whole:]
        enough = behind[fits[rows[behind]] >= rest]
        if not len(enough):
            return []
        tight = enough[np.lexsort((key[rows[enough]], fits[rows[enough]]))[0]]
        found.append((int(rows[tight]), rest))
    return found


def _leaves(group: Branch | Leaf) -> Iterator[Leaf]:
    if isinstance(group, Leaf):
        yield group
        return
    for child in group.children:
        yield from _leaves(child)
