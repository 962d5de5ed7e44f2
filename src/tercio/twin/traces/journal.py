"""Reads our own journal: what was submitted, and how long each last attempt really ran.

A job that never started, or runs still, says nothing of its run time and is left out and
counted. Elements of an array are jobs of their own, as they are scheduled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tercio.model.events import (
    AnyEvent,
    JobCancelRequested,
    JobEvicted,
    JobPlaced,
    JobSubmitted,
    TaskExited,
    TaskStarted,
    TimeLimitReached,
)
from tercio.model.job import TaskGroup
from tercio.twin.trace import JobEnd, Trace, TraceJob
from tercio.twin.traces.reading import finish
from tercio.twin.traces.source import Source, Tally

_ELEMENT: Final = "."


class _Life:
    """What the journal has told of one job or element so far."""

    __slots__ = (
        "attempts", "ended_s", "exits", "is_cancelled", "is_evicted", "is_limited", "share_milli",
        "started_s", "tasks",
    )  # fmt: skip

    def __init__(self) -> None:
        self.attempts = 0
        self.tasks = self.share_milli = 0
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.exits: list[int | None] = []
        self.is_cancelled = False
        self.is_evicted = False
        self.is_limited = False

    def begin(self, placed: JobPlaced) -> None:
        self.attempts += 1
        self.tasks = len(placed.tasks)
        held = placed.tasks[0].devices
        self.share_milli = held[0].milli if held else 0
        self.started_s = self.ended_s = None
        self.exits = []
        self.is_evicted = False


def read_journal(events: Iterable[AnyEvent], source: str) -> Trace:
    """Return the jobs of a journal, in order of submission.

    Raises:
        UserError: no job of the journal has run.
    """
    submitted: dict[str, JobSubmitted] = {}
    lives: dict[str, _Life] = {}
    for event in events:
        match event:
            case JobSubmitted():
                submitted[event.job_id] = event
            case JobPlaced():
                lives.setdefault(event.job_id, _Life()).begin(event)
            case TaskStarted() if (life := lives.get(event.job_id)) is not None:
                life.started_s = event.at_s if life.started_s is None else life.started_s
            case TaskExited() if (life := lives.get(event.job_id)) is not None:
                life.ended_s = event.at_s
                life.exits.append(event.exit_code)
            case JobEvicted() if (life := lives.get(event.job_id)) is not None:
                life.is_evicted = life.is_evicted or not event.tasks
            case TimeLimitReached() if (life := lives.get(event.job_id)) is not None:
                life.is_limited = True
            case JobCancelRequested():
                for known, life in lives.items():
                    if known == event.job_id or known.startswith(event.job_id + _ELEMENT):
                        life.is_cancelled = life.is_cancelled or life.ended_s is None
            case _:
                pass
    return _trace(submitted, lives, source)


def _trace(submitted: dict[str, JobSubmitted], lives: dict[str, _Life], source: str) -> Trace:
    tally = Tally()
    jobs: list[TraceJob] = []
    placed = dict.fromkeys(known.partition(_ELEMENT)[0] for known in lives)
    for job_id in submitted:
        if job_id not in placed:
            tally.drop("never started, so how long it would have run is not known")
    for job_id, life in lives.items():
        event = submitted.get(job_id) or submitted.get(job_id.partition(_ELEMENT)[0])
        if event is None:
            tally.drop("submitted before the journal begins")
        elif life.ended_s is None or life.started_s is None or len(life.exits) < life.tasks:
            tally.drop("still running, or waiting to run again, at the end of the journal")
        else:
            if life.attempts > 1:
                tally.note("ran more than once; the last attempt is replayed")
            jobs.append(_job(job_id, event, life, life.ended_s - life.started_s, tally))
    return finish(jobs, tally, [Source(name=source, text="")], kind="journal")


def _job(job_id: str, event: JobSubmitted, life: _Life, run_s: float, tally: Tally) -> TraceJob:
    group = _leaf(event.spec.groups[0])
    if len(event.spec.groups) > 1 or event.spec.groups[0].subgroups:
        tally.note("several groups of tasks; all are replayed in the shape of the first")
    request = group.per_task
    devices = request.devices[0]
    is_shared = bool(devices.share_milli or devices.share_memory_bytes)
    return TraceJob(
        id=job_id,
        submit_s=event.at_s,
        run_s=max(run_s, 0.0),
        tasks=max(life.tasks, 1),
        devices_per_task=0 if is_shared else devices.count,
        share_milli=life.share_milli if is_shared else 0,
        share_memory_bytes=devices.share_memory_bytes,
        device_type=devices.type if len(request.devices) == 1 else None,
        cpus_per_task=None if request.cpus_milli is None else request.cpus_milli / 1000,
        memory_bytes_per_task=request.memory_bytes,
        limit_s=event.spec.time.limit_s,
        user=event.user,
        queue=event.queue,
        priority=event.spec.priority,
        columns={
            "job": job_id,
            "name": event.spec.name,
            "queue": event.queue,
            "user": event.user,
            "tenant": event.tenant,
            "attempts": str(life.attempts),
            **event.spec.labels,
        },
        end=_end(life),
    )


def _leaf(group: TaskGroup) -> TaskGroup:
    return _leaf(group.subgroups[0]) if group.subgroups else group


def _end(life: _Life) -> JobEnd:
    if life.is_cancelled:
        return "cancelled"
    if life.is_limited:
        return "failed"
    if all(code == 0 for code in life.exits):
        return "ok"
    return "cancelled" if life.is_evicted else "failed"
