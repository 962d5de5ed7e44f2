"""Making room: others are stopped or moved for a blocked job, and the room is promised to it."""

from __future__ import annotations

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
from tercio.sched.ground import tenant_of
from tercio.sched.legal import Victim
from tercio.sched.memory import Memory
from tercio.sched.owners import owner_of
from tercio.sched.plan import Eviction
from tercio.sched.preempt import Found, Search
from tercio.sched.statement import Statement
from tercio.sched.verdict import is_short

PATIENCE_S: Final = 600.0
"""How long freed devices are kept for a job after its victims should be gone."""


class Clearing:
    """Makes room for the heads of one cycle.

    Attributes:
        evictions: of the cycle, added to here.
        wakes: of the cycle, instants at which time alone will change the outcome.
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

    def free_up(
        self, job_class: JobClass, job: WaitingJob, cursor: Cursor, verdicts: list[Verdict]
    ) -> bool:
        """Stop others for the head if rules allow it and a whole start comes of it.

        Then the head waits for what was promised to it, and this returns True.
        """
        if not self.has_anyone_to_stop(job_class) and not self.policy.placement.defragment:
            return False
        for combination, verdict in zip(job_class.shape.combinations, verdicts, strict=True):
            if not is_short(verdict) or not job_class.shape.is_least(combination):
                continue
            search = Search(
                self.memory,
                self.policy,
                job_class=job_class,
                job_id=cursor.job_id,
                combination=combination,
                room=self._admission.room(job_class, cursor.job_id),
                now_s=self.now_s,
                evictions_s=job.evictions_s,
            )
            found = search.run()
            self.wakes += search.wakes
            if found is not None and not self._is_within_limits(found, job_class):
                continue
            if found is not None:
                self._stop(found, job_class, job, cursor)
                return True
            if self.policy.placement.defragment and verdict.reason is Reason.FRAGMENTED:
                moves = find_moves(
                    self.memory,
                    search.room,
                    shape=job_class.shape,
                    combination=combination,
                    job_id=cursor.job_id,
                    is_protected=search.is_protected,
                    now_s=self.now_s,
                )
                if moves is not None and self._is_kept(moves, job_class, cursor):
                    self._move(moves, job_class, job, cursor)
                    return True
            if search.is_exhausted:
                verdicts[0] = Verdict(Reason.SEARCH_BUDGET)
        return False

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
