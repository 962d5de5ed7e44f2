"""How much of what is free on a node the recent kinds of work could not use.

After "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): place where the expected unusable
part grows least. There a kind of work that fits once counts every device it can stand on as
usable. Added here is a second measure that counts only as many tasks as the node's cores feed,
in fractions, so that a node is seen to run out of cores long before it does. The gain is cut
into a hundred steps of a logistic curve as in the paper: near-equal nodes stay equal, and go to
the one in use, in row order, which leaves whole nodes empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tercio.model.resources import CPU_DEVICE, WHOLE_DEVICE_MILLI, DeviceRequest
from tercio.model.snapshot import MixEntry
from tercio.sched.feasible import Fit, View
from tercio.sched.need import Mode, Need
from tercio.sched.table import Flags, Ints, Table

Floats = npt.NDArray[np.float64]

STEPS: Final = 100
"""Steps of the logistic curve; finer ones scatter small tasks over many nodes."""

BLEND_RATIO: Final = 0.7
"""Part of the paper's measure in the sum."""

_SAME_ROWS: Final = 256
"""From so many rows on, rows in the same state are counted once."""

_MOST_KNOWN: Final = 200_000
"""Most amounts that are remembered."""

_State = tuple[int, int, tuple[int, ...]]
"""Device kind of a node, cores left, and thousandths left of each device."""


class Fragmentation:
    """The measure for one mix of work.

    Args:
        mix: recent kinds of work with their weights.
        table: for its device kinds.
        cpus_per_device: what a task without a number of cores takes.
    """

    def __init__(self, mix: Sequence[MixEntry], table: Table, cpus_per_device: int) -> None:
        self.table = table
        self._share = cpus_per_device
        total = sum(entry.weight for entry in mix) or 1.0
        size = len(mix)
        self._weight: Floats = np.array([entry.weight / total for entry in mix])
        self._cpus: Floats = np.zeros(size)
        self._milli: Ints = np.zeros(size, np.int64)
        self._count: Ints = np.ones(size, np.int64)
        self._allowed: Flags = np.zeros((len(table.kinds) + 1, size), np.bool_)
        for at, entry in enumerate(mix):
            request = entry.request.devices[0]
            self._milli[at] = request.share_milli or min(request.count, 1) * WHOLE_DEVICE_MILLI
            self._count[at] = max(request.count, 1)
            devices = self._milli[at] * self._count[at] / WHOLE_DEVICE_MILLI
            cpus = entry.request.cpus_milli
            self._cpus[at] = cpus_per_device * devices if cpus is None else cpus
            types = entry.types or ((request.type,) if request.type else ())
            for number, kind in enumerate(table.kinds):
                self._allowed[number, at] = _serves(request, types, kind.type)
        # For a device with so much left and each distinct size: how many shares of that size
        # stand on it, then how much of it is too little for one.
        sizes, self._size_of = np.unique(np.maximum(self._milli, 1), return_inverse=True)
        self._stand: Floats = np.array(
            [
                [left // size for size in sizes.tolist()]
                + [left if left < size else 0 for size in sizes.tolist()]
                for left in range(WHOLE_DEVICE_MILLI + 1)
            ],
            np.float64,
        )
        self._short_of = self._size_of + len(sizes)
        self._milli_all = (self._milli * self._count * self._weight).astype(np.float64)
        self._several = self._count > 1
        self._kind_count = len(table.kinds)
        # A node comes back to states that it or others were in: most amounts are known.
        self._amounts: dict[_State, float] = {}

    def is_current(self) -> bool:
        """Whether it still knows every device kind of the table."""
        return self._kind_count == len(self.table.kinds)

    def amount(self, cpus: Ints, free: Ints, standing: Floats, kind: Ints) -> Floats:
        """Expected unusable thousandths, [...].

        Args:
            cpus: cores left, in thousandths, [...].
            free: thousandths of devices left, [...].
            standing: sums over the devices of shares that stand and of what is too little for
                one, by distinct size, [..., 2 * sizes].
            kind: device kind of each node, [...]; -1 for none.
        """
        tasks = standing[..., self._size_of] / self._count
        if self._several.any():
            tasks = np.where(self._several, np.floor(tasks), tasks)
        fed = cpus[..., None] / np.maximum(self._cpus, 1e-9)
        allowed = self._allowed[kind]
        usable = np.minimum(tasks, fed) * allowed
        by_count = free - usable @ self._milli_all
        stands = allowed & (tasks >= 1) & (fed >= 1)
        short = standing[..., self._short_of]
        by_paper = np.where(stands, short, free[..., None]) @ self._weight
        unusable: Floats = BLEND_RATIO * by_paper + (1 - BLEND_RATIO) * by_count
        return unusable

    # Ratings.

    def rate(self, fit: Fit, view: View) -> Ints:
        """Preference of rows for one task of a need: smaller is better."""
        table, rows = self.table, view.rows
        left = np.where(view.usable, table.milli_free[rows], 0)
        kind = table.kind[rows][:, 0]
        held = table.tasks_held[rows]
        if len(left) > _SAME_ROWS:
            states = np.column_stack((kind, view.cpus, held > 0, left))
            unique, first, where = np.unique(states, axis=0, return_index=True, return_inverse=True)
            del unique
            score = self._score(fit, view.cpus[first], left[first], kind[first])
            score = score[where.ravel()]
        else:
            score = self._known_scores(fit, view.cpus, left, kind)
        key: Ints = (STEPS - score) * 2 + (held == 0)
        return key

    def _known_scores(self, fit: Fit, cpus: Ints, left: Ints, kind: Ints) -> Ints:
        """`_score` row by row, from the amounts of states that were seen before."""
        need, taken = fit.need, self._cpus_taken(fit)
        states = zip(kind.tolist(), cpus.tolist(), map(tuple, left.tolist()), strict=True)
        steps = [_after(need, state, taken) for state in states]
        self._learn([key for before, afters in steps for key in (before, *afters)])
        amounts = self._amounts
        return np.array(
            [
                _step(
                    (amounts[before] - min([amounts[key] for key in afters])) / WHOLE_DEVICE_MILLI
                )
                for before, afters in steps
            ],
            np.int64,
        )

    def _learn(self, states: Sequence[_State]) -> None:
        """Work out the amounts of states that were never seen."""
        unknown = [state for state in dict.fromkeys(states) if state not in self._amounts]
        if not unknown:
            return
        if len(self._amounts) > _MOST_KNOWN:
            self._amounts.clear()
            unknown = list(dict.fromkeys(states))
        left = np.array([state[2] for state in unknown], np.int64)
        found = self.amount(
            np.array([state[1] for state in unknown], np.int64),
            left.sum(axis=1),
            self._stand[left].sum(axis=1),
            np.array([state[0] for state in unknown], np.int64),
        )
        self._amounts.update(zip(unknown, found.tolist(), strict=True))

    def _score(self, fit: Fit, cpus: Ints, left: Ints, kind: Ints) -> Ints:
        each = self._stand[left]
        free, standing = left.sum(axis=1), each.sum(axis=1)
        before = self.amount(cpus, free, standing, kind)
        rest = cpus - self._cpus_taken(fit)
        match fit.need.mode:
            case Mode.NONE:
                after = self.amount(rest, free, standing, kind)
            case Mode.WHOLE:
                idle = left >= WHOLE_DEVICE_MILLI
                first = idle & (idle.cumsum(axis=1) <= fit.need.count)
                taken = (each * first[..., None]).sum(axis=1)
                gone = first.sum(axis=1) * WHOLE_DEVICE_MILLI
                after = self.amount(rest, free - gone, standing - taken, kind)
            case _:
                after = self._by_device(_milli(fit.need), rest, left, kind).min(axis=1)
        gains, where = np.unique((before - after) / WHOLE_DEVICE_MILLI, return_inverse=True)
        steps: Ints = np.array([_step(gain) for gain in gains.tolist()], np.int64)[where]
        return steps

    def _cpus_taken(self, fit: Fit) -> int:
        need = fit.need
        if need.cpus_milli is not None:
            return need.cpus_milli
        return self._share * need.device_milli // WHOLE_DEVICE_MILLI

    def _by_device(self, milli: int, cpus: Ints, left: Ints, kind: Ints) -> Floats:
        """The measure after a share was taken from each device in turn, [rows, devices]."""
        each = self._stand[left]
        smaller = self._stand[np.maximum(left - milli, 0)]
        standing = each.sum(axis=1)[:, None, :] - each + smaller
        free = np.broadcast_to(left.sum(axis=1)[:, None] - milli, left.shape)
        amounts = self.amount(
            np.broadcast_to(cpus[:, None], left.shape),
            free,
            standing,
            np.broadcast_to(kind[:, None], left.shape),
        )
        found: Floats = np.where(left >= milli, amounts, np.inf)
        return found

    def device(self, fit: Fit, row: int, among: Sequence[int]) -> int:
        """The device of a row on which a share does least harm; the first among equals."""
        table = self.table
        left = tuple(np.where(table.usable[row], table.milli_free[row], 0).tolist())
        kind, taken = table.kind.item(row, 0), self._cpus_taken(fit)
        milli, cpus = fit.need.milli, table.cpus_free.item(row) - taken
        after = {at: (kind, cpus, _less(left, at, milli)) for at in among}
        self._learn(list(after.values()))
        return min(among, key=lambda at: (self._amounts[after[at]], at))


def _step(gain: float) -> int:
    """Place of a gain on the logistic curve; rounding hides in what order it was summed."""
    return math.floor(STEPS / (1 + math.exp(-max(-50.0, min(50.0, round(gain, 9))))))


def _milli(need: Need) -> int:
    """Thousandths of one device that a task takes of it; slices count as a share of that size."""
    return need.milli or min(need.device_milli, WHOLE_DEVICE_MILLI)


def _less(left: tuple[int, ...], at: int, milli: int) -> tuple[int, ...]:
    """What is left of the devices, sorted, after a share was taken from one."""
    return tuple(sorted((*left[:at], max(left[at] - milli, 0), *left[at + 1 :])))


def _after(need: Need, state: _State, cpus_taken: int) -> tuple[_State, list[_State]]:
    """The state with its devices sorted, and those that one task of a need may leave behind."""
    kind, cpus, left = state
    before = (kind, cpus, tuple(sorted(left)))
    rest = cpus - cpus_taken
    match need.mode:
        case Mode.NONE:
            return before, [(kind, rest, before[2])]
        case Mode.WHOLE:
            taken = need.count
            after = []
            for milli in left:
                is_taken = taken > 0 and milli >= WHOLE_DEVICE_MILLI
                taken -= is_taken
                after.append(0 if is_taken else milli)
            return before, [(kind, rest, tuple(sorted(after)))]
        case _:
            size = _milli(need)
            first = {milli: at for at, milli in enumerate(left) if milli >= size}
            afters = [(kind, rest, _less(left, at, size)) for at in first.values()]
            return before, afters or [before]


def _serves(request: DeviceRequest, types: Sequence[str], name: str) -> bool:
    if request.is_none:
        return False
    return name in types if types else name != CPU_DEVICE
