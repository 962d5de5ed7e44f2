"""What a twin run came to: a record per job, the course of use and queue, and the sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

RecordState = Literal["waiting", "running", "succeeded", "failed", "cancelled", "never_fits"]


class JobRecord(msgspec.Struct, kw_only=True, gc=False):
    """One job of the trace in the twin.

    Attributes:
        id: as the trace names it.
        queue, user: where it waited and whose it was.
        devices: of the whole gang, a share counting as its part.
        submit_s, start_s, end_s: submit, first placement and final end; None where not reached.
        held_s: time during which it held devices, over all attempts.
        run_s: recorded run time.
        attempts, evictions: executions, and how many were stopped for others.
        lost_device_s: work done and lost again, times devices.
        node: first node of its last attempt.
        state: how it stands at the end of the run.
    """

    id: str
    queue: str
    user: str
    devices: float
    submit_s: float
    run_s: float
    start_s: float | None = None
    end_s: float | None = None
    held_s: float = 0.0
    attempts: int = 0
    evictions: int = 0
    lost_device_s: float = 0.0
    node: str = ""
    state: RecordState = "waiting"

    @property
    def jct_s(self) -> float | None:
        """From submit to end, or None while it has not ended."""
        return None if self.end_s is None else self.end_s - self.submit_s

    @property
    def wait_s(self) -> float | None:
        """All the time it waited, between attempts too, or None while it has not ended."""
        return None if self.end_s is None else self.end_s - self.submit_s - self.held_s


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in time: what held from each instant on. Arrays of equal length.

    Attributes:
        at_s: instants, rising.
        devices_used: devices held, thousandths counted.
        waiting: jobs that wait.
        devices_up: devices of nodes that answer.
    """

    at_s: npt.NDArray[np.float64]
    devices_used: npt.NDArray[np.float64]
    waiting: npt.NDArray[np.int64]
    devices_up: npt.NDArray[np.float64]

    def integral(self, values: npt.NDArray[np.float64], until_s: float) -> float:
        """Sum of value times time, from the first instant until one."""
        if not len(self.at_s):
            return 0.0
        ends = np.append(self.at_s[1:], max(until_s, float(self.at_s[-1])))
        return float((values * (np.minimum(ends, until_s) - np.minimum(self.at_s, until_s))).sum())


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a run. Means and percentiles are over jobs that ended.

    Attributes:
        jobs: jobs that ended.
        failed, cancelled: of them, those that ended so.
        unfinished, never_fit: the rest.
        mean_jct_s, p50_jct_s, ...: submit to end.
        mean_wait_s, ...: time without devices.
        makespan_s: first submit to last end.
        utilization_ratio: devices held over devices of the cluster, over the makespan.
        goodput_ratio: useful device time over held device time.
        lost_device_h: device hours of work lost to evictions and faults.
        down_device_h: device hours of nodes that did not answer.
        evictions, restarts: attempts stopped for others, and attempts beyond the first.
        events: journal entries.
        cycles: scheduling cycles.
    """

    jobs: int
    failed: int
    cancelled: int
    unfinished: int
    never_fit: int
    mean_jct_s: float
    p50_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    mean_wait_s: float
    p50_wait_s: float
    p95_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    makespan_s: float
    utilization_ratio: float
    goodput_ratio: float
    lost_device_h: float
    down_device_h: float
    evictions: int
    restarts: int
    events: int
    faults: int


class TwinResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `twin.run` returns.

    Attributes:
        policy: its name, or the file it came from.
        source: of the trace.
        nodes, devices: of the cluster.
        seed: of the run.
        jobs: in order of submit.
        course: use and queue in time.
        summary: the sums.
        state_hash: of the cluster at the end.
        warnings: what was guessed or left out.
    """

    policy: str
    source: str
    nodes: int
    devices: int
    seed: int
    jobs: tuple[JobRecord, ...]
    course: Course
    summary: Summary
    state_hash: str
    warnings: tuple[str, ...] = ()


def summarize(
    jobs: Sequence[JobRecord], course: Course, *, devices: int, events: int, faults: int
) -> Summary:
    """Add everything up."""
    ended = [job for job in jobs if job.end_s is not None]
    jcts = np.array([job.jct_s for job in ended], np.float64)
    waits = np.maximum(np.array([job.wait_s for job in ended], np.float64), 0.0)
    first_s = min((job.submit_s for job in jobs), default=0.0)
    last_s = max((job.end_s or 0.0 for job in ended), default=first_s)
    span_s = last_s - first_s
    used = course.integral(course.devices_used, last_s)
    down = course.integral(devices - course.devices_up, last_s)
    lost = sum(job.lost_device_s for job in jobs)
    held = sum(job.held_s * job.devices for job in ended)
    useful = sum(min(job.run_s, job.held_s) * job.devices for job in ended)
    return Summary(
        jobs=len(ended),
        failed=sum(job.state == "failed" for job in ended),
        cancelled=sum(job.state == "cancelled" for job in ended),
        unfinished=sum(job.end_s is None and job.state != "never_fits" for job in jobs),
        never_fit=sum(job.state == "never_fits" for job in jobs),
        mean_jct_s=_mean(jcts),
        p50_jct_s=percentile(jcts, 50),
        p95_jct_s=percentile(jcts, 95),
        p99_jct_s=percentile(jcts, 99),
        mean_wait_s=_mean(waits),
        p50_wait_s=percentile(waits, 50),
        p95_wait_s=percentile(waits, 95),
        p99_wait_s=percentile(waits, 99),
        max_wait_s=percentile(waits, 100),
        makespan_s=span_s,
        utilization_ratio=used / (devices * span_s) if devices and span_s > 0 else 0.0,
        goodput_ratio=useful / held if held else 0.0,
        lost_device_h=lost / 3600,
        down_device_h=down / 3600,
        evictions=sum(job.evictions for job in jobs),
        restarts=sum(max(job.attempts - 1, 0) for job in jobs),
        events=events,
        faults=faults,
    )


def _mean(values: npt.NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else 0.0


def percentile(values: npt.NDArray[np.float64], percent: float) -> float:
    """Nearest-rank percentile; 0 of nothing."""
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    rank = max(1, int(np.ceil(percent / 100 * len(ordered))))
    return float(ordered[rank - 1])
