"""Moving running jobs together so that a blocked one fits.

Only jobs that save their work and may be stopped are moved, only when every one of them has a
place to go before anything stops, and only when less is moved than is gained. A move is an
eviction with a promise: the moved job starts again on its new devices, the blocked one on what
was freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.snapshot import RunningJob
from tercio.sched.cheapest import cover, devices_on
from tercio.sched.gang import Gang, Room
from tercio.sched.legal import Victim
from tercio.sched.memory import Memory
from tercio.sched.need import Mode, Shape
from tercio.sched.power import Budgets
from tercio.sched.statement import Statement
from tercio.sched.survey import victims_of

MOST_TARGETS: Final = 64
"""Most nodes tried as the place to free."""

MOST_MOVES: Final = 8
"""Most jobs moved for one start."""


class Moves(NamedTuple):
    """A start and the moves that make room for it."""

    tasks: tuple[TaskPlacement, ...]
    moved: tuple[tuple[RunningJob, tuple[TaskPlacement, ...]], ...]


def find_moves(
    memory: Memory,
    room: Room,
    *,
    shape: Shape,
    combination: Sequence[int],
    job_id: JobId,
    is_protected: Callable[[RunningJob], bool],
    now_s: float,
) -> Moves | None:
    """Return the moves of the fewest devices that let a job of one task start, or None.

    Each node that lacks least is tried as the target: the cheapest of its movable jobs that
    cover what is missing are placed elsewhere, in a statement that is always rolled back.
    """
    need = shape.needs(combination)[0]
    if len(shape.leaves) != 1 or shape.task_count != 1 or need.mode is not Mode.WHOLE:
        return None
    movable = _movable(memory, is_protected, now_s)
    table = memory.table
    fit = room.fit(need).refresh()
    free = table.untouched[list(fit.kinds)].sum(axis=0)
    rows = np.flatnonzero((fit.possible > 0) & fit.open & (free < need.count))
    best: tuple[tuple[int, int], Moves] | None = None
    for row in rows[np.argsort(-free[rows], kind="stable")][:MOST_TARGETS].tolist():
        here = [victim for victim in movable if any(r == row for r, _ in victim.tasks)]
        chosen = cover(here, need.count - int(free[row]), row)
        if not chosen or len(chosen) > MOST_MOVES:
            continue
        moved = sum(victim.milli for victim in chosen)
        if moved > need.device_milli or (best is not None and (moved, len(chosen)) >= best[0]):
            continue
        found = _try(
            memory,
            room,
            shape=shape,
            combination=combination,
            job_id=job_id,
            row=row,
            chosen=chosen,
        )
        if found is not None:
            best = ((moved, len(chosen)), found)
    return None if best is None else best[1]


def _movable(
    memory: Memory, is_protected: Callable[[RunningJob], bool], now_s: float
) -> list[Victim]:
    found = []
    for job in memory.running.values():
        if job.spec.checkpoint.path is None or is_protected(job):
            continue
        victims = victims_of(memory, job, now_s)
        if len(victims) == 1 and devices_on(victims[0], victims[0].tasks[0][0]):
            found.append(victims[0])
    return found


def _try(
    memory: Memory,
    room: Room,
    *,
    shape: Shape,
    combination: Sequence[int],
    job_id: JobId,
    row: int,
    chosen: Sequence[Victim],
) -> Moves | None:
    table = memory.table
    statement = Statement(table)
    only = np.zeros(table.count, np.bool_)
    only[row] = True
    try:
        for victim in chosen:
            for at, task in victim.tasks:
                statement.evict(at, victim.job.job_id, task)
        gang = Gang(table, room, statement, job_id, shape.needs(combination))
        tasks = gang.place(shape, {0: 1}, only)
        if tasks is None:
            return None
        moved = []
        for victim in sorted(chosen, key=lambda v: -v.milli):
            placed = _elsewhere(memory, room, statement, victim.job)
            if placed is None:
                return None
            moved.append((victim.job, placed))
        placed_all = [*tasks, *(task for _, own in moved for task in own)]
        if Budgets(memory).is_over(job_id, placed_all, room.bound, statement=statement):
            return None
        return Moves(tasks, tuple(moved))
    finally:
        statement.rollback()


def _elsewhere(
    memory: Memory, room: Room, statement: Statement, job: RunningJob
) -> tuple[TaskPlacement, ...] | None:
    """A new place for a job that was taken away."""
    shape = memory.shape_of(job)
    for combination in shape.combinations:
        needs = shape.needs(combination)
        inside = Room({need: memory.fit(need) for need in needs}, memory.holds, room.bound)
        gang = Gang(memory.table, inside, statement, job.job_id, needs)
        placed = gang.place(shape, {leaf.index: leaf.tasks for leaf in shape.leaves})
        if placed is not None:
            return placed
    return None
