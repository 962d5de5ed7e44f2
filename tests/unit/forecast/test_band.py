"""Corrections of a band: the prior, the quantiles of the last outcomes, and what lies between."""

from __future__ import annotations

import math
import random

import pytest

from tercio.forecast.band import HIGH_QUANTILE, LOW_QUANTILE, factor, score


def test_a_score_is_the_logarithm_of_the_ratio_and_takes_waits_of_nothing() -> None:
    assert score(120.0, 0.0, 60.0) == pytest.approx(math.log(3.0))
    assert score(0.0, 120.0, 60.0) == pytest.approx(-math.log(3.0))
    assert score(-5.0, 0.0, 60.0) == 0.0


def test_the_prior_gives_way_to_what_is_seen() -> None:
    found = [
        factor([[math.log(3.0)]] * count, HIGH_QUANTILE, prior=1.5, full_count=40)
        for count in (0, 5, 20, 2000)
    ]
    assert found[0] == 1.5
    assert found == sorted(found)
    assert found[2] == pytest.approx(math.sqrt(1.5 * 3.0))
    assert found[3] == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("spread", [0.1, 1.0])
@pytest.mark.parametrize("bias", [0.2, 5.0])
def test_a_corrected_band_holds_four_of_five_whatever_the_forecast(
    bias: float, spread: float
) -> None:
    rng = random.Random(7)
    scores: list[float] = []
    inside = []
    for _ in range(2000):
        actual_s = 3600.0 * bias * math.exp(rng.gauss(0.0, spread))
        low, high = (
            (3600.0 + 60.0)
            * factor([[each] for each in scores[-200:]], part, prior=1.0, full_count=40)
            - 60.0
            for part in (LOW_QUANTILE, HIGH_QUANTILE)
        )
        inside.append(low <= actual_s <= high)
        scores.append(score(actual_s, 3600.0, 60.0))
    assert 0.75 <= sum(inside[200:]) / len(inside[200:]) <= 0.85


def test_a_burst_counts_as_one_outcome() -> None:
    calm = [[math.log(1.0)]] * 19
    burst = [math.log(9.0)] * 500
    assert factor([*calm, burst], HIGH_QUANTILE, prior=1.5, full_count=20) == pytest.approx(1.0)
    assert factor([burst], HIGH_QUANTILE, prior=1.5, full_count=20) < 1.7
