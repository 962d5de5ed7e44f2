"""A waiting job as it would be with a few things changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.records import is_preemptible
from tercio.errors import UserError, did_you_mean
from tercio.formats.devices import parse_devices
from tercio.model.ids import JobId, QueuePath
from tercio.model.job import TERMINAL_JOB_STATES, JobSpec, TaskGroup
from tercio.model.queue import walk_queues
from tercio.model.resources import DeviceRequest
from tercio.model.snapshot import WaitingJob
from tercio.model.topology import TopologyRequest
from tercio.model.units import parse_duration_s

KEYS: Final = ("gpus", "tasks", "type", "queue", "topology", "after", "priority", "time")
"""What may be changed."""

NONE: Final = "none"
_MOST: Final = 100_000


class Variation(NamedTuple):
    """The changed job, and the job that counts as ended."""

    job: WaitingJob
    ended: JobId | None


def vary(cluster: Cluster, job: WaitingJob, changes: Mapping[str, str]) -> Variation:
    """Return the job with the changes applied.

    Raises:
        UserError: naming the change and what to write.
    """
    if not changes:
        raise UserError("no change is named", hint=f"write one of {', '.join(KEYS)}, as gpus=4")
    spec, queue, ended = job.spec, job.queue, None
    for key, value in changes.items():
        match key:
            case "gpus":
                spec = _with_devices(spec, value)
            case "type":
                spec = _with_type(spec, value)
            case "tasks":
                tasks = _integer(key, value, least=1)
                spec = _with_group(spec, key, tasks=tasks, tasks_max=None)
            case "topology":
                spec = _with_topology(cluster, spec, value)
            case "priority":
                number = _integer(key, value, least=-1000, most=1000)
                spec = msgspec.structs.replace(spec, priority=number)
            case "time":
                limit_s = None if value == NONE else parse_duration_s(value, field="time")
                time = msgspec.structs.replace(spec.time, limit_s=limit_s)
                spec = msgspec.structs.replace(spec, time=time)
            case "queue":
                queue = _queue(cluster, value)
                spec = msgspec.structs.replace(spec, queue=value)
            case "after":
                ended = _ended(cluster, value)
            case _:
                hint = did_you_mean(key, KEYS) or f"one of {', '.join(KEYS)}"
                raise UserError(f"'{key}' is not a change", hint=hint, field=key)
    changed = msgspec.structs.replace(
        job,
        spec=spec,
        queue=queue,
        priority=spec.priority,
        is_preemptible=is_preemptible(cluster.policy, queue, spec),
        blocked_on=tuple(other for other in job.blocked_on if other != ended),
    )
    return Variation(changed, ended)


def _group(spec: JobSpec, key: str) -> TaskGroup:
    if len(spec.groups) != 1 or spec.groups[0].subgroups:
        raise UserError(
            f"{key}: the job has several task groups, and it is not clear which is meant",
            hint="edit the job file and ask `tercio plan`",
            field=key,
        )
    return spec.groups[0]


def _with_group(spec: JobSpec, key: str, **fields: object) -> JobSpec:
    group = msgspec.structs.replace(_group(spec, key), **fields)
    return msgspec.structs.replace(spec, groups=(group,))


def _with_requests(spec: JobSpec, key: str, requests: tuple[DeviceRequest, ...]) -> JobSpec:
    per_task = msgspec.structs.replace(_group(spec, key).per_task, devices=requests)
    return _with_group(spec, key, per_task=per_task)


def _with_devices(spec: JobSpec, value: str) -> JobSpec:
    """`4` keeps the type and changes the count; anything else is a whole request."""
    old = _group(spec, "gpus").per_task.devices
    (new, *more) = parse_devices(value, field="gpus")
    if more or new.type is not None or new.vendor is not None or old[0].is_none:
        return _with_requests(spec, "gpus", (new, *more))
    counted = tuple(
        msgspec.structs.replace(
            new,
            type=each.type,
            vendor=each.vendor,
            card_bytes=each.card_bytes,
            card_at_least=each.card_at_least,
        )
        for each in old
    )
    return _with_requests(spec, "gpus", counted)


def _with_type(spec: JobSpec, value: str) -> JobSpec:
    old = _group(spec, "type").per_task.devices[0]
    (new, *more) = parse_devices(value, field="type")
    if more or new.type is None or old.is_none:
        raise UserError(
            f"type: '{value}' is not one device type", hint="write type=A100", field="type"
        )
    changed = msgspec.structs.replace(
        old, type=new.type, vendor=None, card_bytes=new.card_bytes, card_at_least=new.card_at_least
    )
    return _with_requests(spec, "type", (changed,))


def _with_topology(cluster: Cluster, spec: JobSpec, value: str) -> JobSpec:
    levels = cluster.policy.topology
    if value != NONE and value not in levels:
        hint = did_you_mean(value, (*levels, NONE)) or f"one of {', '.join((*levels, NONE))}"
        raise UserError(f"topology: '{value}' is no level", hint=hint, field="topology")
    wanted = None if value == NONE else TopologyRequest(same=value)
    groups = tuple(msgspec.structs.replace(group, topology=None) for group in spec.groups)
    return msgspec.structs.replace(spec, topology=wanted, groups=groups)


def _queue(cluster: Cluster, value: str) -> QueuePath:
    queues = walk_queues(cluster.policy)
    if value not in queues:
        hint = did_you_mean(value, queues) or f"queues: {', '.join(list(queues)[:8])}"
        raise UserError(f"no queue '{value}'", code="not_found", hint=hint, field="queue")
    return QueuePath(value)


def _ended(cluster: Cluster, value: str) -> JobId:
    job = cluster.jobs.get(JobId(value))
    if job is None or job.state in TERMINAL_JOB_STATES:
        active = [j.id for j in cluster.jobs.values() if j.state not in TERMINAL_JOB_STATES]
        what = "there is no such job" if job is None else "it has ended already"
        raise UserError(
            f"after: {value}: {what}",
            code="not_found",
            hint=did_you_mean(value, active[-500:]) or "see `tercio ps`",
            field="after",
        )
    return job.id


def _integer(key: str, value: str, *, least: int, most: int = _MOST) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise UserError(
            f"{key}: '{value}' is not a whole number from {least} to {most}",
            hint=f"write {key}={max(least, 1)}",
            field=key,
        )
    return number
