"""Freeing devices for a blocked job: the whole start is simulated before anyone is stopped.

First what is coming free by itself. Then victims: every job that rules, grace and budgets allow
is taken away in a statement; if the job still does not fit, the answer is a definite no. If it
does, the cheapest legal set that still lets it start is looked for: by trying all sets when
there are few, by putting victims back one by one when there are some, node by node when there
are many. The final set is checked for legality as a whole, and is minimal: none of its members
can be left running.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy
from tercio.model.resources import DEVICES, WHOLE_DEVICE_MILLI
from tercio.model.snapshot import RunningJob
from tercio.sched.cheapest import by_node
from tercio.sched.classes import JobClass
from tercio.sched.gang import Gang, Room
from tercio.sched.holdings import surplus_tasks
from tercio.sched.legal import HOUR_S, Rules, Victim, cost
from tercio.sched.memory import Memory
from tercio.sched.power import Budgets
from tercio.sched.statement import Statement

EXACT_VICTIMS: Final = 9
"""Up to so many candidates every set is tried."""

PUT_BACK_VICTIMS: Final = 96
"""Up to so many candidates are put back one by one, each with a full placement."""

OVERDUE_S: Final = 300.0
"""A stopping job this long past its time is not counted on any more."""


class Found(NamedTuple):
    """A start that evictions make possible.

    Attributes:
        tasks: where the job will go.
        victims: what has to stop; empty when enough is coming free by itself.
        waits_for: jobs already stopping whose devices it gets.
    """

    tasks: tuple[TaskPlacement, ...]
    victims: tuple[Victim, ...]
    waits_for: tuple[JobId, ...]


class Search:
    """One search for one job in one combination of alternatives.

    Attributes:
        wakes: instants at which time alone will change the outcome.
        is_exhausted: whether it ended without an answer.
        looked_at: running jobs looked at.
    """

    def __init__(
        self,
        memory: Memory,
        policy: Policy,
        *,
        job_class: JobClass,
        job_id: JobId,
        combination: Sequence[int],
        room: Room,
        now_s: float,
        evictions_s: Sequence[float] = (),
    ) -> None:
        self.memory = memory
        self.policy = policy
        self.job_class = job_class
        self.job_id = job_id
        self.needs = job_class.shape.needs(combination)
        self.room = room
        self.now_s = now_s
        self.statement = Statement(memory.table)
        self._budgets = Budgets(memory)
        number = job_class.shape.combinations.index(tuple(combination))
        last_s = max(evictions_s, default=float("-inf"))
        is_fair_open = last_s <= now_s - HOUR_S
        self.rules = Rules(memory, policy, job_class, number, is_fair_open=is_fair_open)
        self.wakes: list[float] = [] if is_fair_open else [last_s + HOUR_S]
        self.is_exhausted = False
        self.looked_at = 0

    def run(self) -> Found | None:
        """Return the cheapest start found, or None; the table is left as it was."""
        try:
            leaving = self._take_leaving()
            placed = self._place() if leaving else None
            waits_for = self._used(leaving, placed or ())
            if placed is not None and not waits_for and self._budgets:
                waits_for = tuple(job.job_id for job in leaving)  # it is their power it waits for
            if placed is not None and waits_for:
                return Found(placed, (), waits_for)
            victims = self.candidates()
            if not victims or not self._is_enough(victims):
                return None
            chosen = self._choose(victims)
            if chosen is None:
                return None
            mark = self.statement.mark()
            self._evict(chosen)
            placed = self._place()
            self.statement.rollback(mark)
            assert placed is not None
            return Found(placed, tuple(chosen), self._used(leaving, placed))
        finally:
            self.statement.rollback()

    # What is coming free by itself.

    def _take_leaving(self) -> list[RunningJob]:
        found = []
        jobs = [self.memory.running[job_id] for job_id in self.memory.stopping]
        for job in sorted(jobs, key=lambda job: (job.placed_s, job.sequence, job.job_id)):
            job_id = job.job_id
            if job.stops_by_s is None or job.stops_by_s + OVERDUE_S < self.now_s:
                continue
            for task in job.tasks:
                row = self.memory.table.row_of.get(task.node)
                if row is not None and (job.is_stopping or task.task in job.stopping_tasks):
                    self.statement.evict(row, job_id, task)
            found.append(job)
        return found

    def _used(
        self, leaving: Iterable[RunningJob], tasks: Iterable[TaskPlacement]
    ) -> tuple[JobId, ...]:
        nodes = dict.fromkeys(task.node for task in tasks)
        return tuple(job.job_id for job in leaving if any(task.node in nodes for task in job.tasks))

    def _place(self) -> tuple[TaskPlacement, ...] | None:
        """Whether the job fits in the table as it stands; leaves no trace."""
        mark = self.statement.mark()
        shape = self.job_class.shape
        gang = Gang(self.memory.table, self.room, self.statement, self.job_id, self.needs)
        gang.is_least = True
        most = {leaf.index: leaf.tasks for leaf in shape.leaves}
        placed, _ = self._budgets.place(
            self.memory.ground, self.job_class.tenant(), gang, shape, most=most
        )
        self.statement.rollback(mark)
        return placed

    def _evict(self, victims: Iterable[Victim]) -> None:
        for victim in victims:
            for row, task in victim.tasks:
                self.statement.evict(row, victim.job.job_id, task)

    def _resume(self, victims: Iterable[Victim]) -> None:
        """Let evicted victims have back what they held."""
        for victim in victims:
            for row, task in victim.tasks:
                self.statement.place(row, victim.job.job_id, task)

    # Candidates.

    def candidates(self) -> list[Victim]:
        """Everything that may be stopped for this job, each legal by itself."""
        found: list[Victim] = []
        memory = self.memory
        for path, jobs in memory.by_queue.items():
            queue = memory.tree.at(path)
            if not jobs or not self.rules.may_ever(queue):
                continue
            if queue is self.rules.queue and memory.lowest_priority(path) >= self.rules.priority:
                continue
            self.looked_at += len(jobs)
            for job in jobs.values():
                if self.is_protected(job):
                    continue
                for victim in victims_of(self.memory, job, self.now_s):
                    if self.rules.may(victim):
                        found.append(victim)
        # A memory knows jobs in the order in which they last changed: that must decide nothing.
        found.sort(key=lambda v: (v.job.placed_s, v.job.sequence, *v.key))
        return found

    def is_protected(self, job: RunningJob) -> bool:
        """Not preemptible, stopping, in its reservation, too young, or evicted often enough."""
        rules = self.policy.preemption
        if not job.is_preemptible or job.is_stopping or job.job_id in self.memory.started:
            return True
        if self._is_sheltered(job):
            return True
        since_s = job.placed_s if job.started_s is None else job.started_s
        if self.now_s - since_s < rules.min_runtime_s:
            self.wakes.append(since_s + rules.min_runtime_s)
            return True
        most = rules.max_evictions_per_job_per_hour
        recent = [at_s for at_s in job.evictions_s if at_s > self.now_s - HOUR_S]
        if most is not None and len(recent) >= most:
            self.wakes.append(recent[-most] + HOUR_S if most else float("inf"))
            return True
        return False

    def _is_sheltered(self, job: RunningJob) -> bool:
        """Whether it runs in an open window that is not the asker's: the place would stay kept."""
        window = self.memory.sheltered.get(job.job_id)
        if window is None:
            return False
        self.wakes.append(window.until_s)
        return not window.is_for(self.job_class.asker())

    def _is_enough(self, victims: Sequence[Victim]) -> bool:
        """A count that is right whenever it says no: devices that the rules could free at most."""
        table = self.memory.table
        wanted = free = 0
        for leaf, need in zip(self.job_class.shape.leaves, self.needs, strict=True):
            wanted += leaf.tasks * need.device_milli
            fit = self.room.fit(need).refresh()
            free = max(free, sum(table.untouched_total[kind] for kind in fit.kinds) * 1000)
        if not wanted or any(leaf.is_optional for leaf in self.job_class.shape.leaves):
            return True
        by_side: dict[str, list[Victim]] = {}
        for victim in victims:
            by_side.setdefault(victim.queue.path, []).append(victim)
        can_free = 0
        for group in by_side.values():
            # A share that leaves may make a whole device free.
            shares = [share for v in group for _, task in v.tasks for share in task.devices]
            total = len(shares) * WHOLE_DEVICE_MILLI
            if (
                any(share.milli < WHOLE_DEVICE_MILLI for share in shares)
                or group[0].queue is self.rules.queue
                or self.rules.resources[:1]
                not in (
                    [DEVICES],
                    [self.needs[0].type],
                )
            ):
                can_free += total
            else:
                most = self.rules.budget(group[0].queue)
                # Only the last victim may go over the line: by no more than its size.
                last = max(v.milli for v in group) - 1
                can_free += min(total, most + max(last, 0)) if most else 0
        return free + can_free >= wanted or self._parts_free() + can_free >= wanted

    def _parts_free(self) -> int:
        """What is free of the right devices, those included of which others hold a part."""
        table, most = self.memory.table, 0
        for need in self.needs:
            fit = self.room.fit(need).refresh()
            right = np.isin(table.kind, fit.kinds) & table.usable & fit.open[:, None]
            most = max(most, int(table.milli_free[right].sum()))
        return most

    # Choosing.

    def _choose(self, victims: list[Victim]) -> list[Victim] | None:
        mark = self.statement.mark()
        self._evict(victims)
        fits = self._place() is not None
        self.statement.rollback(mark)
        if not fits:
            return None
        if len(victims) <= EXACT_VICTIMS:
            return self._exact(victims)
        if len(victims) > PUT_BACK_VICTIMS:
            return self._by_node(victims) or self._put_back(victims)
        chosen = self._put_back(victims)
        if chosen is None and self.memory.ground is not None:
            # What is left of each loser's guarantee decides which nodes can be had at all.
            chosen = self._by_node(victims)
            self.is_exhausted &= chosen is None
        return chosen

    def _by_node(self, victims: Sequence[Victim]) -> list[Victim] | None:
        if len(self.job_class.shape.leaves) != 1:
            return None
        chosen = by_node(
            self.memory.table,
            self.room,
            job_class=self.job_class,
            need=self.needs[0],
            victims=victims,
            rules=self.rules,
        )
        return None if chosen is None else self._trimmed(chosen)

    def _exact(self, victims: Sequence[Victim]) -> list[Victim] | None:
        """The cheapest legal set, by trying sets in order of cost."""
        sets = (
            combo
            for size in range(1, len(victims) + 1)
            for combo in itertools.combinations(victims, size)
            if _is_whole(combo, victims)
        )
        for combo in sorted(sets, key=cost):
            if self._works(combo):
                return list(combo)
        return None

    def _works(self, victims: Sequence[Victim]) -> bool:
        if not self.rules.allows(victims):
            return False
        mark = self.statement.mark()
        self._evict(victims)
        fits = self._place() is not None
        self.statement.rollback(mark)
        return fits

    def _put_back(self, victims: Sequence[Victim]) -> list[Victim] | None:
        """Put victims back, dearest first, as long as the job still fits.

        Several at once while that goes well, so that the many that are not in the way cost few
        placements; one that cannot be left running is always found out alone.
        """
        dearest = sorted(victims, key=lambda v: v.worth, reverse=True)
        mark = self.statement.mark()
        self._evict(victims)
        kept: list[Victim] = []
        at, step = 0, 1
        while at < len(dearest):
            fewer = [*kept, *dearest[at + step :]]
            before = self.statement.mark()
            if fewer and _is_whole(fewer, victims):
                self._resume(dearest[at : at + step])
                if self._place() is not None:
                    at, step = at + step, 2 * step
                    continue
                self.statement.rollback(before)
            if step == 1:
                kept.append(dearest[at])
                at += 1
            step = max(1, step // 2)
        self.statement.rollback(mark)
        kept.reverse()
        if self.rules.allows(kept):
            return kept
        return self._own_first(victims, kept)

    def _own_first(
        self, victims: Sequence[Victim], failed: Sequence[Victim]
    ) -> list[Victim] | None:
        """When the mixed set is illegal: try victims of one origin at a time."""
        origins = [
            [v for v in victims if v.queue is self.rules.queue],
            [v for v in victims if v.queue is not self.rules.queue],
        ]
        for group in origins:
            if group and len(group) < len(victims) and len(group) != len(failed):
                mark = self.statement.mark()
                self._evict(group)
                fits = self._place() is not None
                self.statement.rollback(mark)
                if fits:
                    found = self._exact(group) if len(group) <= EXACT_VICTIMS else (
                        self._put_back(group)
                    )  # fmt: skip
                    if found is not None:
                        return found
        self.is_exhausted = True
        return None

    def _trimmed(self, chosen: list[Victim]) -> list[Victim] | None:
        """Leave out victims whose place the start does not touch, dearest first."""
        mark = self.statement.mark()
        self._evict(chosen)
        placed = self._place()
        if placed is None:
            self.statement.rollback(mark)
            return None
        taken = {(task.node, share.index) for task in placed for share in task.devices}
        rows = {self.memory.table.row_of[task.node] for task in placed}
        kept = []
        for victim in chosen:
            touches = any(row in rows for row, _ in victim.tasks)
            held = {(t.node, s.index) for _, t in victim.tasks for s in t.devices}
            if touches and (held & taken or not held):
                kept.append(victim)
        self.statement.rollback(mark)
        if len(kept) < len(chosen) and not self._works(kept):
            kept = chosen
        return kept if self.rules.allows(kept) else None


def victims_of(memory: Memory, job: RunningJob, now_s: float) -> list[Victim]:
    """A job as victims: its surplus tasks one by one, and what remains as a whole."""
    queue = memory.tree.at(job.queue)
    table = memory.table
    placed = [
        (table.row_of[t.node], t)
        for t in job.tasks
        if t.node in table.row_of and t.task not in job.stopping_tasks
    ]
    surplus = surplus_tasks(job)
    lost_s = lost_work_s(job, now_s)
    if not surplus:
        amounts = memory.held[job.job_id]
        milli = amounts.get(DEVICES, 0)
        return [Victim(job, queue, tuple(placed), amounts, milli, lost_s * milli / 1000)]
    found = []
    core = []
    for row, task in placed:
        if task.task not in surplus:
            core.append((row, task))
            continue
        amounts = memory.held_amounts((task,))
        amounts.pop("running_jobs", None)
        milli = amounts.get(DEVICES, 0)
        found.append(
            Victim(job, queue, ((row, task),), amounts, milli, lost_s * milli / 1000, True)
        )
    amounts = memory.held_amounts(t for _, t in core)
    milli = amounts.get(DEVICES, 0)
    found.append(Victim(job, queue, tuple(core), amounts, milli, lost_s * milli / 1000))
    return found


def lost_work_s(job: RunningJob, now_s: float) -> float:
    """Seconds of work that a stop would lose: since the start, or since the last checkpoint."""
    if job.started_s is None:
        return 0.0
    ran_s = max(0.0, now_s - job.started_s)
    every_s = job.spec.checkpoint.every_s
    if job.spec.checkpoint.path is None or not every_s:
        return ran_s
    return ran_s % every_s


def _is_whole(chosen: Sequence[Victim], victims: Sequence[Victim]) -> bool:
    """A job may lose its core only together with all its surplus tasks."""
    if not any(v.is_surplus for v in victims):
        return True
    keys = {v.key for v in chosen}
    cores = {v.job.job_id for v in chosen if not v.is_surplus}
    return all(v.key in keys for v in victims if v.is_surplus and v.job.job_id in cores)
