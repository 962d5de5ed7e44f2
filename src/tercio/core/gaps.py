"""Where a short job would be let in before what is promised or reserved, and of what length."""

from __future__ import annotations

import math
from typing import Final

from tercio.core.driver import Driver
from tercio.model.sharing_views import GapRow
from tercio.sched.gaps import Gap, gaps
from tercio.sched.table import Table

_MINUTE_S: Final = 60.0


def gap_rows(driver: Driver, now_s: float, *, site: str | None = None) -> tuple[GapRow, ...]:
    """Return the gaps of the cluster as the last cycle left it, those that open first in front.

    `site` leaves those of other sites out.
    """
    memory = driver.last_memory()
    if memory is None:
        return ()
    found = gaps(memory, now_s)
    return tuple(
        _row(gap, memory.table, now_s) for gap in found if site is None or gap.site == site
    )


def _row(gap: Gap, table: Table, now_s: float) -> GapRow:
    """Tell a gap; of gangs, the one whose tasks are as large as one node lets them be."""
    per_task = max(gap.rows.values())
    length_s = gap.until_s - gap.from_s
    # Whoever submits at once needs a moment for it.
    usable_s = length_s - (_MINUTE_S if gap.from_s <= now_s else 0.0)
    devices = sum(gap.rows.values())
    kept = gap.hold.reservation
    return GapRow(
        type=gap.type,
        site=gap.site,
        devices=devices,
        nodes=tuple(table.names[row] for row in gap.rows),
        from_s=gap.from_s,
        until_s=gap.until_s,
        device_hours=devices * length_s / 3600.0,
        per_task=per_task,
        tasks=sum(count == per_task for count in gap.rows.values()),
        limit_s=math.floor(usable_s / _MINUTE_S) * _MINUTE_S,
        reservation=None if kept is None else kept.name,
        job=gap.hold.job if kept is None else None,
    )
