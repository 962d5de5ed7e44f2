"""Power budgets: the most that the devices in use below a domain may draw together.

A start counts now, and again at every instant at which a promise that it would outlive begins:
what still runs then, what is promised then, and the start itself may not draw more. So the power
that a dated promise needs is kept for it as its devices are, and whoever ends before it is not
kept waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tercio.model.ids import JobId, QueuePath
from tercio.model.placement import TaskPlacement
from tercio.model.queue import PowerBudget
from tercio.model.reasons import Reason
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.sched.fairshare import POWER
from tercio.sched.gang import Gang
from tercio.sched.ground import Ground, Tenant, place_on
from tercio.sched.holds import Hold
from tercio.sched.memory import Memory
from tercio.sched.need import Shape
from tercio.sched.owners import Blocked
from tercio.sched.statement import Statement
from tercio.sched.table import Flags, Ints, Table


class Budget(NamedTuple):
    """One budget with the rows it covers."""

    domain: str
    limit_w: int
    rows: Flags


class Passed(NamedTuple):
    """Budgets that are passed.

    Attributes:
        rows: what they cover.
        block: the first that a start itself passes, or None.
        left_w: each of them, and what it leaves for the start at the worst time.
    """

    rows: Flags
    block: Blocked | None
    left_w: Sequence[tuple[Budget, int]] = ()


def budgets_of(table: Table, budgets: Sequence[PowerBudget]) -> list[Budget]:
    """Find the rows of each budget's domain, at whatever level it is a name."""
    found = []
    for budget in budgets:
        rows: Flags = np.zeros(table.count, np.bool_)
        for level, names in table.domain_names.items():
            if budget.domain in names:
                rows |= table.domains[level] == names.index(budget.domain)
        found.append(Budget(budget.domain, budget.power_w, rows))
    return found


class _Instant(NamedTuple):
    """A time at which a budget is looked at: the start itself, or when a promise begins later."""

    at_s: float
    hold: Hold | None
    is_later: bool


class Budgets:
    """The budgets in force in one cycle, and what would pass them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._table = memory.table
        self._budgets = budgets_of(memory.table, memory.policy.budgets)

    def __bool__(self) -> bool:
        return bool(self._budgets)

    def place(
        self,
        ground: Ground | None,
        tenant: Tenant,
        gang: Gang,
        shape: Shape,
        *,
        most: Mapping[int, int],
        within: Flags | None = None,
        at_s: float | None = None,
    ) -> tuple[tuple[TaskPlacement, ...] | None, Blocked | None]:
        """Place a job beside guarantees by shape and inside budgets, off domains over theirs.

        It starts at `at_s`, or now. Returns its tasks, or None and the guarantee or budget that
        stands in the way, when one does.
        """
        mark = gang.statement.mark()
        tasks, block = place_on(ground, tenant, gang, shape, most=most, within=within)
        if not self._budgets or tasks is None:
            return tasks, block
        over = self._passed_by(gang, tasks, at_s)
        if over.block is None:
            return tasks, None
        gang.statement.rollback(mark)
        every: Flags = np.ones(self._table.count, np.bool_) if within is None else within
        dear = self._as_dear(tasks, over)

        def retry(rows: Flags) -> tuple[TaskPlacement, ...] | None:
            return place_on(ground, tenant, gang, shape, most=most, within=rows)[0]

        # First on what cannot pass the budgets that were passed, which more and more may join.
        found, rows, left_w = over, every, dict[str, tuple[Budget, int]]()
        while found.block is not None:
            is_new = any(budget.domain not in left_w for budget, _ in found.left_w)
            left_w |= {budget.domain: (budget, left) for budget, left in found.left_w}
            inside = self._inside(gang, shape, most, list(left_w.values()))
            rows = every & inside if is_new else rows & ~self._as_dear(tasks, found)
            tasks = retry(rows)
            if tasks is None:
                break
            found = self._passed_by(gang, tasks, at_s)
            if found.block is None:
                return tasks, None
            gang.statement.rollback(mark)
        # Then without the nodes that draw as much as those it was placed on.
        rows = every & ~dear
        while (tasks := retry(rows)) is not None:
            found = self._passed_by(gang, tasks, at_s)
            if found.block is None:
                return tasks, None
            gang.statement.rollback(mark)
            rows = rows & ~self._as_dear(tasks, found)
        return None, over.block

    def _passed_by(self, gang: Gang, tasks: Sequence[TaskPlacement], at_s: float | None) -> Passed:
        return self.passed(gang.job, tasks, gang.room.bound, statement=gang.statement, at_s=at_s)

    def _as_dear(self, tasks: Sequence[TaskPlacement], over: Passed) -> Flags:
        """Rows of passed budgets whose devices draw no less than those of the tasks."""
        own = [self._table.row_of[task.node] for task in tasks]
        each_w = self._table.power.max(axis=1, initial=0)
        dear: Flags = over.rows & (each_w >= each_w[own][over.rows[own]].max(initial=0))
        return dear

    def _inside(
        self,
        gang: Gang,
        shape: Shape,
        most: Mapping[int, int],
        left_w: Sequence[tuple[Budget, int]],
    ) -> Flags:
        """Rows that a job may fill and stay inside the passed budgets: those that draw least.

        And all rows that these budgets do not cover.
        """
        table = self._table
        each_w = table.power.max(axis=1, initial=0)
        devices, key = np.zeros(table.count, np.int64), np.zeros(table.count, np.int64)
        free: Ints = (table.usable & (table.holders == 0)).sum(axis=1)
        for leaf in shape.leaves:
            need = gang.needs[leaf.index]
            fits, key = gang.room.columns(need)
            tasks = np.minimum(fits, most.get(leaf.index, leaf.tasks))
            milli = tasks * gang.room.fit(need).device_milli
            devices += tasks * free if need.exclusive else -(-milli // WHOLE_DEVICE_MILLI)
        draw_w = np.minimum(devices, free) * each_w
        rows: Flags = np.ones(table.count, np.bool_)
        order = np.lexsort((key, each_w))
        for budget, left in left_w:
            drawn_w = 0
            for row in order[budget.rows[order] & (draw_w[order] > 0)].tolist():
                is_inside = drawn_w + draw_w.item(row) <= left
                rows[row] &= is_inside
                drawn_w += draw_w.item(row) if is_inside else 0
        return rows

    def passed(
        self,
        job: JobId,
        tasks: Sequence[TaskPlacement],
        bound: Sequence[Hold],
        *,
        statement: Statement,
        at_s: float | None = None,
    ) -> Passed:
        """Look for budgets that these tasks of a job pass when they start at a time, or now.

        They are placed in the statement. `bound` are the promises that they would outlive.
        """
        now_s = self._memory.now_s if at_s is None else at_s
        rows: Flags = np.zeros(self._table.count, np.bool_)
        first: Blocked | None = None
        if not self._budgets:
            return Passed(rows, None)
        own = self._grid(tasks)
        in_use = self._table.holders > 0
        left_w: list[tuple[Budget, int]] = []
        for budget in self._budgets:
            power = self._table.power[budget.rows]
            least_w: int | None = None
            for instant in self._instants(budget, bound, now_s):
                kept = self._kept(instant, bound, job, now_s)[budget.rows]
                if int(power[in_use[budget.rows] | kept].sum()) <= budget.limit_w:
                    continue  # it holds even if nothing ended until then
                counts = self._table.holders
                if instant.is_later:
                    counts = self._then(statement, instant.at_s)
                blocked = self._blocked(budget, instant, counts, kept, own)
                if blocked is None:
                    continue
                left = blocked.limit - (blocked.use - blocked.wanted)
                least_w = left if least_w is None else min(left, least_w)
                if blocked.wanted and first is None:
                    first = blocked
            if least_w is not None:
                rows |= budget.rows
                left_w.append((budget, least_w))
        return Passed(rows, first, left_w)

    def is_over(
        self,
        job: JobId,
        tasks: Sequence[TaskPlacement],
        bound: Sequence[Hold],
        *,
        statement: Statement,
    ) -> bool:
        """Whether these tasks, which are placed in the statement, pass a budget."""
        return self.passed(job, tasks, bound, statement=statement).block is not None

    def forbid(
        self, job: JobId, tasks: Sequence[TaskPlacement], bound: Sequence[Hold], at_s: float
    ) -> bool:
        """Whether a budget keeps a job from starting there at a time to come."""
        if not self._budgets:
            return False
        own = self._grid(tasks)
        for budget in self._budgets:
            for instant in self._instants(budget, bound, at_s):
                kept = self._kept(instant, bound, job, at_s)[budget.rows]
                counts = self._memory.holds.staying(instant.at_s) + own
                blocked = self._blocked(budget, instant, counts, kept, own)
                if blocked is not None and blocked.wanted:
                    return True
        return False

    def _blocked(
        self, budget: Budget, instant: _Instant, counts: Ints, kept: Flags, own: Ints
    ) -> Blocked | None:
        """The budget, when it is passed; nothing is wanted of it where that is no doing of ours.

        So it is for tasks that draw nothing there, or nothing beyond what others on their devices
        draw.
        """
        power, counts = self._table.power[budget.rows], counts[budget.rows]
        mine = own[budget.rows]
        use_w = int(power[(counts > 0) | kept].sum())
        if use_w <= budget.limit_w:
            return None
        wanted_w = int(power[(mine > 0) & (counts <= mine) & ~kept].sum())
        hold = instant.hold
        return Blocked(
            Reason.POWER, QueuePath(budget.domain), "power", POWER, use_w, wanted_w,
            budget.limit_w, ahead=None if hold is None else hold.job,
            from_s=instant.at_s if instant.is_later else None,
        )  # fmt: skip

    def _instants(self, budget: Budget, bound: Sequence[Hold], now_s: float) -> Iterator[_Instant]:
        """The start itself, and when each promise begins later that draws from the budget.

        With the start goes the first promise whose devices are kept by then.
        """
        promised = [
            hold for hold in bound if hold.reservation is None and self._draws(hold, budget)
        ]
        kept = next((hold for hold in promised if hold.from_s <= now_s), None)
        yield _Instant(now_s, kept, is_later=False)
        later = [hold for hold in promised if hold.from_s > now_s]
        for hold in sorted(later, key=lambda hold: hold.from_s):
            yield _Instant(hold.from_s, hold, is_later=True)

    def _draws(self, hold: Hold, budget: Budget) -> bool:
        width = self._table.power.shape[1]
        return any(
            budget.rows.item(row)
            and any(at < width and self._table.power.item(row, at) for at in devices)
            for row, devices in hold.devices.items()
        )

    def _kept(self, instant: _Instant, bound: Sequence[Hold], job: JobId, now_s: float) -> Flags:
        """Devices that others are promised then: at the start, of those that bind it."""
        if instant.is_later:
            return self._memory.holds.promised(instant.at_s, job)
        kept: Flags = np.zeros(self._table.holders.shape, np.bool_)
        for hold in bound:
            if hold.reservation is None and hold.from_s <= now_s:
                kept |= hold.grid(self._table.holders.shape)
        return kept

    def _then(self, statement: Statement, at_s: float) -> Ints:
        """Shares by device at a time to come: what runs on, and what the statement did."""
        memory = self._memory
        counts = memory.holds.staying(at_s).copy()
        for row, job, task, sign in statement.changes():
            if sign > 0 or memory.end_of(job) > at_s:
                _count(counts, row, task, sign)
        return counts

    def _grid(self, tasks: Sequence[TaskPlacement]) -> Ints:
        """How many shares of each device tasks hold, [rows, devices]."""
        counts: Ints = np.zeros(self._table.holders.shape, np.int64)
        for task in tasks:
            row = self._table.row_of.get(task.node)
            if row is not None:
                _count(counts, row, task, 1)
        return counts


def _count(counts: Ints, row: int, task: TaskPlacement, sign: int) -> None:
    for share in task.devices:
        if share.index < counts.shape[1]:
            counts[row, share.index] += sign
