"""Bands that hold what they say: corrected by how earlier ones came out.

A forecast of a wait is a low end, a middle and a high end. Each earlier forecast whose outcome
is known gives three scores, `log((actual + slack) / (forecast + slack))`, and the correction of
an end is the quantile of its scores that the end stands for: split conformal prediction with one
score per side (Romano, Patterson, Candès: Conformalized Quantile Regression, NeurIPS 2019), on
the last outcomes, so that it follows what changes. Until there are enough outcomes, a prior holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

LOW_QUANTILE: Final = 0.1
HIGH_QUANTILE: Final = 0.9


def score(actual_s: float, forecast_s: float, slack_s: float) -> float:
    """Return how far off a forecast was, as the logarithm of a ratio; 0 is exact."""
    return math.log((max(actual_s, 0.0) + slack_s) / (max(forecast_s, 0.0) + slack_s))


def factor(scores: Sequence[float], quantile: float, *, prior: float, prior_weight: float) -> float:
    """Return what to multiply by so that `quantile` of the outcomes lie below.

    The prior factor counts like `prior_weight` outcomes.

    >>> factor([], 0.9, prior=1.5, prior_weight=10.0)
    1.5
    >>> round(factor([math.log(2.0)] * 990, 0.9, prior=1.5, prior_weight=10.0), 2)
    1.99
    """
    count = len(scores)
    if not count:
        return prior
    # Of n outcomes, the (n + 1) q-th is exceeded by the next with a chance of 1 - q, at most.
    place = (count + 1) * quantile
    place = math.ceil(place) if quantile > 0.5 else math.floor(place) if quantile < 0.5 else place
    found = sorted(scores)[min(max(round(place), 1), count) - 1]
    weight = count / (count + prior_weight)
    return math.exp(weight * found + (1.0 - weight) * math.log(prior))
