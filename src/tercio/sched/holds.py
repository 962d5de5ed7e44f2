"""Promised and reserved capacity as seen by everybody else.

A promise keeps devices and, on each node, the cores, memory and slots that jobs ending before
its start do not give back. A task that ends before a promise begins is not bound by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tercio.model.ids import JobId
from tercio.model.reservation import Promise, Reservation
from tercio.sched.feasible import View
from tercio.sched.table import Flags, Ints, Table


class Asker(NamedTuple):
    """Whose job asks, and the reservation that it names."""

    queue: str
    user: str
    reservation: str | None


class Hold(NamedTuple):
    """One promise, or one window of a reservation, as rows.

    Attributes:
        job: to whom it is promised; of a reservation, what sentences call it.
        from_s: when it begins; everything that ends later is bound by it.
        until_s: when the promised job will be gone, or the window ends; what starts later is not
            bound.
        devices: promised device indexes by row.
        host: cores (thousandths), bytes and slots promised by row.
        reservation: whose window it is, or None for a promise.
    """

    job: JobId
    from_s: float
    until_s: float
    devices: Mapping[int, frozenset[int]]
    host: Mapping[int, tuple[int, int, int]]
    reservation: Reservation | None = None

    def is_for(self, asker: Asker) -> bool:
        """Whether it is a reservation that the asker's job may use."""
        mine = self.reservation
        return mine is not None and (
            asker.reservation == mine.name or mine.is_held_by(asker.queue, asker.user)
        )

    def grid(self, shape: tuple[int, ...]) -> Flags:
        """Its devices, [rows, devices]."""
        kept: Flags = np.zeros(shape, np.bool_)
        for row, devices in self.devices.items():
            kept[row, [at for at in sorted(devices) if at < shape[1]]] = True
        return kept


class _Staying:
    """Shares of each device that are held beyond a time; rows that change are counted anew."""

    def __init__(self, table: Table, ends_s: Callable[[JobId], float], at_s: float) -> None:
        self._table, self._ends_s, self._at_s = table, ends_s, at_s
        self._epoch = -1
        self._seen = (0, 0)
        self._counts: Ints = np.zeros((0, 0), np.int64)

    def refresh(self) -> Ints:
        """Bring the counts up to date and return them."""
        table = self._table
        touched, committed = self._seen
        rows: Iterable[int] = dict.fromkeys(
            (*table.touched[touched:], *table.committed[committed:])
        )
        if self._epoch != table.epoch:
            self._epoch, rows = table.epoch, range(table.count)
            self._counts = np.zeros(table.holders.shape, np.int64)
        self._seen = (len(table.touched), len(table.committed))
        width = self._counts.shape[1]
        for row in rows:
            self._counts[row] = 0
            for (job, _), task in table.tasks[row].items():
                if self._ends_s(job) > self._at_s:
                    for share in task.devices:
                        if share.index < width:
                            self._counts[row, share.index] += 1
        return self._counts


class Holds:
    """All promises of a cycle. `version` grows with every change.

    `has_windows`: some are windows of reservations, and then whose job asks decides what binds it.
    """

    def __init__(self, table: Table, ends_s: Callable[[JobId], float]) -> None:
        self._table = table
        self._ends_s = ends_s
        self._holds: dict[JobId, Hold] = {}
        self._views: dict[tuple[int, tuple[JobId, ...]], View] = {}
        self._promised: dict[tuple[float, JobId | None], Flags] = {}
        self._staying: dict[float, _Staying] = {}
        self.version = 0
        self.has_windows = False

    def add(self, promise: Promise, until_s: float = float("inf")) -> None:
        """Keep what a promise names, from its start on (at once when it has no date)."""
        devices: dict[int, set[int]] = {}
        host: dict[int, list[int]] = {}
        for task in promise.tasks:
            row = self._table.row_of.get(task.node)
            if row is None:
                continue
            devices.setdefault(row, set()).update(share.index for share in task.devices)
            sums = host.setdefault(row, [0, 0, 0])
            sums[0] += task.cpus_milli
            sums[1] += task.memory_bytes
            sums[2] += 1
        self._holds[promise.job_id] = Hold(
            promise.job_id,
            float("-inf") if promise.from_s is None else promise.from_s,
            until_s,
            {row: frozenset(found) for row, found in devices.items()},
            {row: (sums[0], sums[1], sums[2]) for row, sums in host.items()},
        )
        self._changed()

    def put(self, hold: Hold) -> None:
        """Keep what a window of a reservation holds."""
        self._holds[hold.job] = hold
        self._changed()

    def open(self, now_s: float) -> list[Hold]:
        """The windows of reservations that are open."""
        return [h for h in self._holds.values() if h.reservation is not None and h.from_s <= now_s]

    def windows(self) -> list[Hold]:
        """The windows of reservations, open or to come."""
        return [hold for hold in self._holds.values() if hold.reservation is not None]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is promised and no window is kept."""
        return not self._holds

    def has(self, job: JobId) -> bool:
        """Whether something is promised to a job."""
        return job in self._holds

    def has_dates(self) -> bool:
        """Whether how long a task runs decides which of them bind it."""
        return any(h.from_s > -math.inf for h in self._holds.values())

    def drop(self, job: JobId) -> None:
        """End a promise; nothing happens when there is none."""
        if self._holds.pop(job, None) is not None:
            self._changed()

    def clear(self) -> None:
        """End all promises, and forget what was counted of running jobs."""
        self._staying.clear()
        if self._holds:
            self._holds.clear()
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.has_windows = any(hold.reservation is not None for hold in self._holds.values())
        self._views.clear()
        self._promised.clear()

    def binding(
        self,
        end_s: float,
        free_of: Collection[JobId] = (),
        *,
        start_s: float = -math.inf,
        asker: Asker | None = None,
    ) -> tuple[Hold, ...]:
        """What binds a task that starts at `start_s` and ends at `end_s`, in order of promise."""
        if not self._holds:
            return ()
        return tuple(
            hold for hold in self._holds.values()
            if hold.from_s < end_s and hold.until_s > start_s and hold.job not in free_of
            and (asker is None or not hold.is_for(asker))
        )  # fmt: skip

    def ends(self) -> list[float]:
        """Instants at which promised jobs will be gone, where that is known, and windows end."""
        return [h.until_s for h in self._holds.values() if h.until_s < float("inf")]

    def kept(self, holds: Collection[Hold], row: int) -> frozenset[int]:
        """Devices of a row that these promises keep."""
        found: frozenset[int] = frozenset()
        for hold in holds:
            found |= hold.devices.get(row, frozenset())
        return found

    def promised(self, at_s: float, besides: JobId) -> Flags:
        """Devices that promises keep at a time, one job's own left out, [rows, devices]."""
        key = (at_s, besides if besides in self._holds else None)
        found = self._promised.get(key)
        if found is None:
            shape = self._table.holders.shape
            found = np.zeros(shape, np.bool_)
            for hold in self._holds.values():
                is_kept = hold.reservation is None and hold.from_s <= at_s < hold.until_s
                if is_kept and hold.job != besides:
                    found |= hold.grid(shape)
            self._promised[key] = found
        return found

    def staying(self, at_s: float) -> Ints:
        """How many shares of each device are held beyond a time, [rows, devices].

        By running jobs and those that start in this cycle. Not to be changed.
        """
        found = self._staying.get(at_s)
        if found is None:
            found = self._staying[at_s] = _Staying(self._table, self._ends_s, at_s)
        return found.refresh()

    def view(self, holds: tuple[Hold, ...]) -> View:
        """The promised rows with what these promises keep taken out."""
        key = (self._table.version, tuple(hold.job for hold in holds))
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = self._build(holds)
        return found

    def _build(self, holds: tuple[Hold, ...]) -> View:
        table = self._table
        order = dict.fromkeys(row for hold in holds for row in hold.host)
        rows: Ints = np.array(list(order), np.int64)
        view = View(table, rows)
        view.untouched = view.untouched.copy()
        view.kept = [0] * len(table.untouched_total)
        for at, row in enumerate(order):
            for hold in holds:
                if row in hold.host:
                    self._subtract(view, at, row, hold)
        return view

    def _subtract(self, view: View, at: int, row: int, hold: Hold) -> None:
        table = self._table
        cpus, memory, slots = hold.host[row]
        for (job, _), task in table.tasks[row].items():
            if self._ends_s(job) <= hold.from_s:
                cpus -= task.cpus_milli
                memory -= task.memory_bytes
                slots -= 1
        view.cpus[at] -= max(cpus, 0)
        view.memory[at] -= max(memory, 0)
        view.slots[at] -= max(slots, 0)
        for device in sorted(hold.devices.get(row, ())):
            if view.usable[at, device]:
                view.usable[at, device] = False
                if not table.holders.item(row, device):
                    kind = table.kind.item(row, device)
                    view.untouched[kind, at] -= 1
                    view.kept[kind] += table.placeable.item(row)
