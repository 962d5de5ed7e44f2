"""Several courses of what happens next, summed up by job: when it starts and when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from tercio.core.image import StateImage
from tercio.core.records import Job
from tercio.model.ids import JobId
from tercio.model.job import TaskGroup
from tercio.twin.ahead import Change, Course, is_waiting, play


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """An instant over the courses; None where it lies beyond what was looked at."""

    p10_s: float | None
    p50_s: float | None
    p90_s: float | None


class JobOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """What may become of one waiting job.

    Attributes:
        job, name, queue, user: whose it is.
        devices: it asks for at least; of an array, one element.
        elements: waiting elements of an array, or None.
        is_held: whether a person holds it.
        start, end: by arm.
    """

    job: JobId
    name: str
    queue: str
    user: str
    devices: float
    elements: int | None
    is_held: bool
    start: tuple[Band, ...]
    end: tuple[Band, ...]


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What happens next.

    Attributes:
        arms: names: as it is, and changed.
        now_s, until_s: seconds since the epoch.
        seeds: courses per arm.
        jobs: that wait, in order of submit.
        utilization_ratio: by arm, mean of the courses.
        started_ratio: part of the waiting jobs that start in that time, by arm, mean.
    """

    arms: tuple[str, ...]
    now_s: float
    until_s: float
    seeds: int
    jobs: tuple[JobOutlook, ...]
    utilization_ratio: tuple[float, ...]
    started_ratio: tuple[float, ...]


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """What is played forward.

    Attributes:
        image: of the server.
        changes: arms by name; equal seeds draw equal run times in all of them.
        now_s: when it was taken.
        until_s: how far to look.
        seeds: courses per arm.
        unknown_s: run time of jobs that say nothing of it; None: they do not end.
    """

    image: StateImage
    changes: Mapping[str, Change]
    now_s: float
    until_s: float
    seeds: int
    unknown_s: float | None = None

    def courses(self) -> list[tuple[str, int]]:
        """Return arm and seed of every course, in order."""
        return [(arm, seed) for arm in self.changes for seed in range(self.seeds)]


def play_one(ahead: Ahead, course: tuple[str, int]) -> Course:
    """Play one of the courses; they may be played in any order, or side by side."""
    arm, seed = course
    return play(
        ahead.image,
        now_s=ahead.now_s,
        until_s=ahead.until_s,
        seed=seed,
        change=ahead.changes[arm],
        unknown_s=ahead.unknown_s,
    )


def sum_up(ahead: Ahead, played: Sequence[Course]) -> Outlook:
    """Sum the courses up, which come in the order of `Ahead.courses`."""
    image, changes, seeds = ahead.image, ahead.changes, ahead.seeds
    courses = [played[at : at + seeds] for at in range(0, len(played), seeds)]
    waiting = [job for job in image.jobs if is_waiting(job)]
    rows = tuple(_row(job, courses) for job in waiting)
    many = max(len(waiting), 1)
    return Outlook(
        arms=tuple(changes),
        now_s=ahead.now_s,
        until_s=ahead.until_s,
        seeds=seeds,
        jobs=rows,
        utilization_ratio=tuple(_mean([c.utilization_ratio for c in arm]) for arm in courses),
        started_ratio=tuple(_mean([len(c.starts_s) / many for c in arm]) for arm in courses),
    )


def _row(job: Job, courses: Sequence[Sequence[Course]]) -> JobOutlook:
    array = job.array
    elements = None
    if array is not None:
        elements = sum(len(range(p.start, p.stop, p.step)) for p in array.pending)
    return JobOutlook(
        job=job.id,
        name=job.spec.name,
        queue=job.queue,
        user=job.user,
        devices=sum(_devices(group) for group in job.spec.groups),
        elements=elements,
        is_held=job.is_held,
        start=tuple(_band([c.starts_s.get(job.id) for c in arm]) for arm in courses),
        end=tuple(_band([c.ends_s.get(job.id) for c in arm]) for arm in courses),
    )


def _devices(group: TaskGroup) -> float:
    if group.subgroups:
        return sum(_devices(sub) for sub in group.subgroups)
    first = group.per_task.devices[0] if group.per_task.devices else None
    if first is None or first.is_none:
        return 0.0
    each = first.share_milli / 1000 if first.is_shared else float(first.count)
    return group.tasks * each


def _band(values: Sequence[float | None]) -> Band:
    """Nearest-rank quantiles; what did not happen counts as later than all."""
    known = sorted(math.inf if value is None else value for value in values)

    def at(ratio: float) -> float | None:
        value = known[max(math.ceil(ratio * len(known)) - 1, 0)]
        return value if math.isfinite(value) else None

    return Band(p10_s=at(0.1), p50_s=at(0.5), p90_s=at(0.9))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
