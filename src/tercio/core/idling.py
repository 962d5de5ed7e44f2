"""Jobs whose devices stay idle: warned, then stopped with time to save, and queued again."""

from __future__ import annotations

from tercio.core import attempts, signals
from tercio.core.records import Idle, Job
from tercio.core.state import State
from tercio.model.effects import Notify
from tercio.model.events import JobIdled
from tercio.model.ids import EffectId
from tercio.model.job import EndCause
from tercio.model.units import format_duration

NOTICE_TIMEOUT_S = 60.0


def idled(state: State, event: JobIdled) -> None:
    """Warn the user of an idle job, or stop it."""
    job = state.jobs.get(event.job_id)
    if job is None or not is_news(job, event):
        return
    if event.is_over:
        job.idle = None
        return
    text = words(event)
    if event.is_reclaimed:
        _notify(state, job, "reclaimed", text)
        attempts.stop(state, job, EndCause.IDLE, text)
        return
    job.idle = Idle(since_s=event.since_s, stop_s=event.stop_s)
    _notify(state, job, "idle", text)
    signals.note(state, job, text)


def is_news(job: Job | None, event: JobIdled) -> bool:
    """Whether an event says something of a running attempt that is not known."""
    if job is None or job.attempt != event.attempt or job.stop_cause is not None:
        return False
    if event.is_over or event.is_reclaimed:
        return job.idle is not None
    return job.idle is None or (job.idle.stop_s is None and event.stop_s is not None)


def words(event: JobIdled) -> str:
    """Say it in one line, for the story, the log of the job and the webhook."""
    if event.is_over:
        return f"the GPUs of attempt {event.attempt} work again"
    idle = f"all GPUs were idle for {format_duration(max(event.at_s - event.since_s, 0.0))}"
    if event.is_reclaimed:
        return f"{idle}: stopped to give them back, and queued again"
    if event.stop_s is None:
        return f"{idle}: give them back if they are not needed"
    left = format_duration(max(event.stop_s - event.at_s, 0.0))
    return f"{idle}: it is stopped and queued again in {left} unless they work"


def _notify(state: State, job: Job, what: str, text: str) -> None:
    url = state.health.settings.get("webhook")
    if not url:
        return
    state.issue(
        Notify(
            effect_id=EffectId(f"notify:{job.id}/{job.attempt}/{what}/{int(state.now_s)}"),
            epoch=state.epoch,
            deadline_s=state.now_s + NOTICE_TIMEOUT_S,
            url=str(url),
            body={
                "schema": "tercio/v1",
                "kind": "JobNotice",
                "job": job.id,
                "name": job.spec.name,
                "user": job.user,
                "event": what,
                "state": job.state.value,
                "message": text,
            },
        )
    )
