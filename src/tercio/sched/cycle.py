"""One scheduling cycle: `schedule(snapshot, policy, now_s, seed) -> Plan`."""

from __future__ import annotations

from collections.abc import Iterator

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy, QueueOrder
from tercio.model.reasons import Reason
from tercio.model.resources import Amounts
from tercio.model.snapshot import Snapshot, WaitingJob
from tercio.sched.classes import JobClass, Verdict, elements, startable
from tercio.sched.explain import Decisions
from tercio.sched.fairshare import Blocked
from tercio.sched.feasible import Fit
from tercio.sched.gang import Gang, Room
from tercio.sched.memory import Memory
from tercio.sched.need import Mode, Need, task_amounts
from tercio.sched.order import Order
from tercio.sched.plan import Plan, Start
from tercio.sched.statement import Statement
from tercio.sched.verdict import capacity_verdict, nearest


def schedule(
    snapshot: Snapshot, policy: Policy, now_s: float, seed: int, memory: Memory | None = None
) -> Plan:
    """Decide what to start, stop and promise now.

    Pure: equal arguments give equal plans. A memory that followed the same cluster makes the
    cycle cost what changed and never changes the plan. `plan.decisions` is computed on look-up
    and may be read until the next call with the same memory.

    Args:
        snapshot: the cluster as it is.
        policy: queues and rules.
        now_s: seconds since the epoch.
        seed: names the random stream. Every rule in force has a total order, so nothing is
            drawn from it.
        memory: what the previous call remembered, or None.
    """
    return Cycle(snapshot, policy, now_s, seed, memory or Memory()).run()


class Cycle:
    """One pass over the classes in order."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, now_s: float, seed: int, memory: Memory
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now_s = now_s
        self.seed = seed
        self.memory = memory
        self.starts: list[Start] = []
        self._cursors: dict[JobId, _Cursor] = {}
        self._strict: dict[tuple[str, str], JobId] = {}
        self._closed: dict[str, JobId] = {}
        self.is_share_known = False

    def run(self) -> Plan:
        """Do the cycle."""
        memory = self.memory
        has_changed = memory.follow(self.snapshot, self.policy, self.now_s)
        if has_changed:
            memory.entitle()
            self._place()
        changes = self._reason_changes()
        return Plan(
            revision=self.snapshot.revision,
            starts=tuple(self.starts),
            decisions=Decisions(memory, tuple(self.starts), self.now_s),
            reason_changes=changes,
            wake_at_s=memory.next_timer_s(),
        )

    # Placing.

    def _place(self) -> None:
        order = Order(self.memory.tree.root, self.memory.classes.values())
        while (job_class := order.first()) is not None:
            job = self.memory.waiting[job_class.head.job_id]
            verdict = self._try(job_class, job)
            if verdict is None:
                order.settle(is_done=not job_class.members)
                continue
            job_class.verdict = verdict
            self._close_pools(job_class, job.job_id, verdict)
            order.settle(is_done=True)

    def _close_pools(self, job_class: JobClass, job_id: JobId, verdict: Verdict) -> None:
        """What a blocked head closes to those behind it."""
        if verdict.can_never or verdict.reason in (Reason.USER_LIMIT, Reason.ORDER):
            return
        for pool in job_class.pools():
            for node in job_class.queue.lineage():
                if node.spec.order is QueueOrder.STRICT:
                    self._strict.setdefault((node.path, pool), job_id)
            if self.policy.reservation_depth == 0 and verdict.limit is None:
                self._closed.setdefault(pool, job_id)

    def _ahead(self, job_class: JobClass, needs: tuple[Need, ...]) -> JobId | None:
        """The blocked job that no later one may pass on these pools, or None."""
        if not self._strict and not self._closed:
            return None
        for need in needs:
            pool = need.type or "none"
            if pool in self._closed:
                return self._closed[pool]
            for node in job_class.queue.lineage():
                if (node.path, pool) in self._strict:
                    return self._strict[node.path, pool]
        return None

    def _try(self, job_class: JobClass, job: WaitingJob) -> Verdict | None:
        """Start the head if it may and fits; return why not otherwise."""
        verdicts: list[Verdict] = []
        for number, combination in enumerate(job_class.shape.combinations):
            needs = job_class.shape.needs(combination)
            amounts = job_class.amounts[number]
            verdict = self._may(job_class, amounts, needs)
            if verdict is None:
                room = self._room(job_class)
                if self._start(job_class, job, combination, amounts, room):
                    return None
                open_room = Room(self._fits(needs), self.memory.holds)
                verdict = capacity_verdict(job_class, combination, room, open_room)
            verdicts.append(verdict)
        return verdicts[nearest(verdicts)]

    def _may(
        self, job_class: JobClass, amounts: Amounts, needs: tuple[Need, ...]
    ) -> Verdict | None:
        """Whether limits and order allow it."""
        memory = self.memory
        ahead = self._ahead(job_class, needs)
        if ahead is not None:
            return Verdict(Reason.ORDER, ahead=ahead)
        limit = memory.tree.blocked(job_class.queue, job_class.user, amounts, memory.capacity())
        if limit is None and not job_class.is_preemptible and job_class.limit_s is None:
            limit = memory.tree.firm_block(job_class.queue, amounts)
        return None if limit is None else limit_verdict(limit)

    def _fits(self, needs: tuple[Need, ...]) -> dict[Need, Fit]:
        return {need: self.memory.fit(need) for need in needs}

    def _room(self, job_class: JobClass) -> Room:
        end_s = float("inf") if job_class.limit_s is None else self.now_s + job_class.limit_s
        holds = self.memory.holds
        return Room(self._fits(job_class.needs), holds, holds.binding(end_s))

    def _start(
        self,
        job_class: JobClass,
        job: WaitingJob,
        combination: tuple[int, ...],
        amounts: Amounts,
        room: Room,
    ) -> bool:
        memory = self.memory
        needs = job_class.shape.needs(combination)
        if not self._may_fit(job_class, needs, room):
            return False
        statement = Statement(memory.table)
        cursor = self._cursor(job)
        for most in self._sizes(job_class, needs, amounts):
            gang = Gang(memory.table, room, statement, cursor.job_id, needs)
            tasks = gang.place(job_class.shape, most)
            if tasks is not None:
                held = memory.held_amounts(tasks)
                if memory.tree.blocked(job_class.queue, job.user, held, memory.capacity()) is None:
                    self._commit(
                        job_class=job_class,
                        job=job,
                        cursor=cursor,
                        tasks=tasks,
                        statement=statement,
                        held=held,
                    )
                    return True
                statement.rollback()
        return False

    def _may_fit(self, job_class: JobClass, needs: tuple[Need, ...], room: Room) -> bool:
        """A count that is right whenever it says no: enough untouched devices in all."""
        table = self.memory.table
        for leaf, need in zip(job_class.shape.leaves, needs, strict=True):
            if need.mode is Mode.WHOLE:
                kinds = room.fit(need).refresh().kinds
                if sum(table.untouched_total[k] for k in kinds) < leaf.tasks * need.count:
                    return False
        return True

    def _sizes(
        self, job_class: JobClass, needs: tuple[Need, ...], amounts: Amounts
    ) -> Iterator[dict[int, int]]:
        """Sizes to try for an elastic job: as large as limits allow, then the minimum."""
        leaves = job_class.shape.leaves
        least = {leaf.index: leaf.tasks for leaf in leaves}
        if all(leaf.tasks_max == leaf.tasks for leaf in leaves):
            yield least
            return
        most = dict(least)
        total = dict(amounts)
        memory = self.memory
        for leaf, need in zip(leaves, needs, strict=True):
            each = task_amounts(need, self.policy)
            while most[leaf.index] < leaf.tasks_max:
                larger = {k: total.get(k, 0) + each.get(k, 0) for k in {**total, **each}}
                if memory.tree.blocked(job_class.queue, job_class.user, larger, memory.capacity()):
                    break
                total = larger
                most[leaf.index] += 1
        if most != least:
            yield most
        yield least

    # Starting.

    def _cursor(self, job: WaitingJob) -> _Cursor:
        found = self._cursors.get(job.job_id)
        if found is None:
            found = self._cursors[job.job_id] = _Cursor(job)
        return found

    def _commit(
        self,
        *,
        job_class: JobClass,
        job: WaitingJob,
        cursor: _Cursor,
        tasks: tuple[TaskPlacement, ...],
        statement: Statement,
        held: Amounts,
        label: str = "immediate",
    ) -> None:
        memory = self.memory
        statement.charge(job_class.queue, job.user, held, is_firm=not job.is_preemptible)
        statement.commit()
        self.starts.append(Start(job_id=cursor.job_id, tasks=tasks, label=label))
        memory.start(job, cursor.job_id, tasks, self.now_s, left=cursor.advance())

    # Reasons.

    def _reason_changes(self) -> tuple[JobId, ...]:
        return self.memory.tell()


class _Cursor:
    """Walks through the elements of one waiting job during a cycle."""

    __slots__ = ("_ids", "job_id", "left", "waiting")

    def __init__(self, job: WaitingJob) -> None:
        self._ids = elements(job)
        self.left = startable(job)
        self.job_id = next(self._ids)

    def advance(self) -> int:
        """Go on to the next element; return how many may still start, -1 when none is left."""
        following = next(self._ids, None)
        if following is None:
            return -1
        self.job_id = following
        self.left -= 1
        return self.left


def limit_verdict(limit: Blocked) -> Verdict:
    """A limit as a verdict: one that even an idle queue would pass never fits."""
    if limit.is_for_ever:
        return Verdict(Reason.NEVER_FITS, limit=limit, can_never=True)
    return Verdict(limit.reason, limit=limit)
