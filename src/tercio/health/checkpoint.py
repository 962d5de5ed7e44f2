"""How often to save, how much of the time is then useful, and how many spares to keep.

Young's and Daly's formulas are enough: the optimum is flat, so half or double the interval costs
two points of useful time at a failure every three hours.
"""

from __future__ import annotations

import math

import msgspec

INTERVAL_MAX_S = 4 * 3600.0


class CheckpointAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint interval with the numbers behind it.

    Attributes:
        interval_s: time between the ends of two checkpoints.
        mttf_s: mean time to failure of the job that it was computed for.
        ettr_ratio: expected useful share of the time at this interval.
        reason: one sentence with the numbers.
    """

    interval_s: float
    mttf_s: float
    ettr_ratio: float
    reason: str


def job_mttf_s(*, node_count: int, failures_per_node_day: float) -> float:
    """Return the mean time to failure of a job: 1 / (nodes x failure rate)."""
    return 86_400.0 / (node_count * failures_per_node_day)


def estimate_failure_rate(
    *, failures: float, node_days: float, prior_rate_per_day: float, prior_strength: float = 2.0
) -> float:
    """Return failures per node-day: the job's own history with the fleet's rate as prior.

    Mean of the gamma posterior. With no history it is the prior; with a long one, the history.
    """
    return (prior_strength + failures) / (prior_strength / prior_rate_per_day + node_days)


def young_interval_s(*, save_s: float, mttf_s: float) -> float:
    """Return sqrt(2 w M): Young 1974, the first-order optimum."""
    return math.sqrt(2 * save_s * mttf_s)


def daly_interval_s(*, save_s: float, mttf_s: float) -> float:
    """Return Daly's optimum: sqrt(2 w M) - w below w = M / 2, and M above (Daly 2006)."""
    if save_s >= mttf_s / 2:
        return mttf_s
    return math.sqrt(2 * save_s * mttf_s) - save_s


def availability_interval_s(*, save_s: float, failure_s: float, restart_s: float) -> float:
    """Return Ts + sqrt(2 (Tf + Tr) Ts + Ts^2), the availability form of arXiv 2410.18124."""
    return save_s + math.sqrt(2 * (failure_s + restart_s) * save_s + save_s**2)


def ettr_ratio(*, interval_s: float, save_s: float, restart_s: float, mttf_s: float) -> float:
    """Return the expected useful share of the time, in (0, 1).

    Product form 1 / ((1 + w/t) (1 + (u0 + (t + w) / 2) / M)); unlike the difference form of
    arXiv 2410.21680 it stays in range when failures are frequent.

    Args:
        interval_s: work between two saves, t.
        save_s: time the job stands still to save, w.
        restart_s: detect, reschedule and load, u0.
        mttf_s: mean time to failure, M.
    """
    saving = 1 + save_s / interval_s
    failing = 1 + (restart_s + (interval_s + save_s) / 2) / mttf_s
    return 1 / (saving * failing)


def ettr_difference_ratio(
    *, interval_s: float, save_s: float, restart_s: float, mttf_s: float
) -> float:
    """Return (1 - (u0 + t/2) / M) / (1 + w/t): the published form, below 0 when M is short."""
    return (1 - (restart_s + interval_s / 2) / mttf_s) / (1 + save_s / interval_s)


def advise_interval(*, save_s: float, restart_s: float, mttf_s: float) -> CheckpointAdvice:
    """Return Daly's interval, clamped to [2 w, 4 h], with the number a user can check.

    Args:
        save_s: time the job stands still to save, positive.
        restart_s: detect, reschedule and load.
        mttf_s: mean time to failure of the job.
    """
    interval_s = daly_interval_s(save_s=save_s, mttf_s=mttf_s)
    interval_s = max(2 * save_s, min(interval_s, INTERVAL_MAX_S))
    useful = ettr_ratio(interval_s=interval_s, save_s=save_s, restart_s=restart_s, mttf_s=mttf_s)
    return CheckpointAdvice(
        interval_s=interval_s,
        mttf_s=mttf_s,
        ettr_ratio=useful,
        reason=(
            f"a failure every {mttf_s / 3600:.1f} h and {save_s:g} s to save:"
            f" every {interval_s / 60:.1f} min, {useful:.1%} useful"
        ),
    )


def spares_needed(
    *, node_count: int, failures_per_node_day: float, repair_days: float, confidence_ratio: float
) -> int:
    """Return how many spare nodes cover the nodes that are down at once.

    Nodes down at once are Poisson with mean nodes x rate x repair time; the answer is the
    smallest number of spares that suffices with the probability asked for.

    Raises:
        ValueError: a confidence outside [0, 1).
    """
    if not 0 <= confidence_ratio < 1:
        raise ValueError(f"confidence_ratio {confidence_ratio} is not in [0, 1)")
    mean = node_count * failures_per_node_day * repair_days
    spares, total = 0, 0.0
    while True:
        # In logarithms, since exp(-mean) alone underflows for a large fleet.
        log_term = spares * math.log(mean) - mean - math.lgamma(spares + 1) if mean else 0.0
        total += math.exp(log_term) if mean else 1.0
        if total >= confidence_ratio:
            return spares
        spares += 1
