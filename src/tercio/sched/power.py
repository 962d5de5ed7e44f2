"""Power budgets: the most that the devices in use below a domain may draw together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tercio.model.ids import QueuePath
from tercio.model.placement import TaskPlacement
from tercio.model.queue import PowerBudget
from tercio.model.reasons import Reason
from tercio.sched.fairshare import POWER
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


def draw_w(table: Table, rows: Flags) -> int:
    """Watts that devices in use on these rows may draw."""
    return int(table.power[rows][table.holders[rows] > 0].sum())


def passed(table: Table, budgets: Sequence[Budget]) -> tuple[Flags, Blocked] | None:
    """Rows of all budgets that are passed now, and the first of them, or None."""
    first: Blocked | None = None
    rows: Flags = np.zeros(table.count, np.bool_)
    for budget in budgets:
        used = draw_w(table, budget.rows)
        if used > budget.limit_w:
            rows |= budget.rows
            first = first or Blocked(
                Reason.POWER, QueuePath(budget.domain), "power", POWER, used, 0, budget.limit_w
            )
    return None if first is None else (rows, first)


def is_over(table: Table, budgets: Sequence[Budget], tasks: Sequence[TaskPlacement]) -> bool:
    """Whether a budget that covers one of these tasks is passed now."""
    over = passed(table, budgets) if budgets else None
    return over is not None and any(
        task.node in table.row_of and bool(over[0][table.row_of[task.node]]) for task in tasks
    )
