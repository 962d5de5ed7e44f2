"""Gaps: devices that are free until something that was promised or reserved begins.

A job that ends before then is let into them (backfill), whatever waits ahead of it. They are read
from what a cycle keeps: the promises and windows of `Memory.holds`, and the planned ends of running
jobs. A gap opens now, or when the job that holds its devices is to end; ends are planned ones, so
that in truth most gaps open sooner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tercio.model.ids import JobId, SiteName
from tercio.sched.holds import Hold
from tercio.sched.memory import Memory

SHORTEST_S: Final = 120.0
"""Shorter gaps are left out: nothing is of use in them once it has been submitted."""
_GRID_S: Final = 60.0
"""Gaps that open later are told to open on whole minutes, so that those of jobs that end
together are one."""


class Gap(NamedTuple):
    """Devices of one type that are free for one time.

    Attributes:
        type: of the devices.
        site: where they are; a gang never spans sites.
        from_s, until_s: `from_s` is now for devices that are free already.
        hold: what begins at `until_s`.
        rows: how many of them a task can have on each row of the table, cores and memory
            considered.
    """

    type: str
    site: SiteName
    from_s: float
    until_s: float
    hold: Hold
    rows: dict[int, int]


_Key = tuple[str, SiteName, float, float, JobId]


def gaps(memory: Memory, now_s: float) -> list[Gap]:
    """Return the gaps before everything that is kept, those that open first at the front.

    Args:
        memory: as the last cycle left it; only read.
        now_s: seconds since the epoch.
    """
    holds = memory.holds.binding(math.inf)
    by_row: dict[int, list[Hold]] = {}
    for hold in holds:
        for row in hold.devices:
            by_row.setdefault(row, []).append(hold)
    found: dict[_Key, Gap] = {}
    for row in sorted(by_row):
        if memory.table.placeable.item(row) and not memory.table.trial.item(row):
            _add_row(memory, row, by_row[row], now_s, found)
    return sorted(
        (gap for gap in found.values() if gap.rows),
        key=lambda gap: (gap.from_s, gap.until_s, gap.type, gap.hold.job, gap.site),
    )


def _add_row(
    memory: Memory, row: int, holds: Sequence[Hold], now_s: float, found: dict[_Key, Gap]
) -> None:
    """Add what is free on one row before each of its holds."""
    table = memory.table
    site = table.nodes[row].spec.site
    ends = _ends(memory, row, now_s)
    counts: dict[_Key, int] = {}
    of_job = {hold.job: hold for hold in holds}
    for device in sorted({device for hold in holds for device in hold.devices[row]}):
        if not table.usable.item(row, device):
            continue
        kind = table.kinds[table.kind.item(row, device)].type
        kept = [hold for hold in holds if device in hold.devices[row]]
        free_s = max(
            (
                ends[job_id]
                for (job_id, _), task in table.tasks[row].items()
                if any(share.index == device for share in task.devices)
            ),
            default=now_s,
        )
        for from_s, hold in _before(kept, free_s, now_s):
            key = (kind, site, from_s, hold.from_s, hold.job)
            counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        kind, _, from_s, until_s, job = key
        fits = min(count, _host_fits(memory, row, from_s, until_s, ends))
        if fits:
            gap = found.setdefault(key, Gap(kind, site, from_s, until_s, of_job[job], {}))
            gap.rows[row] = fits


def _before(kept: Iterable[Hold], free_s: float, now_s: float) -> Iterable[tuple[float, Hold]]:
    """Yield when a device is free before each of the holds on it."""
    for hold in sorted(kept, key=lambda hold: (hold.from_s, hold.until_s)):
        from_s = free_s if free_s <= now_s else math.inf
        if math.isfinite(free_s) and free_s > now_s:
            from_s = math.ceil(free_s / _GRID_S) * _GRID_S
        if hold.from_s - from_s >= SHORTEST_S:
            yield from_s, hold
        free_s = max(free_s, hold.until_s)


def _ends(memory: Memory, row: int, now_s: float) -> dict[JobId, float]:
    """When the jobs of a row are to end; infinity for one that has passed its time."""
    found: dict[JobId, float] = {}
    for job_id, _ in memory.table.tasks[row]:
        end_s = memory.end_of(job_id)
        if end_s <= now_s:
            limit_s = memory.running[job_id].ends_s
            end_s = limit_s if limit_s is not None and limit_s > now_s else math.inf
        found[job_id] = end_s
    return found


def _host_fits(
    memory: Memory, row: int, from_s: float, until_s: float, ends: dict[JobId, float]
) -> int:
    """For how many devices the row has cores and memory through all that time."""
    table = memory.table
    tasks = [(ends[job_id], task) for (job_id, _), task in table.tasks[row].items()]
    over = [task for end_s, task in tasks if end_s <= from_s]
    cpus = table.cpus_free.item(row) + sum(task.cpus_milli for task in over)
    memory_bytes = table.memory_free.item(row) + sum(task.memory_bytes for task in over)
    slots = table.slots_free.item(row) + len(over)
    for hold in memory.holds.binding(until_s, start_s=from_s):
        if row not in hold.host:
            continue
        given = [task for end_s, task in tasks if from_s < end_s <= hold.from_s]
        kept_cpus, kept_bytes, kept_slots = hold.host[row]
        cpus -= max(0, kept_cpus - sum(task.cpus_milli for task in given))
        memory_bytes -= max(0, kept_bytes - sum(task.memory_bytes for task in given))
        slots -= max(0, kept_slots - len(given))
    if slots <= 0:
        return 0
    fits = len(table.nodes[row].spec.devices)
    for left, share in (
        (cpus, table.cpus_share.item(row)),
        (memory_bytes, table.memory_share.item(row)),
    ):
        if share:
            fits = min(fits, max(0, left) // share)
    return fits
