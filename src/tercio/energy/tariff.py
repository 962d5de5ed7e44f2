"""Which start of a flexible job costs least: the mean price, or carbon, of power over its run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from tercio.model.grid import HOUR_S, GridHour, GridSeries
from tercio.model.queue import Flexible

LEAST_SAVING_RATIO: Final = 0.05
"""Of what a start at once costs; less is not worth a wait."""
_ROUNDING: Final = 1e-9


class Choice(NamedTuple):
    """The cheapest start, its mean rate and that of the first start there is, per kWh."""

    start_s: float
    rate: float
    rate_at_once: float


class Tariff:
    """One rate of a series, summed up so that its mean over a span is two look-ups."""

    def __init__(self, series: GridSeries, by: Flexible) -> None:
        self.end_s = series.end_s
        self._at_s = [hour.at_s for hour in series.hours]
        if self._at_s:
            self._at_s.append(self.end_s)
        self._sums = [0.0]
        self._unknown = [0]
        for place, hour in enumerate(series.hours):
            rate = rate_of(hour, by)
            length_s = self._at_s[place + 1] - hour.at_s
            self._sums.append(self._sums[-1] + (rate or 0.0) * length_s)
            self._unknown.append(self._unknown[-1] + (rate is None))

    def mean(self, from_s: float, until_s: float) -> float | None:
        """Return the mean rate over a span that is not empty, None where part is unknown."""
        if not self._at_s or from_s < self._at_s[0] or until_s > self.end_s:
            return None
        first = bisect_right(self._at_s, from_s) - 1
        last = bisect_left(self._at_s, until_s)
        if self._unknown[last] > self._unknown[first]:
            return None
        return (self._sum(until_s) - self._sum(from_s)) / (until_s - from_s)

    def _sum(self, at_s: float) -> float:
        place = bisect_right(self._at_s, at_s) - 1
        if place == len(self._at_s) - 1:
            return self._sums[-1]
        whole_s = self._at_s[place + 1] - self._at_s[place]
        part = (at_s - self._at_s[place]) / whole_s
        return self._sums[place] + part * (self._sums[place + 1] - self._sums[place])

    def starts(self, from_s: float, until_s: float) -> list[float]:
        """Return an instant and the hours that begin after it, up to another."""
        first = bisect_right(self._at_s, from_s)
        return [from_s, *self._at_s[first : bisect_right(self._at_s, until_s)]]


def rate_of(hour: GridHour, by: Flexible) -> float | None:
    """Return what an hour says: its carbon where that is asked for, else its price, per kWh."""
    return hour.carbon_g_per_kwh if by is Flexible.CARBON else hour.price_usd_per_kwh


def cheapest_start(
    tariff: Tariff, *, from_s: float, latest_s: float, duration_s: float
) -> Choice | None:
    """Return the start in [from, latest] with the least mean rate, or None to start at once.

    A device is never left idle to wait for it: jobs are only put in order by it. Of equal starts
    the earliest counts. Where the series ends before a run would, every start is judged by as
    much of the run as the series covers from the last one, an hour at least.

    Args:
        tariff: the forecast.
        from_s: first allowed start.
        latest_s: last allowed start.
        duration_s: expected run time, more than 0.
    """
    latest_s = min(latest_s, tariff.end_s - min(duration_s, HOUR_S))
    if latest_s <= from_s:
        return None
    duration_s = min(duration_s, tariff.end_s - latest_s)
    at_once: float | None = None
    best: tuple[float, float] | None = None
    for start_s in tariff.starts(from_s, latest_s):
        rate = tariff.mean(start_s, start_s + duration_s)
        if rate is None:
            continue
        at_once = rate if at_once is None else at_once
        if best is None or rate < best[0] - _ROUNDING * abs(best[0]):
            best = (rate, start_s)
    if best is None or at_once is None or best[1] <= from_s:
        return None
    saved = at_once - best[0]
    if saved <= 0 or saved < LEAST_SAVING_RATIO * abs(at_once):
        return None
    return Choice(best[1], best[0], at_once)
