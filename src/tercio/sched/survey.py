"""Running jobs that may be stopped, looked at once in a cycle for all who ask.

Who is spared, what a stop would lose and what it would free are the same for every class; only
the rules between its queue and theirs differ. A start changes nothing here: what has started in
this cycle is not stopped in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tercio.model.ids import JobId, QueuePath
from tercio.model.queue import PreemptionPolicy
from tercio.model.resources import DEVICES, WHOLE_DEVICE_MILLI
from tercio.model.snapshot import RunningJob
from tercio.sched.feasible import Fit, View
from tercio.sched.holdings import surplus_tasks
from tercio.sched.legal import HOUR_S, Rules, Victim
from tercio.sched.memory import Memory
from tercio.sched.need import Leaf, Mode, Need


class Group(NamedTuple):
    """Victims of one queue that a class may stop.

    Attributes:
        key: equal for equal groups of one survey.
        victims: in order of their start.
        device_milli: thousandths of all devices of which they hold something.
        has_parts: whether one of them holds a part of a device.
        most_milli: of the largest of them.
        task_count: tasks that leave when all are stopped.
    """

    key: tuple[object, ...]
    victims: tuple[Victim, ...]
    device_milli: int
    has_parts: bool
    most_milli: int
    task_count: int


class _Look(NamedTuple):
    """Victims of one queue, and when time alone adds to them."""

    victims: tuple[Victim, ...]
    wake_s: float | None


class Survey:
    """What one cycle knows of the running jobs that may be stopped."""

    def __init__(self, memory: Memory, rules: PreemptionPolicy, now_s: float) -> None:
        self._memory = memory
        self._rules = rules
        self._now_s = now_s
        self._roster = -1
        self._looks: dict[QueuePath, _Look] = {}
        self._groups: dict[tuple[object, ...], Group] = {}
        self._version = -1
        self._emptied: dict[tuple[object, ...], View] = {}
        self._parts: dict[tuple[object, ...], int] = {}

    def look(self, path: QueuePath) -> _Look:
        """Return whoever of a queue is not spared, those in open windows of reservations not."""
        self._follow()
        found = self._looks.get(path)
        if found is None:
            found = self._looks[path] = self._look(path)
        return found

    def group(self, path: QueuePath, rules: Rules) -> Group:
        """Return those of a queue that a class may stop by its own state."""
        look = self.look(path)
        is_own = self._memory.tree.at(path) is rules.queue
        key = (path, rules.priority if is_own else None)
        found = self._groups.get(key)
        if found is None:
            victims = [victim for victim in look.victims if rules.may(victim)]
            found = self._groups[key] = group_of(key, victims)
        return found

    def may_hold(
        self, groups: Sequence[Group], leaves: Sequence[Leaf], needs: Sequence[Need]
    ) -> bool:
        """Whether every group of tasks has enough room when all victims have left.

        A count that is right whenever it says no. Whoever is leaving anyway is gone already.
        """
        view: View | None = None
        for leaf, need in zip(leaves, needs, strict=True):
            if leaf.is_optional or need.exclusive or need.mode not in (Mode.NONE, Mode.WHOLE):
                continue
            if view is None:
                view = self._emptied_by(groups)
            fits = self._memory.fit(need).refresh().count(view)
            if int(np.minimum(fits, leaf.tasks).sum()) < leaf.tasks:
                return False
        return True

    def parts_free(self, fit: Fit) -> int:
        """Thousandths that are free on the right devices, parts of them included."""
        self._follow()
        key = (fit.kinds, fit.need.is_large)
        found = self._parts.get(key)
        if found is None:
            table = self._memory.table
            right = np.isin(table.kind, fit.kinds) & table.usable & fit.open[:, None]
            found = self._parts[key] = int(table.milli_free[right].sum())
        return found

    def _follow(self) -> None:
        memory = self._memory
        if memory.roster != self._roster:
            self._roster = memory.roster
            self._looks.clear()
            self._groups.clear()
        if memory.version != self._version:
            self._version = memory.version
            self._emptied.clear()
            self._parts.clear()

    def _look(self, path: QueuePath) -> _Look:
        memory = self._memory
        found: list[Victim] = []
        wakes: list[float] = []
        for job in memory.by_queue[path].values():
            if job.job_id in memory.sheltered or not is_stoppable(memory, job):
                continue
            spared_s = spared_until_s(job, self._rules, self._now_s)
            if spared_s is None:
                found += victims_of(memory, job, self._now_s)
            else:
                wakes.append(spared_s)
        # A memory knows jobs in the order in which they last changed: that must decide nothing.
        found.sort(key=by_start)
        return _Look(tuple(found), min(wakes, default=None))

    def _emptied_by(self, groups: Sequence[Group]) -> View:
        self._follow()
        key = tuple([group.key for group in groups])
        found = self._emptied.get(key)
        if found is None:
            found = self._emptied[key] = self._empty(v for group in groups for v in group.victims)
        return found

    def _empty(self, victims: Iterable[Victim]) -> View:
        table = self._memory.table
        view = View(table, slice(None))
        view.cpus, view.memory = view.cpus.copy(), view.memory.copy()
        view.slots, view.untouched = view.slots.copy(), view.untouched.copy()
        gone: dict[tuple[int, int], int] = {}
        width = table.holders.shape[1]
        for victim in victims:
            for row, task in victim.tasks:
                view.cpus[row] += task.cpus_milli
                view.memory[row] += task.memory_bytes
                view.slots[row] += 1
                for share in task.devices:
                    at = share.index
                    if at < width and table.usable.item(row, at):
                        count = gone[row, at] = gone.get((row, at), 0) + 1
                        if count == table.holders.item(row, at):
                            view.untouched[table.kind.item(row, at), row] += 1
        return view


def group_of(key: tuple[object, ...], victims: Sequence[Victim]) -> Group:
    """Sum victims of one queue up."""
    shares = [share for v in victims for _, task in v.tasks for share in task.devices]
    return Group(
        key,
        tuple(victims),
        len(shares) * WHOLE_DEVICE_MILLI,
        any(share.milli < WHOLE_DEVICE_MILLI for share in shares),
        max((v.milli for v in victims), default=0),
        sum(len(v.tasks) for v in victims),
    )


def by_start(victim: Victim) -> tuple[float, int, JobId, int]:
    """Order of victims: earlier starts first."""
    return (victim.job.placed_s, victim.job.sequence, *victim.key)


def is_stoppable(memory: Memory, job: RunningJob) -> bool:
    """Whether a job may be stopped for another at all: not when it is stopping, or just started."""
    return job.is_preemptible and not job.is_stopping and job.job_id not in memory.started


def spared_until_s(job: RunningJob, rules: PreemptionPolicy, now_s: float) -> float | None:
    """Until when a job is left alone since it is too young or was stopped often enough, or None."""
    since_s = job.placed_s if job.started_s is None else job.started_s
    if now_s - since_s < rules.min_runtime_s:
        return since_s + rules.min_runtime_s
    return stopped_enough_until_s(job, rules, now_s)


def stopped_enough_until_s(job: RunningJob, rules: PreemptionPolicy, now_s: float) -> float | None:
    """Until when a job may not be stopped since it was within an hour, often enough, or None."""
    most = rules.max_evictions_per_job_per_hour
    recent = [at_s for at_s in job.evictions_s if at_s > now_s - HOUR_S]
    if most is not None and len(recent) >= most:
        return recent[-most] + HOUR_S if most else float("inf")
    return None


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
