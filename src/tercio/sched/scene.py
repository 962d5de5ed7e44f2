"""The numbers around one waiting class: what it wants, what is free, who holds it, what is out."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from tercio.model.ids import JobId
from tercio.model.node import NodeState
from tercio.model.reasons import Reason
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI
from tercio.sched.blockers import Blocker, Shortage, Stage, shortage
from tercio.sched.classes import JobClass, Verdict
from tercio.sched.fairshare import RUNNING_JOBS
from tercio.sched.feasible import Fit, View
from tercio.sched.gang import Room
from tercio.sched.holds import Hold
from tercio.sched.memory import Memory
from tercio.sched.need import ANY, Leaf, Mode, Need
from tercio.sched.owners import DEVICE_HOURS, Blocked
from tercio.sched.power import Budgets
from tercio.sched.table import Ints
from tercio.sched.verdict import CAPACITY_REASONS, alone_in_the_way, best_site, free_milli

MOST_HOLDERS = 5
"""How many holders a decision names."""

_TOGETHER: Final = (*CAPACITY_REASONS, Reason.NEVER_FITS)
"""Reasons that groups which fit one by one may have together."""


class Scene:
    """Everything a sentence about a class may need, computed on demand.

    The leaf looked at is the one that decides because it does not fit alone, else the largest
    of those that are short together.
    """

    def __init__(self, memory: Memory, job_class: JobClass, verdict: Verdict, now_s: float) -> None:
        self.memory = memory
        self.now_s = now_s
        self.job_class = job_class
        self.verdict = verdict
        self.combination = job_class.shape.combinations[verdict.alternative]
        self.leaf, self.need = self._leaf()
        self.fit: Fit = memory.fit(self.need).refresh()
        self.type_name = self.need.type or "none"

    def _leaf(self) -> tuple[Leaf, Need]:
        shape = self.job_class.shape
        needs = shape.needs(self.combination)
        if self.alone is not None:
            return self.alone.leaf, self.alone.need
        pairs = list(zip(shape.leaves, needs, strict=True))
        short = self.short
        own = [pair for pair in pairs if short is not None and pair[1].type == short.what]
        return max(own or pairs, key=lambda pair: pair[0].tasks * pair[1].device_milli)

    @cached_property
    def alone(self) -> Blocker | None:
        """The group that decides because it does not fit by itself."""
        shape = self.job_class.shape
        return alone_in_the_way(shape, shape.needs(self.combination), self.open_room)

    @cached_property
    def short(self) -> Shortage | None:
        """What all groups together are short of: of the empty cluster, or of what is free."""
        is_empty = self.verdict.reason is Reason.NEVER_FITS
        is_alone = self.alone is not None and (not is_empty or self.alone.stage is Stage.NEVER)
        if is_alone or self.verdict.reason not in _TOGETHER:
            return None
        return shortage(self.job_class, self.combination, self.open_room, is_empty=is_empty)

    @cached_property
    def rows(self) -> Ints:
        """Rows that could take a task if they were empty, and take new work."""
        return np.flatnonzero((self.fit.possible > 0) & self.fit.open)

    @cached_property
    def wanted(self) -> dict[str, float]:
        """Devices of the whole job by type, at its minimum size.

        Where its smallest subgroups want none, those of the group that is told of.
        """
        if any(leaf.is_optional for leaf in self.job_class.shape.leaves):
            least = dict(self.job_class.amounts[self.verdict.alternative])
            milli = least.pop(DEVICES, 0)
            typed = {
                name: amount
                for name, amount in least.items()
                if name not in (CPUS, MEMORY, RUNNING_JOBS)
            }
            if milli > sum(typed.values()):
                typed[ANY] = milli - sum(typed.values())
            if not typed and self.need.type is not None:
                typed[self.need.type] = self.leaf.tasks * self.fit.device_milli
            return {name: milli / WHOLE_DEVICE_MILLI for name, milli in typed.items()}
        found: dict[str, int] = {}
        needs = self.job_class.shape.needs(self.combination)
        for leaf, need in zip(self.job_class.shape.leaves, needs, strict=True):
            if need.type is not None:
                each = self.memory.fit(need).refresh().device_milli
                found[need.type] = found.get(need.type, 0) + leaf.tasks * each
        return {name: milli / WHOLE_DEVICE_MILLI for name, milli in found.items()}

    @cached_property
    def free(self) -> dict[str, float]:
        """Free devices of those types on nodes that it may use."""
        found: dict[str, float] = {}
        for need in self.job_class.shape.needs(self.combination):
            if need.type is not None:
                fit = self.memory.fit(need).refresh()
                rows = np.flatnonzero((fit.possible > 0) & fit.open)
                free = free_milli(fit, View(fit.table, rows)) / WHOLE_DEVICE_MILLI
                found[need.type] = max(free, found.get(need.type, 0.0))
        return found

    @cached_property
    def free_by_row(self) -> Ints:
        """Free thousandths of the wanted kind on `rows`."""
        table = self.fit.table
        if self.need.mode is Mode.WHOLE:
            view = View(table, self.rows)
            whole: Ints = view.untouched[list(self.fit.kinds)].sum(axis=0) * WHOLE_DEVICE_MILLI
            return whole
        right = np.isin(table.kind[self.rows], self.fit.kinds) & table.usable[self.rows]
        left: Ints = np.where(right, table.milli_free[self.rows], 0).sum(axis=1)
        return left

    @cached_property
    def best_node(self) -> tuple[str, float] | None:
        """The node with the most of the wanted kind free."""
        if self.need.mode is Mode.NONE or not len(self.rows):
            return None
        at = int(self.free_by_row.argmax())
        name = self.fit.table.names[int(self.rows[at])]
        return (name, self.free_by_row.item(at) / WHOLE_DEVICE_MILLI)

    @cached_property
    def room_tasks(self) -> int:
        """How many tasks of the leaf fit now, wherever they are."""
        fits, _ = self.open_room.columns(self.need)
        return int(np.minimum(fits, self.leaf.tasks).sum())

    @cached_property
    def bound(self) -> tuple[Hold, ...]:
        """Promises that bind this class."""
        limit_s = self.job_class.limit_s
        end_s = float("inf") if limit_s is None else self.now_s + limit_s
        return self.memory.holds.binding(end_s, start_s=self.now_s, asker=self.job_class.asker())

    @cached_property
    def budgets(self) -> Budgets:
        """The power budgets in force."""
        return Budgets(self.memory)

    @cached_property
    def open_room(self) -> Room:
        """The cluster without promises to others."""
        fits = {need: self.memory.fit(need) for need in self.job_class.needs}
        return Room(fits, self.memory.holds)

    @cached_property
    def level(self) -> str | None:
        """The level whose one domain must hold the leaf or the job."""
        for topology in (self.leaf.topology, self.job_class.spec.topology):
            if topology is not None and topology.same is not None:
                return topology.same
        return None

    @cached_property
    def best_domain(self) -> tuple[str, int] | None:
        """The domain of that level with room for the most tasks."""
        table = self.fit.table
        if self.level is None or self.level not in table.domains:
            return None
        domain = table.domains[self.level]
        inside = domain >= 0
        if not inside.any():
            return None
        room = np.bincount(domain[inside], np.minimum(self.fit.fits[inside], self.leaf.tasks))
        best = int(room.argmax())
        return (table.domain_names[self.level][best], int(room[best]))

    @cached_property
    def best_site(self) -> tuple[str, int] | None:
        """The site with room for the most tasks, if none has room for all; see `verdict`."""
        shape = self.job_class.shape
        pairs = list(zip(shape.leaves, shape.needs(self.combination), strict=True))
        return best_site(pairs, self.open_room)

    @cached_property
    def holders(self) -> list[tuple[JobId, int, float | None]]:
        """Who holds what it wants: job, thousandths, end; largest first."""
        table = self.fit.table
        if self.verdict.reason is Reason.NEVER_FITS or self.need.mode is Mode.NONE:
            return []
        limit = self.verdict.limit
        if limit is not None and limit.kind not in ("entitlement", "lend_limit", "power", "shape"):
            return self._limit_holders(limit)
        held: dict[JobId, int] = {}
        kinds = self.fit.kinds
        for row in self.rows.tolist():
            for (job_id, _), task in table.tasks[row].items():
                for share in task.devices:
                    if table.kind.item(row, share.index) in kinds:
                        held[job_id] = held.get(job_id, 0) + share.milli
        return self._largest(held)

    def _limit_holders(self, limit: Blocked) -> list[tuple[JobId, int, float | None]]:
        """Jobs that count against a limit."""
        memory, queue = self.memory, limit.queue
        resource = DEVICES if limit.resource == DEVICE_HOURS else limit.resource
        held = {
            job_id: memory.held[job_id].get(resource, 0)
            for job_id, job in memory.running.items()
            if (not queue or job.queue == queue or job.queue.startswith(f"{queue}/"))
            and limit.user in ("", job.tenant if limit.kind == "per_tenant" else job.user)
        }
        return self._largest({job: milli for job, milli in held.items() if milli})

    def _largest(self, held: dict[JobId, int]) -> list[tuple[JobId, int, float | None]]:
        largest = sorted(held.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_HOLDERS]
        running = self.memory.running
        return [
            (job_id, milli, running[job_id].ends_s if job_id in running else None)
            for job_id, milli in largest
        ]

    @cached_property
    def excluded(self) -> dict[str, int]:
        """Nodes that each filter takes out, the first filter that applies counted."""
        counts: dict[str, int] = {}
        for row, node in enumerate(self.fit.table.nodes):
            by = self._excluded_by(row, node.state)
            if by is not None:
                counts[by] = counts.get(by, 0) + 1
        order = ("site", "type", "constraint", "size", "down", "draining", "cordoned", "unknown")
        return {by: counts[by] for by in order if by in counts}

    def _excluded_by(self, row: int, state: NodeState) -> str | None:
        fit, need, table = self.fit, self.need, self.fit.table
        spec = table.nodes[row].spec
        if need.sites and spec.site not in need.sites:
            return "site"
        if need.mode is not Mode.NONE and not np.isin(table.kind[row], fit.kinds).any():
            return "type"
        if not fit.allowed.item(row):
            return "constraint"
        if fit.possible.item(row) == 0:
            return "size"
        if state is NodeState.READY:
            return "cordoned" if table.nodes[row].cordons else None
        return state.value
