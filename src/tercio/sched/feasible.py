"""How many tasks of one need fit on each node, as a cached column that follows the table.

`Fit` is the whole interface: `fits` (tasks per node) and `key` (smaller is better) are brought
up to date by the rows that changed since the last look. A view with holds answers for a task
that ends at a given time: what is promised to others from before that time is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tercio.model.expression import Matcher, compile_match
from tercio.model.node import NodeSpec
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.sched.mig import slices_left
from tercio.sched.need import CORE_MILLI, Mode, Need
from tercio.sched.table import UNLIMITED, DeviceKind, Flags, Ints, Table

if TYPE_CHECKING:
    from tercio.sched.fragmentation import Fragmentation

NO_PLACE: Final = np.iinfo(np.int64).max
"""Key of a row on which nothing fits."""

_FEW_ROWS: Final = 8


class View:
    """The rows to look at: columns of the table, or a copy with promised capacity taken out.

    `kept` are the untouched devices, by kind, that were taken out on rows that take work.
    """

    __slots__ = ("cpus", "kept", "memory", "rows", "slots", "untouched", "usable")

    def __init__(self, table: Table, rows: Ints | slice) -> None:
        self.rows = rows
        self.cpus: Ints = table.cpus_free[rows]
        self.memory: Ints = table.memory_free[rows]
        self.slots: Ints = table.slots_free[rows]
        self.usable: Flags = table.usable[rows]
        self.untouched: Ints = table.untouched[:, rows]
        self.kept: list[int] = []


class Fit:
    """Cached columns of one need.

    Attributes:
        need: what one task needs.
        allowed: rows that its filter, site and device kind allow, [rows].
        possible: tasks that would fit on the row if it were empty, [rows].
        fits: tasks that fit on the row now, [rows].
        key: preference among rows, smaller first, `NO_PLACE` where nothing fits, [rows].
        kinds: ids of the device kinds that serve.
        fragmentation: the measure that chooses among the devices of a node, or None.
    """

    def __init__(
        self,
        need: Need,
        table: Table,
        rate: Callable[[Fit, View], Ints],
        rate_row: Callable[[Fit, int], int] | None,
    ) -> None:
        self.need = need
        self.table = table
        self._rate = rate
        self._rate_row = rate_row
        self.fragmentation: Fragmentation | None = None
        self._matcher: Matcher | None = None
        if need.nodes is not None and need.nodes.match:
            self._matcher = compile_match(need.nodes.match)
        self._epoch = -1
        self._at = self._facts_at = 0
        self._kind_count = -1
        self.kinds: tuple[int, ...] = ()
        self.allowed: Flags = np.zeros(0, np.bool_)
        self.possible: Ints = np.zeros(0, np.int64)
        self.fits: Ints = np.zeros(0, np.int64)
        self.key: Ints = np.zeros(0, np.int64)
        self._up: Ints = np.zeros(0, np.int64)
        self._up_version = -1
        self._most_version = -1
        self._most_possible: dict[int, int] = {}
        self._most_up: dict[int, int] = {}

    @property
    def open(self) -> Flags:
        """Rows that take new work of this kind."""
        table = self.table
        return table.placeable & ~table.trial if self.need.is_large else table.placeable

    def up(self) -> Ints:
        """Tasks that would fit on what is up and well if it were empty, [rows]."""
        table, need = self.table, self.need
        if self._up_version != table.facts_version:
            self._up_version = table.facts_version
            self._up = np.where(self.open, self.possible, 0)
            if need.mode is Mode.WHOLE and not need.exclusive:
                well = np.zeros(table.count, np.int64)
                for kind in self.kinds:
                    well += (table.usable & (table.kind == kind)).sum(axis=1)
                self._up = np.minimum(self._up, well // need.count)
        return self._up

    def most_possible(self, tasks: int) -> int:
        """Tasks that would fit if nothing ran, each node's counted up to so many."""
        return self._most(self._most_possible, self.possible, tasks)

    def most_up(self, tasks: int) -> int:
        """Tasks that would fit on what is up and well, each node's counted up to so many."""
        return self._most(self._most_up, self.up(), tasks)

    def room_for(self, tasks: int) -> int:
        """Tasks that fit now, each node's counted up to so many."""
        return int(np.minimum(self.fits, tasks).sum())

    def _most(self, known: dict[int, int], column: Ints, tasks: int) -> int:
        if self._most_version != self.table.facts_version:
            self._most_version = self.table.facts_version
            self._most_possible.clear()
            self._most_up.clear()
        found = known.get(tasks)
        if found is None:
            found = known[tasks] = int(np.minimum(column, tasks).sum())
        return found

    def is_short_of_devices(self, tasks: int, kept: Sequence[int] = ()) -> bool:
        """Whether fewer whole devices are free in all than so many tasks take.

        A count over all nodes that take work, so right whenever it says yes. `kept` are devices
        among them that others are promised, by kind.
        """
        need = self.need
        if need.mode is not Mode.WHOLE or need.exclusive:
            return False
        total = self.table.untouched_total
        free = sum([total[kind] for kind in self.kinds])
        if kept:
            free -= sum([kept[kind] for kind in self.kinds])
        return free < tasks * need.count

    def refresh(self) -> Fit:
        """Bring the columns up to date and return self."""
        table = self.table
        if self._epoch != table.epoch or self._kind_count != len(table.kinds):
            self._load()
        elif self._at < len(table.touched):
            if self._facts_at < len(table.fact_changes):
                changed = list(dict.fromkeys(table.fact_changes[self._facts_at :]))
                self._load_facts(changed)
            self._update(list(dict.fromkeys(table.touched[self._at :])))
        self._at = len(table.touched)
        self._facts_at = len(table.fact_changes)
        return self

    def _load(self) -> None:
        table = self.table
        self._epoch, self._kind_count = table.epoch, len(table.kinds)
        self.kinds = table.kinds_of(self.need.takes)
        self.allowed = np.zeros(table.count, np.bool_)
        self.possible = np.zeros(table.count, np.int64)
        self._load_facts()
        view = View(table, slice(None))
        self.fits = self.count(view)
        self.key = np.full(table.count, NO_PLACE, np.int64)
        self._rate_rows(np.flatnonzero(self.fits))

    def _load_facts(self, rows: Sequence[int] | None = None) -> None:
        """Work out which rows the need's own conditions allow, however busy they are."""
        table = self.table
        first: dict[int, int] = {}
        for row, model in enumerate(table.model.tolist()):
            if model not in first:
                first[model] = row
        by_model = np.zeros(max(len(table.models), 1), np.int64)
        for model, row in first.items():
            by_model[model] = possible_tasks(table.nodes[row].spec, self.need, table, row)
        need = self.need
        if need.nodes is None and not need.sites and not need.runs_image:
            self.allowed[:] = True
        else:
            for row in range(table.count) if rows is None else rows:
                self.allowed[row] = self._allows(table.nodes[row].spec)
        self.possible = np.where(self.allowed, by_model[table.model], 0)

    def _allows(self, spec: NodeSpec) -> bool:
        need = self.need
        if need.sites and spec.site not in need.sites:
            return False
        if need.nodes is not None and spec.name in need.nodes.exclude:
            return False
        if need.runs_image and not spec.runs_images:
            return False
        return self._matcher is None or self._matcher.matches(spec)

    def _update(self, rows: list[int]) -> None:
        if len(rows) <= _FEW_ROWS and self.need.mode in (Mode.NONE, Mode.WHOLE):
            if self._rate_row is not None:
                for row in rows:
                    fits = self._count_row(row)
                    self.fits[row] = fits
                    self.key[row] = self._rate_row(self, row) if fits else NO_PLACE
                return
            for row in rows:
                self.fits[row] = self._count_row(row)
        else:
            where = np.array(rows, np.int64)
            self.fits[where] = self.count(View(self.table, where))
        where = np.array(rows, np.int64)
        self.key[where] = NO_PLACE
        self._rate_rows(where[self.fits[where] > 0])

    def _rate_rows(self, rows: Ints) -> None:
        if len(rows):
            self.key[rows] = self._rate(self, View(self.table, rows))

    def _count_row(self, row: int) -> int:
        """`count` for one row, without numpy: the common path of a busy cycle."""
        table, need = self.table, self.need
        if not self.possible.item(row) or not table.placeable.item(row):
            return 0
        if need.is_large and table.trial.item(row):
            return 0
        if need.exclusive:
            return int(self._is_idle(row))
        cpus_free, memory_free = table.cpus_free.item(row), table.memory_free.item(row)
        slots_free = table.slots_free.item(row)
        if need.mode is Mode.NONE:
            fits = UNLIMITED
            cpus, memory = self._host_row(row, 0)
            if cpus:
                fits = min(fits, cpus_free // cpus)
            if memory:
                fits = min(fits, memory_free // memory)
            return max(0, min(fits, slots_free))
        kinds = self.kinds
        if len(kinds) == 1:
            free = table.untouched.item(kinds[0], row)
        else:
            free = sum([table.untouched.item(kind, row) for kind in kinds])
        return self.whole_tasks(row, free, cpus_free, memory_free, slots_free)

    def whole_tasks(
        self, row: int, devices: int, cpus_milli: int, memory_bytes: int, slots: int
    ) -> int:
        """Tasks on whole devices that fit on an open row of which so much is free."""
        fits = devices // self.need.count
        if not fits:
            return 0
        cpus, memory = self._host_row(row, self.need.count)
        if cpus:
            fits = min(fits, cpus_milli // cpus)
        if memory:
            fits = min(fits, memory_bytes // memory)
        return max(0, min(fits, slots))

    def _is_idle(self, row: int) -> bool:
        table = self.table
        free = int(table.untouched[:, row].sum())
        return table.tasks_held.item(row) == 0 and free == table.device_count.item(row)

    def _host_row(self, row: int, devices: int) -> tuple[int, int]:
        cpus, memory = self.host(row, devices * WHOLE_DEVICE_MILLI)
        return cpus, memory

    def host(self, row: int, device_milli: int) -> tuple[int, int]:
        """Cores (thousandths) and bytes that one task takes on this row.

        Where the job names no amount it gets the policy's share per device, but never more than
        the node's own proportion, so that the last device of a node is never stranded.
        """
        table, need = self.table, self.need
        cpus, memory = need.cpus_milli, need.memory_bytes
        if not device_milli:
            total = table.cpus_total.item(row)
            if cpus is None:
                cpus = min(CORE_MILLI, total)
            if memory is None:
                memory = table.memory_total.item(row) // max(total // max(cpus, 1), 1)
                memory = 0 if table.memory_total.item(row) >= UNLIMITED << 20 else memory
            return cpus, memory
        if cpus is None:
            cpus = table.cpus_share.item(row) * device_milli // WHOLE_DEVICE_MILLI
        if memory is None:
            memory = table.memory_share.item(row) * device_milli // WHOLE_DEVICE_MILLI
        return cpus, memory

    def count(self, view: View) -> Ints:
        """Tasks that fit on each row of a view."""
        table, need, rows = self.table, self.need, view.rows
        open_rows = self.open[rows] & (self.possible[rows] > 0)
        if need.exclusive:
            idle = table.tasks_held[rows] == 0
            whole = view.untouched.sum(axis=0) == table.device_count[rows]
            empty: Ints = (open_rows & idle & whole).astype(np.int64)
            return empty
        milli = np.zeros(len(open_rows), np.int64)
        match need.mode:
            case Mode.NONE:
                fits = np.full(len(open_rows), UNLIMITED, np.int64)
            case Mode.WHOLE:
                fits = self._free_whole(view) // need.count
                milli += need.count * WHOLE_DEVICE_MILLI
            case Mode.SHARE:
                fits = self._count_shares(view)
                milli += need.milli or self._memory_milli(view)
            case Mode.MIG:
                fits = self._count_slices(view)
                milli += need.device_milli
        cpus, memory = self._host(view, milli)
        # A task that needs none of something is never held back by it.
        fits = np.minimum(fits, np.where(cpus > 0, view.cpus // np.maximum(cpus, 1), fits))
        fits = np.minimum(fits, np.where(memory > 0, view.memory // np.maximum(memory, 1), fits))
        counted: Ints = np.where(open_rows, np.clip(np.minimum(fits, view.slots), 0, None), 0)
        return counted

    @property
    def device_milli(self) -> int:
        """Thousandths of devices that one task takes: of a share by memory, on the largest card."""
        bytes_wanted = self.need.card_memory_bytes
        if not bytes_wanted or not self.kinds:
            return self.need.device_milli
        largest = max(self.table.kinds[kind].memory_bytes for kind in self.kinds)
        return max(bytes_wanted * WHOLE_DEVICE_MILLI // largest, 1)

    def count_devices(self, view: View) -> Ints:
        """Tasks of a shared need that fit on each row by devices alone."""
        return self._count_slices(view) if self.need.mode is Mode.MIG else self._count_shares(view)

    def _free_whole(self, view: View) -> Ints:
        if len(self.kinds) == 1:
            only: Ints = view.untouched[self.kinds[0]]
            return only
        free: Ints = view.untouched[list(self.kinds)].sum(axis=0)
        return free

    def _host(self, view: View, milli: Ints) -> tuple[Ints, Ints]:
        table, need, rows = self.table, self.need, view.rows
        if need.mode is Mode.NONE:
            total = table.cpus_total[rows]
            cpus = np.minimum(CORE_MILLI, total) if need.cpus_milli is None else total * 0
            cpus = cpus if need.cpus_milli is None else cpus + need.cpus_milli
            memory = table.memory_total[rows] // np.maximum(total // np.maximum(cpus, 1), 1)
            memory = np.where(table.memory_total[rows] >= UNLIMITED << 20, 0, memory)
        else:
            cpus = table.cpus_share[rows] * milli // WHOLE_DEVICE_MILLI
            memory = table.memory_share[rows] * milli // WHOLE_DEVICE_MILLI
        if need.cpus_milli is not None:
            cpus = np.full(len(milli), need.cpus_milli, np.int64)
        if need.memory_bytes is not None:
            memory = np.full(len(milli), need.memory_bytes, np.int64)
        return cpus, memory

    def _served(self, view: View) -> Flags:
        """Devices of the right kind that nobody else is promised, [rows, devices]."""
        kind = self.table.kind[view.rows]
        right = np.zeros(kind.shape, np.bool_)
        for number in self.kinds:
            right |= kind == number
        return right & view.usable

    def _count_shares(self, view: View) -> Ints:
        table, need, rows = self.table, self.need, view.rows
        served = self._served(view) & (table.mig_used[rows] == 0)
        milli, card = table.milli_free[rows], table.card_free[rows]
        total = np.maximum(table.card_total[rows], 1)
        if need.card_memory_bytes:
            take = np.maximum(need.card_memory_bytes * WHOLE_DEVICE_MILLI // total, 1)
            each = np.minimum(card // need.card_memory_bytes, milli // take)
        else:
            each = milli // need.milli
            bytes_each = table.card_total[rows] * need.milli // WHOLE_DEVICE_MILLI
            each = np.where(
                bytes_each > 0, np.minimum(each, card // np.maximum(bytes_each, 1)), each
            )
        counted: Ints = np.where(served, each, 0).sum(axis=1)
        return counted

    def _memory_milli(self, view: View) -> Ints:
        """Thousandths that a memory share is on the first right device of each row."""
        total = np.where(self._served(view), self.table.card_total[view.rows], 0).max(axis=1)
        milli: Ints = self.need.card_memory_bytes * WHOLE_DEVICE_MILLI // np.maximum(total, 1)
        return milli

    def _count_slices(self, view: View) -> Ints:
        table = self.table
        served = self._served(view)
        row_numbers = range(table.count)[view.rows] if isinstance(view.rows, slice) else view.rows
        counts = np.zeros(len(served), np.int64)
        for at, row in enumerate(row_numbers):
            for device in np.flatnonzero(served[at]).tolist():
                used = table.mig_used.item(row, device)
                if used or not table.holders.item(row, device):
                    kind = table.kinds[table.kind.item(int(row), device)]
                    counts[at] += _slices_of(kind, self.need, used)
        return counts // self.need.count


def _slices_of(kind: DeviceKind, need: Need, used: int) -> int:
    """How many more slices of the wanted profile a device of a kind takes."""
    profile = kind.profile(need.mig_profile)
    return 0 if profile is None else slices_left(kind.profiles, profile, used)


def possible_tasks(spec: NodeSpec, need: Need, table: Table, row: int) -> int:
    """Tasks that would fit on a node of ours if nothing ran there and every device was well."""
    kinds = [table.kinds[table.kind.item(row, at)] for at in range(len(spec.devices))]
    right = [kind for kind in kinds if need.takes(kind)]
    match need.mode:
        case Mode.NONE:
            fits = UNLIMITED
        case Mode.WHOLE:
            fits = len(right) // need.count
        case Mode.SHARE if need.card_memory_bytes:
            fits = sum(kind.memory_bytes // need.card_memory_bytes for kind in right)
        case Mode.SHARE:
            fits = len(right) * (WHOLE_DEVICE_MILLI // need.milli)
        case Mode.MIG:
            fits = sum(_slices_of(kind, need, 0) for kind in right) // need.count
    if need.cpus_milli:
        fits = min(fits, table.cpus_total.item(row) // need.cpus_milli)
    if need.memory_bytes:
        fits = min(fits, table.memory_total.item(row) // need.memory_bytes)
    if spec.slots is not None:
        fits = min(fits, spec.slots)
    return min(fits, 1) if need.exclusive else fits
