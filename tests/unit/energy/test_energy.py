"""Energy adds up: over readings, over jobs in time, over the sharers of a device."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.energy.accounting import (
    EnergyReading,
    EnergyShare,
    EnergySource,
    EnergySpan,
    Sharer,
    apportion,
    energy_between,
    energy_by_job,
    energy_spans,
    split_shared,
)
from tercio.energy.series import footprint, parse_grid_csv
from tercio.errors import UserError

KWH_MJ = 3_600_000_000


def test_counter_difference_is_preferred_to_power() -> None:
    [span] = energy_spans(
        [
            EnergyReading(at_s=0, counter_mj=1_000, power_w=100),
            EnergyReading(at_s=10, counter_mj=951_000, power_w=100),
        ]
    )
    assert (span.energy_mj, span.source) == (950_000, EnergySource.COUNTER)


def test_counter_reset_falls_back_on_power_or_on_nothing() -> None:
    reset = [EnergyReading(at_s=0, counter_mj=9_000), EnergyReading(at_s=10, counter_mj=5)]
    assert energy_spans(reset) == ()
    with_power = [
        EnergyReading(at_s=0, counter_mj=9_000, power_w=100),
        EnergyReading(at_s=10, counter_mj=5, power_w=200),
        EnergyReading(at_s=10, counter_mj=6),
    ]
    [span] = energy_spans(with_power)
    assert (span.energy_mj, span.source) == (1_500_000, EnergySource.POWER)


def span(start_s: float, end_s: float, energy_mj: int) -> EnergySpan:
    return EnergySpan(
        start_s=start_s, end_s=end_s, energy_mj=energy_mj, source=EnergySource.COUNTER
    )


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=8),
    st.lists(st.floats(0, 80), max_size=6),
)
def test_adjoining_jobs_share_every_millijoule(parts: list[int], cuts: list[float]) -> None:
    spans = [span(10 * i, 10 * i + 10, mj) for i, mj in enumerate(parts)]
    bounds = sorted([0.0, *cuts, 80.0])
    shares = [energy_between(spans, start_s=a, end_s=b)[0] for a, b in pairwise(bounds)]
    assert sum(shares) == sum(parts)
    assert min(shares) >= 0


def test_a_sum_carries_the_worst_source() -> None:
    mixed = [
        span(0, 10, 5),
        EnergySpan(start_s=10, end_s=20, energy_mj=5, source=EnergySource.POWER),
    ]
    assert energy_between(mixed, start_s=0, end_s=20) == (10, EnergySource.POWER)
    assert energy_between(mixed, start_s=30, end_s=40) == (0, None)
    totals = energy_by_job(
        [
            EnergyShare(job="a", energy_mj=1, source=EnergySource.ESTIMATE),
            EnergyShare(job="a", energy_mj=2, source=EnergySource.COUNTER),
            EnergyShare(job=None, energy_mj=9, source=EnergySource.COUNTER),
        ]
    )
    assert list(totals) == ["a"]
    assert (totals["a"].energy_mj, totals["a"].source) == (3, EnergySource.ESTIMATE)


def test_whole_device_is_metered_and_not_estimated() -> None:
    [share] = split_shared(
        777, [Sharer(job="a", allocation=1000)], idle_mj=100, source=EnergySource.COUNTER
    )
    assert share == EnergyShare(job="a", energy_mj=777, source=EnergySource.COUNTER)


def test_idle_goes_by_allocation_and_the_rest_by_activity() -> None:
    busy, calm = split_shared(
        1000,
        [Sharer(job="a", allocation=500, activity=3), Sharer(job="b", allocation=500, activity=1)],
        idle_mj=200,
        source=EnergySource.COUNTER,
    )
    assert (busy.energy_mj, calm.energy_mj) == (100 + 600, 100 + 200)
    assert busy.source is EnergySource.ESTIMATE


def test_free_part_of_a_mig_device_carries_idle_energy_only() -> None:
    held, free = split_shared(
        1000, [Sharer(job="a", allocation=250)], idle_mj=400, source=EnergySource.COUNTER
    )
    assert (held.energy_mj, free.job, free.energy_mj) == (100 + 600, None, 300)
    [empty] = split_shared(1000, [], idle_mj=400, source=EnergySource.COUNTER)
    assert (empty.job, empty.energy_mj) == (None, 1000)


def test_more_than_a_device_is_refused() -> None:
    with pytest.raises(ValueError, match="1100 thousandths"):
        split_shared(
            1,
            [Sharer(job="a", allocation=600), Sharer(job="b", allocation=500)],
            idle_mj=0,
            source=EnergySource.COUNTER,
        )


SHARERS = st.lists(
    st.tuples(st.integers(1, 140), st.none() | st.floats(0, 1e6)), min_size=1, max_size=7
)


@given(st.integers(0, 10**13), SHARERS, st.integers(0, 10**13))
def test_shares_add_up_to_the_device(
    energy_mj: int, parts: list[tuple[int, float | None]], idle_mj: int
) -> None:
    sharers = [
        Sharer(job=f"j{i}", allocation=allocation, activity=activity)
        for i, (allocation, activity) in enumerate(parts)
    ]
    shares = split_shared(energy_mj, sharers, idle_mj=idle_mj, source=EnergySource.COUNTER)
    assert sum(s.energy_mj for s in shares) == energy_mj
    assert min(s.energy_mj for s in shares) >= 0


@given(st.integers(0, 10**15), st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_apportion_is_exact_and_fair_to_a_unit(total: int, weights: list[float]) -> None:
    if sum(weights) <= 0:
        with pytest.raises(ValueError, match="positive"):
            apportion(total, weights)
        return
    parts = apportion(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) <= 1 + total * 1e-14


GRID = """hour,gco2_per_kwh,usd_per_kwh
0,400,0.20
3600,200,0.10
7200,100,
"""


def test_footprint_cuts_energy_at_the_hours() -> None:
    series = parse_grid_csv(GRID)
    got = footprint([span(1800, 5400, KWH_MJ)], series, pue=1.2)
    assert got.energy_kwh == pytest.approx(1.2)
    assert got.cost_usd == pytest.approx(0.6 * 0.20 + 0.6 * 0.10)
    assert got.carbon_kg == pytest.approx((0.6 * 400 + 0.6 * 200) / 1000)


def test_unknown_price_is_not_zero() -> None:
    series = parse_grid_csv(GRID)
    got = footprint([span(7200, 9000, KWH_MJ)], series, pue=1)
    assert (got.cost_usd, got.carbon_kg) == (None, pytest.approx(0.1))
    late = footprint([span(10_000, 11_000, KWH_MJ)], series, pue=1)
    assert late.carbon_kg is None
    early = footprint([span(-10, 10, KWH_MJ)], series, pue=1)
    assert (early.cost_usd, early.energy_kwh) == (None, 1.0)
    with pytest.raises(UserError, match="pue"):
        footprint([], series, pue=0.9)


@given(
    st.lists(
        st.tuples(st.floats(0, 10_000), st.floats(1, 5000), st.integers(0, 10**12)), max_size=5
    )
)
def test_flat_series_costs_energy_times_price(parts: list[tuple[float, float, int]]) -> None:
    rows = "".join(f"{h * 3600},100,0.5\n" for h in range(5))
    series = parse_grid_csv("hour,gco2_per_kwh,usd_per_kwh\n" + rows)
    spans = [span(start, start + length, mj) for start, length, mj in parts]
    got = footprint(spans, series, pue=1.5)
    assert got.cost_usd == pytest.approx(got.energy_kwh * 0.5, rel=1e-9, abs=1e-12)
    assert got.carbon_kg == pytest.approx(got.energy_kwh * 0.1, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hour,usd\n0,1\n", "usd_per_kwh"),
        ("hour\n0\n", "needs the column"),
        ("hour,usd_per_kwh\nnoon,1\n", "line 2"),
        ("hour,usd_per_kwh\n0,cheap\n", "line 2"),
        ("hour,usd_per_kwh\n0,nan\n", "line 2"),
        ("hour,usd_per_kwh\ninf,1\n", "line 2"),
        ("hour,usd_per_kwh\n5,1\n5,1\n", "line 3"),
    ],
)
def test_bad_series_names_line_and_column(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_grid_csv(text)
    assert says in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.field


def test_times_are_read_with_their_zone() -> None:
    series = parse_grid_csv(
        "hour,usd_per_kwh\n2026-01-31T01:00:00+01:00,1\n2026-01-31T01:00:00Z,2\n"
    )
    assert series.hours[1].at_s - series.hours[0].at_s == 3600
