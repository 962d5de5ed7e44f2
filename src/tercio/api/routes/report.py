"""Routes of use: where device time went, by user, queue or job, with energy and cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from tercio.api.bodies import NoBody, NoQuery, ReportQuery
from tercio.api.context import ApiContext
from tercio.api.redact import sees_tenant
from tercio.api.table import Call, Route
from tercio.api.wire import read_instant_s
from tercio.core.records import Job
from tercio.core.report import Prices, spans_of, use_report, use_row
from tercio.model.identity import Role
from tercio.model.readings import Measured
from tercio.model.report_views import JobUse, RankUse, UseReport
from tercio.model.spans import AttemptSpan
from tercio.runtime.prices import read_prices


async def report(call: Call[ReportQuery, NoBody]) -> UseReport:
    """Return where device time went, of the jobs that the reader sees."""
    context, query = call.context, call.query
    context.check_site(query.site)
    since_s = read_instant_s(query.since, field="since") or 0.0
    jobs = [job for job in context.cluster.jobs.values() if sees_tenant(call.principal, job.tenant)]
    return use_report(
        context.cluster,
        jobs,
        by=query.by,
        since_s=since_s,
        now_s=context.now(),
        prices=await _prices(context),
        live={job.id: _live(context, job) for job in jobs if job.live_tasks},
        site=query.site,
    )


async def job_use(call: Call[NoQuery, NoBody]) -> JobUse:
    """Return where the device time of one job went, its energy, and its devices now."""
    context = call.context
    job = context.job(call.path["job"], call.principal)
    prices = await _prices(context)
    spans = spans_of(context.cluster, job, context.now(), _live(context, job))
    return JobUse(
        job=job.id,
        use=use_row(job.id, [(job, spans)], prices=prices),
        step_count=_step_count(context, job, spans),
        slow=job.slow,
        ranks=tuple(_ranks(context, job)),
        marks=next((span.marks for span in reversed(spans) if span.marks is not None), None),
    )


def _step_count(context: ApiContext, job: Job, spans: Sequence[AttemptSpan]) -> int:
    """Return the steps that all attempts marked, the one under way as far as it was seen."""
    under_way = context.controller.progress.steps_of(job.id, job.attempt)
    ended = sum(
        span.marks.step_count
        for span in spans
        if span.marks is not None and (under_way is None or span.number != job.attempt)
    )
    return ended + (0 if under_way is None else under_way[0])


def _live(context: ApiContext, job: Job) -> dict[int, Measured]:
    telemetry = context.controller.telemetry
    found = {
        task.placement.task: telemetry.measured(job.id, job.attempt, task.placement.task)
        for task in job.live_tasks
    }
    return {task: measured for task, measured in found.items() if measured is not None}


def _ranks(context: ApiContext, job: Job) -> Iterator[RankUse]:
    for task in job.live_tasks:
        placement = task.placement
        devices = context.controller.telemetry.devices(placement.node)
        for share in placement.devices:
            now = devices.get(share.index)
            yield RankUse(
                task=placement.rank,
                node=placement.node,
                device=share.index,
                utilization_ratio=now.utilization_ratio if now else None,
                memory_used_bytes=now.memory_used_bytes if now else None,
                memory_total_bytes=now.memory_total_bytes if now else None,
                power_w=now.power_w if now else None,
                temperature_c=now.temperature_c if now else None,
                throttle_mask=now.throttle_mask if now else None,
            )


async def _prices(context: ApiContext) -> Prices:
    """Read the prices anew: the file is small, and a site writes it every day.

    Without a file or an address they are those that were sent, of the last days.

    Raises:
        UserError: the file cannot be read, or makes no sense.
    """
    config = context.config.health
    sent = context.cluster.prices.series
    grid = sent if sent.hours else None
    if config.prices:
        grid = await asyncio.to_thread(read_prices, config.prices)
    return Prices(pue=config.pue, device_usd_per_hour=config.device_usd_per_hour, grid=grid)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/report",
        name="report",
        summary="Show where device time went, with energy, cost and carbon",
        role=Role.VIEWER,
        perform=report,
        query=ReportQuery,
        answer=UseReport,
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/use",
        name="job_use",
        summary="Show where the device time of a job went, and its devices now",
        role=Role.VIEWER,
        perform=job_use,
        answer=JobUse,
    ),
)
"""Routes of use."""
