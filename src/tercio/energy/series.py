"""Price and carbon over time, and what a job's energy cost by them.

The stable form is a CSV with the columns `hour`, `gco2_per_kwh`, `usd_per_kwh`; hours are RFC 3339
times or seconds since the epoch. Either value may be empty: unknown is not zero.
"""

from __future__ import annotations

import csv
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from tercio.energy.accounting import EnergySpan
from tercio.errors import UserError, did_you_mean
from tercio.model.grid import HOUR_S, GridHour, GridSeries

MJ_PER_KWH = 3_600_000_000  # millijoules
COLUMNS = ("hour", "gco2_per_kwh", "usd_per_kwh")


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What energy cost. Money and carbon are None where the series does not cover all of it.

    Attributes:
        energy_kwh: at the meter: device energy times PUE.
    """

    energy_kwh: float
    cost_usd: float | None
    carbon_kg: float | None


def parse_grid_csv(text: str) -> GridSeries:
    """Parse a price and carbon file.

    Raises:
        UserError: a missing or unknown column, a time or a number that is none, or hours out of
            order; the message names the line.
    """
    reader = csv.DictReader(text.splitlines())
    names = reader.fieldnames or []
    for name in names:
        if name not in COLUMNS:
            raise UserError(
                f"unknown column {name!r}",
                field=name,
                hint=did_you_mean(name, COLUMNS) or f"columns are {', '.join(COLUMNS)}",
            )
    if "hour" not in names or len(names) < 2:
        raise UserError(
            "the file needs the column hour and one of gco2_per_kwh, usd_per_kwh", field="hour"
        )
    hours: list[GridHour] = []
    for line, row in enumerate(reader, start=2):
        hour = GridHour(
            at_s=_instant(row["hour"], line),
            carbon_g_per_kwh=_number(row.get("gco2_per_kwh"), "gco2_per_kwh", line),
            price_usd_per_kwh=_number(row.get("usd_per_kwh"), "usd_per_kwh", line),
        )
        if hours and hour.at_s <= hours[-1].at_s:
            raise UserError(
                f"line {line}: {row['hour']} is not after the line before",
                field="hour",
                hint="sort the file by time, one line an hour",
            )
        hours.append(hour)
    return GridSeries(hours=tuple(hours))


def _instant(text: str | None, line: int) -> float:
    try:
        at_s = float(text or "")
    except ValueError:
        pass
    else:
        if math.isfinite(at_s):
            return at_s
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        raise UserError(
            f"line {line}: {text!r} is no time",
            field="hour",
            hint="give 2026-01-31T14:00:00Z or seconds since the epoch",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def _number(text: str | None, field: str, line: int) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(
            f"line {line}: {text!r} is no number", field=field, hint="leave it empty if unknown"
        )
    return number


def footprint(spans: Sequence[EnergySpan], series: GridSeries, *, pue: float) -> Footprint:
    """Return what the energy of a job cost in money and carbon.

    Each span is cut at the hours of the series; energy is spread evenly inside a span.

    Args:
        spans: energy of the job's devices over time.
        series: price and carbon.
        pue: power usage effectiveness of the site, 1 or more.

    Raises:
        UserError: a PUE under 1.
    """
    if pue < 1:
        raise UserError(f"pue is {pue}", field="pue", hint="1.0 is a site without any overhead")
    energy_mj = sum(span.energy_mj for span in spans)
    cost: float | None = 0.0
    carbon_g: float | None = 0.0
    for span in spans:
        for at_s, part_kwh in _hourly(span, series, pue):
            hour = series.at(at_s)
            price = hour.price_usd_per_kwh if hour else None
            carbon = hour.carbon_g_per_kwh if hour else None
            cost = None if cost is None or price is None else cost + part_kwh * price
            carbon_g = None if carbon_g is None or carbon is None else carbon_g + part_kwh * carbon
    return Footprint(
        energy_kwh=energy_mj * pue / MJ_PER_KWH,
        cost_usd=cost,
        carbon_kg=None if carbon_g is None else carbon_g / 1000,
    )


def _hourly(span: EnergySpan, series: GridSeries, pue: float) -> list[tuple[float, float]]:
    """Return (instant, kWh) for the pieces of a span between the hours of the series."""
    first = bisect_right(series.hours, span.start_s, key=lambda h: h.at_s)
    cuts = [span.start_s]
    for hour in series.hours[first:]:
        if hour.at_s >= span.end_s:
            break
        cuts.append(hour.at_s)
    if series.hours and span.start_s < series.hours[-1].at_s + HOUR_S < span.end_s:
        cuts.append(series.hours[-1].at_s + HOUR_S)
    cuts.append(span.end_s)
    length_s = span.end_s - span.start_s
    whole_kwh = span.energy_mj * pue / MJ_PER_KWH
    return [
        (left, whole_kwh * (right - left) / length_s) for left, right in itertools.pairwise(cuts)
    ]
