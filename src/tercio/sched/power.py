"""Power budgets: the most that the devices in use below a domain may draw together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tercio.model.ids import QueuePath
from tercio.model.placement import TaskPlacement
from tercio.model.queue import PowerBudget
from tercio.model.reasons import Reason
from tercio.sched.fairshare import POWER
from tercio.sched.gang import Gang
from tercio.sched.ground import Ground, Tenant, place_on
from tercio.sched.holds import Hold
from tercio.sched.need import Shape
from tercio.sched.owners import Blocked
from tercio.sched.table import Flags, Table


class Budget(NamedTuple):
    """One budget with the rows it covers."""

    domain: str
    limit_w: int
    rows: Flags


def budgets_of(table: Table, budgets: Sequence[PowerBudget]) -> list[Budget]:
    """Find the rows of each budget's domain, at whatever level it is a name."""
    found = []
    for budget in budgets:
        rows: Flags = np.zeros(table.count, np.bool_)
        for level, names in table.domain_names.items():
            if budget.domain in names:
                rows |= table.domains[level] == names.index(budget.domain)
        found.append(Budget(budget.domain, budget.power_w, rows))
    return found


def kept_devices(table: Table, bound: Iterable[Hold]) -> Flags:
    """Devices that others are promised as soon as they are free, [rows, devices]."""
    kept: Flags = np.zeros(table.holders.shape, np.bool_)
    for hold in bound:
        if hold.reservation is None and hold.from_s == -math.inf:
            for row, devices in hold.devices.items():
                kept[row, [at for at in sorted(devices) if at < kept.shape[1]]] = True
    return kept


def passed(
    table: Table, budgets: Sequence[Budget], tasks: Sequence[TaskPlacement], bound: Iterable[Hold]
) -> tuple[Flags, Blocked] | None:
    """Whether a budget that covers one of these tasks, which are placed, is passed now.

    What others are promised as soon as it is free draws power already: it was cleared for them,
    and they start on it. Returns the rows of all budgets that are passed, and the first of the
    tasks' own, or None.
    """
    if not budgets:
        return None
    in_use = (table.holders > 0) | kept_devices(table, bound)
    own = [table.row_of[task.node] for task in tasks if task.node in table.row_of]
    first: Blocked | None = None
    rows: Flags = np.zeros(table.count, np.bool_)
    for budget in budgets:
        used = int(table.power[budget.rows][in_use[budget.rows]].sum())
        if used <= budget.limit_w:
            continue
        rows |= budget.rows
        if first is None and budget.rows[own].any():
            first = Blocked(
                Reason.POWER, QueuePath(budget.domain), "power", POWER, used, 0, budget.limit_w
            )
    return None if first is None else (rows, first)


def is_over(
    table: Table, budgets: Sequence[Budget], tasks: Sequence[TaskPlacement], bound: Iterable[Hold]
) -> bool:
    """Whether a budget that covers one of these tasks, which are placed, is passed now."""
    return passed(table, budgets, tasks, bound) is not None


def place_within(
    budgets: Sequence[Budget],
    ground: Ground | None,
    tenant: Tenant,
    gang: Gang,
    shape: Shape,
    *,
    most: Mapping[int, int],
    within: Flags | None = None,
) -> tuple[tuple[TaskPlacement, ...] | None, Blocked | None]:
    """Place a job beside guarantees by shape and inside budgets, off a domain over its own.

    Returns its tasks, or None and the guarantee or budget that stands in the way, when one does.
    """
    table, bound = gang.table, gang.room.bound
    mark = gang.statement.mark()
    tasks, block = place_on(ground, tenant, gang, shape, most=most, within=within)
    over = None if tasks is None else passed(table, budgets, tasks, bound)
    if over is None:
        return tasks, block
    gang.statement.rollback(mark)
    allowed = ~over[0] if within is None else within & ~over[0]
    tasks, _ = place_on(ground, tenant, gang, shape, most=most, within=allowed)
    if tasks is not None and is_over(table, budgets, tasks, bound):
        gang.statement.rollback(mark)
        tasks = None
    return tasks, over[1] if tasks is None else None
