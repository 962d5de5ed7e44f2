"""Side by side: the figures of several runs, their paired differences and how sure they are.

All arms see the same workloads (common random numbers), so a difference is taken within each
seed and then over seeds. Its confidence interval is Student's for paired samples (Law,
Simulation Modeling and Analysis, 5th edition, section 10.2.1). With one seed the jobs are the
pairs, and the interval of the mean wait and completion time is the percentile bootstrap over
jobs (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13); it says how
much hangs on single jobs, not how another month would go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from tercio.twin.result import TwinResult
from tercio.twin.rng import Stream
from tercio.twin.stats import METRICS, Figures, Waits, size_names

CONFIDENCE: Final = 0.95
BOOTSTRAPS: Final = 1000
# Two-sided 95 % quantiles of Student's t by degrees of freedom, 1 to 30.
_T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z_95: Final = 1.959964
_OF_CAPACITY: Final = ("utilization_ratio",)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """An arm minus the first one.

    Attributes:
        mean: over seeds.
        low, high: of the 95 % confidence interval; None where there are no pairs.
        ratio: mean over the first arm's mean; None when that is 0.
        verdict: `better`, `worse`, `same` (no difference at all), `unsure` where the interval
            holds 0 or is not known, or `neutral` for a figure that another number of devices
            moves by itself.
    """

    mean: float
    low: float | None
    high: float | None
    ratio: float | None
    verdict: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of all arms: means over seeds, and differences from the first arm on."""

    key: str
    title: str
    values: tuple[float | None, ...]
    differences: tuple[Difference | None, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of several arms.

    Attributes:
        arms: their names; the first is the baseline.
        seeds: how many workloads each arm saw.
        rows: in the order of `METRICS`.
        waits_by_size, waits_by_queue: class to waits of each arm: means over the seeds that have
            jobs of the class, and all their jobs.
    """

    arms: tuple[str, ...]
    seeds: int
    rows: tuple[Row, ...]
    waits_by_size: Mapping[str, tuple[Waits | None, ...]]
    waits_by_queue: Mapping[str, tuple[Waits | None, ...]]


def compare(
    arms: Sequence[str],
    figures: Sequence[Sequence[Figures]],
    results: Sequence[TwinResult] = (),
    devices: Sequence[int] = (),
) -> Comparison:
    """Compare arms.

    Args:
        arms: their names.
        figures: by arm, then by seed; the same seeds in every arm.
        results: of each arm at the first seed, for intervals with one seed; may be empty.
        devices: of each arm's cluster; may be empty when all have the same.
    """
    seeds = len(figures[0])
    rows = []
    for metric in METRICS:
        series = [[one.values.get(metric.key) for one in arm] for arm in figures]
        if all(value is None for arm in series for value in arm):
            continue
        differences = [
            paired_difference(series[0], arm, is_low_better=metric.is_low_better) for arm in series
        ]
        if seeds == 1 and len(results) == len(arms):
            differences = [
                _with_jobs(one, metric.key, results[0], result, number)
                for number, (one, result) in enumerate(zip(differences, results, strict=True))
            ]
        if metric.key in _OF_CAPACITY and devices:
            differences = [
                one if count == devices[0] else _neutral(one)
                for one, count in zip(differences, devices, strict=True)
            ]
        differences[0] = None
        rows.append(
            Row(
                key=metric.key,
                title=metric.title,
                values=tuple(_mean(arm) for arm in series),
                differences=tuple(differences),
            )
        )
    return Comparison(
        arms=tuple(arms),
        seeds=seeds,
        rows=tuple(rows),
        waits_by_size=_classes([[one.waits_by_size for one in arm] for arm in figures]),
        waits_by_queue=_classes([[one.waits_by_queue for one in arm] for arm in figures]),
    )


def _neutral(difference: Difference | None) -> Difference | None:
    """Leave a judgement out: devices that are added stand idle more, and are no worse for that."""
    if difference is None or difference.verdict not in {"better", "worse"}:
        return difference
    return msgspec.structs.replace(difference, verdict="neutral")


def t_quantile(degrees: int) -> float:
    """Return Student's two-sided 95 % quantile; above 30 by Cornish and Fisher's expansion.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.

    >>> round(t_quantile(4), 3), round(t_quantile(60), 3)
    (2.776, 2.0)
    """
    if degrees <= len(_T_95):
        return _T_95[degrees - 1]
    z = _Z_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


def paired_difference(
    first: Sequence[float | None], other: Sequence[float | None], *, is_low_better: bool | None
) -> Difference | None:
    """Return an arm minus the first one over equal seeds; None where no seed has both."""
    pairs = [(b, a) for a, b in zip(first, other, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    gaps = [b - a for b, a in pairs]
    mean = sum(gaps) / len(gaps)
    base = sum(a for _, a in pairs) / len(pairs)
    low = high = None
    if len(gaps) > 1:
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1))
        half = t_quantile(len(gaps) - 1) * spread / math.sqrt(len(gaps))
        low, high = mean - half, mean + half
    return Difference(
        mean=mean,
        low=low,
        high=high,
        ratio=mean / base if base else None,
        verdict=_verdict(mean, low, high, is_low_better=is_low_better),
    )


def _verdict(
    mean: float, low: float | None, high: float | None, *, is_low_better: bool | None
) -> str:
    if mean == 0 and low in (None, 0.0):
        return "same"
    if low is None or high is None or is_low_better is None or low <= 0 <= high:
        return "unsure"
    return "better" if (mean < 0) == is_low_better else "worse"


def _with_jobs(
    difference: Difference | None, key: str, first: TwinResult, other: TwinResult, arm: int
) -> Difference | None:
    """Add the bootstrap interval over jobs to the two means that are means over jobs."""
    if difference is None or key not in {"mean_wait_s", "mean_jct_s"} or arm == 0:
        return difference
    name = "wait_s" if key == "mean_wait_s" else "jct_s"
    values = {job.id: getattr(job, name) for job in first.jobs}
    gaps = np.array(
        [
            value - before
            for job in other.jobs
            if (value := getattr(job, name)) is not None
            and (before := values.get(job.id)) is not None
        ],
        np.float64,
    )
    if len(gaps) < 2:
        return difference
    low, high = bootstrap(gaps, Stream(arm, f"bootstrap/{key}"))
    return msgspec.structs.replace(
        difference,
        low=low,
        high=high,
        verdict=_verdict(difference.mean, low, high, is_low_better=True),
    )


def bootstrap(gaps: np.ndarray, stream: Stream) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of paired gaps."""
    generator = np.random.Generator(np.random.PCG64(stream.bits()))
    means = np.sort(
        [gaps[generator.integers(0, len(gaps), len(gaps))].mean() for _ in range(BOOTSTRAPS)]
    )
    cut = int(BOOTSTRAPS * (1 - CONFIDENCE) / 2)
    return float(means[cut]), float(means[-cut - 1])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _classes(
    arms: Sequence[Sequence[Mapping[str, Waits]]],
) -> dict[str, tuple[Waits | None, ...]]:
    """Put the waits of arms side by side; each is a mean over seeds, as every other figure."""
    found = {name: None for arm in arms for one in arm for name in one}
    sizes = [name for name in size_names() if name in found]
    names = sizes if len(sizes) == len(found) else sorted(found)
    return {
        name: tuple(_mean_waits([one[name] for one in arm if name in one]) for arm in arms)
        for name in names
    }


def _mean_waits(seeds: Sequence[Waits]) -> Waits | None:
    if not seeds:
        return None
    return Waits(
        jobs=sum(one.jobs for one in seeds),
        mean_s=sum(one.mean_s for one in seeds) / len(seeds),
        p50_s=sum(one.p50_s for one in seeds) / len(seeds),
        p95_s=sum(one.p95_s for one in seeds) / len(seeds),
        p99_s=sum(one.p99_s for one in seeds) / len(seeds),
    )
