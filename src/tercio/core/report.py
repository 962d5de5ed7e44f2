"""The usage report: waterfalls of jobs summed by user, queue or job, with energy and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.goodput import energy_of, running_span, waterfall_of
from tercio.core.records import Job
from tercio.core.views import job_sites, wanted_devices
from tercio.energy.accounting import EnergySource, EnergySpan
from tercio.energy.series import footprint
from tercio.health.goodput import Waterfall, add_waterfalls
from tercio.model.grid import GridSeries
from tercio.model.readings import Measured
from tercio.model.report_views import WASTED, UseReport, UseRow
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.model.spans import AttemptSpan

MS_PER_HOUR = 3_600_000
MJ_PER_KWH = 3.6e9


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What use costs.

    Attributes:
        pue: power of the site over power of its machines.
        device_usd_per_hour: price of a device for an hour; 0 for none.
        grid: price and carbon of energy over time, or None.
    """

    pue: float = 1.0
    device_usd_per_hour: float = 0.0
    grid: GridSeries | None = None


def spans_of(
    cluster: Cluster, job: Job, now_s: float, live: Mapping[int, Measured] | None = None
) -> tuple[AttemptSpan, ...]:
    """Return the attempts of a job, the one under way as if it ended now.

    `live` is what readings say of its tasks up to now, by task.
    """
    tasks = job.tasks
    if live:
        tasks = [
            msgspec.structs.replace(t, measured=live[t.placement.task])
            if t.is_live and t.placement.task in live
            else t
            for t in tasks
        ]
    under_way = running_span(cluster.nodes, msgspec.structs.replace(job, tasks=tasks), now_s)
    return job.past if under_way is None else (*job.past, under_way)


def _spans_at(
    spans: Iterable[AttemptSpan], site: str, known: Sequence[str]
) -> tuple[AttemptSpan, ...]:
    """Return what of some attempts was at a site.

    `known` are the sites of the job now; where an old attempt noted none, they stand for it.
    """
    found = []
    for span in spans:
        held = tuple(h for h in span.held if (h.site == site if h.site else site in known))
        if held:
            found.append(msgspec.structs.replace(span, held=held))
    return tuple(found)


def use_row(
    key: str,
    jobs: Sequence[tuple[Job, Sequence[AttemptSpan]]],
    *,
    prices: Prices,
    since_s: float = 0.0,
) -> UseRow:
    """Return the use of some jobs as one row."""
    falls = [
        waterfall_of(job, spans, since_s=since_s, wanted_milli=wanted_milli(job))
        for job, spans in jobs
    ]
    sums = add_waterfalls(falls)
    energy = [part for _, spans in jobs for part in _energy(spans, since_s)]
    energy_mj = sum(span.energy_mj for span in energy)
    source = max((s.source for s in energy), key=lambda s: s.rank, default=None)
    by_class = {f"{name.value}_ms": ms for name, ms in sums.classes().items()}
    cost, carbon = _footprint(sums, energy, prices)
    return UseRow(
        key=key,
        jobs=len(jobs),
        allocated_ms=sums.allocated_ms,
        **{name: ms for name, ms in by_class.items() if name != "idle_ms"},
        idle_ms=sums.idle_ms,
        wasted_ms=sum(by_class[name] for name in WASTED),
        queued_ms=sums.queued_ms,
        unobserved_ms=sums.unobserved_ms,
        slow_ms=sums.slow_ms,
        goodput_ratio=sums.goodput_ratio(),
        energy_mj=energy_mj,
        energy_source=source.value if source is not None else "",
        energy_kwh=energy_mj * prices.pue / MJ_PER_KWH if energy else None,
        cost_usd=cost,
        carbon_kg=carbon,
    )


def wanted_milli(job: Job) -> int:
    """Return the devices that a job asks for, in thousandths."""
    return round(sum(wanted_devices(job.spec).values()) * WHOLE_DEVICE_MILLI)


def _energy(spans: Iterable[AttemptSpan], since_s: float) -> list[EnergySpan]:
    found = []
    for span in spans:
        for held in span.held:
            energy_mj, source = energy_of(held, since_s)
            if source and held.stop_s > since_s:
                found.append(
                    EnergySpan(
                        start_s=max(held.start_s, since_s),
                        end_s=held.stop_s,
                        energy_mj=energy_mj,
                        source=EnergySource(source),
                    )
                )
    return found


def _footprint(
    sums: Waterfall, energy: Sequence[EnergySpan], prices: Prices
) -> tuple[float | None, float | None]:
    """Return cost and carbon: the price of devices where there is one, else that of energy."""
    cost = carbon = None
    if prices.grid is not None and energy:
        known = footprint(energy, prices.grid, pue=prices.pue)
        cost, carbon = known.cost_usd, known.carbon_kg
    if prices.device_usd_per_hour:
        cost = sums.allocated_ms / MS_PER_HOUR * prices.device_usd_per_hour
    return cost, carbon


def use_report(
    cluster: Cluster,
    jobs: Iterable[Job],
    *,
    by: str,
    since_s: float,
    now_s: float,
    prices: Prices,
    live: Mapping[str, Mapping[int, Measured]] | None = None,
    site: str | None = None,
) -> UseReport:
    """Return the use of jobs since an instant, by `user`, `queue` or `job`.

    `site` counts only what was held there, and the waits of attempts there. A row's allocated
    time is exactly the sum of its classes, and the total's that of the rows.
    """
    groups: dict[str, list[tuple[Job, tuple[AttemptSpan, ...]]]] = {}
    for job in jobs:
        if job.array is not None:
            continue  # its elements held the devices
        spans = spans_of(cluster, job, now_s, (live or {}).get(job.id))
        if site is not None:
            spans = _spans_at(spans, site, job_sites(cluster, job))
        if not any(held.stop_s > since_s for span in spans for held in span.held):
            continue
        key = {"user": job.user, "queue": job.queue}.get(by, job.id)
        groups.setdefault(key, []).append((job, spans))
    rows = tuple(
        use_row(key, members, prices=prices, since_s=since_s)
        for key, members in sorted(groups.items())
    )
    every = [member for members in groups.values() for member in members]
    devices = sum(
        len(node.spec.devices)
        for node in cluster.nodes.values()
        if site is None or node.spec.site == site
    )
    total = use_row("total", every, prices=prices, since_s=since_s)
    capacity_ms = devices * max(0, round((now_s - since_s) * 1000)) if since_s else 0
    return UseReport(
        by=by,
        since_s=since_s,
        until_s=now_s,
        rows=rows,
        total=total,
        capacity_ms=capacity_ms,
        free_ms=max(0, capacity_ms - total.allocated_ms),
    )
