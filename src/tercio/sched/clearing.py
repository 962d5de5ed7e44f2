"""Making room: others are stopped or moved for a blocked job, and the room is promised to it.

A cycle searches for so much work only, counted in changes of the columns, so that a burst of
urgent jobs never keeps everybody else from a decision. Half of it goes to the first in order, the
other half to those from a place on that moves on with time: so each has its turn, whoever stands
before it. The rest is told so, and the cycle asks for the next one.
"""

from __future__ import annotations

import math
from typing import Final

from tercio.model.ids import JobId
from tercio.model.job import EndCause
from tercio.model.queue import AcrossQueues
from tercio.model.reasons import Reason
from tercio.model.reservation import Promise
from tercio.model.snapshot import WaitingJob
from tercio.sched.admit import Admission, Cursor
from tercio.sched.classes import JobClass, Verdict
from tercio.sched.defrag import Moves, find_moves
from tercio.sched.fairshare import RUNNING_JOBS
from tercio.sched.gang import Room
from tercio.sched.ground import tenant_of
from tercio.sched.legal import Victim
from tercio.sched.memory import Memory
from tercio.sched.owners import owner_of
from tercio.sched.plan import Eviction
from tercio.sched.preempt import Found, Search
from tercio.sched.statement import Statement
from tercio.sched.survey import Survey
from tercio.sched.verdict import is_short

PATIENCE_S: Final = 600.0
"""How long freed devices are kept for a job after its victims should be gone."""

MOST_WORK: Final = 100_000
"""Changes of columns and victims looked at after which a cycle begins no further search."""

TURN_S: Final = 30.0
"""How long the second half of the work begins at the same place in the order."""

SOON_S: Final = 1.0
"""When a cycle that stopped somebody goes on with those that it had no search left for."""

_LEAST_WORK: Final = 32
"""What a search costs that looks at nobody."""

_GOLDEN_RATIO: Final = (math.sqrt(5.0) - 1.0) / 2.0
"""Steps of this part of a circle come close to every place on it, soon and evenly."""


class Clearing:
    """Makes room for the heads of one cycle.

    Attributes:
        evictions: of the cycle, added to here.
        wakes: of the cycle, instants at which time alone will change the outcome.
        is_put_off: whether the last one asked for had no search left.
    """

    def __init__(
        self, admission: Admission, *, evictions: list[Eviction], wakes: list[float]
    ) -> None:
        self.memory = admission.memory
        self.policy = admission.policy
        self.now_s = admission.now_s
        self.evictions = evictions
        self.wakes = wakes
        self._admission = admission
        self.is_put_off = False
        self._left = MOST_WORK
        self._asked = 0
        self._turn = math.floor(self.now_s / TURN_S)
        self._second_at = int(self._turn * _GOLDEN_RATIO % 1.0 * len(self.memory.classes))
        self._survey = Survey(self.memory, self.policy.preemption, self.now_s)
        self._anyone: dict[tuple[int, str, int], bool] = {}
        self._barren: dict[tuple[object, ...], int] = {}
        self._failed: dict[tuple[object, ...], bool] = {}

    @property
    def may_move(self) -> bool:
        """Whether jobs may be moved to make room, which is looked for anew for each class."""
        return self.policy.placement.defragment

    def count_asked(self, count: int) -> None:
        """Count classes for equal ones of which nobody was found to stop."""
        self._asked += count

    def free_up(
        self, job_class: JobClass, job: WaitingJob, cursor: Cursor, verdicts: list[Verdict]
    ) -> bool:
        """Stop others for the head if rules allow it and a whole start comes of it.

        Then the head waits for what was promised to it, and this returns True.
        """
        self.is_put_off = False
        if not self.has_anyone_to_stop(job_class) and not self.policy.placement.defragment:
            return False
        self._asked += 1
        for combination, verdict in zip(job_class.shape.combinations, verdicts, strict=True):
            if not is_short(verdict) or not job_class.shape.is_least(combination):
                continue
            room = self._admission.room(job_class, cursor.job_id)
            kind = self._kind(job_class, job, combination, room)
            if kind in self._failed:
                if self._failed[kind]:
                    verdicts[0] = Verdict(Reason.SEARCH_BUDGET)
                continue
            if not self._has_work_left():
                self._put_off()
                return False
            barren = (self.memory.version, job_class.likeness, combination, job.evictions_s)
            if barren in self._barren and not self.memory.sheltered:
                self._left -= self._barren[barren]
                self._failed[kind] = False
                continue
            search = Search(
                self.memory,
                self.policy,
                job_class=job_class,
                job_id=cursor.job_id,
                combination=combination,
                room=room,
                now_s=self.now_s,
                survey=self._survey,
                evictions_s=job.evictions_s,
            )
            found = self._run(search)
            if found is not None and not self._is_within_limits(found, job_class):
                continue
            if found is not None:
                self._stop(found, job_class, job, cursor)
                return True
            if self._defragment(search, combination, verdict, job, cursor):
                return True
            if search.is_exhausted:
                verdicts[0] = Verdict(Reason.SEARCH_BUDGET)
            if not self.policy.placement.defragment:
                self._failed[kind] = search.is_exhausted
                if search.is_barren:
                    self._barren[barren] = search.looked_at + _LEAST_WORK
        return False

    def _defragment(
        self,
        search: Search,
        combination: tuple[int, ...],
        verdict: Verdict,
        job: WaitingJob,
        cursor: Cursor,
    ) -> bool:
        """Move others together for the head where that makes room; whether it did."""
        if not self.may_move or verdict.reason is not Reason.FRAGMENTED:
            return False
        job_class = search.job_class
        moves = find_moves(
            self.memory,
            search.room,
            shape=job_class.shape,
            combination=combination,
            job_id=cursor.job_id,
            is_protected=search.is_protected,
            now_s=self.now_s,
        )
        if moves is None or not self._is_kept(moves, job_class, cursor):
            return False
        self._move(moves, job_class, job, cursor)
        return True

    def _run(self, search: Search) -> Found | None:
        """Search, and count its work."""
        before = self.memory.table.version
        found = search.run()
        self._left -= self.memory.table.version - before + search.looked_at + _LEAST_WORK
        self.wakes += search.wakes
        return found

    def _kind(
        self, job_class: JobClass, job: WaitingJob, combination: tuple[int, ...], room: Room
    ) -> tuple[object, ...]:
        """All that a search depends on: equal ones fail alike."""
        memory = self.memory
        return (
            memory.version, memory.holds.version, job_class.shape.number, combination,
            job_class.queue.path, job_class.priority, job_class.tenant(), job.evictions_s,
            job_class.asker() if memory.sheltered else None,
            tuple(hold.job for hold in room.bound),
        )  # fmt: skip

    def _has_work_left(self) -> bool:
        """Whether one more search may begin: the last one may take as long as it needs."""
        if self._left > MOST_WORK // 2:
            return True
        return self._left > 0 and self._asked > self._second_at

    def _put_off(self) -> None:
        """Leave a class for a cycle to come, which is asked for."""
        self.is_put_off = True
        next_turn_s = (self._turn + 1) * TURN_S
        self.wakes.append(self.now_s + SOON_S if self.evictions else next_turn_s)

    def _is_within_limits(self, found: Found, job_class: JobClass) -> bool:
        """Whether limits leave room for what was placed, which may be more than was estimated."""
        memory = self.memory
        statement = Statement(memory.table)
        for victim in found.victims:
            amounts = memory.held_amounts(task for _, task in victim.tasks)
            if victim.is_surplus:
                amounts.pop(RUNNING_JOBS, None)  # the job goes on without these
            queue, firm = memory.tree.at(victim.job.queue), not victim.job.is_preemptible
            statement.charge(queue, owner_of(victim.job), amounts, is_firm=firm, sign=-1)
        limit = self._admission.limit(job_class, memory.held_amounts(found.tasks))
        statement.rollback()
        return limit is None

    def _is_kept(self, moves: Moves, job_class: JobClass, cursor: Cursor) -> bool:
        """Whether limits, and guarantees by shape, still hold after jobs were moved."""
        if self._admission.limit(job_class, self.memory.held_amounts(moves.tasks)) is not None:
            return False
        if self.memory.ground is None:
            return True
        ground = self.memory.ground.without({job.job_id for job, _ in moves.moved})
        places = [(job_class.tenant(), cursor.job_id, moves.tasks)]
        for job, tasks in moves.moved:
            tenant = tenant_of(self.memory.tree, job)
            places.append((tenant, job.job_id, tasks))
        for tenant, job_id, tasks in places:
            if ground.refusal(tenant, tasks) is not None:
                return False
            ground.add(tenant, job_id, tasks)
        return True

    def has_anyone_to_stop(self, job_class: JobClass) -> bool:
        """A quick look: something is stopping, or some running job could be a victim."""
        key = (self.memory.version, job_class.queue.path, job_class.priority)
        found = self._anyone.get(key)
        if found is None:
            found = self._anyone[key] = self._has_anyone(job_class)
        return found

    def _has_anyone(self, job_class: JobClass) -> bool:
        memory = self.memory
        if memory.stopping:
            return True
        for path, jobs in memory.by_queue.items():
            if not jobs:
                continue
            if memory.tree.at(path) is job_class.queue:
                if memory.lowest_priority(path) < job_class.priority:
                    return True
            elif self.policy.preemption.across_queues is not AcrossQueues.OFF:
                return True
        return False

    def _stop(self, found: Found, job_class: JobClass, job: WaitingJob, cursor: Cursor) -> None:
        """Order the evictions and promise their devices."""
        memory = self.memory
        by_s = self.now_s + self.policy.preemption.grace_s
        tasks_of: dict[JobId, list[Victim]] = {}
        for victim in found.victims:
            tasks_of.setdefault(victim.job.job_id, []).append(victim)
        for job_id, victims in tasks_of.items():
            whole = any(not victim.is_surplus for victim in victims)
            tasks = () if whole else tuple(t.task for v in victims for _, t in v.tasks)
            self.evictions.append(
                Eviction(
                    job_id=job_id,
                    cause=EndCause.PREEMPTED,
                    for_job=cursor.job_id,
                    message=f"stopped for {cursor.job_id} of queue {job.queue}",
                    tasks=tasks,
                )
            )
            memory.order_to_stop(job_id, by_s, tasks)
        gone = [memory.running[j].stops_by_s or by_s for j in (*tasks_of, *found.waits_for)]
        promise = Promise(
            job_id=cursor.job_id,
            tasks=found.tasks,
            from_s=None,
            expires_s=max([by_s, *gone]) + PATIENCE_S,
            evicting=tuple(dict.fromkeys((*tasks_of, *found.waits_for))),
        )
        memory.pledge(promise, job, job_class)
        self.wakes.append(promise.expires_s)

    def _move(self, moves: Moves, job_class: JobClass, job: WaitingJob, cursor: Cursor) -> None:
        """Stop jobs to start them again elsewhere, and promise both places."""
        memory = self.memory
        by_s = self.now_s + self.policy.preemption.grace_s
        for moved, tasks in moves.moved:
            where = ", ".join(dict.fromkeys(task.node for task in tasks))
            self.evictions.append(
                Eviction(
                    job_id=moved.job_id,
                    cause=EndCause.PREEMPTED,
                    for_job=cursor.job_id,
                    message=f"moved to {where} to make room for {cursor.job_id}",
                )
            )
            memory.order_to_stop(moved.job_id, by_s)
            memory.reserve(
                Promise(
                    job_id=moved.job_id,
                    tasks=tasks,
                    from_s=None,
                    expires_s=by_s + PATIENCE_S,
                    evicting=(moved.job_id,),
                )
            )
        promise = Promise(
            job_id=cursor.job_id,
            tasks=moves.tasks,
            from_s=None,
            expires_s=by_s + PATIENCE_S,
            evicting=tuple(moved.job_id for moved, _ in moves.moved),
        )
        memory.pledge(promise, job, job_class)
        self.wakes.append(promise.expires_s)


def is_hopeless(memory: Memory, promise: Promise, now_s: float) -> bool:
    """Whether a promise has run out, or what it waited for is gone and went elsewhere."""
    if promise.expires_s <= now_s:
        return True
    table = memory.table
    taken_outside = False
    for task in promise.tasks:
        row = table.row_of.get(task.node)
        if row is None or not table.placeable.item(row):
            return True
        foreign = table.nodes[row].spec.foreign_devices
        taken_outside |= any(share.index in foreign for share in task.devices)
    if taken_outside:
        return False  # wait for the expiry instead of evicting somebody else at once
    return not any(job_id in memory.stopping for job_id in promise.evicting)
