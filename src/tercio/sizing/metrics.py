"""Error metrics of a validation: one shape for every table, gates beside goals and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.sizing.regression import Array


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """Limits a metric must hold. `at_least` and `at_most` map metric fields to their limits."""

    at_most: Mapping[str, float] = {}
    at_least: Mapping[str, float] = {}


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a validation. Ratios are fractions; None where a field has no meaning.

    `share_ratio` is the share of right verdicts or picks, `under_p95_ratio` the 95th percentile of
    under-prediction. `baseline` holds other predictors on the same rows.
    """

    table: str
    target: str
    holdout: str
    rows: int
    used: int
    excluded: Mapping[str, int]
    groups: int
    mape_ratio: float | None = None
    median_ape_ratio: float | None = None
    p90_ape_ratio: float | None = None
    bias_ratio: float | None = None
    within_20_ratio: float | None = None
    coverage_80_ratio: float | None = None
    under_p95_ratio: float | None = None
    share_ratio: float | None = None
    baseline: Mapping[str, float]
    goal: Mapping[str, float] = {}
    gate: Gate | None = None
    passes: bool | None = msgspec.field(default=None, name="pass")


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted row: measured and predicted value in the unit of the target, 80 % range.

    `is_seen` marks a row that the shipped calibration was fitted on.
    """

    table: str
    target: str
    holdout: str
    group: str
    name: str
    measured: float
    predicted: float
    low: float
    high: float
    is_seen: bool = False


def judge(metric: Metric, gate: Gate | None) -> Metric:
    """The metric with its gate applied. A gated field without rows does not pass."""
    if gate is None:
        return metric
    passes = True
    for field, limit in gate.at_most.items():
        value = getattr(metric, field)
        passes = passes and value is not None and value <= limit
    for field, limit in gate.at_least.items():
        value = getattr(metric, field)
        passes = passes and value is not None and value >= limit
    return msgspec.structs.replace(metric, gate=gate, passes=passes)


def ape(predicted: Array, measured: Array) -> Array:
    """|predicted / measured - 1|."""
    return np.asarray(np.abs(predicted / measured - 1.0))


def summary(predicted: Array, measured: Array) -> dict[str, float]:
    """Mean and median APE of a predictor, for a baseline column."""
    error = ape(predicted, measured)
    if not error.size:
        return {}
    return {
        "mape_ratio": round(float(error.mean()), 4),
        "median_ape_ratio": round(float(np.median(error)), 4),
    }


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays of one scored target: measured, predicted and the range, in its unit."""

    measured: Array
    predicted: Array
    low: Array
    high: Array
    seen: Array | None = None


def metric_of(
    scored: Scored,
    *,
    table: str,
    target: str,
    holdout: str,
    rows: int,
    excluded: Mapping[str, int],
    groups: Sequence[str],
    baseline: Mapping[str, float],
    gate: Gate | None = None,
    goal: Mapping[str, float] | None = None,
) -> Metric:
    """All error fields of one target."""
    base = Metric(
        table=table,
        target=target,
        holdout=holdout,
        rows=rows,
        used=int(scored.measured.size),
        excluded=dict(excluded),
        groups=len(dict.fromkeys(groups)),
        baseline=dict(baseline),
        goal=dict(goal or {}),
    )
    if not scored.measured.size:
        return base
    error = ape(scored.predicted, scored.measured)
    inside = (scored.measured >= scored.low) & (scored.measured <= scored.high)
    filled = msgspec.structs.replace(
        base,
        mape_ratio=float(error.mean()),
        median_ape_ratio=float(np.median(error)),
        p90_ape_ratio=float(np.quantile(error, 0.9)),
        bias_ratio=float(np.mean(scored.predicted / scored.measured - 1.0)),
        within_20_ratio=float(np.mean(error <= 0.2)),
        coverage_80_ratio=float(np.mean(inside)),
        under_p95_ratio=float(
            np.quantile(np.maximum(1.0 - scored.predicted / scored.measured, 0.0), 0.95)
        ),
    )
    return judge(filled, gate)


def results_of(
    scored: Scored,
    *,
    table: str,
    target: str,
    holdout: str,
    groups: Sequence[str],
    names: Sequence[str],
) -> list[RowResult]:
    """One result per row."""
    return [
        RowResult(
            table=table,
            target=target,
            holdout=holdout,
            group=group,
            name=name,
            measured=float(scored.measured[i]),
            predicted=float(scored.predicted[i]),
            low=float(scored.low[i]),
            high=float(scored.high[i]),
            is_seen=scored.seen is not None and bool(scored.seen[i]),
        )
        for i, (group, name) in enumerate(zip(groups, names, strict=True))
    ]


def range_factors(z: Array, groups: Sequence[str], *, share: float = 0.8) -> Array:
    """For each row the `share` quantile of |z| over the rows of other groups.

    `z` is error over deviation from held-out predictions. A group never sets its own range. Groups
    weigh in by rows; with fewer than ten rows elsewhere the normal quantile 1.28 stands.
    """
    size = np.abs(z)
    factors = np.full(z.size, 1.2816)
    labels = np.array(list(groups))
    for group in dict.fromkeys(groups):
        others = size[(labels != group) & np.isfinite(size)]
        if others.size >= 10:
            factors[labels == group] = np.quantile(others, share)
    return factors
