"""Words for people: relative times, amounts of devices, states with a symbol and a colour."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

from tercio.model.units import format_duration, format_memory, parse_instant_s

NOTHING: Final = "-"
"""What a cell shows when there is no value, so that columns stay countable."""

_FAR_S: Final = 60 * 86400.0
"""Beyond this an instant is told as a date: nobody counts so many days."""

_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")

STATE_STYLE: Final[dict[str, tuple[str, str]]] = {
    "held": ("‖", "magenta"),
    "queued": ("○", "yellow"),
    "starting": ("◐", "cyan"),
    "running": ("●", "green"),
    "suspended": ("‖", "magenta"),
    "stopping": ("◌", "cyan"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("⊘", "dim"),
    "unknown": ("?", "yellow"),
    "ready": ("●", "green"),
    "cordoned": ("‖", "yellow"),
    "draining": ("◌", "cyan"),
    "down": ("✗", "red"),
    "now": ("●", "green"),
    "later": ("○", "yellow"),
    "never": ("✗", "red"),
    "placed": ("●", "green"),
    "waiting": ("○", "yellow"),
}
"""Symbol and colour of a state word; both stand beside the word, never for it."""


def span(seconds: float) -> str:
    """Print a duration in at most two units; never negative."""
    return format_duration(max(0.0, seconds))


def ago(at_s: float | None, now_s: float) -> str:
    """Print how long ago an instant was: `12m`, `3d`; `-` for none."""
    return NOTHING if at_s is None else span(now_s - at_s)


def until(at_s: float | None, now_s: float) -> str:
    """Print when an instant will be, as people say it: `now`, `in 12m`, `2100-01-01`."""
    if at_s is None:
        return NOTHING
    if at_s - now_s > _FAR_S:
        return time.strftime("%Y-%m-%d", time.localtime(at_s))
    return "now" if at_s <= now_s + 1 else f"in {span(at_s - now_s)}"


def local_time(at_s: float) -> str:
    """Print an instant in the zone of the reader, with the zone: `2026-11-30 14:05:10 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at_s))


def told(message: str) -> str:
    """Print a message of the server with its instants in the zone of the reader.

    Messages carry instants as RFC 3339 in UTC, so that the same decision reads the same everywhere.
    """
    return _INSTANT.sub(lambda found: local_time(parse_instant_s(found[0])), message)


def number(value: float) -> str:
    """Print a number without a needless fraction: `8`, `0.5`, `12.25`."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def devices(amounts: Mapping[str, float]) -> str:
    """Print amounts of devices the way a job file asks for them: `H100:8`, `A100:0.5+L4:2`."""
    texts = [f"{kind}:{number(amount)}" for kind, amount in amounts.items() if amount]
    return "+".join(texts) or NOTHING


def shares(used: Mapping[str, float], total: Mapping[str, float]) -> str:
    """Print used of total by type: `H100 6/8`; types that are only used stand alone."""
    kinds = [*total, *(kind for kind in used if kind not in total)]
    texts = []
    for kind in kinds:
        of = f"/{number(total[kind])}" if kind in total else ""
        texts.append(f"{kind} {number(used.get(kind, 0.0))}{of}")
    return ", ".join(texts) or NOTHING


def quantity(count: int, noun: str, plural: str | None = None) -> str:
    """Print a count with its noun: `1 job`, `3 jobs`, `2 queues`."""
    return f"{count} {noun if count == 1 else (plural or noun + 's')}"


def bar(ratio: float, *, width: int = 10) -> str:
    """Draw a bar of `width` cells for a ratio from 0 to 1."""
    full = round(min(1.0, max(0.0, ratio)) * width)
    return "█" * full + "░" * (width - full)


def amounts(values: Mapping[str, float]) -> str:
    """Print quota amounts: devices as `H100:8`, memory in binary units."""
    kept = {kind: value for kind, value in values.items() if kind != "memory"}
    text = "+".join(f"{kind}:{number(value)}" for kind, value in kept.items())
    if "memory" in values:
        text += ("+" if text else "") + f"memory:{format_memory(int(values['memory']))}"
    return text or NOTHING


def guarantee(values: Mapping[str, float], shape: Mapping[str, int]) -> str:
    """Print what a queue gets back: `2 whole nodes+H100:8`."""
    whole = [quantity(count, f"whole {level}") for level, count in shape.items() if count]
    parts = [*whole, *([amounts(values)] if values or not whole else [])]
    return "+".join(parts)


def memory_share(used_bytes: int, total_bytes: int) -> str:
    """Print used of total memory, the unit once where it is the same: `128/512GiB`."""
    total = format_memory(total_bytes)
    used = format_memory(used_bytes)
    unit = total.lstrip("0123456789.")
    if used_bytes == 0:
        used = "0"
    elif used.endswith(unit):
        used = used.removesuffix(unit)
    return f"{used}/{total}"


def past_use(device_s: float) -> str:
    """Print device-seconds as device-hours: `12.5h`."""
    return f"{number(round(device_s / 3600, 1))}h"


def device_hours(device_ms: Mapping[str, int]) -> str:
    """Print device time in hours by type: `H100 12.5h, L4 3h`."""
    texts = [f"{kind} {number(round(ms / 3_600_000, 2))}h" for kind, ms in device_ms.items()]
    return ", ".join(texts) or NOTHING
