"""Earliest starts of blocked jobs, from the ends of running ones.

One loop over the reservation depth: the first K blocked jobs of a pool get a promise at the
earliest time they fit; whatever comes later may start now if it ends before the promise or stays
off its devices. K = 0 is first come first served, 1 is EASY, N a hybrid, all conservative.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.reservation import Promise
from tercio.sched.emptying import Emptying
from tercio.sched.memory import Memory
from tercio.sched.statement import Statement

Place = Callable[[Statement, float], tuple[TaskPlacement, ...] | None]
"""Tries to place the job in the table as it stands, for a start at a time; keeps no trace."""


Step = tuple[float, list[JobId]]
"""An instant and the running jobs that end then."""


class Slot(NamedTuple):
    """A start in the future."""

    at_s: float
    tasks: tuple[TaskPlacement, ...]


class Steps:
    """Known ends of what holds devices, promised jobs included, jobs of one instant together.

    Made as far as they are asked for. A job that has passed its end without stopping is taken
    to end next. The ends of windows of reservations are instants too, at which no job ends.
    """

    def __init__(self, memory: Memory, now_s: float) -> None:
        running = ((max(end_s, now_s), job_id) for end_s, job_id in memory.ends())
        promised = ((until_s, None) for until_s in sorted(memory.holds.ends()))
        self._rest = heapq.merge(running, promised, key=lambda pair: pair[0])
        self._following = next(self._rest, None)
        self.made: list[Step] = []

    def reach(self, count: int) -> int:
        """Make up to so many; return how many there are."""
        while len(self.made) < count and self._following is not None:
            at_s, jobs = self._following[0], list[JobId]()
            while self._following is not None and self._following[0] == at_s:
                if self._following[1] is not None:
                    jobs.append(self._following[1])
                self._following = next(self._rest, None)
            self.made.append((at_s, jobs))
        return min(count, len(self.made))


class Reach(NamedTuple):
    """A number of ends in order, and the instant of the last of them."""

    ends: int
    at_s: float


def first_enough(memory: Memory, emptying: Emptying, now_s: float) -> Reach | None:
    """Return the fewest ends after which a job fits by its count, or None when it never does."""
    ahead, done = Steps(memory, now_s), 0
    row_of = memory.table.row_of
    while ahead.reach(done + 1) > done:
        at_s, jobs = ahead.made[done]
        done += 1
        for job_id in jobs:
            for task in memory.running[job_id].tasks:
                row = row_of.get(task.node)
                if row is not None:
                    emptying.give_back(row, task)
        if emptying.is_enough:
            return Reach(done, at_s)
    return None


def start_after(memory: Memory, place: Place, now_s: float, reach: Reach) -> Slot | None:
    """Return the start after so many ends, or None when the job does not fit then."""
    ahead = Steps(memory, now_s)
    ahead.reach(reach.ends)
    statement = Statement(memory.table)
    try:
        _give_back(memory, statement, ahead.made, [statement.mark()], 0)
        tasks = place(statement, reach.at_s)
        return None if tasks is None else Slot(reach.at_s, tasks)
    finally:
        statement.rollback()


def earliest_start(memory: Memory, place: Place, now_s: float) -> Slot | None:
    """Return the earliest start given all known ends, or None when none can be computed.

    Ends are given back in order until the job fits; the step doubles while it does not, then
    the first end that suffices is found by bisection. Giving back is undone exactly.
    """
    ahead = Steps(memory, now_s)
    steps = ahead.made
    statement = Statement(memory.table)
    marks = [statement.mark()]
    try:
        reach = _gallop(memory, statement, ahead, marks, place)
        if reach is None:
            return None
        low, high = reach
        while high - low > 1:
            middle = (low + high) // 2
            statement.rollback(marks[low])
            _give_back(memory, statement, steps[low:middle], marks, low)
            if place(statement, steps[middle - 1][0]) is not None:
                high = middle
            else:
                low = middle
        statement.rollback(marks[low])
        _give_back(memory, statement, steps[low:high], marks, low)
        at_s = steps[high - 1][0]
        tasks = place(statement, at_s)
        return None if tasks is None else Slot(at_s, tasks)
    finally:
        statement.rollback()


def _gallop(
    memory: Memory,
    statement: Statement,
    ahead: Steps,
    marks: list[int],
    place: Place,
) -> tuple[int, int] | None:
    """Give back ends in doubling steps until the job fits: (last that failed, first that did)."""
    done, stride = 0, 1
    steps = ahead.made
    while (following := ahead.reach(done + stride)) > done:
        _give_back(memory, statement, steps[done:following], marks, done)
        if place(statement, steps[following - 1][0]) is not None:
            return done, following
        done, stride = following, stride * 2
    return None


def _give_back(
    memory: Memory,
    statement: Statement,
    steps: list[Step],
    marks: list[int],
    first: int,
) -> None:
    """Give back some ends; `marks[i]` is the state after the first i of them."""
    del marks[first + 1 :]
    for _, jobs in steps:
        for job_id in jobs:
            for task in memory.running[job_id].tasks:
                row = memory.table.row_of.get(task.node)
                if row is not None:
                    statement.evict(row, job_id, task)
        marks.append(statement.mark())


def is_still_good(memory: Memory, promise: Promise, now_s: float) -> bool:
    """Whether a promise can still be kept on the same devices at its time."""
    if promise.from_s is None or promise.from_s <= now_s:
        return False
    table = memory.table
    for task in promise.tasks:
        row = table.row_of.get(task.node)
        if row is None or not table.placeable.item(row):
            return False
        cpus, memory_bytes = table.cpus_free.item(row), table.memory_free.item(row)
        busy: set[int] = set()
        for (job_id, _), held in table.tasks[row].items():
            if memory.end_of(job_id) <= promise.from_s:
                cpus += held.cpus_milli
                memory_bytes += held.memory_bytes
            else:
                busy.update(share.index for share in held.devices)
        if cpus < task.cpus_milli or memory_bytes < task.memory_bytes:
            return False
        for share in task.devices:
            if share.index in busy or not table.usable.item(row, share.index):
                return False
    return True


def is_late(promise: Promise, slot: Slot, now_s: float) -> bool:
    """Whether a promise has come and its devices are late: it waits on, as it is.

    Another one for every instant would say the same, and a cycle over nothing new would not
    make it.
    """
    return (
        slot.at_s <= now_s
        and promise.from_s is not None
        and promise.from_s <= now_s < promise.expires_s
        and promise.tasks == slot.tasks
    )


def empty_place(memory: Memory, place: Place) -> tuple[TaskPlacement, ...] | None:
    """Where a job would stand if nothing ran: for a hold without a date.

    Rows keep their preference from the present load, so that nearly free places come first.
    """
    statement = Statement(memory.table)
    try:
        for job_id, job in memory.running.items():
            for task in job.tasks:
                row = memory.table.row_of.get(task.node)
                if row is not None:
                    statement.evict(row, job_id, task)
        return place(statement, 0.0)
    finally:
        statement.rollback()
