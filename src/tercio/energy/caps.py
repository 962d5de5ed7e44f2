"""Power caps: what a job loses by one, and how a domain stays inside its power budget.

Caps pay when power is the limit, not on the electricity bill: so nothing is capped unless a
budget, the owner of the job, or a measured curve asks for it. A curve is never extrapolated;
below the lowest limit that was measured a device may fall off a cliff.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

# Step between probed limits (Zeus, NSDI'23), and how far one cycle raises a limit.
PROBE_STEP_W = 25
RAISE_RATIO = 0.05


class CapPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one limit: mean time and energy of a step."""

    limit_w: int
    step_s: float
    step_energy_j: float


class CapChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A limit with its price, against the highest limit that was measured."""

    limit_w: int
    slowdown_ratio: float
    saving_ratio: float


def best_cap(points: Sequence[CapPoint], *, slowdown_max_ratio: float) -> CapChoice | None:
    """Return the measured limit with the least energy whose slowdown stays in bounds.

    Ties go to the higher limit. None where nothing was measured.

    Args:
        points: measurements of one job class on one device type.
        slowdown_max_ratio: 0.03 allows steps to take 3 % longer.
    """
    if not points:
        return None
    free = max(points, key=lambda p: p.limit_w)
    allowed = [p for p in points if p.step_s <= free.step_s * (1 + slowdown_max_ratio)]
    best = min(allowed, key=lambda p: (p.step_energy_j, -p.limit_w))
    return CapChoice(
        limit_w=best.limit_w,
        slowdown_ratio=best.step_s / free.step_s - 1,
        saving_ratio=1 - best.step_energy_j / free.step_energy_j,
    )


def next_probe_w(
    points: Sequence[CapPoint], *, limit_min_w: int, limit_max_w: int, slowdown_max_ratio: float
) -> int | None:
    """Return the limit to measure next, or None when the curve is known well enough.

    Probing goes down from the maximum in steps and stops where the slowdown leaves its bound or
    energy rises again.
    """
    if not points:
        return limit_max_w
    ordered = sorted(points, key=lambda p: -p.limit_w)
    free, lowest = ordered[0], ordered[-1]
    if lowest.step_s > free.step_s * (1 + slowdown_max_ratio):
        return None
    if len(ordered) > 1 and lowest.step_energy_j > ordered[-2].step_energy_j:
        return None
    following = lowest.limit_w - PROBE_STEP_W
    return following if following >= limit_min_w else None


def break_even_slowdown_ratio(
    *, power_w: float, saving_ratio: float, pue: float, usd_per_kwh: float, usd_per_hour: float
) -> float:
    """Return the slowdown at which a saving is eaten by the price of the device's time."""
    return power_w * saving_ratio * pue / 1000 * usd_per_kwh / usd_per_hour


class CapClass(IntEnum):
    """Whose power goes first when it is short, lowest first."""

    PREEMPTIBLE = 0
    NORMAL = 1
    PROTECTED = 2


class CappedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device in a power domain.

    Attributes:
        limit_w: the limit that is known to be in force.
        limit_min_w, limit_default_w: settable minimum, and the limit after a reset or a reboot.
        wanted_w: limit its job would like; the default where nobody asked for less.
        has_agent: its agent answers. A device without one may be back at its default any moment,
            and is counted so.
    """

    device: str
    job: str | None
    cap_class: CapClass
    limit_w: int
    limit_min_w: int
    limit_default_w: int
    wanted_w: int
    has_agent: bool = True


class CapOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Set one limit."""

    device: str
    limit_w: int


class CapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Orders of one cycle.

    Attributes:
        lower: to be carried out first, all of them, and confirmed.
        raise_after: safe only after every `lower` was confirmed.
        pause: jobs that must pause, since even minimum limits do not fit; preemptible first.
    """

    lower: tuple[CapOrder, ...]
    raise_after: tuple[CapOrder, ...]
    pause: tuple[str, ...]


def plan_caps(devices: Sequence[CappedDevice], *, budget_w: int) -> CapPlan:
    """Return the limits that keep the sum of limits inside a budget.

    The sum of limits, not of draws, is held: it needs no fast loop to be safe. All devices of a
    job get the same share of their range, since a synchronous job runs at the speed of its slowest
    device. Higher classes are served first. A limit rises by at most 5 % of its default a cycle.

    Args:
        devices: the devices of one domain.
        budget_w: power for them, without the rest of the nodes.
    """
    target_w, paused = target_limits_w(devices, budget_w=budget_w)
    heard = [d for d in devices if d.has_agent]
    lower = [
        CapOrder(device=d.device, limit_w=target_w[d.device])
        for d in heard
        if target_w[d.device] < d.limit_w
    ]
    raises = []
    for d in heard:
        step_w = max(1, int(RAISE_RATIO * d.limit_default_w))
        limit_w = min(target_w[d.device], d.limit_w + step_w)
        if limit_w > d.limit_w:
            raises.append(CapOrder(device=d.device, limit_w=limit_w))
    return CapPlan(lower=tuple(lower), raise_after=tuple(raises), pause=paused)


def target_limits_w(
    devices: Sequence[CappedDevice], *, budget_w: int
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the limit that each device with an agent should come to, and the jobs to pause.

    All devices of a class get the same share of their range; higher classes are served first.
    """
    mute_w = sum(max(d.limit_w, d.limit_default_w) for d in devices if not d.has_agent)
    heard = [d for d in devices if d.has_agent]
    paused, running = _fit_minimums(heard, budget_w - mute_w)
    spare_w = budget_w - mute_w - sum(d.limit_min_w for d in heard)
    target_w = {d.device: d.limit_min_w for d in heard}
    for cap_class in sorted(CapClass, reverse=True):
        members = [d for d in running if d.cap_class is cap_class]
        headroom_w = sum(_headroom_w(d) for d in members)
        if headroom_w <= 0:
            continue
        share = min(1.0, max(0, spare_w) / headroom_w)
        for device in members:
            given = int(_headroom_w(device) * share)
            target_w[device.device] += given
            spare_w -= given
    return target_w, paused


def _headroom_w(device: CappedDevice) -> int:
    return max(0, min(device.wanted_w, device.limit_default_w) - device.limit_min_w)


def _fit_minimums(
    heard: Sequence[CappedDevice], available_w: int
) -> tuple[tuple[str, ...], list[CappedDevice]]:
    """Return the jobs to pause when the minimum limits alone are too much, and who runs on.

    A paused device idles far below its minimum limit but keeps it, so pausing frees nothing of the
    sum of limits; it is the brake that keeps the draw inside the budget.
    """
    short_w = sum(d.limit_min_w for d in heard) - available_w
    paused: list[str] = []
    for device in sorted(heard, key=lambda d: (d.cap_class, d.device)):
        if short_w <= 0:
            break
        if device.job is None or device.job in paused:
            continue
        paused.append(device.job)
        short_w -= sum(d.limit_min_w for d in heard if d.job == device.job)
    return tuple(paused), [d for d in heard if d.job is None or d.job not in paused]
