"""What the marks of running tasks say: who is slower than its peers, and what stands still."""

from __future__ import annotations

import msgspec

from tercio.core import attempts, blame
from tercio.core.records import Hang, Job
from tercio.core.state import State
from tercio.model.events import JobHung, RankPaceChanged
from tercio.model.ids import JobId
from tercio.model.job import EndCause
from tercio.model.spans import SlowSpan
from tercio.model.units import format_duration


def pace_changed(state: State, event: RankPaceChanged) -> None:
    """Keep when a task was slower than its peers, for the job's waterfall."""
    job = _running(state, event.job_id, event.attempt)
    if job is None:
        return
    spans = [
        msgspec.structs.replace(span, end_s=event.at_s)
        if span.task == event.task and span.end_s is None
        else span
        for span in job.slow
    ]
    if event.ratio > 1:
        spans.append(SlowSpan(task=event.task, ratio=event.ratio, start_s=event.at_s))
    job.slow = tuple(spans)


def hung(state: State, event: JobHung) -> None:
    """Note that an attempt stands still, and stop it to start again unless something holds that."""
    job = _running(state, event.job_id, event.attempt)
    if job is None:
        return
    if event.is_over:
        job.hang = None
        return
    job.hang = Hang(since_s=event.last_progress_s, held_by=event.held_by)
    if not event.held_by:
        blame.note_hang(state, job, event.tasks)
        silent = format_duration(max(event.at_s - event.last_progress_s, 0.0))
        attempts.stop(state, job, EndCause.HUNG, f"hung in {event.phase}: silent for {silent}")


def is_news(job: Job | None, event: JobHung | RankPaceChanged) -> bool:
    """Whether an event says something of a running attempt that is not known."""
    if job is None or not _is_under_way(job, event.attempt):
        return False
    match event:
        case RankPaceChanged(task=task, ratio=ratio):
            is_slow = any(span.task == task and span.end_s is None for span in job.slow)
            return is_slow != (ratio > 1)
        case JobHung(is_over=True):
            return job.hang is not None
        case JobHung(last_progress_s=since_s, held_by=held_by):
            return job.hang != Hang(since_s=since_s, held_by=held_by)


def _running(state: State, job_id: JobId, attempt: int) -> Job | None:
    job = state.jobs.get(job_id)
    return job if job is not None and _is_under_way(job, attempt) else None


def _is_under_way(job: Job, attempt: int) -> bool:
    return job.attempt == attempt and job.stop_cause is None and bool(job.live_tasks)
