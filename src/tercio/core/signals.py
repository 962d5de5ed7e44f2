"""Signals to running tasks: a job is paused and goes on, and a note is written to its logs.

A pause or its end is ordered until the engine answers: a job must not stand still because one
message was lost. When a pause and its end cross on their way, the later answer tells it, and what
the job is meant to do is ordered again.
"""

from __future__ import annotations

from typing import Final

from tercio.core import attempts
from tercio.core.records import Job, Task
from tercio.core.state import LIMIT_TIMER, State
from tercio.core.transitions import TaskState
from tercio.model.effects import SignalTask
from tercio.model.events import JobResumeRequested, JobSuspendRequested
from tercio.model.ids import EffectId, task_key
from tercio.model.job import JobState

SIGNAL_TIMEOUT_S: Final = 30.0
LONGEST_TIMEOUT_S: Final = 600.0
"""Between two orders of a signal that nobody answers."""

_PAUSE: Final = "SIGSTOP"
_GO_ON: Final = "SIGCONT"


def suspend(state: State, event: JobSuspendRequested) -> None:
    """Pause a running job; it keeps what it holds, and its time limit stands still."""
    job = state.jobs[event.job_id]
    state.move_job(job, JobState.SUSPENDED)
    job.suspended_s = event.at_s
    _signal_all(state, job, _PAUSE)


def resume(state: State, event: JobResumeRequested) -> None:
    """Let a paused job go on."""
    job = state.jobs[event.job_id]
    state.move_job(job, JobState.RUNNING)
    if job.suspended_s is not None:
        job.limit_extension_s += event.at_s - job.suspended_s
        job.suspended_s = None
    if job.ends_s is not None:
        state.set_timer(job.ends_s, LIMIT_TIMER, job.id)
    _signal_all(state, job, _GO_ON)


def note(state: State, job: Job, text: str) -> None:
    """Write one line into the logs of a running job's tasks, by a signal that changes nothing."""
    _signal_all(state, job, _GO_ON, note=text)


def answered(state: State, effect: SignalTask) -> None:
    """Order what the job is meant to do, when the signal that was carried out is another."""
    job, task = _subject(state, effect)
    if job is None or task is None:
        return
    wanted = _PAUSE if job.state is JobState.SUSPENDED else _GO_ON
    if effect.signal in (_PAUSE, _GO_ON) and effect.signal != wanted:
        _signal(state, job, task, wanted)


def is_wanted(state: State, effect: SignalTask) -> bool:
    """Whether a signal that nobody answered is still what the job is meant to get."""
    job, task = _subject(state, effect)
    if job is None or task is None or effect.note:
        return False
    return effect.signal == (_PAUSE if job.state is JobState.SUSPENDED else _GO_ON)


def _subject(state: State, effect: SignalTask) -> tuple[Job | None, Task | None]:
    """The job and the task of a signal; no task when it is over or told to stop."""
    job, task = attempts.find(state, effect.job_id, effect.attempt, effect.task)
    if job is None or task is None or not task.is_live or task.state is TaskState.STOPPING:
        return job, None
    return job, task


def _signal_all(state: State, job: Job, signal: str, *, note: str = "") -> None:
    for task in job.live_tasks:
        _signal(state, job, task, signal, note=note)
    state.refresh(job)


def _signal(state: State, job: Job, task: Task, signal: str, *, note: str = "") -> None:
    placement = task.placement
    key = task_key(job.id, job.attempt, placement.task)
    state.issue(
        SignalTask(
            effect_id=EffectId(f"signal:{key}/{signal}/{state.revision}"),
            epoch=state.epoch,
            deadline_s=state.now_s + SIGNAL_TIMEOUT_S,
            site=state.nodes[placement.node].spec.site,
            node=placement.node,
            job_id=job.id,
            attempt=job.attempt,
            task=placement.task,
            signal=signal,
            note=note,
        )
    )
