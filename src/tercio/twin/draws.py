"""Small drawn clusters, policies and jobs for the hunt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tercio.model.ids import JobId, NodeName, QueuePath, SiteName
from tercio.model.job import (
    ArraySpec,
    CheckpointSpec,
    Dependency,
    EndCause,
    IndexRange,
    JobSpec,
    Repair,
    RetrySpec,
    TaskGroup,
    TimeSpec,
)
from tercio.model.node import DeviceSpec, NodeSpec
from tercio.model.queue import (
    AcrossQueues,
    PlacementPolicy,
    Policy,
    PreemptionPolicy,
    QueueOrder,
    QueueSpec,
    WithinQueue,
)
from tercio.model.resources import NO_DEVICE, DeviceRequest, Request
from tercio.model.topology import TopologyRequest
from tercio.twin.rng import Stream

TYPE: Final = "H100"
_GIB: Final = 1024**3


def draw_nodes(stream: Stream) -> tuple[NodeSpec, ...]:
    """Three to six nodes of two to eight devices, two to a rack."""
    devices = stream.choice((2, 4, 8))
    return tuple(
        NodeSpec(
            name=NodeName(f"n{number}"),
            site=SiteName("sim"),
            devices=tuple(
                DeviceSpec(
                    type=TYPE, index=index, vendor="nvidia", memory_bytes=80 * _GIB,
                    card_bytes=80 * 10**9,
                )
                for index in range(devices)
            ),
            cpus_milli=64_000,
            memory_bytes=1024 * _GIB,
            pool=TYPE,
            labels={"rack": f"r{(number + 1) // 2}"},
        )
        for number in range(1, 4 + stream.whole(4))
    )  # fmt: skip


def draw_policy(stream: Stream, nodes: Sequence[NodeSpec]) -> Policy:
    """Two queues with guarantees that fit, and rules of every kind."""
    milli = 1000 * sum(len(node.devices) for node in nodes)
    return Policy(
        default_queue=QueuePath("prod"),
        half_life_s=stream.choice((0.0, 3600.0)),
        reservation_depth=stream.choice((0, 1, 1, 4, None)),
        max_overtake_s=stream.choice((300.0, 3600.0)),
        preemption=PreemptionPolicy(
            within_queue=stream.choice((WithinQueue.OFF, WithinQueue.LOWER_PRIORITY)),
            across_queues=stream.choice(
                (AcrossQueues.OFF, AcrossQueues.RECLAIM, AcrossQueues.FAIR)
            ),
            grace_s=stream.choice((0.0, 30.0)),
            min_runtime_s=stream.choice((0.0, 120.0)),
            max_evictions_per_job_per_hour=stream.choice((None, 2)),
        ),
        placement=PlacementPolicy(pack=stream.choice(("fragmentation", "bestfit", "spread"))),
        queues={
            "prod": QueueSpec(
                guarantee={TYPE: milli // 2}, weight=2,
                order=stream.choice((QueueOrder.BACKFILL, QueueOrder.STRICT)),
            ),
            "lab": QueueSpec(guarantee={TYPE: milli // 4}, user_limit={"running_jobs": 6}),
        },
    )  # fmt: skip


def draw_job(stream: Stream, nodes: Sequence[NodeSpec], known: Sequence[JobId]) -> JobSpec:
    """A job that fits the cluster, of any kind."""
    per_node, count = len(nodes[0].devices), len(nodes)
    tasks = stream.choice((1, 1, 1, 2, min(3, count), count))
    per_task = stream.choice((0.5, 1, 1, 2, per_node)) if tasks <= count else 1
    elastic = stream.chance(0.25)
    repair = stream.choice((Repair.GANG, Repair.TASK))
    topology = TopologyRequest(prefer="rack") if stream.chance(0.3) else None
    if per_task < 1:
        device = DeviceRequest(type=TYPE, share_milli=round(per_task * 1000))
    else:
        device = DeviceRequest(type=stream.choice((TYPE, None)), count=int(per_task))
    group = TaskGroup(
        tasks=tasks,
        tasks_max=tasks + 2 if elastic else None,
        per_task=Request(
            devices=(NO_DEVICE if stream.chance(0.05) else device,), cpus_milli=1000,
            memory_bytes=_GIB,
        ),
        topology=topology,
    )  # fmt: skip
    size = 2 + stream.whole(5)
    array = ArraySpec(ranges=(IndexRange(start=0, stop=size),), concurrency=2)
    depends = bool(known) and stream.chance(0.1)
    return JobSpec(
        name="drawn",
        queue=stream.choice(("prod", "lab")),
        priority=stream.choice((0, 0, 10)),
        groups=(group,),
        run="true",
        repair=repair,
        array=array if stream.chance(0.15) else None,
        time=TimeSpec(
            expected_s=stream.choice((30.0, 120.0, 600.0)),
            limit_s=stream.choice((None, 300.0, 1200.0)),
        ),
        checkpoint=CheckpointSpec(grace_s=stream.choice((0.0, 30.0))),
        retry=RetrySpec(
            on=(EndCause.NODE_FAILED, EndCause.PREEMPTED, EndCause.FAILED), backoff_s=5.0
        ),
        depends_on=(Dependency(job=stream.choice(known)),) if depends else (),
    )
