"""Starting one job: limits, then space, then the record of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy
from tercio.model.reasons import Reason
from tercio.model.reservation import Promise
from tercio.model.resources import Amounts
from tercio.model.snapshot import WaitingJob
from tercio.sched.classes import JobClass, Verdict, elements, startable
from tercio.sched.gang import Gang, Room
from tercio.sched.ground import Tenant, place_on
from tercio.sched.memory import Memory
from tercio.sched.need import Need, task_amounts, without_type
from tercio.sched.owners import Blocked
from tercio.sched.power import Budgets
from tercio.sched.rooms import Owners, Rooms, State
from tercio.sched.statement import Statement
from tercio.sched.table import Flags
from tercio.sched.verdict import CAPACITY_REASONS, kept_verdict, open_verdict

_Kind = tuple[int, tuple[int, ...], Owners, Tenant | None]
"""Shape, combination, promises that bind, and whose guarantee by shape: equal ones fail alike."""

_JUST_AFTER_S: Final = 1e-3
"""A job that ends when a promise begins is not bound by it; a moment later it is."""


def never(_: int) -> bool:
    """No combination is worse than to wait."""
    return False


class Cursor:
    """Walks through the elements of one waiting job during a cycle."""

    __slots__ = ("_ids", "_left", "job_id")

    def __init__(self, job: WaitingJob) -> None:
        self._ids: Iterator[JobId] = iter(())
        self._left, self.job_id = 1, job.job_id
        if job.pending is not None:
            self._ids = elements(job)
            self._left = startable(job)
            self.job_id = next(self._ids)

    def advance(self) -> int:
        """Go on to the next element; return how many may still start, -1 when none is left."""
        following = next(self._ids, None)
        if following is None:
            return -1
        self.job_id = following
        self._left -= 1
        return self._left


class Cursors:
    """The cursor of every job touched in a cycle."""

    def __init__(self) -> None:
        self._found: dict[JobId, Cursor] = {}

    def of(self, job: WaitingJob) -> Cursor:
        """The job's cursor."""
        found = self._found.get(job.job_id)
        if found is None:
            found = self._found[job.job_id] = Cursor(job)
        return found


class Admission:
    """Tries to start jobs.

    Attributes:
        strict: blocked head by queue of strict order and pool.
        pools_closed: blocked head by pool, when nothing may pass any head.
        closed: numbers of classes that are done for this cycle.
        wakes: instants at which time alone will change what is said here.
        rooms: what each class sees.
        last_tasks, last_amounts: placement of the last start, and what it was charged.
    """

    def __init__(self, memory: Memory, policy: Policy, now_s: float, *, wakes: list[float]) -> None:
        self.memory = memory
        self.policy = policy
        self.now_s = now_s
        self._wakes = wakes
        memory.pools.open_anew()
        self.strict, self.pools_closed = memory.pools.strict, memory.pools.closed
        self.closed: set[int] = set()
        self._verdicts: dict[_Kind, tuple[State, Verdict]] = {}
        self._open: dict[tuple[int, tuple[int, ...]], tuple[int, Verdict | None]] = {}
        self.rooms = Rooms(memory, policy, now_s)
        self._budgets = Budgets(memory)
        self._block: Blocked | None = None
        self.last_tasks: tuple[TaskPlacement, ...] = ()
        self.last_amounts: Amounts = {}

    def start(
        self,
        job_class: JobClass,
        job: WaitingJob,
        cursor: Cursor,
        *,
        is_repair: bool = False,
        within: Flags | None = None,
    ) -> int | None:
        """Start a job in the first combination that fits; return which, or None.

        `is_repair` keeps it near the nodes of its last attempt, `within` on certain rows.
        """
        within = self._near(job) if is_repair else within
        for number, combination in enumerate(job_class.shape.combinations):
            amounts = job_class.amounts[number]
            if self.limit(job_class, amounts) is None and self._start(
                job_class, job, cursor, combination, amounts, within=within
            ):
                return number
        return None

    def start_at(
        self, job_class: JobClass, job: WaitingJob, cursor: Cursor, tasks: tuple[TaskPlacement, ...]
    ) -> bool:
        """Start a job exactly there, if it is free and limits allow it."""
        memory, table = self.memory, self.memory.table
        held = memory.held_amounts(tasks)
        if self.limit(job_class, held) is not None:
            return False
        ground = memory.ground
        if ground is not None and ground.refusal(job_class.tenant(), tasks) is not None:
            return False
        bound = self.room(job_class, cursor.job_id).bound
        for task in tasks:
            row = table.row_of.get(task.node)
            if row is None or not table.placeable.item(row):
                return False
            if table.trial.item(row) and job_class.needs[0].is_large:
                return False
            kept = memory.holds.kept(bound, row)
            held_here = {
                share.index for other in table.tasks[row].values() for share in other.devices
            }
            for share in task.devices:
                usable = table.usable.item(row, share.index)
                if not usable or share.index in kept or share.index in held_here:
                    return False
        statement = Statement(table)
        is_room = True
        for task in tasks:
            row = table.row_of[task.node]
            is_room = is_room and table.has_host_room(row, task)
            statement.place(row, cursor.job_id, task)
        is_over = is_room and self._budgets.is_over(
            cursor.job_id, tasks, bound, statement=statement
        )
        if is_over or not is_room:
            statement.rollback()
            return False
        statement.charge(job_class.queue, job_class.owner, held, is_firm=not job.is_preemptible)
        statement.commit()
        self.last_tasks, self.last_amounts = tasks, held
        return True

    def attempt(
        self,
        job_class: JobClass,
        job: WaitingJob,
        cursor: Cursor,
        wait_instead: Callable[[int], bool] = never,
    ) -> list[Verdict] | None:
        """Start the head if it may and fits; otherwise say why not, by combination.

        `wait_instead` says whether a combination, by its number, is worse than to wait for one
        before it.
        """
        verdicts: list[Verdict] = []
        for number, combination in enumerate(job_class.shape.combinations):
            amounts = job_class.amounts[number]
            verdict = self._may(job_class, amounts, job_class.shape.needs(combination))
            if verdict is None:
                if verdicts and wait_instead(number):
                    verdicts.append(verdicts[0]._replace(is_declined=True))
                    continue
                kind = self._kind(job_class, cursor.job_id, combination)
                verdict = self._known(kind)
                # How large an elastic job is tried depends on the limits of its owner.
                if verdict is not None and not job_class.tenant().is_elastic:
                    verdicts.append(verdict)
                    continue
                if self._start(job_class, job, cursor, combination, amounts):
                    return None
                if self._block is not None:
                    self._wake_when_bound(job_class)
                    block = self._block
                    verdicts.append(Verdict(block.reason, limit=block, ahead=block.ahead))
                    continue
                if verdict is None:
                    verdict = self._why_not(job_class, cursor.job_id, combination)
                    self._verdicts[kind] = (self.rooms.state(), verdict)
            verdicts.append(verdict)
        return verdicts

    def _kind(self, job_class: JobClass, job_id: JobId, combination: tuple[int, ...]) -> _Kind:
        """All that decides whether there is room: equal ones are held back by the same thing."""
        bound = self.rooms.bound(job_class, job_id).owners
        whose = job_class.tenant() if self.memory.ground is not None else None
        return (job_class.shape.number, combination, bound, whose)

    def _known(self, kind: _Kind) -> Verdict | None:
        """Why there is no room, when an equal one has been tried since anything changed."""
        known = self._verdicts.get(kind)
        return None if known is None or known[0] != self.rooms.state() else known[1]

    def _why_not(self, job_class: JobClass, job_id: JobId, combination: tuple[int, ...]) -> Verdict:
        room = self.room(job_class, job_id)
        open_room = Room(self.rooms.fits(job_class), self.memory.holds)
        verdict = self._open_verdict(job_class, combination)
        if verdict is None:
            gang = Gang(
                self.memory.table, open_room, Statement(self.memory.table), job_id,
                job_class.shape.needs(combination),
            )  # fmt: skip
            verdict = kept_verdict(
                job_class, combination, room, open_room, lambda: gang.would_place(job_class.shape)
            )
        if verdict.reason is Reason.RESERVED:
            verdict = self._kept_whole(job_class, combination, open_room) or verdict
        return verdict

    def _kept_whole(
        self, job_class: JobClass, combination: tuple[int, ...], room: Room
    ) -> Verdict | None:
        """Whether a guarantee by shape would be in the way also without promises to others.

        Promises bind a job more and more as time passes: what is told must not depend on that.
        """
        ground, tenant, shape = self.memory.ground, job_class.tenant(), job_class.shape
        if ground is None or not ground.is_bound(tenant):
            return None
        statement = Statement(self.memory.table)
        needs = shape.needs(combination)
        gang = Gang(self.memory.table, room, statement, job_class.head.job_id, needs)
        most = {leaf.index: leaf.tasks for leaf in shape.leaves}
        _, block = place_on(ground, tenant, gang, shape, most=most)
        statement.rollback()
        return None if block is None else Verdict(block.reason, limit=block)

    def may(self, job_class: JobClass) -> Verdict | None:
        """Whether limits and order allow its only combination."""
        needs = job_class.shape.needs(job_class.shape.combinations[0])
        return self._may(job_class, job_class.amounts[0], needs)

    @property
    def is_open(self) -> bool:
        """Whether neither a limit nor the order of the jobs can refuse a start now."""
        return not self.strict and not self.pools_closed and self.memory.tree.is_unlimited

    def may_all(self, job_class: JobClass) -> bool:
        """Whether limits and order allow every one of its combinations."""
        shape = job_class.shape
        return all(
            self._may(job_class, amounts, shape.needs(combination)) is None
            for combination, amounts in zip(shape.combinations, job_class.amounts, strict=True)
        )

    def shortage(self, job_class: JobClass) -> Verdict | None:
        """What a shape is short of when a count alone shows that it cannot start.

        None for a shape that might fit, has alternatives, or has several kinds of tasks.
        """
        shape = job_class.shape
        if len(shape.leaves) != 1 or len(shape.combinations) != 1:
            return None
        (leaf,), (need,) = shape.leaves, shape.needs(shape.combinations[0])
        fit = self.memory.fit(need).refresh()
        if not fit.is_short_of_devices(leaf.tasks) and fit.room_for(leaf.tasks) >= leaf.tasks:
            return None
        verdict = self._open_verdict(job_class, shape.combinations[0])
        is_short = verdict is not None and verdict.reason in CAPACITY_REASONS
        return verdict if is_short else None

    def _open_verdict(self, job_class: JobClass, combination: tuple[int, ...]) -> Verdict | None:
        """What is in the way of a shape whatever is promised to others, or None."""
        key, version = (job_class.shape.number, combination), self.memory.version
        known = self._open.get(key)
        if known is None or known[0] != version:
            room = Room(self.rooms.fits(job_class), self.memory.holds)
            known = self._open[key] = (version, open_verdict(job_class, combination, room))
        return known[1]

    def _may(
        self, job_class: JobClass, amounts: Amounts, needs: tuple[Need, ...]
    ) -> Verdict | None:
        """Whether limits and order allow it."""
        ahead = self._ahead(job_class, needs)
        if ahead is not None:
            return Verdict(Reason.ORDER, ahead=ahead)
        limit = self.limit(job_class, amounts)
        return None if limit is None else limit_verdict(limit)

    def limit(self, job_class: JobClass, amounts: Amounts) -> Blocked | None:
        """The limit that these amounts of a job would pass, or None."""
        tree = self.memory.tree
        limit = tree.blocked(job_class.queue, job_class.owner, amounts, self.memory.capacity())
        if limit is None and not job_class.is_preemptible and job_class.limit_s is None:
            limit = tree.firm_block(job_class.queue, amounts, self.memory.capacity())
        return limit

    def _ahead(self, job_class: JobClass, needs: tuple[Need, ...]) -> JobId | None:
        """The blocked job that no later one may pass on these pools, or None."""
        if not self.strict and not self.pools_closed:
            return None
        return self.memory.pools.closed_by(needs, job_class.queue)

    # Space.

    def room(self, job_class: JobClass, job_id: JobId, at_s: float | None = None) -> Room:
        """What a class sees: promises that it would outlive are not there for it."""
        return self.rooms.of(job_class, job_id, at_s)

    def _wake_when_bound(self, job_class: JobClass) -> None:
        """Look again when its place is taken by what begins later: others may be stopped then.

        A job that has a place but may not use it stops nobody; without the place it might.
        """
        if job_class.limit_s is None:
            return  # whatever begins later binds it already
        ahead_s = job_class.limit_s - _JUST_AFTER_S
        holds = self.memory.holds.binding(math.inf)
        later = [at_s for hold in holds if (at_s := hold.from_s - ahead_s) > self.now_s]
        if later:
            self._wakes.append(min(later))

    def is_clear(self, job_class: JobClass, promise: Promise) -> bool:
        """Whether no reservation made since lies on its devices, and there is power for it."""
        if promise.from_s is None:
            return True
        room = self.room(job_class, promise.job_id, promise.from_s)
        if self._budgets.forbid(promise.job_id, promise.tasks, room.bound, promise.from_s):
            return False
        reserved = [hold for hold in room.bound if hold.reservation is not None]
        row_of = self.memory.table.row_of
        return not any(
            share.index in self.memory.holds.kept(reserved, row_of[task.node])
            for task in promise.tasks
            for share in task.devices
        )

    def would_fit(
        self,
        job_class: JobClass,
        job_id: JobId,
        combination: tuple[int, ...],
        statement: Statement,
        at_s: float,
        *,
        within: Flags | None = None,
    ) -> tuple[TaskPlacement, ...] | None:
        """Where the job would stand in the table as it is, starting at a time; no trace."""
        mark = statement.mark()
        needs = job_class.shape.needs(combination)
        room = self.room(job_class, job_id, at_s)
        if not self._may_fit(job_class, needs, room):
            return None
        gang = Gang(self.memory.table, room, statement, job_id, needs)
        most = {leaf.index: leaf.tasks for leaf in job_class.shape.leaves}
        ground, tenant = self.memory.ground, job_class.tenant()
        if ground is not None and ground.is_bound(tenant):
            ground = ground.without(statement.evicted())
        placed, _ = self._budgets.place(
            ground, tenant, gang, job_class.shape, most=most, within=within, at_s=at_s
        )
        statement.rollback(mark)
        return placed

    def _start(
        self,
        job_class: JobClass,
        job: WaitingJob,
        cursor: Cursor,
        combination: tuple[int, ...],
        amounts: Amounts,
        *,
        within: Flags | None = None,
    ) -> bool:
        memory = self.memory
        self._block = None
        needs = job_class.shape.needs(combination)
        room = self.room(job_class, cursor.job_id)
        if not self._may_fit(job_class, needs, room):
            return False
        statement = Statement(memory.table)
        firm = not job.is_preemptible
        for most, is_least in self._sizes(job_class, needs, amounts):
            asked: tuple[Need, ...] | None = needs
            seen, over = room, None
            while asked is not None:
                if over is not None:
                    fits = {need: memory.fit(need) for need in asked}
                    seen = Room(fits, memory.holds, room.bound)
                gang = Gang(memory.table, seen, statement, cursor.job_id, asked)
                gang.is_least = is_least
                tasks, block = self._budgets.place(
                    memory.ground, job_class.tenant(), gang, job_class.shape,
                    most=most, within=within,
                )  # fmt: skip
                self._block = over or block
                if tasks is None:
                    break
                held = memory.held_amounts(tasks)
                over = self.limit(job_class, held)
                if over is None:
                    statement.charge(job_class.queue, job_class.owner, held, is_firm=firm)
                    statement.commit()
                    self.last_tasks, self.last_amounts = tasks, held
                    return True
                # What is placed may be more than was estimated, or of a type that limits close
                # where another type would do.
                self._block = over
                statement.rollback()
                asked = without_type(asked, over.resource)
        return False

    def _near(self, job: WaitingJob) -> Flags:
        """Rows of the last attempt and the smallest domains around them."""
        table = self.memory.table
        rows = [table.row_of[name] for name in job.last_nodes if name in table.row_of]
        levels = table.node_levels()[:1]
        near: Flags = np.full(table.count, not levels, np.bool_)
        near[rows] = True
        for level in levels:
            domain = table.domains[level]
            near |= np.isin(domain, domain[rows]) & (domain >= 0)
        return near

    def _may_fit(self, job_class: JobClass, needs: tuple[Need, ...], room: Room) -> bool:
        """A count that is right whenever it says no: enough untouched devices in all."""
        return not any(
            not leaf.is_optional and room.is_short_of_devices(need, leaf.tasks)
            for leaf, need in zip(job_class.shape.leaves, needs, strict=True)
        )

    def _sizes(
        self, job_class: JobClass, needs: tuple[Need, ...], amounts: Amounts
    ) -> Iterator[tuple[dict[int, int], bool]]:
        """Sizes to try for an elastic job: as large as limits allow, then the minimum.

        And whether only so many subgroups are placed as must be: the last try, when some may
        be left out.
        """
        leaves = job_class.shape.leaves
        least = {leaf.index: leaf.tasks for leaf in leaves}
        if job_class.shape.is_single:
            yield least, False
            return
        has_optional = any(leaf.is_optional for leaf in leaves)
        is_divided = self.policy.elastic is not None and bool(job_class.spec.goodput)
        if is_divided or all(leaf.tasks_max == leaf.tasks for leaf in leaves):
            yield least, False
            if has_optional:
                yield least, True
            return
        most, total = dict(least), dict(amounts)
        memory = self.memory
        for leaf, need in zip(leaves, needs, strict=True):
            each = task_amounts(need, self.policy)
            while most[leaf.index] < leaf.tasks_max:
                larger = {k: total.get(k, 0) + each.get(k, 0) for k in {**total, **each}}
                if memory.tree.blocked(job_class.queue, job_class.owner, larger, memory.capacity()):
                    break
                total = larger
                most[leaf.index] += 1
        if most != least:
            yield most, False
        yield least, False
        if has_optional:
            yield least, True


def limit_verdict(limit: Blocked) -> Verdict:
    """A limit as a verdict: one that even an idle queue would pass never fits."""
    if limit.is_for_ever:
        return Verdict(Reason.NEVER_FITS, limit=limit, can_never=True)
    return Verdict(limit.reason, limit=limit)
