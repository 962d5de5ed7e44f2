"""What power costs over time, as events say, and the hour that flexible jobs rather start at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tercio.energy.tariff import Tariff, cheapest_start, rate_of
from tercio.model.events import PricesRead
from tercio.model.grid import HOUR_S, GridHour, GridSeries
from tercio.model.job import JobSpec
from tercio.model.queue import Flexible, Policy
from tercio.model.snapshot import Cheaper
from tercio.model.units import format_instant

if TYPE_CHECKING:
    from tercio.core.state import State

PAST_S: Final = 7 * 86_400.0
"""Hours kept before now: a job's hour is that of its whole slack, whenever it is asked for."""
AHEAD_S: Final = 14 * 86_400.0
"""Hours kept after now."""
_RENEWED_S: Final = 7 * 86_400.0
"""With less than this ahead, a series that reaches further is news."""
SOON_S: Final = 6 * HOUR_S
"""Less than this ahead is worth a warning: prices of tomorrow are published around noon."""
UNITS: Final = {Flexible.PRICE: "USD/kWh", Flexible.CARBON: "g CO2/kWh"}


class Prices:
    """The series in force, with what is worked out of it once."""

    def __init__(self, series: GridSeries | None = None) -> None:
        self.series = series or GridSeries()
        self._tariffs: dict[Flexible, Tariff] = {}

    def cheaper(
        self, policy: Policy, spec: JobSpec, *, submitted_s: float, predicted_s: float | None = None
    ) -> Cheaper | None:
        """Return the hour at which a flexible job rather starts, None for its own turn.

        It depends on nothing but the arguments, the series and the policy: not on the time at
        which it is asked for.
        """
        time, by = spec.time, policy.flexible
        if time.flexible_s is None or by is Flexible.OFF or not self.series.hours:
            return None
        tariff = self._tariffs.get(by)
        if tariff is None:
            tariff = self._tariffs[by] = Tariff(self.series, by)
        from_s = max(submitted_s, time.earliest_s or 0.0)
        length_s = time.expected_s or time.limit_s or predicted_s
        latest_s = from_s + time.flexible_s
        if time.deadline_s is not None:
            latest_s = min(latest_s, time.deadline_s - (length_s or 0.0))
        found = cheapest_start(
            tariff, from_s=from_s, latest_s=latest_s, duration_s=length_s or HOUR_S
        )
        if found is None:
            return None
        return Cheaper(
            from_s=found.start_s,
            latest_s=latest_s,
            rate=found.rate,
            rate_at_once=found.rate_at_once,
            unit=UNITS[by],
        )


def window(series: GridSeries, now_s: float) -> GridSeries:
    """Return the part of a series that the state keeps."""
    return series.between(now_s - PAST_S, now_s + AHEAD_S)


def is_news(known: GridSeries, read: GridSeries, now_s: float) -> bool:
    """Whether a series says something else about the time from now on than what is known."""
    until_s = min(known.end_s, read.end_s)
    if until_s <= now_s:
        return read.end_s > now_s or known.end_s > now_s
    if known.between(now_s, until_s) != read.between(now_s, until_s):
        return True
    return read.end_s < known.end_s or known.end_s < min(read.end_s, now_s + _RENEWED_S)


def joined(known: GridSeries, sent: GridSeries) -> GridSeries:
    """Return what is known once a series was sent: its hours, after those before its first one.

    Hours between the two are unknown. An empty series forgets everything.
    """
    if not sent.hours:
        return sent
    first_s = sent.hours[0].at_s
    kept = tuple(hour for hour in known.hours if hour.at_s < first_s)
    if kept and known.end_s < first_s:
        kept = (*kept, GridHour(at_s=known.end_s))
    return GridSeries(hours=(*kept, *sent.hours))


def known_until_s(series: GridSeries, by: Flexible, now_s: float) -> float | None:
    """Return until when one rate is known without a gap from now on; None where it is not now."""
    until_s = None
    for hour in series.between(now_s, math.inf).hours:
        is_known = rate_of(hour, by) is not None
        if not is_known or (until_s is None and hour.at_s > now_s):
            return until_s if until_s is None else hour.at_s
        until_s = series.end_s
    return until_s if until_s is None or until_s > now_s else None


def lacking(series: GridSeries, by: Flexible, now_s: float) -> str:
    """Say what is lacking for a policy that orders flexible jobs by a rate; empty for nothing."""
    if by is Flexible.OFF:
        return ""
    what = "carbon" if by is Flexible.CARBON else "price"
    until_s = known_until_s(series, by, now_s)
    if until_s is None:
        return (
            f"`flexible: {what}` has no effect: no {what} of power is known for now; see "
            "`tercio health prices`"
        )
    if until_s - now_s < SOON_S:
        return (
            f"`flexible: {what}` has no effect after {format_instant(until_s)}: until then the "
            f"{what} of power is known, and no longer; see `tercio health prices`"
        )
    return ""


def take(state: State, event: PricesRead) -> None:
    """Keep a series, and look again when flexible jobs rather start."""
    state.prices = Prices(event.series)
    state.revision += 1
    for job_id, waiting in list(state.waiting.items()):
        if waiting.spec.time.flexible_s is not None:
            state.refresh(state.jobs[job_id])
