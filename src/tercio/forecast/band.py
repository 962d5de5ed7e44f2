"""Bands that hold what they say: corrected by how earlier ones came out.

A forecast of a wait is a low end, a middle and a high end. Each earlier forecast whose outcome
is known gives three scores, `log((actual + slack) / (forecast + slack))`, and the correction of
an end is the quantile of its scores that the end stands for: conformal prediction with one score
per side (Romano, Patterson, Candès: Conformalized Quantile Regression, NeurIPS 2019), on the
last outcomes, so that it follows what changes. Until there are enough of them, a prior holds.

Jobs that wait at the same time wait for the same thing: a hundred of them are one piece of
evidence, not a hundred. So outcomes come in episodes, each counts as much as another, and it is
their number that must be enough.
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


def factor(
    episodes: Sequence[Sequence[float]], quantile: float, *, prior: float, full_count: int
) -> float:
    """Return what to multiply by so that `quantile` of the outcomes lie below.

    Args:
        episodes: the scores of each; none is empty.
        quantile: between 0 and 1.
        prior: the factor without outcomes. It gives way with every episode.
        full_count: episodes from which it counts no more.

    >>> factor([], 0.9, prior=1.5, full_count=20)
    1.5
    >>> round(factor([[math.log(2.0)] * 3] * 20, 0.9, prior=1.5, full_count=20), 6)
    2.0
    """
    if not episodes:
        return prior
    weighted = sorted((each, 1.0 / len(scores)) for scores in episodes for each in scores)
    found, left = weighted[-1][0], quantile * len(episodes)
    for each, weight in weighted:
        left -= weight
        if left <= 1e-9:
            found = each
            break
    weight = min(len(episodes) / full_count, 1.0)
    return math.exp(weight * found + (1.0 - weight) * math.log(prior))
