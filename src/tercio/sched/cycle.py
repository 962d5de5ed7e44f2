"""One scheduling cycle: `schedule(snapshot, policy, now_s, seed) -> Plan`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tercio.model.queue import Policy, QueueOrder
from tercio.model.reasons import Reason
from tercio.model.reservation import Promise
from tercio.model.snapshot import Snapshot, WaitingJob
from tercio.sched import hours, reserved
from tercio.sched.admit import Admission, Cursor, Cursors, never
from tercio.sched.alike import Alike
from tercio.sched.backfill import earliest_start
from tercio.sched.classes import JobClass, Likeness, Verdict
from tercio.sched.clearing import PATIENCE_S, Clearing, is_hopeless
from tercio.sched.explain import Briefs, Decisions
from tercio.sched.heads import Heads
from tercio.sched.joins import Joins
from tercio.sched.legal import Rules
from tercio.sched.memory import LastPlan, Memory
from tercio.sched.order import Order
from tercio.sched.plan import Addition, Eviction, Plan, Start
from tercio.sched.resize import Resizing, carry_out, promises
from tercio.sched.verdict import nearest
from tercio.sched.words import declined_words

FEW_CLASSES = 64
"""With so few classes each is tried on its own."""


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
    """One pass over promises and classes in order."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, now_s: float, seed: int, memory: Memory
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now_s = now_s
        self.seed = seed
        self.memory = memory
        self.starts: list[Start] = []
        self.evictions: list[Eviction] = []
        self.additions: list[Addition] = []
        self._wakes: list[float] = []
        self._cursors = Cursors()
        self._shortages: dict[int, Verdict | None] = {}
        self._sticky = {promise.job_id: promise for promise in snapshot.promises}

    def run(self) -> Plan:
        """Do the cycle."""
        memory = self.memory
        has_changed = memory.follow(self.snapshot, self.policy, self.now_s)
        last = memory.last
        is_idle = (
            not has_changed
            and last is not None
            and last.promises == self.snapshot.promises
            and not hours.is_moving(memory)
            and (last.wake_at_s is None or self.now_s < last.wake_at_s)
        )
        if not is_idle or last is None:
            memory.forget_promises()
            memory.entitle()
            memory.lay_ground()
            self._admission = Admission(memory, self.policy, self.now_s, wakes=self._wakes)
            self._heads = Heads(
                self._admission, self.policy, sticky=self._sticky, wakes=self._wakes
            )
            self._clearing = Clearing(self._admission, evictions=self.evictions, wakes=self._wakes)
            self._wakes += reserved.keep(memory, self.snapshot.reservations, self.now_s)
            self._recall()
            self._repair()
            self._use_reservations()
            self._divide()
            self._place()
            self._grow()
            last = memory.last = LastPlan(tuple(memory.promises.values()), self._wake_s())
        briefs = Briefs(memory, tuple(self.starts), self.now_s)
        return Plan(
            revision=self.snapshot.revision,
            starts=tuple(self.starts),
            evictions=tuple(self.evictions),
            additions=self._lasting_additions(),
            promises=last.promises,
            decisions=Decisions(memory, briefs, self.now_s, self.seed),
            briefs=briefs,
            reason_changes=memory.tell(),
            wake_at_s=last.wake_at_s,
        )

    def _lasting_additions(self) -> tuple[Addition, ...]:
        """Additions without those to jobs that were stopped later in the same cycle."""
        stopped = {eviction.job_id for eviction in self.evictions if not eviction.tasks}
        return tuple(each for each in self.additions if each.job_id not in stopped)

    def _wake_s(self) -> float | None:
        timer = self.memory.next_timer_s()
        budget_s = hours.look_again_s(self.memory)
        times = [*self._wakes, *(at_s for at_s in (timer, budget_s) if at_s is not None)]
        return min((t for t in times if t > self.now_s), default=None)

    # Promises of earlier cycles that free devices.

    def _recall(self) -> None:
        """Start promised jobs whose devices are free; keep the promise of the others.

        Every promise is held before the first of them starts: what was freed for one job is not
        for another whose own devices come later.
        """
        recalled = [p for p in self.snapshot.promises if self._is_recalled(p)]
        for promise in recalled:
            if promise.expires_s > self.now_s:
                self.memory.holds.add(promise)
        for promise in recalled:
            self.memory.holds.drop(promise.job_id)
            job = self.memory.waiting_of(promise.job_id)
            if job is None:
                self.memory.reserve(promise)  # it is being moved there
                self._wakes.append(promise.expires_s)
                continue
            job_class = self.memory.class_of.get(job.job_id)
            if job_class is None:
                continue
            cursor = self._cursors.of(job)
            if self._start_promised(promise, job_class, job, cursor):
                self._started(job_class, job, cursor, "reserved")
                continue
            if is_hopeless(self.memory, promise, self.now_s):
                continue
            self.memory.pledge(promise, job, job_class)
            self._set_aside(job, cursor, Reason.PREEMPTING)
            self._wakes.append(promise.expires_s)

    def _is_recalled(self, promise: Promise) -> bool:
        """Whether devices were freed for a job, or are being freed, and it still wants them."""
        memory = self.memory
        if not promise.evicting:
            return False  # a head's promise is made anew at its turn
        if any(job_id in memory.repairs for job_id in promise.evicting):
            return False  # it was stopped by a fault, and what is left of its place is its own
        job = memory.waiting_of(promise.job_id)
        if job is None:
            return promise.job_id in memory.stopping
        return job.job_id in memory.class_of

    def _start_promised(
        self, promise: Promise, job_class: JobClass, job: WaitingJob, cursor: Cursor
    ) -> bool:
        """Start a promised job if it can; one of the elastic policy exactly where promised."""
        if self.policy.elastic is not None and job.spec.goodput:
            return self._admission.start_at(job_class, job, cursor, promise.tasks)
        return self._admission.start(job_class, job, cursor) is not None

    def _divide(self) -> None:
        """Let elastic jobs with profiles have the sizes and types from which most is gained."""
        elastic, memory = self.policy.elastic, self.memory
        if elastic is None:
            return
        resizing = Resizing(memory, elastic, self.now_s)
        division = resizing.divide()
        self._wakes += resizing.wakes
        grace_s = self.policy.preemption.grace_s
        end_s = carry_out(
            memory, division, now_s=self.now_s, grace_s=grace_s, stop=self.evictions.append
        )
        if end_s is not None:
            self._wakes.append(end_s)
        expires_s = self.now_s + grace_s + PATIENCE_S
        for moved in division.starts:
            job = memory.waiting[moved.taker.job.job_id]
            cursor, job_class = self._cursors.of(job), memory.class_of[job.job_id]
            if self._admission.start_at(job_class, job, cursor, moved.tasks):
                self._started(job_class, job, cursor, "elastic")
                continue
            (promise,) = promises(memory, [moved], expires_s)
            if not promise.evicting:
                continue  # nobody who leaves is in its way: it waits in its turn
            memory.pledge(promise, job, job_class)
            self._set_aside(job, cursor, Reason.PREEMPTING)
            self._wakes.append(promise.expires_s)

    def _set_aside(self, job: WaitingJob, cursor: Cursor, gate: Reason) -> None:
        """Leave a job (or one element of an array) out of the rest of the cycle."""
        left = cursor.advance()
        self.memory.set_aside(job, gate, left=left)

    def _repair(self) -> None:
        """What lost a member gets it back before anything new starts, near where it was."""
        memory = self.memory
        if memory.broken:
            joins = Joins(memory, self.policy, self.now_s)
            self.additions += joins.replace_missing()
            self._wakes += joins.wakes
        if not memory.repairs:
            return
        broken = [memory.waiting[job_id] for job_id in memory.repairs if job_id in memory.class_of]
        broken.sort(key=lambda job: (-job.priority, job.submitted_s, job.sequence, job.job_id))
        for job in broken:
            cursor = self._cursors.of(job)
            job_class = memory.class_of[job.job_id]
            if self._admission.start(job_class, job, cursor, is_repair=True) is not None:
                self._started(job_class, job, cursor, "immediate")

    def _use_reservations(self) -> None:
        """The holder of an open window starts on what it keeps, before others are promised it."""
        memory = self.memory
        if not self.snapshot.reservations:
            return
        before = len(self.starts)
        for hold in memory.holds.open(self.now_s):
            within = np.zeros(memory.table.count, np.bool_)
            within[list(hold.devices)] = True
            order = Order.of(
                memory.tree.root, [c for c in memory.classes.values() if hold.is_for(c.asker())]
            )
            while (job_class := order.first()) is not None:
                job = memory.waiting[job_class.head.job_id]
                cursor = self._cursors.of(job)
                if self._admission.start(job_class, job, cursor, within=within) is None:
                    order.settle(is_done=True)
                    continue
                self._started(job_class, job, cursor, "reserved")
                order.settle(is_done=not job_class.members)
        if len(self.starts) > before:
            reserved.keep(memory, self.snapshot.reservations, self.now_s)

    def _grow(self) -> None:
        """Elastic jobs take what nobody waits for."""
        if not self.memory.elastic:
            return
        joins = Joins(self.memory, self.policy, self.now_s)
        self.additions += joins.grow()
        self._wakes += joins.wakes

    # Placing.

    def _place(self) -> None:
        memory = self.memory
        order = self._order()
        hopeless: list[JobClass] = []
        alike = Alike(self._admission, self._heads, self._clearing)
        is_sifted = len(memory.classes) < FEW_CLASSES
        while (job_class := alike.pass_over(order)) is not None:
            job = memory.waiting[job_class.head.job_id]
            cursor = self._cursors.of(job)
            before = self._admission.rooms.state()
            sticky = self._sticky.get(cursor.job_id)
            faster = self._faster(job_class, job, cursor)
            verdicts = self._admission.attempt(job_class, job, cursor, faster)
            if verdicts is None:
                kind = "immediate" if sticky is None else "reserved"
                if sticky is None and self._heads.is_behind(job_class):
                    kind = "backfill"
                self._started(job_class, job, cursor, kind)
                order.settle(is_done=not job_class.members)
                continue
            # Nobody is stopped for a job that gives way to others.
            gives_way = job_class.key.gives_way
            if not gives_way and self._clearing.free_up(job_class, job, cursor, verdicts):
                self._set_aside(job, cursor, Reason.PREEMPTING)
                order = self._order()
                continue
            at = nearest(verdicts)
            chosen = verdicts[at]._replace(alternative=at)
            job_class.verdict = (
                Verdict(Reason.SEARCH_BUDGET, alternative=at)
                if self._clearing.is_put_off
                else self._with_share(job_class, chosen)
            )
            self._admission.closed.add(job_class.number)
            self._heads.close(job_class, cursor.job_id, chosen)
            self._heads.reserve(job_class, job, cursor.job_id, verdicts)
            alike.keep(job_class, job, verdicts, before=before)
            order.settle(is_done=True)
            if not is_sifted and self._heads.is_settled(job_class):
                # From here on, a class for which too little is free can only be told so.
                hopeless = self._hopeless()
                order = self._order()
                is_sifted = True
        self._tell_hopeless(hopeless)

    def _hopeless(self) -> list[JobClass]:
        """Close the classes that cannot start, stop anyone, be promised or close anything.

        Fewer of their tasks fit than they need, and starts only take from that.
        """
        if self.policy.placement.defragment:
            return []
        short_of: dict[Likeness, Verdict | None] = {}
        closed, found = self._admission.closed, []
        for job_class in self._open_classes():
            like = job_class.likeness
            if like not in short_of:
                short_of[like] = self._short(job_class)
            short = short_of[like]
            if short is not None:
                job_class.verdict = short
                closed.add(job_class.number)
                found.append(job_class)
        return found

    def _short(self, job_class: JobClass) -> Verdict | None:
        """What a class is short of, when that is all that can be said of it in this cycle."""
        number = job_class.shape.number
        if number not in self._shortages:
            is_settled = self._heads.is_settled(job_class)
            short = self._admission.shortage(job_class) if is_settled else None
            self._shortages[number] = short
        if self._shortages[number] is None or self._clearing.has_anyone_to_stop(job_class):
            return None
        if any(node.spec.order is QueueOrder.STRICT for node in job_class.queue.lineage()):
            return None
        return self._shortages[number]

    def _tell_hopeless(self, classes: list[JobClass]) -> None:
        """Say why they wait: what is short, unless a limit or a closed pool comes first."""
        known: dict[object, Verdict] = {}
        has_budgets = self.memory.tree.owners.has_budgets
        is_open = self._admission.is_open
        for job_class in classes:
            key: object = job_class.likeness
            if not is_open:
                # How long a job may hold its devices counts only against budgets of device-hours.
                owner = job_class.owner if has_budgets else (job_class.user, job_class.owner.tenant)
                key = (job_class.likeness, owner, job_class.limit_s is None)
            verdict = known.get(key)
            if verdict is None:
                short = job_class.verdict
                assert short is not None
                verdict = known[key] = self._with_share(
                    job_class, self._admission.may(job_class) or short
                )
            job_class.verdict = verdict

    def _faster(
        self, job_class: JobClass, job: WaitingJob, cursor: Cursor
    ) -> Callable[[int], bool]:
        """Whether a combination is worse than to wait for a faster one, which gets a promise.

        Only for a job that says how fast it is by type and how long it runs, and only where the
        reservation depth allows a promise: without one the wait could be any longer.
        """
        length_s = job.spec.time.expected_s
        if not job.spec.speed or length_s is None or not self._heads.is_free(job_class):
            return never
        memory, shape = self.memory, job_class.shape

        def wait_instead(number: int) -> bool:
            own = length_s / shape.speeds[number]
            for at in range(number):
                if shape.speeds[at] <= shape.speeds[number]:
                    continue
                place = self._heads.placer(job_class, cursor.job_id, shape.combinations[at])
                slot = earliest_start(memory, place, self.now_s)
                if slot is None:
                    continue
                if slot.at_s - self.now_s + length_s / shape.speeds[at] < own:
                    memory.declined[job_class.number] = declined_words(shape, at, number, slot.at_s)
                    return True
            return False

        return wait_instead

    def _order(self) -> Order:
        """The classes that are not done for this cycle, in order."""
        memory = self.memory
        return Order(memory.tree.root, memory.lines.open(self._admission.closed))

    def _open_classes(self) -> list[JobClass]:
        return [c for c in self.memory.classes.values() if c.number not in self._admission.closed]

    def _started(self, job_class: JobClass, job: WaitingJob, cursor: Cursor, label: str) -> None:
        tasks = self._admission.last_tasks
        self.starts.append(Start(job_id=cursor.job_id, tasks=tasks, label=label))
        job_class.verdict = None
        amounts = self._admission.last_amounts
        self.memory.start(job, cursor.job_id, tasks, amounts, self.now_s, left=cursor.advance())

    def _with_share(self, job_class: JobClass, verdict: Verdict) -> Verdict:
        """Whether the fair share of its queue is what keeps the class from what others hold."""
        if verdict.reason is not Reason.NO_FREE_DEVICES:
            return verdict
        memory = self.memory
        others = any(
            jobs and memory.tree.at(path) is not job_class.queue
            and any(job.is_preemptible for job in jobs.values())
            for path, jobs in memory.by_queue.items()
        )  # fmt: skip
        if not others:
            return verdict
        block = Rules(memory, self.policy, job_class).share_block()
        if block is None:
            return verdict
        return Verdict(block.reason, limit=block, alternative=verdict.alternative)
