"""From a recorded job to a job of ours, and the choice of jobs by the columns of the trace."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.model.job import CheckpointSpec, Goodput, JobSpec, RetrySpec, TaskGroup, TimeSpec
from tercio.model.node import NodeSpec
from tercio.model.resources import NO_DEVICE, DeviceRequest, Request
from tercio.twin.trace import Trace, TraceJob

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "!=": operator.ne, ">=": operator.ge, "<=": operator.le,
    "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_SPECS_KEPT: Final = 4096
_FILTER: Final = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*", re.DOTALL)


def select(trace: Trace, filters: Iterable[str]) -> Trace:
    """Keep the jobs that pass every filter: `COLUMN=VALUE`, or with `!= > >= < <=`.

    Numbers are compared as numbers, everything else as text (so that ISO dates work).

    Raises:
        UserError: a filter cannot be read, or names a column the trace does not have.
    """
    jobs: tuple[TraceJob, ...] = trace.jobs
    for text in filters:
        parts = _FILTER.fullmatch(text)
        if parts is None:
            hint = "write COLUMN=VALUE, such as cluster=103959"
            raise UserError(f"filter {text!r} cannot be read", hint=hint, field="filter")
        column, sign, wanted = parts.groups()
        if jobs and all(column not in job.columns for job in jobs):
            known = list(dict.fromkeys(name for job in jobs[:100] for name in job.columns))
            hint = did_you_mean(column, known) or f"columns: {', '.join(known)}"
            raise UserError(f"{trace.source} has no column {column!r}", hint=hint, field="filter")
        jobs = tuple(job for job in jobs if _passes(job.columns.get(column), sign, wanted))
    return msgspec.structs.replace(trace, jobs=jobs)


def _passes(have: str | None, sign: str, wanted: str) -> bool:
    if have is None:
        return sign == "!="
    compare = _COMPARE[sign]
    try:
        return compare(float(have), float(wanted))
    except ValueError:
        return compare(have, wanted)


def whole(job: TraceJob) -> TraceJob:
    """Return a job that shares devices as one that has them whole."""
    return msgspec.structs.replace(job, devices_per_task=1, share_milli=0, share_memory_bytes=0)


class Recipes:
    """Makes job specs; jobs that ask for the same share what they ask with.

    On nodes of one device type a job that names none is given that type, so that all jobs
    stand in one pool.
    """

    def __init__(self, nodes: Iterable[NodeSpec]) -> None:
        types = dict.fromkeys(device.type for node in nodes for device in node.devices)
        self._type = next(iter(types)) if len(types) == 1 else None
        self._groups: dict[tuple[object, ...], tuple[TaskGroup, ...]] = {}
        self._specs: dict[tuple[object, ...], JobSpec] = {}
        self._checkpoint = CheckpointSpec(grace_s=30.0)
        self._saving = CheckpointSpec(path="checkpoints", grace_s=30.0)
        self._retry = RetrySpec(max=1000, backoff_s=0.0)

    def spec(
        self, job: TraceJob, *, limit_s: float | None, expected_s: float | None, priority: int
    ) -> JobSpec:
        """The job as it would be submitted."""
        asked = _asked(job)
        key = (asked, limit_s, expected_s, priority)
        found = self._specs.get(key)
        if found is None:
            if len(self._specs) >= _SPECS_KEPT:
                self._specs.clear()
            found = self._specs[key] = JobSpec(
                name="trace",
                priority=priority,
                groups=self._group(job, asked),
                time=TimeSpec(limit_s=limit_s, expected_s=expected_s),
                checkpoint=self._checkpoint,
                retry=self._retry,
            )
        return found

    def elastic(self, plain: JobSpec, profile: tuple[Goodput, ...]) -> JobSpec:
        """The same job as one that saves its work and runs at any size of its profile."""
        sizes = [size for row in profile for size in row.tasks]
        least, most = min(sizes), max(sizes)
        devices = tuple(DeviceRequest(type=row.type, count=1) for row in profile)
        per_task = msgspec.structs.replace(plain.groups[0].per_task, devices=devices)
        group = TaskGroup(tasks=least, tasks_max=most if most > least else None, per_task=per_task)
        return msgspec.structs.replace(
            plain, groups=(group,), checkpoint=self._saving, goodput=profile
        )

    def _group(self, job: TraceJob, asked: tuple[object, ...]) -> tuple[TaskGroup, ...]:
        cpus, memory = job.cpus_per_task, job.memory_bytes_per_task
        share, part_bytes = job.share_milli, job.share_memory_bytes
        found = self._groups.get(asked)
        if found is None:
            device, type_name = NO_DEVICE, job.device_type or self._type
            if part_bytes:
                device = DeviceRequest(type=type_name, share_memory_bytes=part_bytes)
            elif share:
                device = DeviceRequest(type=type_name, share_milli=share)
            elif job.devices_per_task:
                device = DeviceRequest(type=type_name, count=job.devices_per_task)
            request = Request(
                devices=(device,),
                cpus_milli=None if cpus is None else round(cpus * 1000),
                memory_bytes=memory,
            )
            group = TaskGroup(tasks=job.tasks, per_task=request, topology=job.topology)
            found = self._groups[asked] = (group,)
        return found


def _asked(job: TraceJob) -> tuple[object, ...]:
    """What a job asks for, of all that its task group says."""
    return (
        job.tasks, job.devices_per_task, job.share_milli, job.share_memory_bytes,
        job.device_type, job.cpus_per_task, job.memory_bytes_per_task, job.topology,
    )  # fmt: skip
