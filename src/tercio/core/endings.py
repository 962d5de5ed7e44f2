"""What follows the end of an attempt: another one, or the end of the job and its dependents."""

from __future__ import annotations

from collections import deque
from typing import Final

from tercio.core import blame
from tercio.core.goodput import attempt_span
from tercio.core.records import Job, backoff_s, kind_of, may_retry
from tercio.core.run_times import RAN_THROUGH
from tercio.core.state import State
from tercio.health.policy import HANG_RESTARTS
from tercio.model.effects import Notify
from tercio.model.ids import EffectId, JobId
from tercio.model.job import (
    TERMINAL_JOB_STATES,
    Dependency,
    DependsWhen,
    EndCause,
    JobState,
)

NOTIFY_TIMEOUT_S: Final = 60.0
IDLE_PAUSE_S: Final = 600.0
IDLE_PAUSE_MAX_S: Final = 6 * 3600.0
PAST_KEPT: Final = 499
"""Attempts of one job of which the spans are kept."""


def end_attempt(state: State, job: Job) -> None:
    """All tasks have ended: requeue the job, or end it."""
    cause = job.stop_cause or EndCause.SUCCEEDED
    job.past = (*job.past[-PAST_KEPT:], attempt_span(state, job, cause))
    blame.note_end(state, job, cause)
    job.queued_since_s = state.now_s
    job.cause, job.stop_cause, job.stops_by_s = cause, None, None
    job.missing, job.grows_from_s = (), None
    job.last_nodes = tuple(dict.fromkeys([task.placement.node for task in job.tasks]))
    job.ended_s = state.now_s
    if job.started_s is not None and cause in RAN_THROUGH:
        run_s = state.now_s - job.started_s
        state.run_times.note(job.spec.time, run_s, job.predicted_s)
        state.lengths.note(kind_of(job), run_s)
    if cause is EndCause.SUCCEEDED:
        job.exit_code = 0
        finish(state, job, JobState.SUCCEEDED, was_active=True)
    elif cause is EndCause.CANCELLED:
        finish(state, job, JobState.CANCELLED, was_active=True)
    elif cause is EndCause.HUNG and _in_a_row(job, cause) > _hang_restarts(state):
        job.message = f"{job.message}; {_in_a_row(job, cause)} hangs in a row"
        finish(state, job, JobState.FAILED, was_active=True)
    elif may_retry(job.spec.retry, cause, job.retries):
        _requeue(state, job, cause)
    else:
        finish(state, job, JobState.FAILED, was_active=True)


def _in_a_row(job: Job, cause: EndCause) -> int:
    count = 0
    for span in reversed(job.past):
        if span.cause is not cause:
            break
        count += 1
    return count


def _hang_restarts(state: State) -> int:
    return int(state.health.settings.get("hang_restarts", HANG_RESTARTS))


def _requeue(state: State, job: Job, cause: EndCause) -> None:
    if cause in (EndCause.NODE_FAILED, EndCause.FAILED, EndCause.LAUNCH_FAILED):
        job.retries += 1
        job.not_before_s = state.now_s + backoff_s(job.spec.retry, job.retries)
        job.is_backing_off = True
    elif cause is EndCause.IDLE:
        # It would only be idle again: each time in a row it comes back later.
        again = _in_a_row(job, EndCause.IDLE)
        job.not_before_s = state.now_s + min(IDLE_PAUSE_S * 2.0 ** (again - 1), IDLE_PAUSE_MAX_S)
        job.is_backing_off = True
    job.started_s = None
    count_element(state, job, active=-1, requeued=1)
    notify(state, job, "preempted" if cause is EndCause.PREEMPTED else "requeued")
    state.move_job(job, JobState.HELD if job.is_held else JobState.QUEUED)
    job.waited = None
    state.refresh(job)


def finish(state: State, job: Job, end: JobState, *, was_active: bool = False) -> None:
    """End a job for good, tell who wants to know, and let its dependents go on."""
    _end(state, job, end, was_active=was_active)
    _release_dependents(state, job)


def _end(state: State, job: Job, end: JobState, *, was_active: bool) -> None:
    """End one job; its dependents are the caller's."""
    state.move_job(job, end)
    job.ended_s = state.now_s
    job.waited = None
    notify(state, job, end.value)
    if job.parent is not None:
        count_element(
            state,
            job,
            active=-1 if was_active else 0,
            requeued=0 if was_active else -1,
            succeeded=int(end is JobState.SUCCEEDED),
            failed=int(end is JobState.FAILED),
            cancelled=int(end is JobState.CANCELLED),
        )
    state.refresh(job)


def count_element(
    state: State,
    job: Job,
    *,
    active: int = 0,
    requeued: int = 0,
    succeeded: int = 0,
    failed: int = 0,
    cancelled: int = 0,
) -> None:
    """Count what became of an element in its array; end the array with its last element."""
    parent = state.jobs[job.parent] if job.parent is not None else None
    if parent is None or parent.array is None:
        return
    array = parent.array
    array.active += active
    array.requeued += requeued
    array.succeeded += succeeded
    array.failed += failed
    array.cancelled += cancelled
    end_array_if_done(state, parent)
    state.refresh(parent)


def end_array_if_done(state: State, parent: Job) -> None:
    """End an array none of whose elements waits or runs."""
    array = parent.array
    if array is None or array.pending or array.active or array.requeued:
        return
    if parent.state in TERMINAL_JOB_STATES:
        return
    if parent.cause is EndCause.CANCELLED:
        end = JobState.CANCELLED
    elif array.failed or array.cancelled:
        end, parent.cause = JobState.FAILED, EndCause.FAILED
        parent.message = f"{array.failed + array.cancelled} elements did not succeed"
    else:
        end, parent.cause = JobState.SUCCEEDED, EndCause.SUCCEEDED
    state.move_job(parent, end)
    parent.ended_s = state.now_s
    notify(state, parent, end.value)
    _release_dependents(state, parent)


def cancel_pending(job: Job) -> None:
    """Count the elements of an array that never started as cancelled."""
    if job.array is not None:
        waiting = (len(range(r.start, r.stop, r.step)) for r in job.array.pending)
        job.array.cancelled += sum(waiting)
        job.array.pending = ()


def unmet(state: State, dependencies: tuple[Dependency, ...]) -> tuple[list[JobId], list[JobId]]:
    """Return the jobs that have not ended yet, and those that ended the wrong way."""
    open_jobs: list[JobId] = []
    failed: list[JobId] = []
    for dependency in dependencies:
        other = state.jobs.get(dependency.job)
        if other is None:
            continue  # forgotten: it ended long ago, and submit checked that it was known
        if other.state not in TERMINAL_JOB_STATES:
            open_jobs.append(dependency.job)
        elif not _is_met(dependency.when, other.state):
            failed.append(dependency.job)
    return open_jobs, failed


def _is_met(when: DependsWhen, end: JobState) -> bool:
    if when is DependsWhen.ANY:
        return True
    return (end is JobState.SUCCEEDED) == (when is DependsWhen.OK)


def wait_for_open(state: State, job: Job) -> None:
    """Let a job that is put back wait for what has not ended; how the others ended is settled."""
    open_jobs, _ = unmet(state, job.spec.depends_on)
    job.blocked_on = tuple(open_jobs)
    for other_id in open_jobs:
        state.dependents.setdefault(other_id, {})[job.id] = None


def settle_dependencies(state: State, job: Job) -> None:
    """Note which jobs it still waits for; cancel it when one ended the wrong way."""
    if _is_stranded(state, job):
        _release_dependents(state, job)


def _is_stranded(state: State, job: Job) -> bool:
    """Note which jobs it waits for. Cancel it, and say so, when one ended the wrong way."""
    if not job.spec.depends_on:
        job.blocked_on = ()
        state.refresh(job)
        return False
    open_jobs, failed = unmet(state, job.spec.depends_on)
    job.blocked_on = tuple(open_jobs)
    if failed:
        other = state.jobs[failed[0]]
        job.cause = EndCause.DEPENDENCY
        job.message = f"depends on {other.id}, which {other.state.value}"
        cancel_pending(job)
        _end(state, job, JobState.CANCELLED, was_active=False)
        return True
    for other_id in open_jobs:
        state.dependents.setdefault(other_id, {})[job.id] = None
    state.refresh(job)
    return False


def _release_dependents(state: State, job: Job) -> None:
    """Let those that waited for a job's end go on, and those that waited for theirs.

    A loop, not a recursion: a chain of dependents may be as long as users make it.
    """
    ended = deque([job.id])
    while ended:
        for dependent_id in state.dependents.pop(ended.popleft(), {}):
            dependent = state.jobs.get(dependent_id)
            if dependent is None or dependent.state in TERMINAL_JOB_STATES:
                continue
            if _is_stranded(state, dependent):
                ended.append(dependent_id)


def notify(state: State, job: Job, what: str) -> None:
    """Order the webhooks that asked for this; `finished` stands for every end."""
    if not job.spec.notify:
        return
    is_end = what in {end.value for end in TERMINAL_JOB_STATES}
    names = {what, "finished"} if is_end else {what}
    for position, wanted in enumerate(job.spec.notify):
        if names.isdisjoint(wanted.on):
            continue
        state.issue(
            Notify(
                effect_id=EffectId(f"notify:{job.id}/{job.attempt}/{what}/{position}"),
                epoch=state.epoch,
                deadline_s=state.now_s + NOTIFY_TIMEOUT_S,
                url=wanted.url,
                body={
                    "schema": "tercio/v1",
                    "kind": "JobNotice",
                    "job": job.id,
                    "name": job.spec.name,
                    "event": what,
                    "state": job.state.value,
                    "reason": job.cause.value if job.cause else "",
                    "message": job.message,
                },
            )
        )
