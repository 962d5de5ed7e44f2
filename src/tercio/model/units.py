"""Human units: the only place where "80GiB", "2h" and "1.5" are parsed and printed.

>>> parse_duration_s("1h30m"), parse_memory_bytes("80GiB"), parse_cores_milli("1.5")
(5400.0, 85899345920, 1500)
>>> format_duration(5400), format_memory(85899345920), format_milli(1500)
('1h30m', '80GiB', '1.5')
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from fractions import Fraction

from tercio.errors import UserError

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MEMORY = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgtp]i?b?|b)?$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_POWER = re.compile(r"^(\d+(?:\.\d+)?)\s*(w|kw|mw)$", re.IGNORECASE)
_WATTS = {"w": 1, "kw": 1_000, "mw": 1_000_000}


def parse_duration_s(text: str | int | float, *, field: str | None = None) -> float:
    """Read a duration such as `90`, `45s`, `1h30m`, `7d` or `1:30:00` in seconds."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        seconds = float(text)
        if not math.isfinite(seconds) or seconds < 0:
            raise _bad("duration", text, "a number of seconds that is not negative", field)
        return seconds
    compact = str(text).strip().lower().replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return float(compact)
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d{2})(?::(\d{2}))?", compact)
    if clock:
        days, first, second, third = clock.groups()
        if third is None:
            return int(days or 0) * 86400.0 + int(first) * 60 + int(second)
        return int(days or 0) * 86400.0 + int(first) * 3600 + int(second) * 60 + int(third)
    parts = _DURATION_PART.findall(compact)
    if not parts or "".join(n + u for n, u in parts) != compact:
        raise _bad("duration", text, "a form such as 45s, 30m, 8h, 1h30m or 7d", field)
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def parse_memory_bytes(text: str | int, *, field: str | None = None) -> int:
    """Read a memory size: `80GiB` is binary, `80GB` decimal, `80G` binary, a bare number bytes."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _MEMORY.match(str(text).strip())
    if not match:
        raise _bad("memory size", text, "a form such as 512MiB, 80GiB or 80GB", field)
    number, unit = match.group(1), (match.group(2) or "").lower()
    power = _POWERS[unit[:1].replace("b", "")]
    decimal = unit.endswith("b") and not unit.endswith("ib") and unit != "b"
    return int(Fraction(number) * (1000 if decimal else 1024) ** power)


def parse_cores_milli(text: str | int | float, *, field: str | None = None) -> int:
    """Read a number of cores, whole or fractional, in thousandths: `1.5` is 1500."""
    try:
        milli = Fraction(str(text).strip()) * 1000
    except (ValueError, ZeroDivisionError):
        raise _bad("number of cores", text, "a number such as 4 or 0.5", field) from None
    if isinstance(text, bool) or milli < 0 or milli.denominator != 1:
        raise _bad("number of cores", text, "a number such as 4 or 0.5, to the thousandth", field)
    return int(milli)


def parse_power_w(text: str | int | float, *, field: str | None = None) -> int:
    """Read a power such as `400kW` or `700W`, in whole watts; a bare number is watts."""
    if isinstance(text, (int, float)) and not isinstance(text, bool) and 0 <= text < 1e12:
        return int(text)
    match = _POWER.match(str(text).strip())
    if not match:
        raise _bad("power", text, "a form such as 700W or 400kW", field)
    return int(Fraction(match.group(1)) * _WATTS[match.group(2).lower()])


def parse_instant_s(text: str | int | float, *, field: str | None = None) -> float:
    """Read an instant: RFC 3339 (`2026-12-01T08:00:00Z`) or seconds since the epoch.

    A date-time without a zone is refused: the server's zone is nobody's business.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool) and 0 <= text < 1e11:
        return float(text)
    hint = "an RFC 3339 instant with a zone, such as 2026-12-01T08:00:00Z"
    try:
        instant = dt.datetime.fromisoformat(str(text).strip())
    except ValueError:
        raise _bad("instant", text, hint, field) from None
    if instant.tzinfo is None:
        raise _bad("instant", text, hint, field)
    return instant.timestamp()


def format_duration(seconds: float) -> str:
    """Print a duration in at most two units: `45s`, `1h30m`, `7d`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for position, (name, size) in enumerate(units):
        if whole >= size:
            count, rest = divmod(whole, size)
            if position + 1 < len(units):
                next_name, next_size = units[position + 1]
                if rest >= next_size:
                    return f"{count}{name}{rest // next_size}{next_name}"
            return f"{count}{name}"
    return "0s"


def format_memory(size_bytes: int) -> str:
    """Print a memory size in the largest binary unit that keeps it readable: `80GiB`, `1.5GiB`."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.4g}{unit}"
    return f"{size_bytes}B"


def format_milli(milli: int) -> str:
    """Print thousandths as a plain number: 1500 is `1.5`, 2000 is `2`."""
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def format_number(value: float) -> str:
    """Print a number as people write it, without an exponent: 1e10 is `10000000000`."""
    return format(decimal.Decimal(f"{value:.15g}"), "f")


def format_instant(at_s: float) -> str:
    """Print an instant as RFC 3339 in UTC, to the millisecond."""
    instant = dt.datetime.fromtimestamp(at_s, tz=dt.UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bad(kind: str, text: object, hint: str, field: str | None) -> UserError:
    where = f"{field}: " if field else ""
    article = "an" if kind[0] in "aeiou" else "a"
    return UserError(f"{where}{text!r} is not {article} {kind}", hint=f"write {hint}", field=field)
