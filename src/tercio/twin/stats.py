"""The figures of one twin run that an operator compares.

Every figure is a sum over jobs or a time integral; nothing is sampled but the fairness error,
at fixed instants. Percentiles are nearest-rank, over jobs that ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from tercio.twin.result import JobRecord, TwinResult, percentile
from tercio.twin.spans import Span

Floats = npt.NDArray[np.float64]
SIZES: Final = ((0, 0), (1, 1), (2, 4), (5, 8), (9, 16), (17, 64), (65, None))
"""Classes of gang size in devices, both ends counted."""
FAIRNESS_INSTANTS: Final = 1000


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What a device costs and draws.

    Attributes:
        usd_per_device_h: of a device that is there, busy or not; None where it is not known.
        busy_w, idle_w: power of a held and of a free device with its part of the node; None
            where it is not known.
    """

    usd_per_device_h: float | None = None
    busy_w: float | None = None
    idle_w: float | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Time without devices of the jobs of one class, in seconds."""

    jobs: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """How a figure is named, printed and judged.

    Attributes:
        key: its name in JSON, unit last.
        title: for people.
        is_low_better: None where neither is.
    """

    key: str
    title: str
    is_low_better: bool | None = True


METRICS: Final = (
    Metric(key="jobs", title="Jobs that ended", is_low_better=False),
    Metric(key="failed", title="Failed, as recorded or at their limit"),
    Metric(key="cancelled", title="Cancelled, as recorded", is_low_better=None),
    Metric(key="unfinished", title="Jobs not ended, or that never fit"),
    Metric(key="makespan_s", title="Makespan"),
    Metric(key="utilization_ratio", title="Utilisation", is_low_better=False),
    Metric(key="mean_wait_s", title="Wait, mean"),
    Metric(key="p50_wait_s", title="Wait, median"),
    Metric(key="p95_wait_s", title="Wait, p95"),
    Metric(key="p99_wait_s", title="Wait, p99"),
    Metric(key="mean_jct_s", title="Completion time, mean"),
    Metric(key="p50_jct_s", title="Completion time, median"),
    Metric(key="p95_jct_s", title="Completion time, p95"),
    Metric(key="p99_jct_s", title="Completion time, p99"),
    Metric(key="goodput_ratio", title="Goodput of held devices", is_low_better=False),
    Metric(key="evictions", title="Evictions"),
    Metric(key="lost_device_h", title="Device hours lost to evictions and faults"),
    Metric(key="down_device_h", title="Device hours of nodes that were down"),
    Metric(key="fragmentation_ratio", title="Free devices on partly used nodes"),
    Metric(key="fairness_error_ratio", title="Fairness error"),
    Metric(key="energy_kwh", title="Energy"),
    Metric(key="cost_usd", title="Cost of the devices"),
)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run.

    Attributes:
        values: by key of `METRICS`; None where it is not known (no price, one queue only).
        waits_by_size, waits_by_queue: by name of the class.
    """

    values: Mapping[str, float | None]
    waits_by_size: Mapping[str, Waits]
    waits_by_queue: Mapping[str, Waits]


def measure(
    result: TwinResult,
    spans: Sequence[Span] = (),
    *,
    node_devices: Sequence[int] = (),
    prices: Prices | None = None,
    weights: Mapping[str, float] | None = None,
) -> Figures:
    """Return the figures of a run.

    Args:
        result: what the run came to.
        spans: who held what; without them fragmentation is not known.
        node_devices: devices of each node, in the order of the cluster.
        prices: for energy and cost.
        weights: of queues, for the fairness error; equal where not given.
    """
    summary, prices = result.summary, prices or Prices()
    values: dict[str, float | None] = {
        metric.key: getattr(summary, metric.key, None) for metric in METRICS
    }
    values["unfinished"] = float(summary.unfinished + summary.never_fit)
    first_s, last_s = window_s(result)
    if spans and node_devices:
        values["fragmentation_ratio"] = fragmentation(spans, node_devices, first_s, last_s)
    values["fairness_error_ratio"] = fairness_error(
        result.jobs, capacity=float(result.devices), weights=weights or {}
    )
    up_h = result.devices * (last_s - first_s) / 3600 - summary.down_device_h
    busy_h = summary.utilization_ratio * result.devices * summary.makespan_s / 3600
    if prices.busy_w is not None and prices.idle_w is not None:
        idle_h = max(up_h - busy_h, 0.0)
        values["energy_kwh"] = (busy_h * prices.busy_w + idle_h * prices.idle_w) / 1000
    if prices.usd_per_device_h is not None:
        values["cost_usd"] = result.devices * (last_s - first_s) / 3600 * prices.usd_per_device_h
    ended = [job for job in result.jobs if job.end_s is not None]
    return Figures(
        values=values,
        waits_by_size=_grouped(ended, [size_class(job.devices) for job in ended], size_names()),
        waits_by_queue=_grouped(ended, [job.queue or "-" for job in ended]),
    )


def window_s(result: TwinResult) -> tuple[float, float]:
    """Return (first submit, last end) of a run."""
    first_s = min((job.submit_s for job in result.jobs), default=0.0)
    return first_s, max(
        (job.end_s for job in result.jobs if job.end_s is not None), default=first_s
    )


def size_class(devices: float) -> str:
    """Return the name of the class a gang of so many devices belongs to.

    >>> size_class(1), size_class(8), size_class(200)
    ('1', '5-8', '65+')
    """
    for low, high in SIZES:
        if high is None or devices <= high:
            return _size_name(low, high)
    return _size_name(*SIZES[-1])


def _size_name(low: int, high: int | None) -> str:
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"


def size_names() -> list[str]:
    """Return the names of all classes of gang size, from the smallest on."""
    return [_size_name(low, high) for low, high in SIZES]


def _grouped(
    jobs: Sequence[JobRecord], names: Sequence[str], order: Sequence[str] = ()
) -> dict[str, Waits]:
    waits: dict[str, list[float]] = {name: [] for name in order or sorted(dict.fromkeys(names))}
    for job, name in zip(jobs, names, strict=True):
        waits[name].append(max(job.wait_s or 0.0, 0.0))
    return {name: waits_of(np.array(found)) for name, found in waits.items() if found}


def waits_of(values: Floats) -> Waits:
    """Return the figures of at least one wait, in seconds."""
    return Waits(
        jobs=len(values),
        mean_s=float(values.mean()),
        p50_s=percentile(values, 50),
        p95_s=percentile(values, 95),
        p99_s=percentile(values, 99),
    )


def fragmentation(
    spans: Sequence[Span], node_devices: Sequence[int], first_s: float, last_s: float
) -> float | None:
    """Return the part of all free device time that lay on partly used nodes.

    That is what a gang of whole nodes cannot use. None when nothing was free. O(spans log spans).
    """
    span_s = last_s - first_s
    if span_s <= 0 or not node_devices:
        return None
    changes: list[list[tuple[float, float]]] = [[] for _ in node_devices]
    for span in spans:
        if 0 <= span.node < len(changes) and span.devices:
            changes[span.node].append((span.start_s, span.devices))
            changes[span.node].append((span.end_s, -span.devices))
    free = partly = 0.0
    for devices, steps in zip(node_devices, changes, strict=True):
        used, at_s = 0.0, first_s
        for to_s, change in sorted(steps):
            free += (devices - used) * (to_s - at_s)
            if used > 1e-9:
                partly += (devices - used) * (to_s - at_s)
            used, at_s = used + change, to_s
        free += (devices - used) * max(last_s - at_s, 0.0)
    return partly / free if free > 0 else None


def fairness_error(
    jobs: Sequence[JobRecord], *, capacity: float, weights: Mapping[str, float]
) -> float | None:
    """Return the part of the entitled device time that queues did not get.

    At each instant a queue is entitled to what water-filling by weight gives it of what it
    wants, running and waiting jobs together (max-min fairness: Bertsekas and Gallager, Data
    Networks, 1992, section 6.5.2). The error is the sum of shortfalls over the sum of
    entitlements, at fixed instants. None with fewer than two queues.
    """
    queues = sorted(dict.fromkeys(job.queue for job in jobs if job.state != "never_fits"))
    if len(queues) < 2:
        return None
    first_s = min(job.submit_s for job in jobs)
    last_s = max((job.end_s or job.submit_s for job in jobs), default=first_s)
    if last_s <= first_s:
        return None
    at = first_s + (np.arange(FAIRNESS_INSTANTS) + 0.5) * (last_s - first_s) / FAIRNESS_INSTANTS
    wanted = np.zeros((len(queues), len(at)))
    held = np.zeros((len(queues), len(at)))
    for number, queue in enumerate(queues):
        mine = [job for job in jobs if job.queue == queue and job.state != "never_fits"]
        ends = [last_s if job.end_s is None else job.end_s for job in mine]
        devices = np.array([job.devices for job in mine], np.float64)
        wanted[number] = _level([job.submit_s for job in mine], ends, devices, at)
        starts = [last_s if job.start_s is None else job.start_s for job in mine]
        held[number] = _level(starts, ends, devices, at)
    share = np.array([weights.get(queue, 1.0) for queue in queues])
    entitled = np.stack([water_fill(wanted[:, i], share, capacity) for i in range(len(at))], axis=1)
    total = float(entitled.sum())
    return float(np.maximum(entitled - held, 0.0).sum()) / total if total > 0 else None


def _level(starts: Sequence[float], ends: Sequence[float], amounts: Floats, at: Floats) -> Floats:
    """Return the sum of amounts that hold at each instant."""
    return _sum_before(np.array(starts), amounts, at) - _sum_before(np.array(ends), amounts, at)


def _sum_before(edges: Floats, amounts: Floats, at: Floats) -> Floats:
    order = np.argsort(edges, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(amounts[order])])
    found: Floats = sums[np.searchsorted(edges[order], at, side="right")]
    return found


def water_fill(wanted: Floats, weights: Floats, capacity: float) -> Floats:
    """Share a capacity by weight, none getting more than it wants.

    >>> water_fill(np.array([1.0, 9.0, 9.0]), np.array([1.0, 1.0, 2.0]), 10.0).tolist()
    [1.0, 3.0, 6.0]
    """
    given = np.zeros_like(wanted)
    left, is_open = capacity, (wanted > 0) & (weights > 0)
    while left > 1e-12 and is_open.any():
        part = np.where(is_open, weights, 0.0) * (left / weights[is_open].sum())
        is_full = is_open & (given + part >= wanted - 1e-12)
        if not is_full.any():
            total: Floats = given + part
            return total
        left -= float((wanted - given)[is_full].sum())
        given = np.where(is_full, wanted, given)
        is_open &= ~is_full
    return given
