"""Routes of readings over time, and of the whole fleet: columns for charts and the map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tercio.api.bodies import MetricQuery, NoBody, NoQuery, QueuePastQuery, SiteQuery
from tercio.api.routes.fleet import find_node
from tercio.api.table import Call, Route
from tercio.api.wire import read_instant_s
from tercio.errors import UserError, did_you_mean
from tercio.model.health import HealthRecord
from tercio.model.identity import Role
from tercio.model.queue import walk_queues
from tercio.model.series_views import (
    DeviceColumn,
    DeviceSeries,
    FleetNow,
    JobSteps,
    QueuePast,
    SeriesRow,
)
from tercio.runtime.queue_past import QUEUES_MAX
from tercio.runtime.series import Want
from tercio.runtime.steps import steps_of

ROWS_MAX: Final = 512
"""Most devices of one answer."""
HOUR_S: Final = 3600.0


async def job_series(call: Call[MetricQuery, NoBody]) -> DeviceSeries:
    """Return a metric of the devices of a job's last attempt while it held them."""
    job = call.context.job(call.path["job"], call.principal)
    found = [
        (task, share.index)
        for task in job.tasks
        for share in task.placement.devices
        if job.placed_s is not None
    ]
    wants: list[tuple[int | None, Want]] = []
    for task, index in found[:ROWS_MAX]:
        since_s = task.joined_s if task.joined_s is not None else (job.placed_s or 0.0)
        until_s = task.ended_s if task.ended_s is not None else call.context.now()
        want = Want(task.placement.node, index, since_s, until_s)
        wants.append((task.placement.rank, want))
    left_off = max(0, len(found) - ROWS_MAX)
    return _series(call, job.id, wants, left_off=left_off)


async def job_steps(call: Call[NoQuery, NoBody]) -> JobSteps:
    """Return the own time per step of the ranks of a job."""
    job = call.context.job(call.path["job"], call.principal)
    return steps_of(job, call.context.controller.progress.progress_of(job.id, job.attempt))


async def node_series(call: Call[MetricQuery, NoBody]) -> DeviceSeries:
    """Return a metric of the devices of a node."""
    node = find_node(call.context, call.path["node"])
    now_s = call.context.now()
    wants = [Want(node.name, spec.index, 0.0, now_s) for spec in node.spec.devices]
    return _series(call, node.name, [(None, want) for want in wants[:ROWS_MAX]])


def _series(
    call: Call[MetricQuery, NoBody],
    subject: str,
    wants: Sequence[tuple[int | None, Want]],
    *,
    left_off: int = 0,
) -> DeviceSeries:
    rings, metric = call.context.controller.telemetry.rings, call.query.metric
    at_s, columns = rings.cut([want for _, want in wants], metric)
    rows = (
        SeriesRow(task=rank, node=want.node, device=want.device, values=values)
        for (rank, want), values in zip(wants, columns, strict=True)
    )
    return DeviceSeries(
        subject=subject, metric=metric, at_s=at_s, rows=tuple(rows), left_off=left_off,
        step_s=rings.step_s,
    )  # fmt: skip


async def fleet_now(call: Call[SiteQuery, NoBody]) -> FleetNow:
    """Return all nodes at a glance, or those of one site."""
    site = call.query.site
    call.context.check_site(site)
    cluster, telemetry = call.context.cluster, call.context.controller.telemetry
    records = cluster.health.records
    nodes = [name for name, node in cluster.nodes.items() if site is None or node.spec.site == site]
    told = [found for name in nodes if (found := telemetry.devices(name))]
    devices = [device for found in told for device in found.values()]
    powers = [d.power_w for d in devices if d.power_w is not None]
    limits = [d.power_limit_w for d in devices if d.power_limit_w is not None]
    use = [d.utilization_ratio for d in devices if d.utilization_ratio is not None]
    return FleetNow(
        health=dict(Counter(records.get(name, HealthRecord()).state for name in nodes)),
        nodes=len(nodes),
        reporting=len(told),
        devices=len(devices),
        power_w=sum(powers) if powers else None,
        power_limit_w=sum(limits) if limits else None,
        utilization_ratio=sum(use) / len(use) if use else None,
        temperature_max_c=max(
            (d.temperature_c for d in devices if d.temperature_c is not None), default=None
        ),
        breaker_open_s=cluster.health.breaker_open_s,
    )


async def fleet_devices(call: Call[MetricQuery, NoBody]) -> DeviceColumn:
    """Return one metric of every device with a fresh reading."""
    cluster, telemetry = call.context.cluster, call.context.controller.telemetry
    metric = call.query.metric
    rows: dict[str, tuple[float | None, ...]] = {}
    for name, node in cluster.nodes.items():
        found = telemetry.devices(name)
        if found:
            rows[name] = tuple(
                getattr(found.get(spec.index), metric, None) for spec in node.spec.devices
            )
    records = cluster.health.records
    ill = {name: records[name].state for name in records if name in cluster.nodes}
    return DeviceColumn(
        metric=metric,
        nodes=rows,
        health={name: state for name, state in ill.items() if state != "ok"},
    )


async def queue_past(call: Call[QueuePastQuery, NoBody]) -> QueuePast:
    """Return what queues held, were entitled to and waited for over time."""
    wanted, now_s = call.query.queue, call.context.now()
    paths = list(walk_queues(call.context.cluster.policy))
    if wanted is not None:
        if wanted not in paths:
            raise UserError(
                f"there is no queue {wanted!r}",
                code="not_found",
                hint=did_you_mean(wanted, paths) or f"queues: {', '.join(paths[:8])}",
            )
        paths = [path for path in paths if path == wanted or path.startswith(f"{wanted}/")]
    since_s = read_instant_s(call.query.since, field="since")
    since_s = now_s - HOUR_S if since_s is None else since_s
    # What is now belongs to it, also right after the start.
    call.context.queues.sample(now_s)
    return call.context.queues.cut(paths[:QUEUES_MAX], since_s, now_s)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/jobs/{job}/series",
        name="job_series",
        summary="Show a metric of a job's devices over the last hour, by rank",
        role=Role.VIEWER,
        perform=job_series,
        query=MetricQuery,
        answer=DeviceSeries,
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/steps",
        name="job_steps",
        summary="Show the time per step of a job's ranks, as its step marks tell it",
        role=Role.VIEWER,
        perform=job_steps,
        answer=JobSteps,
    ),
    Route(
        method="GET",
        path="/v1/nodes/{node}/series",
        name="node_series",
        summary="Show a metric of a node's devices over the last hour",
        role=Role.VIEWER,
        perform=node_series,
        query=MetricQuery,
        answer=DeviceSeries,
    ),
    Route(
        method="GET",
        path="/v1/queue-past",
        name="queue_past",
        summary="Show use, share and demand of queues over time, a month at most",
        role=Role.VIEWER,
        perform=queue_past,
        query=QueuePastQuery,
        answer=QueuePast,
    ),
    Route(
        method="GET",
        path="/v1/fleet",
        name="fleet",
        summary="Show health, power and use of all nodes at a glance",
        role=Role.VIEWER,
        perform=fleet_now,
        query=SiteQuery,
        answer=FleetNow,
    ),
    Route(
        method="GET",
        path="/v1/fleet/devices",
        name="fleet_devices",
        summary="Show one metric of every device",
        role=Role.VIEWER,
        perform=fleet_devices,
        query=MetricQuery,
        answer=DeviceColumn,
    ),
)
"""Routes of readings over time."""
