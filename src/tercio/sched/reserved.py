"""Reservations of people, as capacity that is not there for anybody else during a window.

Nodes are chosen anew in each cycle, from what will be free when the window opens: first what is
free now, then what running jobs give back in time, then what comes free soonest. Nobody else
may start there and stay, so that what was chosen once stays possible. What runs there already
is never stopped for a reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tercio.model.ids import JobId
from tercio.model.reservation import Reservation, Window
from tercio.model.snapshot import RunningJob
from tercio.model.topology import NODE
from tercio.sched.holds import Hold
from tercio.sched.memory import Memory
from tercio.sched.table import Flags, Table

Times = NDArray[np.float64]

_ALL: Final = 2**52
"""More cores, bytes and tasks than any node has."""

WINDOWS_AHEAD: Final = 2
"""The open or next window, and the one after it."""


class _Taken(NamedTuple):
    """Devices that an earlier reservation has in a window."""

    window: Window
    devices: Flags


def keep(memory: Memory, reservations: Sequence[Reservation], now_s: float) -> list[float]:
    """Hold the capacity of all reservations; return when another choice may be due.

    Windows open and close, and a job that outlives its expected end comes free later.
    """
    memory.sheltered.clear()
    if not reservations:
        return []
    free_at = _free_at(memory)
    taken: list[_Taken] = []
    times = [end_s for end_s, _ in memory.ends() if end_s > now_s][:1]
    for reservation in reservations:
        for number, window in enumerate(reservation.windows(now_s, WINDOWS_AHEAD)):
            times += window
            busy = np.zeros(free_at.shape, np.bool_)
            for other in taken:
                if other.window.from_s < window.until_s and window.from_s < other.window.until_s:
                    busy |= other.devices
            chooser = _Chooser(memory, reservation, window, free_at=free_at, now_s=now_s)
            chosen = chooser.choose(busy)
            taken.append(_Taken(window, chosen))
            hold = _hold(memory, reservation, window, chosen, number=number)
            memory.holds.put(hold)
            memory.sheltered.update(dict.fromkeys(chooser.inside, hold))
    return times


def _free_at(memory: Memory) -> Times:
    """When what is held now comes free, by row and device; -inf for what nobody holds."""
    table = memory.table
    found: Times = np.full(table.holders.shape, -np.inf)
    for row, tasks in enumerate(table.tasks):
        for (job_id, _), task in tasks.items():
            end_s = memory.end_of(job_id)
            for share in task.devices:
                found[row, share.index] = max(found.item(row, share.index), end_s)
    return found


class _Chooser:
    """Chooses the devices of one window.

    Attributes:
        inside: jobs that run in the window now.
    """

    def __init__(
        self,
        memory: Memory,
        reservation: Reservation,
        window: Window,
        *,
        free_at: Times,
        now_s: float,
    ) -> None:
        self._table = memory.table
        self._reservation = reservation
        self._at_s = max(window.from_s, now_s)
        self._free_at = free_at
        self.inside: list[JobId] = []
        running = memory.running.values() if window.from_s <= now_s else ()
        self._own = self._held_inside(running, window)

    def _held_inside(self, running: Iterable[RunningJob], window: Window) -> Flags:
        """Devices of jobs that count against the open window, which become `inside`."""
        found: Flags = np.zeros(self._free_at.shape, np.bool_)
        for job in running:
            names_it = job.spec.reservation == self._reservation.name
            is_own = self._reservation.is_held_by(job.queue, job.user)
            if not names_it and not (is_own and job.placed_s >= window.from_s):
                continue
            self.inside.append(job.job_id)
            for task in job.tasks:
                row = self._table.row_of.get(task.node)
                if row is not None:
                    found[row, [share.index for share in task.devices]] = True
        return found

    def choose(self, busy: Flags) -> Flags:
        """Return the devices to hold, [rows, devices]; `busy` ones belong to others."""
        table, kind = self._table, self._reservation.type
        right: Flags = table.usable & table.placeable[:, None] & (table.kind >= 0)
        if kind is not None:
            kinds = [at for at, known in enumerate(table.kinds) if known.type == kind]
            right = right & np.isin(table.kind, kinds)
        if self._reservation.nodes:
            return right & _named(table, self._reservation)[:, None]
        if self._reservation.shape:
            return self._domains(right, busy)
        return self._devices(right & ~busy)

    def _devices(self, right: Flags) -> Flags:
        """So many devices: on the emptiest nodes first, then those that come free soonest."""
        wanted = self._reservation.devices - int((right & self._own).sum())
        candidates = right & ~self._own
        is_open = candidates & (self._free_at <= self._at_s)
        emptiness = is_open.sum(axis=1)
        rows, devices = np.nonzero(candidates)
        times = np.where(is_open[rows, devices], -np.inf, self._free_at[rows, devices])
        order = np.lexsort((devices, rows, -emptiness[rows], times))[: max(wanted, 0)]
        chosen: Flags = np.zeros(right.shape, np.bool_)
        chosen[rows[order], devices[order]] = True
        return chosen

    def _domains(self, right: Flags, busy: Flags) -> Flags:
        """Whole domains: those the holder is in, then the freest."""
        table = self._table
        chosen: Flags = np.zeros(right.shape, np.bool_)
        is_open = self._own | (self._free_at <= self._at_s)
        for level, count in self._reservation.shape.items():
            column = (
                np.arange(table.count) if level == NODE else table.domains.get(level, np.zeros(0))
            )
            found: list[tuple[bool, float, int]] = []
            for domain in np.unique(column[column >= 0]).tolist():
                inside = right & (column == domain)[:, None]
                if not inside.any() or (inside & (busy | chosen)).any():
                    continue
                share = float((inside & is_open).sum() / inside.sum())
                found.append((not (inside & self._own).any(), -share, domain))
            for _, _, domain in sorted(found)[:count]:
                chosen |= right & (column == domain)[:, None]
        return chosen


def _named(table: Table, reservation: Reservation) -> Flags:
    """The rows of the nodes that a maintenance window names, [rows]."""
    found: Flags = np.zeros(table.count, np.bool_)
    found[[table.row_of[name] for name in reservation.nodes if name in table.row_of]] = True
    return found


def _hold(
    memory: Memory, reservation: Reservation, window: Window, chosen: Flags, *, number: int
) -> Hold:
    table = memory.table
    devices: dict[int, frozenset[int]] = {}
    host: dict[int, tuple[int, int, int]] = {}
    for row in np.flatnonzero(chosen.any(axis=1)).tolist():
        indexes = np.flatnonzero(chosen[row]).tolist()
        devices[row] = frozenset(indexes)
        cpus, memory_bytes = table.cpus_share.item(row), table.memory_share.item(row)
        host[row] = (cpus * len(indexes), memory_bytes * len(indexes), 1)
    for row in np.flatnonzero(_named(table, reservation)).tolist():
        # A node that people work on takes no task at all, one without devices neither.
        host[row] = (_ALL, _ALL, _ALL)
    later = " (next window)" if number else ""
    hold = Hold(
        JobId(f"reservation {reservation.name}{later}"),
        window.from_s,
        window.until_s,
        devices,
        host,
        reservation,
    )
    return hold
