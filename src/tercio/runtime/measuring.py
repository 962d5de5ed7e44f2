"""Measures what running jobs need at a power limit: steps by marks, energy by counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tercio.core.cluster import Cluster
from tercio.core.curves import class_of
from tercio.core.powering import Seen
from tercio.core.records import Job
from tercio.model.events import LimitMeasured
from tercio.model.ids import JobId, NodeName
from tercio.model.power import CapCurvePoint
from tercio.model.readings import DeviceTelemetry

WARM_STEPS: Final = 10
MEASURED_STEPS: Final = 40
"""Steps before a measurement, and of it (Zeus, NSDI'23)."""

Steps = Callable[[JobId, int], tuple[int, float] | None]
"""Steps of an attempt so far and the time of the last, None before the first."""


class _Window(NamedTuple):
    """Where a measurement began: limit, steps, time, energy; it warms up before `from_step`."""

    limit_w: int
    from_step: int
    start: tuple[int, float, int] | None = None


class Measuring:
    """Remembers the measurement under way of each attempt."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._windows: dict[tuple[JobId, int], _Window] = {}

    def bounds_w(
        self, cluster: Cluster, seen: Mapping[NodeName, Seen], *, floor_ratio: float
    ) -> dict[JobId, tuple[int, int]]:
        """Return the floor and default limit of the devices of each job that marks its steps."""
        found = {}
        for job_id in cluster.snapshot().running:
            job = cluster.jobs[job_id]
            if self._steps(job_id, job.attempt) is None:
                continue
            devices = _devices(job, seen)
            ranges = [device.power_range for device in devices]
            if ranges and all(ranges):
                least = max(r.min_w for r in ranges if r)
                default = min(r.default_w for r in ranges if r)
                found[job_id] = (max(least, round(floor_ratio * default)), default)
        return found

    def look(
        self,
        cluster: Cluster,
        seen: Mapping[NodeName, Seen],
        wanted_w: Mapping[JobId, int],
        now_s: float,
    ) -> list[LimitMeasured]:
        """Return what was measured: for jobs whose devices have all had the wanted limit."""
        keys = {(job_id, cluster.jobs[job_id].attempt): job_id for job_id in wanted_w}
        self._windows = {key: each for key, each in self._windows.items() if key in keys}
        found = []
        for key, job_id in keys.items():
            event = self._measure(cluster, cluster.jobs[job_id], seen, wanted_w[job_id], now_s)
            if event is not None:
                del self._windows[key]
                found.append(event)
        return found

    def _measure(
        self,
        cluster: Cluster,
        job: Job,
        seen: Mapping[NodeName, Seen],
        limit_w: int,
        now_s: float,
    ) -> LimitMeasured | None:
        key, devices = (job.id, job.attempt), _devices(job, seen)
        job_class = class_of(cluster, job)
        known = cluster.health.curves.get(job_class or "", ())
        if job_class is None or any(point.limit_w == limit_w for point in known):
            return None
        told, energy_mj = self._steps(*key), _energy_mj(devices)
        in_force = {round(d.power_limit_w) if d.power_limit_w else None for d in devices}
        if told is None or energy_mj is None or in_force != {limit_w}:
            self._windows.pop(key, None)
            return None
        window = self._windows.get(key)
        if window is None or window.limit_w != limit_w:
            self._windows[key] = _Window(limit_w, told[0] + WARM_STEPS)
            return None
        if window.start is None:
            if told[0] >= window.from_step:
                self._windows[key] = window._replace(start=(told[0], told[1], energy_mj))
            return None
        steps = told[0] - window.start[0]
        if steps < MEASURED_STEPS:
            return None
        joules = (energy_mj - window.start[2]) / 1000
        return LimitMeasured(
            at_s=now_s,
            job_id=job.id,
            job_class=job_class,
            point=CapCurvePoint(
                limit_w=limit_w,
                step_s=(told[1] - window.start[1]) / steps,
                step_energy_j=joules / steps / len(devices),
            ),
        )


def _devices(job: Job, seen: Mapping[NodeName, Seen]) -> Sequence[DeviceTelemetry]:
    """Return what all devices of a job say; nothing where one of them says nothing."""
    found = []
    for task in job.live_tasks:
        node = seen.get(task.placement.node)
        for share in task.placement.devices:
            told = None if node is None else node.devices.get(share.index)
            if told is None:
                return ()
            found.append(told)
    return found


def _energy_mj(devices: Sequence[DeviceTelemetry]) -> int | None:
    counters = [device.energy_mj for device in devices]
    if not counters or any(counter is None for counter in counters):
        return None
    return sum(counter or 0 for counter in counters)
