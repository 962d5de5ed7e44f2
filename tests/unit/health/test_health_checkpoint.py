"""Checkpoint interval, expected useful time and spares against the published figures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.health.checkpoint import (
    INTERVAL_MAX_S,
    advise_interval,
    availability_interval_s,
    daly_interval_s,
    estimate_failure_rate,
    ettr_difference_ratio,
    ettr_ratio,
    job_mttf_s,
    spares_needed,
    young_interval_s,
)


@pytest.mark.parametrize(
    ("rate_per_1000", "gpus", "mttf_h", "slow", "fast"),
    # Failure rates of arXiv 2410.21680 and 2407.21783 on 8-GPU nodes: MTTF, then interval and
    # useful share for (10 min restart, 60 s save) and (2 min, 5 s).
    [
        (2.34, 1024, 80.1, (98, 0.977), (28, 0.994)),
        (2.34, 16384, 5.0, (24.5, 0.890), (7.1, 0.970)),
        (3.79, 4096, 12.4, (38.5, 0.937), (11, 0.982)),
        (3.79, 16384, 3.1, (19, 0.853), (5.6, 0.960)),
        (6.50, 1024, 28.8, (59, 0.961), (17, 0.989)),
        (6.50, 16384, 1.8, (15, 0.796), (4.2, 0.944)),
    ],
)
def test_interval_and_useful_share(
    rate_per_1000: float,
    gpus: int,
    mttf_h: float,
    slow: tuple[float, float],
    fast: tuple[float, float],
) -> None:
    mttf_s = job_mttf_s(node_count=gpus // 8, failures_per_node_day=rate_per_1000 / 1000)
    assert mttf_s / 3600 == pytest.approx(mttf_h, rel=0.03)
    for (restart_s, save_s), (minutes, useful) in (((600, 60), slow), ((120, 5), fast)):
        interval_s = young_interval_s(save_s=save_s, mttf_s=mttf_s)
        assert interval_s / 60 == pytest.approx(minutes, rel=0.04)
        got = ettr_ratio(interval_s=interval_s, save_s=save_s, restart_s=restart_s, mttf_s=mttf_s)
        # The published shares are simulated; the formula agrees within about a point.
        assert got == pytest.approx(useful, abs=0.013)


def test_published_difference_form_agrees_where_failures_are_rare() -> None:
    numbers = {"interval_s": 3540, "save_s": 60, "restart_s": 600, "mttf_s": 28.8 * 3600}
    assert ettr_difference_ratio(**numbers) == pytest.approx(ettr_ratio(**numbers), abs=0.002)


def test_daly_is_young_minus_the_save_and_ends_at_the_mttf() -> None:
    assert daly_interval_s(save_s=50, mttf_s=10_000) == 950
    assert daly_interval_s(save_s=6000, mttf_s=10_000) == 10_000


def test_availability_form() -> None:
    got = availability_interval_s(save_s=60, failure_s=10_000, restart_s=600)
    assert got == pytest.approx(60 + math.sqrt(2 * 10_600 * 60 + 3600))


@given(st.floats(0.5, 600), st.floats(1, 3600), st.floats(200, 1e5))
def test_advice_is_clamped_and_no_neighbour_is_much_better(
    save_s: float, restart_s: float, saves_per_failure: float
) -> None:
    mttf_s = save_s * saves_per_failure
    advice = advise_interval(save_s=save_s, restart_s=restart_s, mttf_s=mttf_s)
    assert 2 * save_s <= advice.interval_s <= max(INTERVAL_MAX_S, 2 * save_s)
    assert 0 < advice.ettr_ratio < 1
    if 2 * save_s < advice.interval_s < INTERVAL_MAX_S:
        for factor in (0.5, 2):
            other = ettr_ratio(
                interval_s=advice.interval_s * factor,
                save_s=save_s,
                restart_s=restart_s,
                mttf_s=mttf_s,
            )
            assert other <= advice.ettr_ratio + 0.01


def test_own_history_outweighs_the_prior_with_time() -> None:
    fresh = estimate_failure_rate(failures=0, node_days=0, prior_rate_per_day=0.0065)
    seasoned = estimate_failure_rate(failures=100, node_days=1000, prior_rate_per_day=0.0065)
    assert fresh == pytest.approx(0.0065)
    assert seasoned == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize(
    ("nodes", "repair_days", "spares_99", "spares_999"),
    [
        (64, 0.5, 2, 3),
        (64, 7, 8, 9),
        (256, 3, 11, 13),
        (512, 7, 35, 40),
        (1024, 0.5, 8, 10),
        (1024, 3, 31, 35),
        (2048, 0.5, 13, 16),
        (2048, 7, 116, 124),
    ],
)
def test_spares(nodes: int, repair_days: float, spares_99: int, spares_999: int) -> None:
    for confidence, expected in ((0.99, spares_99), (0.999, spares_999)):
        got = spares_needed(
            node_count=nodes,
            failures_per_node_day=6.5e-3,
            repair_days=repair_days,
            confidence_ratio=confidence,
        )
        assert got == expected


def test_spares_of_a_huge_and_of_a_perfect_fleet() -> None:
    huge = spares_needed(
        node_count=100_000, failures_per_node_day=0.01, repair_days=7, confidence_ratio=0.99
    )
    assert 7_100 < huge < 7_300
    assert (
        spares_needed(node_count=9, failures_per_node_day=0, repair_days=7, confidence_ratio=0.9)
        == 0
    )
    with pytest.raises(ValueError, match="confidence_ratio"):
        spares_needed(node_count=9, failures_per_node_day=1, repair_days=7, confidence_ratio=1)
