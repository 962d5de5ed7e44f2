"""A workload model: learnt from a trace, it draws other workloads of any load and length.

Arrivals are a Poisson process whose rate is that of the hour of the week, times a gamma factor
of each hour that makes counts as uneven as recorded (a negative binomial count; Cameron and
Trivedi, Regression Analysis of Count Data, 2013, section 3.3). What arrives is drawn from the
recorded kinds of job: its queue and shape, then its user, run time and end as recorded for that
kind. What the model does not keep: arrays that arrive at one instant, dependencies, and that a
user repeats a job.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from tercio.errors import UserError, did_you_mean
from tercio.twin.rng import Stream
from tercio.twin.trace import JobEnd, Trace, TraceJob

HOUR_S: Final = 3600.0
WEEK_HOURS: Final = 168
QUANTILES: Final = 21
JOBS_MAX: Final = 5_000_000


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs alike in queue and shape.

    Attributes:
        queue, tasks, devices_per_task, share_milli, share_memory_bytes, device_type,
            cpus_per_task, memory_bytes_per_task: as in a trace.
        jobs: how many were recorded.
        run_s: quantiles of the run time, from the least to the largest, evenly spaced.
        limit_ratio: median of declared limit over run time, or None where most declare none.
        users: who submitted them, and how many.
        failed_ratio, cancelled_ratio: parts that ended so.
        priority: the most frequent one.
    """

    queue: str
    tasks: int
    devices_per_task: int
    share_milli: int = 0
    share_memory_bytes: int = 0
    device_type: str | None = None
    cpus_per_task: float | None = None
    memory_bytes_per_task: int | None = None
    jobs: int
    run_s: tuple[float, ...]
    limit_ratio: float | None = None
    users: dict[str, int]
    failed_ratio: float = 0.0
    cancelled_ratio: float = 0.0
    priority: int = 0

    @property
    def devices(self) -> float:
        """Devices of the whole gang, a share counting as its part."""
        return self.tasks * (self.devices_per_task or self.share_milli / 1000)


class WorkloadModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `fit` learns. JSON with `"kind": "WorkloadModel"`.

    Attributes:
        source: of the trace.
        start_s, span_s: first submit, and from there to the last.
        arrivals_per_h: by hour of the week from `start_s` on; a shorter trace repeats.
        unevenness: variance of the factor of an hour; 0 is a plain Poisson process.
        kinds: most frequent first.
    """

    schema: Literal["tercio/v1"] = "tercio/v1"
    kind: Literal["WorkloadModel"] = "WorkloadModel"
    source: str
    start_s: float
    span_s: float
    arrivals_per_h: tuple[float, ...]
    unevenness: float
    kinds: tuple[Kind, ...]

    @property
    def jobs(self) -> int:
        """Jobs it was learnt from."""
        return sum(kind.jobs for kind in self.kinds)


def fit(trace: Trace) -> WorkloadModel:
    """Learn a model of a trace. O(jobs).

    Raises:
        UserError: there are fewer than two instants of submission.
    """
    start_s = trace.jobs[0].submit_s
    span_s = trace.jobs[-1].submit_s - start_s
    if span_s <= 0:
        raise UserError(
            f"{trace.source}: all jobs were submitted at one instant", field="trace",
            hint="a workload model needs a log of some days",
        )  # fmt: skip
    rates, unevenness = _arrivals([job.submit_s - start_s for job in trace.jobs], span_s)
    groups: dict[tuple[object, ...], list[TraceJob]] = {}
    for job in trace.jobs:
        shape = (
            job.queue, job.tasks, job.devices_per_task, job.device_type or "", job.share_milli,
            job.share_memory_bytes,
            job.cpus_per_task, job.memory_bytes_per_task,
        )  # fmt: skip
        groups.setdefault(shape, []).append(job)
    kinds = sorted((_kind(jobs) for jobs in groups.values()), key=lambda kind: -kind.jobs)
    return WorkloadModel(
        source=trace.source,
        start_s=start_s,
        span_s=span_s,
        arrivals_per_h=rates,
        unevenness=unevenness,
        kinds=tuple(kinds),
    )


def _arrivals(offsets_s: Sequence[float], span_s: float) -> tuple[tuple[float, ...], float]:
    """Return the rate by hour of the week, and how much more counts vary than a Poisson's."""
    hours = math.ceil(span_s / HOUR_S) or 1
    counts = np.bincount([min(int(at / HOUR_S), hours - 1) for at in offsets_s], minlength=hours)
    slots = min(hours, WEEK_HOURS)
    # The last hour is recorded in part only.
    lengths = np.ones(hours)
    lengths[-1] = max(span_s / HOUR_S - (hours - 1), 1e-3)
    rates = np.array(
        [counts[slot::WEEK_HOURS].sum() / lengths[slot::WEEK_HOURS].sum() for slot in range(slots)]
    )
    expected = rates[np.arange(hours) % WEEK_HOURS] * lengths
    weeks = hours / WEEK_HOURS
    square = float((expected**2).sum())
    if square <= 0 or weeks < 2:
        return tuple(float(rate) for rate in rates), 0.0
    # The mean of w weeks takes part of the variance with it.
    excess = float(((counts - expected) ** 2).sum()) * weeks / (weeks - 1) - float(expected.sum())
    return tuple(float(rate) for rate in rates), min(max(excess / square, 0.0), 25.0)


def _kind(jobs: Sequence[TraceJob]) -> Kind:
    first = jobs[0]
    runs = np.sort([job.run_s for job in jobs])
    ratios = [job.limit_s / job.run_s for job in jobs if job.limit_s and job.run_s > 0]
    users: dict[str, int] = {}
    priorities: dict[int, int] = {}
    for job in jobs:
        users[job.user] = users.get(job.user, 0) + 1
        priorities[job.priority] = priorities.get(job.priority, 0) + 1
    return Kind(
        queue=first.queue,
        tasks=first.tasks,
        devices_per_task=first.devices_per_task,
        share_milli=first.share_milli,
        share_memory_bytes=first.share_memory_bytes,
        device_type=first.device_type,
        cpus_per_task=first.cpus_per_task,
        memory_bytes_per_task=first.memory_bytes_per_task,
        jobs=len(jobs),
        run_s=tuple(float(value) for value in np.quantile(runs, np.linspace(0, 1, QUANTILES))),
        limit_ratio=float(np.median(ratios)) if len(ratios) * 2 > len(jobs) else None,
        users=users,
        failed_ratio=sum(job.end == "failed" for job in jobs) / len(jobs),
        cancelled_ratio=sum(job.end == "cancelled" for job in jobs) / len(jobs),
        priority=max(priorities, key=lambda value: (priorities[value], -value)),
    )


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """A team to come: jobs like those of a queue, so many times as many."""

    name: str
    like: str
    load: float = 1.0


def parse_team(text: str) -> Team:
    """Read `NAME=QUEUE` or `NAME=QUEUE:0.5`.

    Raises:
        UserError: the text has another form.
    """
    name, sign, rest = text.partition("=")
    like, _, load = rest.partition(":")
    try:
        times = float(load) if load else 1.0
    except ValueError:
        times = -1.0
    if not (sign and name.strip() and 0 < times <= 1000):
        raise UserError(
            f"--team {text!r} is not a team", field="team",
            hint="write NAME=QUEUE:TIMES, such as vision2=vision:0.5",
        )  # fmt: skip
    return Team(name=name.strip(), like=like.strip(), load=times)


def draw(
    model: WorkloadModel,
    *,
    seed: int,
    load: float = 1.0,
    span_s: float | None = None,
    teams: Sequence[Team] = (),
) -> Trace:
    """Draw a workload.

    Args:
        model: what to draw from.
        seed: equal seeds draw equal workloads.
        load: times as many jobs as recorded.
        span_s: length; None for that of the trace.
        teams: more jobs, in queues of their own.

    Raises:
        UserError: a team is like a queue that is not there, or far too many jobs come out.
    """
    span_s = model.span_s if span_s is None else span_s
    total = model.jobs
    expected = sum(model.arrivals_per_h) / len(model.arrivals_per_h) * span_s / HOUR_S * load
    if expected > JOBS_MAX:
        raise UserError(
            f"that is about {expected:,.0f} jobs", field="load", hint="take less load or time"
        )
    jobs = _draw(model, model.kinds, Stream(seed, "arrivals"), load=load, span_s=span_s)
    for team in teams:
        kinds = [kind for kind in model.kinds if kind.queue == team.like]
        if not kinds:
            known = dict.fromkeys(kind.queue for kind in model.kinds)
            raise UserError(
                f"--team {team.name}: no queue is called {team.like!r}", field="team",
                hint=did_you_mean(team.like, known) or f"queues: {', '.join(known)}",
            )  # fmt: skip
        named = [msgspec.structs.replace(kind, queue=team.name) for kind in kinds]
        part = load * team.load * sum(kind.jobs for kind in kinds) / total
        stream = Stream(seed, f"team/{team.name}")
        jobs += _draw(model, named, stream, load=part, span_s=span_s, prefix=f"{team.name}-")
    if not jobs:
        raise UserError("no job comes out of so little load and time", field="load")
    jobs.sort(key=lambda job: job.submit_s)
    return Trace(jobs=tuple(jobs), source=f"model of {model.source}", kind="model")


def _draw(
    model: WorkloadModel,
    kinds: Sequence[Kind],
    stream: Stream,
    *,
    load: float,
    span_s: float,
    prefix: str = "",
) -> list[TraceJob]:
    generator = np.random.Generator(np.random.PCG64(stream.bits()))
    sums = _sums(kind.jobs for kind in kinds)
    users = [(list(kind.users), _sums(kind.users.values())) for kind in kinds]
    jobs: list[TraceJob] = []
    for hour in range(math.ceil(span_s / HOUR_S)):
        rate = model.arrivals_per_h[hour % len(model.arrivals_per_h)] * load
        if model.unevenness > 0:
            rate *= generator.gamma(1 / model.unevenness, model.unevenness)
        length_s = min(HOUR_S, span_s - hour * HOUR_S)
        count = int(generator.poisson(rate * length_s / HOUR_S))
        offsets = np.sort(generator.random(count)) * length_s + hour * HOUR_S
        for offset_s in offsets:
            at = bisect.bisect_right(sums, generator.random() * sums[-1])
            names, weights = users[at]
            user = names[bisect.bisect_right(weights, generator.random() * weights[-1])]
            name = f"{prefix}{len(jobs) + 1}"
            submit_s = model.start_s + float(offset_s)
            jobs.append(_job(kinds[at], name, submit_s, user, generator))
    return jobs


def _job(
    kind: Kind, name: str, submit_s: float, user: str, generator: np.random.Generator
) -> TraceJob:
    place = generator.random() * (len(kind.run_s) - 1)
    low = int(place)
    run_s = kind.run_s[low] + (place - low) * (kind.run_s[low + 1] - kind.run_s[low])
    chance = generator.random()
    end: JobEnd = "ok"
    if chance < kind.failed_ratio:
        end = "failed"
    elif chance < kind.failed_ratio + kind.cancelled_ratio:
        end = "cancelled"
    return TraceJob(
        id=name,
        submit_s=submit_s,
        run_s=float(run_s),
        tasks=kind.tasks,
        devices_per_task=kind.devices_per_task,
        share_milli=kind.share_milli,
        share_memory_bytes=kind.share_memory_bytes,
        device_type=kind.device_type,
        cpus_per_task=kind.cpus_per_task,
        memory_bytes_per_task=kind.memory_bytes_per_task,
        limit_s=None if kind.limit_ratio is None else float(run_s) * kind.limit_ratio,
        user=user,
        queue=kind.queue,
        priority=kind.priority,
        columns={"queue": kind.queue, "user": user},
        end=end,
    )


def _sums(counts: Iterable[int]) -> list[int]:
    return [int(total) for total in np.cumsum(list(counts))]


def read_model(text: str, source: str) -> WorkloadModel:
    """Read the JSON of a model.

    Raises:
        UserError: it is none, naming the field.
    """
    try:
        model = msgspec.json.decode(text, type=WorkloadModel)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{source}: not a workload model: {error}", field="model",
            hint="make one with 'tercio twin fit TRACE'",
        ) from None  # fmt: skip
    is_good = model.arrivals_per_h and model.kinds and 0 <= model.unevenness <= 25
    finite = [*model.arrivals_per_h, model.span_s, *(t for kind in model.kinds for t in kind.run_s)]
    if (
        not is_good
        or not all(0 <= value < 1e12 for value in finite)
        or sum(model.arrivals_per_h) <= 0
    ):
        raise UserError(f"{source}: a workload model without arrivals or kinds", field="model")
    if any(len(kind.run_s) < 2 or kind.jobs < 1 or not kind.users for kind in model.kinds):
        raise UserError(f"{source}: a kind of job without run times or users", field="model")
    return model
