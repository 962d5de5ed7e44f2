"""Blocked heads: what they close to those behind them, and what they are promised.

In every pool the first `reservation_depth` blocked jobs are promised their earliest start there. A
promise counts in the pools on whose nodes it lies, and is only made where its pools have one left:
so none ever has more. A job of several pools is promised a place in those where it is among the
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy, QueueOrder
from tercio.model.reasons import Reason
from tercio.model.reservation import Promise
from tercio.model.snapshot import WaitingJob
from tercio.sched.admit import Admission
from tercio.sched.backfill import (
    Place,
    Slot,
    earliest_start,
    empty_place,
    first_enough,
    is_late,
    is_still_good,
    start_after,
)
from tercio.sched.classes import JobClass, Verdict
from tercio.sched.clearing import PATIENCE_S
from tercio.sched.deadline import meets_deadline
from tercio.sched.emptying import Emptying, is_counted
from tercio.sched.memory import Memory
from tercio.sched.pools import Pool
from tercio.sched.statement import Statement
from tercio.sched.table import Flags
from tercio.sched.verdict import is_short

MAX_URGENT = 16
"""Most promises per pool to jobs with deadlines behind the reservation depth."""


class Heads:
    """The heads of one cycle and their promises."""

    def __init__(
        self,
        admission: Admission,
        policy: Policy,
        *,
        sticky: dict[JobId, Promise],
        wakes: list[float],
    ) -> None:
        self.memory = admission.memory
        self.policy = policy
        self.now_s = admission.now_s
        self._admission = admission
        self._sticky = sticky
        self._wakes = wakes
        self._heads: dict[Pool, JobId] = {}
        self._promised: dict[Pool, int] = {}
        self._urgent: dict[Pool, int] = {}
        self._without: dict[tuple[object, ...], None] = {}

    def is_behind(self, job_class: JobClass) -> bool:
        """Whether somebody waits before it in one of its pools."""
        return any(pool in self._heads for pool in self.memory.pools.of(job_class))

    def is_free(self, job_class: JobClass) -> bool:
        """Whether all of its pools may still promise something."""
        return len(self._open(job_class)) == len(self.memory.pools.of(job_class))

    def is_settled(self, job_class: JobClass) -> bool:
        """Whether its pools have all their promises, so that no later class gets one there."""
        pools = self.memory.pools.of(job_class)
        return all(pool in self._heads for pool in pools) and not self._open(job_class)

    def _open(self, job_class: JobClass) -> list[Pool]:
        depth, pools = self.policy.reservation_depth, self.memory.pools.of(job_class)
        return [p for p in pools if depth is None or self._promised.get(p, 0) < depth]

    def close(self, job_class: JobClass, job_id: JobId, verdict: Verdict) -> None:
        """Close to those behind it what a blocked head may close."""
        if verdict.can_never or verdict.reason in (Reason.USER_LIMIT, Reason.ORDER):
            return
        for pool in self.memory.pools.of(job_class):
            for node in job_class.queue.lineage():
                if node.spec.order is QueueOrder.STRICT:
                    self._admission.strict.setdefault((node.path, pool), job_id)
            if verdict.limit is None or _waits_for_power(verdict):
                self._heads.setdefault(pool, job_id)
                if self.policy.reservation_depth == 0:
                    self._admission.pools_closed.setdefault(pool, job_id)

    def reserve(
        self, job_class: JobClass, job: WaitingJob, job_id: JobId, verdicts: list[Verdict]
    ) -> None:
        """Promise the earliest start to one of the first blocked jobs of its pools."""
        pools, opened = self.memory.pools.of(job_class), self._open(job_class)
        if not opened and not self._is_urgent(job, pools):
            return
        full = [pool for pool in pools if pool not in opened] if opened else []
        within = self.memory.pools.rows_outside(full) if full else None
        for combination, verdict in zip(job_class.shape.combinations, verdicts, strict=True):
            if not is_short(verdict) or not job_class.shape.is_least(combination):
                continue
            promise = self._promise(job_class, job, job_id, combination, within)
            if promise is None:
                continue
            if not opened and not meets_deadline(job, promise.from_s):
                if promise.from_s is not None:
                    self.memory.late[job_id] = promise.from_s
                return
            self.memory.reserve(promise, job_class.limit_s)
            counts = self._promised if opened else self._urgent
            for pool in self.memory.pools.of_tasks(promise.tasks):
                counts[pool] = counts.get(pool, 0) + 1
            return

    def _is_urgent(self, job: WaitingJob, pools: Iterable[Pool]) -> bool:
        """Whether a job behind the reservation depth gets a promise for its deadline's sake."""
        if job.spec.time.deadline_s is None or not self.policy.reservation_depth:
            return False
        is_full = any(self._urgent.get(pool, 0) >= MAX_URGENT for pool in pools)
        return not is_full and meets_deadline(job, self.now_s)

    def placer(
        self,
        job_class: JobClass,
        job_id: JobId,
        combination: tuple[int, ...],
        within: Flags | None = None,
    ) -> Place:
        """Return what says where a job would stand in the table as it is at a time."""

        def place(statement: Statement, at_s: float) -> tuple[TaskPlacement, ...] | None:
            return self._admission.would_fit(
                job_class, job_id, combination, statement, at_s, within=within
            )

        return place

    def _kind(
        self, job_class: JobClass, combination: tuple[int, ...], within: Flags | None
    ) -> tuple[object, ...]:
        """All that an earliest start depends on: where one has none, an equal one has none."""
        memory = self.memory
        return (
            memory.version, memory.holds.version, job_class.shape.number, combination,
            job_class.tenant(), job_class.asker(),
            job_class.limit_s if memory.holds.has_dates() else None,
            None if within is None else within.tobytes(),
        )  # fmt: skip

    def _promise(
        self,
        job_class: JobClass,
        job: WaitingJob,
        job_id: JobId,
        combination: tuple[int, ...],
        within: Flags | None,
    ) -> Promise | None:
        memory = self.memory
        place = self.placer(job_class, job_id, combination, within)
        kind = self._kind(job_class, combination, within)
        sticky = self._sticky.get(job_id)
        if sticky is not None and within is not None and not _is_inside(memory, sticky, within):
            sticky = None
        kept = sticky if sticky is not None and self._is_good(sticky, job_class) else None
        slot = None
        if kind not in self._without:
            counted = self._emptying(job_class, combination, within)
            slot = self._slot(place, counted, None if kept is None else kept.from_s)
        # When an end passes unseen, the slot is another one, or there is one after all.
        overdue_s = next((end_s for end_s, _ in memory.ends() if end_s > self.now_s), math.inf)
        if slot is None:
            self._without[kind] = None
            if overdue_s < math.inf:
                self._wakes.append(overdue_s)
        if slot is not None:
            is_kept = kept is not None and kept.from_s is not None and kept.from_s <= slot.at_s
            self._wakes.append(min(overdue_s, slot.at_s))
            if is_kept and kept is not None and kept.from_s is not None:
                self._wakes.append(kept.from_s)
                return kept
            if sticky is not None and is_late(sticky, slot, self.now_s):
                self._wakes.append(sticky.expires_s)
                return sticky
            expires_s = slot.at_s + PATIENCE_S
            if slot.at_s <= self.now_s:
                self._wakes.append(expires_s)  # it is late at once, and waits on as it is
            return Promise(job_id=job_id, tasks=slot.tasks, from_s=slot.at_s, expires_s=expires_s)
        overtaken_s = job.submitted_s + self.policy.max_overtake_s
        if self.now_s < overtaken_s:
            self._wakes.append(overtaken_s)
            return None
        if sticky is not None and sticky.from_s is None and sticky.expires_s > self.now_s:
            self._wakes.append(sticky.expires_s)
            return sticky
        tasks = empty_place(memory, place)
        if tasks is None:
            return None
        expires_s = self.now_s + max(self.policy.max_overtake_s, PATIENCE_S)
        self._wakes.append(expires_s)
        return Promise(job_id=job_id, tasks=tasks, from_s=None, expires_s=expires_s)

    def _is_good(self, sticky: Promise, job_class: JobClass) -> bool:
        """Whether a dated promise can be kept, as long as no earlier start is found."""
        if not is_still_good(self.memory, sticky, self.now_s):
            return False
        return self._admission.is_clear(job_class, sticky)

    def _slot(self, place: Place, counted: Emptying | None, kept_s: float | None) -> Slot | None:
        """The earliest start; where it is not before `kept_s`, only its instant is right."""
        memory = self.memory
        if counted is None:
            return earliest_start(memory, place, self.now_s)
        reach = first_enough(memory, counted, self.now_s)
        if reach is None:
            return None
        if kept_s is not None and kept_s <= reach.at_s:
            return Slot(reach.at_s, ())
        found = start_after(memory, place, self.now_s, reach)
        return found or earliest_start(memory, place, self.now_s)

    def _emptying(
        self, job_class: JobClass, combination: tuple[int, ...], within: Flags | None
    ) -> Emptying | None:
        """What counts when there is room for a job, or None where a count does not decide it."""
        memory = self.memory
        if memory.ground is not None or self.policy.budgets or not memory.holds.is_empty:
            return None
        fit = memory.fit(job_class.shape.needs(combination)[0])
        if not is_counted(job_class.shape, fit):
            return None
        return Emptying(fit, job_class.shape.leaves[0].tasks, within)


def _waits_for_power(verdict: Verdict) -> bool:
    """Whether it waits for power that others draw, and not for more than its budget."""
    limit = verdict.limit
    return verdict.reason is Reason.POWER and limit is not None and limit.wanted <= limit.limit


def _is_inside(memory: Memory, promise: Promise, within: Flags) -> bool:
    rows = (memory.table.row_of.get(task.node) for task in promise.tasks)
    return all(row is not None and within.item(row) for row in rows)
