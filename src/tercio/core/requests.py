"""What people asked for, once accepted: submit, hold, release, cancel, requeue, forget."""

from __future__ import annotations

import msgspec

from tercio.core import attempts, endings
from tercio.core.records import ArrayProgress, Job, Told
from tercio.core.state import State
from tercio.model.events import (
    JobCancelRequested,
    JobHeld,
    JobReleased,
    JobRequeueRequested,
    JobsForgotten,
    JobSubmitted,
    JobWaited,
)
from tercio.model.ids import array_parent
from tercio.model.job import ACTIVE_JOB_STATES, TERMINAL_JOB_STATES, EndCause, JobState


def submitted(state: State, event: JobSubmitted) -> None:
    """Take a job in."""
    state.jobs_submitted += 1
    spec = event.spec
    job = Job(
        id=event.job_id,
        spec=spec,
        queue=event.queue,
        user=event.user,
        tenant=event.tenant,
        submitted_s=event.at_s,
        sequence=state.jobs_submitted,
        state=JobState.HELD if event.is_held else JobState.QUEUED,
        is_held=event.is_held,
        submit_key=event.submit_key,
    )
    if spec.array is not None:
        element = msgspec.structs.replace(spec, array=None, depends_on=(), notify=())
        job.array = ArrayProgress(pending=spec.array.ranges, element=element)
    state.predict(job)
    state.jobs[job.id] = job
    if event.submit_key is not None:
        state.submit_keys[event.tenant, event.user, event.submit_key] = job.id
    state.mix.note(spec)
    endings.settle_dependencies(state, job)


def held(state: State, event: JobHeld) -> None:
    """Keep a job, and the waiting elements of an array, from starting."""
    job = state.jobs[event.job_id]
    job.is_held = True
    job.told = None  # what it was told did not know of the hold
    if job.state is JobState.QUEUED:
        state.move_job(job, JobState.HELD)
    _refresh_waiting(state, job)


def released(state: State, event: JobReleased) -> None:
    """Let a held job start again."""
    job = state.jobs[event.job_id]
    job.is_held = False
    if job.state is JobState.HELD:
        state.move_job(job, JobState.QUEUED)
    _refresh_waiting(state, job)


def _refresh_waiting(state: State, job: Job) -> None:
    """Show the scheduler a job, and the elements of an array that wait again."""
    state.refresh(job)
    if job.array is not None and job.array.requeued:
        for element in [state.jobs[name] for name in state.waiting if array_parent(name) == job.id]:
            state.refresh(element)


def cancelled(state: State, event: JobCancelRequested) -> None:
    """Stop a job for good; an array with all its elements."""
    job = state.jobs.get(event.job_id)
    if job is None:
        job = attempts.take_element(state, event.job_id)
        # It waits with a record of its own, as one that is put back does, until it is ended below.
        endings.count_element(state, job, requeued=1)
    message = f"cancelled by {event.by}" + (f": {event.reason}" if event.reason else "")
    if job.array is not None:
        job.cause, job.message = EndCause.CANCELLED, message
        endings.cancel_pending(job)
        for element in elements_of(state, job):
            _cancel(state, element, message)
        endings.end_array_if_done(state, job)
        state.refresh(job)
    else:
        _cancel(state, job, message)


def _cancel(state: State, job: Job, message: str) -> None:
    if job.state in ACTIVE_JOB_STATES:
        attempts.stop(state, job, EndCause.CANCELLED, message)
    elif job.state not in TERMINAL_JOB_STATES:
        job.cause, job.message = EndCause.CANCELLED, message
        endings.finish(state, job, JobState.CANCELLED)


def elements_of(state: State, parent: Job) -> list[Job]:
    """Return the started elements of an array, in order of index."""
    if parent.spec.array is None:
        return []
    found = []
    for part in parent.spec.array.ranges:
        for index in range(part.start, part.stop, part.step):
            element = state.jobs.get(type(parent.id)(f"{parent.id}.{index}"))
            if element is not None:
                found.append(element)
    return found


def requeued(state: State, event: JobRequeueRequested) -> None:
    """Stop an active job and run it again; run a finished one again."""
    job = state.jobs[event.job_id]
    if job.state in ACTIVE_JOB_STATES:
        attempts.stop(state, job, EndCause.REQUEUED, f"requeued by {event.by}")
        return
    if job.parent is not None:
        endings.count_element(
            state,
            job,
            requeued=1,
            succeeded=-int(job.state is JobState.SUCCEEDED),
            failed=-int(job.state is JobState.FAILED),
            cancelled=-int(job.state is JobState.CANCELLED),
        )
    job.retries, job.not_before_s, job.is_backing_off = 0, None, False
    job.message, job.ended_s, job.is_held = "", None, False
    endings.wait_for_open(state, job)
    state.move_job(job, JobState.QUEUED)
    state.refresh(job)


def waited(state: State, event: JobWaited) -> None:
    """Remember the reason last told in the job's story."""
    job = state.jobs.get(event.job_id)
    if job is not None:
        job.waited, job.waited_message, job.waited_s = event.reason, event.message, event.at_s
        if event.start is not None:
            job.told = Told(at_s=event.at_s, start=event.start)


def forgotten(state: State, event: JobsForgotten) -> None:
    """Drop finished jobs whose retention is over."""
    for job_id in event.job_ids:
        job = state.jobs.pop(job_id, None)
        if job is not None and job.submit_key is not None:
            state.submit_keys.pop((job.tenant, job.user, job.submit_key), None)
