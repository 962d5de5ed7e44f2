"""What electricity costs and how much carbon it carries, over time."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

HOUR_S: Final = 3600.0


class GridHour(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values that hold from `at_s` to the next entry; None where they are not known."""

    at_s: float
    carbon_g_per_kwh: float | None = None
    price_usd_per_kwh: float | None = None


class GridSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A step function of time.

    Before its first hour nothing is known; the last value holds for one hour.
    """

    hours: tuple[GridHour, ...] = ()

    @property
    def end_s(self) -> float:
        """When the last hour is over; minus infinity of an empty series."""
        return self.hours[-1].at_s + HOUR_S if self.hours else float("-inf")

    def at(self, at_s: float) -> GridHour | None:
        """Return the values at an instant, or None where the series does not reach."""
        index = bisect_right(self.hours, at_s, key=lambda h: h.at_s) - 1
        return self.hours[index] if index >= 0 and at_s < self.end_s else None

    def between(self, from_s: float, until_s: float) -> GridSeries:
        """Return the hours that hold at some instant of a span."""
        first = max(0, bisect_right(self.hours, from_s, key=lambda h: h.at_s) - 1)
        return GridSeries(hours=tuple(h for h in self.hours[first:] if h.at_s < until_s))
