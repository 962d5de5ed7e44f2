"""Lemon nodes: the few that fail much more often than the rest.

Blame, not raw failures, is counted: a failed job on n nodes gives each 1/n, unless a device
finding names the culprit, which then takes it all; failures of user code weigh nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

DAY_S = 86_400.0


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one failure that one node carries."""

    node: str
    at_s: float
    weight: float
    cause: str


class LemonRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a node is a lemon.

    The counts come from the base rate: at 6.5 failures per 1,000 node-days a healthy node meets
    three in 7 days with p = 1.5e-5 and four in 30 days with p = 5.2e-5 (Poisson), so 1,000
    healthy nodes give about 0.1 false alarms a month.

    Attributes:
        fleet_rate_per_day: failures per node and day of the fleet, the mean of the prior.
        prior_strength: failures that the prior is worth (shape of the gamma distribution).
        lemon_ratio: how many times the fleet's rate makes a lemon.
        confidence_ratio: posterior probability that is asked for.
        history_s: how far back blame counts for the posterior.
        exclude_weight: blame of one user who keeps jobs off the node by name. Choosing nodes to
            exclude is the cheapest strong signal (arXiv 2410.21680).
    """

    fleet_rate_per_day: float = 6.5e-3
    prior_strength: float = 1.0
    lemon_ratio: float = 4.0
    confidence_ratio: float = 0.95
    history_s: float = 90 * DAY_S
    acute_count: float = 3.0
    acute_s: float = 7 * DAY_S
    chronic_count: float = 4.0
    chronic_s: float = 30 * DAY_S
    exclude_weight: float = 0.5


class LemonVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a node is a lemon, by which rule, and how sure the posterior is."""

    is_lemon: bool
    reason: str
    probability_ratio: float
    weight: float


def share_blame(
    nodes: Sequence[str], *, at_s: float, cause: str, culprit: str | None, is_user_code: bool
) -> tuple[Blame, ...]:
    """Return who carries a failed job.

    Args:
        nodes: nodes the job ran on.
        at_s: time of the failure.
        cause: id of the failure, kept as evidence.
        culprit: node that a device finding names, or None.
        is_user_code: the same job fails elsewhere too, or the exit says so.
    """
    if is_user_code or not nodes:
        return ()
    if culprit is not None:
        return (Blame(node=culprit, at_s=at_s, weight=1.0, cause=cause),)
    return tuple(Blame(node=n, at_s=at_s, weight=1.0 / len(nodes), cause=cause) for n in nodes)


def judge_lemon(
    blames: Sequence[Blame],
    *,
    node: str,
    exposure_s: float,
    now_s: float,
    excluded_by: int = 0,
    rule: LemonRule | None = None,
) -> LemonVerdict:
    """Return whether a node fails too often to be one of the healthy ones.

    The failure rate has the posterior Gamma(a + weights, a / fleet rate + exposure); the node is
    a lemon when the rate exceeds `lemon_ratio` fleet rates with the probability asked for.

    Args:
        blames: blame of any nodes; only this node's counts.
        node: the node.
        exposure_s: time under observation, at most `history_s` counts.
        now_s: seconds since the epoch.
        excluded_by: users who exclude the node by name.
        rule: thresholds.
    """
    rule = rule or LemonRule()
    own = [b for b in blames if b.node == node and 0 <= now_s - b.at_s <= rule.history_s]
    acute = _weight(own, now_s=now_s, span_s=rule.acute_s)
    chronic = _weight(own, now_s=now_s, span_s=rule.chronic_s)
    weight = _weight(own, now_s=now_s, span_s=rule.history_s) + rule.exclude_weight * excluded_by
    exposure_days = min(exposure_s, rule.history_s) / DAY_S
    probability = gamma_tail(
        shape=rule.prior_strength + weight,
        rate=rule.prior_strength / rule.fleet_rate_per_day + exposure_days,
        above=rule.lemon_ratio * rule.fleet_rate_per_day,
    )
    reason = ""
    if acute >= rule.acute_count:
        reason = f"{acute:g} failures in {rule.acute_s / DAY_S:g} days"
    elif chronic >= rule.chronic_count:
        reason = f"{chronic:g} failures in {rule.chronic_s / DAY_S:g} days"
    elif own and probability > rule.confidence_ratio:
        reason = (
            f"fails over {rule.lemon_ratio:g} times as often as the fleet"
            f" (p = {probability:.3f}, {weight:g} failures in {exposure_days:.0f} days)"
        )
    return LemonVerdict(
        is_lemon=bool(reason),
        reason=reason or f"{weight:g} failures in {exposure_days:.0f} days",
        probability_ratio=probability,
        weight=weight,
    )


def _weight(blames: Sequence[Blame], *, now_s: float, span_s: float) -> float:
    # Thirds that should make a whole: rounding keeps 3 x 1/3 from being 0.9999.
    return round(math.fsum(b.weight for b in blames if now_s - b.at_s <= span_s), 9)


def gamma_tail(*, shape: float, rate: float, above: float) -> float:
    """Return P(X > above) for X ~ Gamma(shape, rate).

    Regularised upper incomplete gamma function by series below the mean and by Lentz's continued
    fraction above it (Abramowitz and Stegun 6.5.29 and 6.5.31).
    """
    x = above * rate
    if x <= 0:
        return 1.0
    log_front = shape * math.log(x) - x - math.lgamma(shape)
    if x < shape + 1:
        term = total = 1.0 / shape
        n = shape
        while abs(term) > abs(total) * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1.0 - total * math.exp(log_front))
    b = x + 1 - shape
    c, d = 1e300, 1.0 / b
    fraction = d
    for i in range(1, 1000):
        a = -i * (i - shape)
        b += 2
        d = 1.0 / (a * d + b)
        c = b + a / c
        step = c * d
        fraction *= step
        if abs(step - 1) < 1e-15:
            break
    return min(1.0, fraction * math.exp(log_front))
