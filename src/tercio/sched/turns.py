"""Whose turn it is among elastic jobs when there are more than devices: who had least goes first.

Least attained service by levels, as Tiresias' discretised 2D-LAS (Gu et al., NSDI 2019, section
4.2): the device time that a job had puts it on a level, each twice as long as the one before. A
job of a lower level may take the place of one of a higher; within a level nobody is stopped for
another, so a job is stopped as often as it doubles what it had. A job that has waited `PATIENCE`
times as long as it ran gets one turn as if it were new, so nobody waits for ever. It is one turn
and not a new life, for in a long queue all that wait would be new again and stand before the short.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Final

from tercio.model.ids import JobId
from tercio.model.snapshot import RunningJob, WaitingJob
from tercio.sched.elastic import Option

PATIENCE: Final = 4.0
"""A job gets a turn when it has waited so many times as long as it ran."""


def level(job: RunningJob | WaitingJob, turn_s: float, at_s: float) -> int:
    """Return the level of a job: 0 for less than one turn of device time, then by doubling.

    Args:
        job: that waits or runs.
        turn_s: length of the first level in device seconds, and of the turn of who waited long.
        at_s: instant of the question, in seconds.
    """
    if _is_owed(job, turn_s, at_s):
        return 0
    device_s = 0.0 if job.had is None else job.had.device_s
    if isinstance(job, RunningJob):
        devices = sum(len(task.devices) for task in job.tasks)
        device_s += devices * max(at_s - job.placed_s, 0.0)
    return int(math.log2(1.0 + device_s / turn_s))


def _is_owed(job: RunningJob | WaitingJob, turn_s: float, at_s: float) -> bool:
    """Whether a job has a turn for how long it waited: one to come, or one that is not over."""
    had = job.had
    if had is None:
        return False
    if isinstance(job, RunningJob):
        if at_s - job.placed_s >= turn_s:
            return False
        at_s = job.placed_s
    return at_s - had.until_s >= PATIENCE * had.run_s


def why(job: RunningJob, for_job: RunningJob | WaitingJob, turn_s: float, at_s: float) -> str:
    """Say why a running job gives way to another; see `level`."""
    if for_job.priority > job.priority:
        reason = "which has the higher priority"
    elif _is_owed(for_job, turn_s, at_s):
        reason = f"which waited {PATIENCE:g} times as long as it had run"
    elif level(for_job, turn_s, at_s) < level(job, turn_s, at_s):
        reason = "which had less device time"
    else:
        reason = "which comes before it"
    return f"gives its turn to {for_job.job_id}, {reason}"


def in_turn(
    jobs: Sequence[tuple[RunningJob | WaitingJob, Sequence[Option]]],
    supply: Sequence[int],
    *,
    kept: Container[JobId],
    turn_s: float,
    at_s: float,
) -> set[JobId]:
    """Return the jobs whose turn it is, as far as the devices go.

    Each is counted at its least size. A higher priority comes first, then a lower level; on a
    level those that run, then who asked first.

    Args:
        jobs: with what each could have.
        supply: devices of each type, with those of the jobs given back.
        kept: jobs that are not to be stopped; they come before all others.
        turn_s: length of the first level in device seconds.
        at_s: instant of the question, in seconds.
    """
    ranked = sorted(
        jobs,
        key=lambda pair: (
            pair[0].job_id not in kept,
            -pair[0].priority,
            level(pair[0], turn_s, at_s),
            isinstance(pair[0], WaitingJob),
            pair[0].sequence,
        ),
    )
    left = sum(supply)
    found: set[JobId] = set()
    for job, options in ranked:
        least = min(option.devices for option in options)
        if least <= left:
            left -= least
            found.add(job.job_id)
    return found
