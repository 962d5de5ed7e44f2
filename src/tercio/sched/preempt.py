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
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy
from tercio.model.resources import DEVICES
from tercio.model.snapshot import RunningJob
from tercio.sched.cheapest import by_node
from tercio.sched.classes import JobClass
from tercio.sched.gang import Gang, Room
from tercio.sched.legal import HOUR_S, Rules, Victim, cost
from tercio.sched.memory import Memory
from tercio.sched.power import Budgets
from tercio.sched.statement import Statement
from tercio.sched.survey import (
    Group,
    Survey,
    by_start,
    group_of,
    is_stoppable,
    spared_until_s,
    victims_of,
)

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
        is_barren: whether all that may be stopped is too little, whatever is promised to others.
        looked_at: running jobs looked at, and what a count stands for that spared a trial.
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
        survey: Survey,
        evictions_s: Sequence[float] = (),
    ) -> None:
        self.memory = memory
        self._survey = survey
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
        self.is_barren = False
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
            groups = self.candidates()
            if not groups or not self._is_enough(groups) or not self._may_hold(groups):
                self.is_barren = not leaving
                return None
            chosen = self._choose(_merged(groups))
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

    def candidates(self) -> list[Group]:
        """Everything that may be stopped for this job, each legal by itself, by queue."""
        found: list[Group] = []
        memory = self.memory
        for path, jobs in memory.by_queue.items():
            queue = memory.tree.at(path)
            if not jobs or not self.rules.may_ever(queue):
                continue
            if queue is self.rules.queue and memory.lowest_priority(path) >= self.rules.priority:
                continue
            self.looked_at += len(jobs)
            wake_s = self._survey.look(path).wake_s
            if wake_s is not None:
                self.wakes.append(wake_s)
            group = self._survey.group(path, self.rules)
            sheltered = self._from_windows(jobs) if memory.sheltered else ()
            if sheltered:
                victims = sorted((*group.victims, *sheltered), key=by_start)
                group = group_of((*group.key, self.job_class.asker()), victims)
            if group.victims:
                found.append(group)
        return found

    def _from_windows(self, jobs: Mapping[JobId, RunningJob]) -> list[Victim]:
        """Those that run in an open window which is the asker's own."""
        return [
            victim
            for job_id, job in jobs.items()
            if job_id in self.memory.sheltered and not self.is_protected(job)
            for victim in victims_of(self.memory, job, self.now_s)
            if self.rules.may(victim)
        ]

    def is_protected(self, job: RunningJob) -> bool:
        """Not preemptible, stopping, in its reservation, too young, or evicted often enough."""
        if not is_stoppable(self.memory, job) or self._is_sheltered(job):
            return True
        spared_s = spared_until_s(job, self.policy.preemption, self.now_s)
        if spared_s is None:
            return False
        self.wakes.append(spared_s)
        return True

    def _is_sheltered(self, job: RunningJob) -> bool:
        """Whether it runs in an open window that is not the asker's: the place would stay kept."""
        window = self.memory.sheltered.get(job.job_id)
        if window is None:
            return False
        self.wakes.append(window.until_s)
        return not window.is_for(self.job_class.asker())

    def _is_enough(self, groups: Sequence[Group]) -> bool:
        """A count that is right whenever it says no: devices that the rules could free at most."""
        table = self.memory.table
        wanted = free = 0
        for leaf, need in zip(self.job_class.shape.leaves, self.needs, strict=True):
            wanted += leaf.tasks * need.device_milli
            fit = self.room.fit(need).refresh()
            free = max(free, sum(table.untouched_total[kind] for kind in fit.kinds) * 1000)
        if not wanted or any(leaf.is_optional for leaf in self.job_class.shape.leaves):
            return True
        can_free = 0
        for group in groups:
            # A share that leaves may make a whole device free.
            queue = group.victims[0].queue
            if (
                group.has_parts
                or queue is self.rules.queue
                or self.rules.resources[:1]
                not in (
                    [DEVICES],
                    [self.needs[0].type],
                )
            ):
                can_free += group.device_milli
            else:
                most = self.rules.budget(queue)
                # Only the last victim may go over the line: by no more than its size.
                last = group.most_milli - 1
                can_free += min(group.device_milli, most + max(last, 0)) if most else 0
        return free + can_free >= wanted or self._parts_free() + can_free >= wanted

    def _parts_free(self) -> int:
        """What is free of the right devices, those included of which others hold a part."""
        fits = [self.room.fit(need).refresh() for need in self.needs]
        return max(self._survey.parts_free(fit) for fit in fits)

    def _may_hold(self, groups: Sequence[Group]) -> bool:
        """Whether there may be room when all of them have left; its work counts as a trial's."""
        if self._survey.may_hold(groups, self.job_class.shape.leaves, self.needs):
            return True
        self.looked_at += 2 * sum(group.task_count for group in groups)
        return False

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


def _merged(groups: Sequence[Group]) -> list[Victim]:
    """The victims of all groups, in order of their start."""
    victims = [victim for group in groups for victim in group.victims]
    return victims if len(groups) == 1 else sorted(victims, key=by_start)


def _is_whole(chosen: Sequence[Victim], victims: Sequence[Victim]) -> bool:
    """A job may lose its core only together with all its surplus tasks."""
    if not any(v.is_surplus for v in victims):
        return True
    keys = {v.key for v in chosen}
    cores = {v.job.job_id for v in chosen if not v.is_surplus}
    return all(v.key in keys for v in victims if v.is_surplus and v.job.job_id in cores)
