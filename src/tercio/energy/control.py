"""Limits for one look at all power budgets: lower first, confirm, raise into what is free.

A device may stand below several budgets (a row, a site); it gets the least of what they give.
Devices without a job wait at their floor and count nothing: they draw next to nothing, and start
there. Power that a waiting job needs is kept free, so that lowering others makes room for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tercio.energy.caps import RAISE_RATIO, CapClass, CappedDevice, target_limits_w


class ControlledDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device below a budget.

    Attributes:
        job: on it; None for a free one.
        limit_w: ordered last, or found in force where nothing was ordered.
        ceiling_w: the most that may be in force now.
        floor_w: no limit goes below.
        default_w: its limit after a reset.
        wanted_w: what its job would like.
        is_heard: its node answers, and takes orders.
    """

    device: str
    job: str | None
    cap_class: CapClass
    limit_w: int
    ceiling_w: int
    floor_w: int
    default_w: int
    wanted_w: int
    is_heard: bool = True


class BudgetShare(msgspec.Struct, frozen=True, kw_only=True):
    """One budget, the devices below it, and the power that waiting jobs need below it."""

    domain: str
    budget_w: int
    devices: tuple[str, ...]
    demand_w: int = 0


class ControlPlan(msgspec.Struct, frozen=True, kw_only=True):
    """New limits by device, and the jobs to stop where the floors alone are too much."""

    limits_w: dict[str, int]
    stop: tuple[str, ...] = ()


def plan_limits(
    devices: Mapping[str, ControlledDevice], budgets: Sequence[BudgetShare]
) -> ControlPlan:
    """Return the limits to order now; those that stay are left out.

    Args:
        devices: by name.
        budgets: what holds them; a device in none of them is left as it is.
    """
    target_w: dict[str, int] = {}
    stop: dict[str, None] = {}
    settled: dict[str, bool] = {}
    for budget in budgets:
        members = [devices[name] for name in budget.devices]
        in_use = [device for device in members if device.job is not None]
        found, paused = _targets_w(in_use, budget)
        stop.update(dict.fromkeys(paused))
        for device in members:
            given = found.get(device.device, device.floor_w)
            target_w[device.device] = min(target_w.get(device.device, given), given)
        # Something must still come down, or was not confirmed: nothing rises below this budget.
        is_settled = all(_is_settled(each, found.get(each.device)) for each in in_use)
        for device in members:
            settled[device.device] = settled.get(device.device, True) and is_settled
    limits_w = {}
    for name, target in target_w.items():
        limit = _next_w(devices[name], target, may_rise=settled[name])
        if limit is not None:
            limits_w[name] = limit
    return ControlPlan(limits_w=limits_w, stop=tuple(stop))


def _next_w(device: ControlledDevice, target_w: int, *, may_rise: bool) -> int | None:
    """Return the limit to order for a device now, None to leave it."""
    if not device.is_heard or target_w == device.limit_w:
        return None
    if target_w < device.limit_w:
        return target_w
    if not may_rise:
        return None
    return min(target_w, device.limit_w + max(1, int(RAISE_RATIO * device.default_w)))


def _is_settled(device: ControlledDevice, target_w: int | None) -> bool:
    if target_w is None:
        # Nobody hears it: it counts as it is, and was left out of what is free.
        return True
    return device.ceiling_w <= max(device.limit_w, target_w) and device.limit_w <= target_w


def _targets_w(
    in_use: Sequence[ControlledDevice], budget: BudgetShare
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return where the devices in use should come to, and the jobs that do not fit.

    Room for waiting jobs is made down to the floors and no further: they stop nobody. A node that
    is silent takes power from the others, and stops nobody either.
    """
    capped = [_capped(device) for device in in_use]
    floors_w = sum(device.floor_w for device in in_use if device.is_heard)
    floors_w += sum(max(d.ceiling_w, d.default_w) for d in in_use if not d.is_heard)
    room_w = max(floors_w, budget.budget_w - budget.demand_w)
    found, _ = target_limits_w(capped, budget_w=min(budget.budget_w, room_w))
    known = [msgspec.structs.replace(each, has_agent=True) for each in capped]
    _, paused = target_limits_w(known, budget_w=budget.budget_w)
    return found, paused


def _capped(device: ControlledDevice) -> CappedDevice:
    return CappedDevice(
        device=device.device,
        job=device.job,
        cap_class=device.cap_class,
        limit_w=device.ceiling_w,
        limit_min_w=device.floor_w,
        limit_default_w=device.default_w,
        wanted_w=device.wanted_w,
        has_agent=device.is_heard,
    )
