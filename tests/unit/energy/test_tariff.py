"""The cheapest start of a flexible job, against what an honest sum says."""

import random

import pytest

from tercio.energy.accounting import EnergySource, EnergySpan
from tercio.energy.series import MJ_PER_KWH, footprint
from tercio.energy.tariff import Choice, Tariff, cheapest_start
from tercio.model.grid import HOUR_S, GridHour, GridSeries
from tercio.model.queue import Flexible


def series(*prices: float | None, start_s: float = 0.0) -> GridSeries:
    return GridSeries(
        hours=tuple(
            GridHour(at_s=start_s + at * HOUR_S, price_usd_per_kwh=price)
            for at, price in enumerate(prices)
        )
    )


def chosen(
    known: GridSeries, *, from_h: float = 0.0, latest_h: float, hours: float = 1.0
) -> Choice | None:
    found = cheapest_start(
        Tariff(known, Flexible.PRICE),
        from_s=from_h * HOUR_S, latest_s=latest_h * HOUR_S, duration_s=hours * HOUR_S,
    )  # fmt: skip
    if found is None:
        return None
    return Choice(found.start_s / HOUR_S, round(found.rate, 6), round(found.rate_at_once, 6))


DAY = series(0.31, 0.30, 0.12, 0.12, 0.40)


@pytest.mark.parametrize(
    ("latest_h", "hours", "start"),
    [
        (4, 1, Choice(2, 0.12, 0.31)),
        (3, 2, Choice(2, 0.12, 0.305)),
        (4, 2, Choice(2, 0.12, 0.31)),  # the series covers one hour of each
        (1, 1, None),  # 3 % is not worth a wait
        (1.9, 1, None),  # the cheap hour is beyond the slack
        (2, 1, Choice(2, 0.12, 0.31)),
        (0, 1, None),
        (4, 0.5, Choice(2, 0.12, 0.31)),
    ],
)
def test_the_cheapest_hour_within_the_slack(
    latest_h: float, hours: float, start: Choice | None
) -> None:
    assert chosen(DAY, latest_h=latest_h, hours=hours) == start


def test_a_start_between_hours_counts_what_is_left_of_its_hour() -> None:
    found = chosen(series(0.4, 0.2, 0.1), from_h=0.5, latest_h=2)
    assert found == Choice(2, 0.1, 0.3)


def test_of_equal_hours_the_first_counts() -> None:
    assert chosen(series(0.4, 0.1, 0.3, 0.1), latest_h=3) == Choice(1, 0.1, 0.4)


def test_hours_may_be_paid_for() -> None:
    assert chosen(series(0.01, -0.05), latest_h=1) == Choice(1, -0.05, 0.01)
    assert chosen(series(-0.05, 0.01), latest_h=1) is None


def test_what_is_not_known_is_never_chosen() -> None:
    assert chosen(series(0.4, None, 0.1, 0.1), latest_h=2, hours=2) is None  # nor compared with
    assert chosen(series(0.4, None, 0.3), latest_h=2) == Choice(2, 0.3, 0.4)
    assert chosen(GridSeries(), latest_h=2) is None
    assert chosen(series(0.4, 0.1, start_s=-10 * HOUR_S), latest_h=2) is None


def test_a_series_that_ends_early_judges_every_start_by_as_much_of_the_run() -> None:
    """A run of ten hours: three of each are compared, from hours 0 to 2."""
    assert chosen(DAY, latest_h=2, hours=10) == Choice(1, 0.18, 0.243333)
    assert chosen(DAY, latest_h=9, hours=10) == Choice(2, 0.12, 0.31)


def test_carbon_is_another_rate() -> None:
    known = GridSeries(
        hours=(
            GridHour(at_s=0, carbon_g_per_kwh=400, price_usd_per_kwh=0.1),
            GridHour(at_s=HOUR_S, carbon_g_per_kwh=50, price_usd_per_kwh=0.3),
        )
    )
    asked = {"from_s": 0.0, "latest_s": HOUR_S, "duration_s": HOUR_S}
    assert cheapest_start(Tariff(known, Flexible.PRICE), **asked) is None
    assert cheapest_start(Tariff(known, Flexible.CARBON), **asked) == Choice(HOUR_S, 50, 400)


def test_means_are_those_of_the_report() -> None:
    rng = random.Random(7)
    known = series(*(rng.choice([None, *[rng.uniform(-0.1, 0.9)] * 9]) for _ in range(60)))
    tariff = Tariff(known, Flexible.PRICE)
    for _ in range(300):
        from_s = rng.uniform(-2, 61) * HOUR_S
        until_s = from_s + rng.choice([0.1, 1.0, 7.5]) * HOUR_S
        span = EnergySpan(
            start_s=from_s, end_s=until_s, energy_mj=MJ_PER_KWH, source=EnergySource.COUNTER
        )
        honest = footprint([span], known, pue=1.0).cost_usd
        mean = tariff.mean(from_s, until_s)
        assert (mean is None) == (honest is None), (from_s, until_s)
        assert mean is None or mean == pytest.approx(honest, abs=1e-9)
