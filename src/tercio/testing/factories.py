"""Small objects with sensible defaults: `make_node("n1", devices="H100:8")`."""

from __future__ import annotations

from typing import Any

import msgspec

from tercio.model.identity import Principal, Role
from tercio.model.ids import NodeName, QueuePath, SiteName
from tercio.model.job import JobSpec, TaskGroup
from tercio.model.node import DeviceSpec, MigSpec, NodeSpec
from tercio.model.queue import (
    AcrossQueues,
    Policy,
    PreemptionPolicy,
    QueueSpec,
)
from tercio.model.resources import NO_DEVICE, WHOLE_DEVICE_MILLI, DeviceRequest, Request
from tercio.sched.mig import can_be_cut

GIB = 1024**3


def make_node(
    name: str = "n1",
    *,
    devices: int = 8,
    type: str = "H100",
    cpus: int = 128,
    memory_gib: int = 2048,
    site: str = "sim",
    slots: int | None = None,
    labels: dict[str, str] | None = None,
    **fields: Any,
) -> NodeSpec:
    """Return a node with whole devices of one type."""
    return NodeSpec(
        name=NodeName(name),
        site=SiteName(site),
        devices=tuple(
            DeviceSpec(
                type=type,
                index=index,
                uuid=f"{name}-{index}",
                vendor="cpu" if type == "CPU" else "nvidia",
                memory_bytes=0 if type == "CPU" else 80 * GIB,
                card_bytes=0 if type == "CPU" else 80 * 10**9,
                mig=MigSpec() if can_be_cut(type) else None,
            )
            for index in range(devices)
        ),
        cpus_milli=cpus * 1000,
        memory_bytes=memory_gib * GIB,
        slots=slots,
        pool=fields.pop("pool", type),
        labels=labels or {},
        **fields,
    )


def make_nodes(count: int, *, per_rack: int = 4, **fields: Any) -> list[NodeSpec]:
    """Return nodes `n1`, `n2`, ... with `rack` labels `r1`, `r2`, ... of `per_rack` nodes."""
    return [
        make_node(f"n{number}", labels={"rack": f"r{(number - 1) // per_rack + 1}"}, **fields)
        for number in range(1, count + 1)
    ]


def make_request(
    *,
    devices: float = 1,
    type: str | None = "H100",
    cpus: float | None = 1,
    memory_gib: float | None = 1,
) -> Request:
    """Return a request; `devices` below one is a share of one device, 0 none."""
    if devices == 0:
        wanted = NO_DEVICE
    elif devices < 1:
        wanted = DeviceRequest(type=type, share_milli=round(devices * WHOLE_DEVICE_MILLI))
    else:
        wanted = DeviceRequest(type=type, count=int(devices))
    return Request(
        devices=(wanted,),
        cpus_milli=None if cpus is None else round(cpus * 1000),
        memory_bytes=None if memory_gib is None else round(memory_gib * GIB),
    )


def make_job(
    name: str = "job",
    *,
    tasks: int = 1,
    devices: float = 1,
    type: str | None = "H100",
    cpus: float | None = 1,
    memory_gib: float | None = 1,
    group: dict[str, Any] | None = None,
    **fields: Any,
) -> JobSpec:
    """Return a job of one group; `group` replaces fields of the group."""
    per_task = make_request(devices=devices, type=type, cpus=cpus, memory_gib=memory_gib)
    first = TaskGroup(tasks=tasks, per_task=per_task)
    if group:
        first = msgspec.structs.replace(first, **group)
    return JobSpec(name=name, groups=(first,), run=fields.pop("run", "true"), **fields)


def make_queue(**fields: Any) -> QueueSpec:
    """Return a queue; amounts are thousandths, as in the model."""
    return QueueSpec(**fields)


def make_policy(queues: dict[str, QueueSpec] | None = None, **fields: Any) -> Policy:
    """Return a policy without grace, minimum run time, eviction budget or history."""
    preemption = fields.pop("preemption", None) or PreemptionPolicy(
        across_queues=fields.pop("across_queues", AcrossQueues.FAIR),
        grace_s=0,
        min_runtime_s=0,
        max_evictions_per_job_per_hour=None,
    )
    fields.setdefault("half_life_s", 0)
    names = queues or {"default": QueueSpec()}
    return Policy(
        default_queue=fields.pop("default_queue", QueuePath(next(iter(names)))),
        preemption=preemption,
        queues=names,
        **fields,
    )


def make_principal(user: str = "ana", role: Role = Role.USER, **fields: Any) -> Principal:
    """Return an asker."""
    return Principal(user=user, role=role, **fields)
