"""A running job as its marks show it: which ranks are slow, and whether all stand still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.health.hang import HangRule, HangWatch, Phase, culprit_ranks
from tercio.health.marks import Mark
from tercio.health.step_grid import StepGrid
from tercio.health.straggler import Straggler, StragglerRule, StragglerWatch

# Steps of which not all ranks have told yet; beyond that the silent ones are left out.
_STEPS_OPEN = 64


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """That a job is silent for longer than its phase allows.

    Attributes:
        last_progress_s: time of the last mark of any rank.
        limit_s: silence that the phase allows.
        ranks: those whose last step is the oldest, if not all are alike.
    """

    last_progress_s: float
    limit_s: float
    phase: Phase
    ranks: tuple[int, ...]


class JobProgress:
    """Follows one attempt. Marks of one rank come in order; ranks come in any order.

    Attributes:
        slow: the ranks that are slower than their peers now.
        has_marks: whether any rank marked anything.
        first_step_s: when a rank first marked a step, None before that.
        saved_s: when a rank last ended a checkpoint, None before that.
        has_own: whether any rank told its own time of a step, without its wait for the others.
        grids: the steps so far by role, in the order of `ranks_of`.
        ranks_of: the ranks of each role.
    """

    def __init__(self, roles: Mapping[int, str], *, started_s: float, rule: StragglerRule) -> None:
        """Begin with an attempt.

        Args:
            roles: role of each rank; only ranks of one role are compared.
            started_s: when the attempt ran.
            rule: when a rank is slow.
        """
        self.slow: dict[int, Straggler] = {}
        self.has_marks = False
        self.first_step_s: float | None = None
        self.saved_s: float | None = None
        self.has_own = False
        self._roles = dict(roles)
        self._hang = HangWatch(started_s=started_s)
        self._open: dict[int, Phase] = {}
        self._last: dict[int, Mark] = {}
        self._count: dict[int, int] = {}
        self.ranks_of: dict[str, list[int]] = {}
        for rank, role in self._roles.items():
            self.ranks_of.setdefault(role, []).append(rank)
        self._watches = {
            role: StragglerWatch(len(ranks), role=role, rule=rule)
            for role, ranks in self.ranks_of.items()
        }
        self._steps: dict[str, dict[int, dict[int, float]]] = {r: {} for r in self.ranks_of}
        self.grids = {role: StepGrid(len(ranks)) for role, ranks in self.ranks_of.items()}

    def note(self, marks_by_rank: Mapping[int, Sequence[Mark]]) -> None:
        """Take the new marks of some ranks. Those of unknown ranks are passed over."""
        fresh = [
            (mark.at_s, rank, mark)
            for rank, marks in marks_by_rank.items()
            if rank in self._roles
            for mark in marks
        ]
        # In the order of time: one rank's checkpoint must not end before another's step.
        for _, rank, mark in sorted(fresh, key=lambda each: each[:2]):
            self.has_marks = True
            self._note_phase(rank, mark)
            if mark.phase is Phase.STEP:
                self._note_step(rank, mark)
                self.first_step_s = self.first_step_s or mark.at_s
            elif mark.phase is Phase.CHECKPOINT and not mark.is_begin:
                self.saved_s = mark.at_s

    @property
    def last_progress_s(self) -> float:
        """Time of the last mark of any rank, or of the start."""
        return self._hang.last_progress_s

    def pause(self, now_s: float) -> None:
        """Note that the job was paused up to now: its silence begins anew."""
        self._hang.pause(now_s)

    def hang(self, now_s: float, rule: HangRule) -> Hang | None:
        """Return the hang of the job, None while it moves."""
        limit_s = self._hang.deadline_s(rule)
        if now_s - self._hang.last_progress_s <= limit_s:
            return None
        last = {rank: self._count.get(rank) for rank in self._roles}
        return Hang(
            last_progress_s=self._hang.last_progress_s,
            limit_s=limit_s,
            phase=self._hang.phase,
            ranks=culprit_ranks(last),
        )

    def _note_phase(self, rank: int, mark: Mark) -> None:
        self._hang.note_progress(mark.phase, at_s=mark.at_s)
        if mark.is_begin:
            self._open[rank] = mark.phase
        elif mark.phase is not Phase.STEP:
            self._open.pop(rank, None)
        # While one rank saves, the others may be waiting for it: the job is still saving.
        phase = next(iter(self._open.values()), Phase.STEP)
        if phase is not mark.phase:
            self._hang.note_progress(phase, at_s=mark.at_s)

    def _note_step(self, rank: int, mark: Mark) -> None:
        before, self._last[rank] = self._last.get(rank), mark
        number = mark.step if mark.step is not None else self._count.get(rank, 0) + 1
        self._count[rank] = number
        own_s = mark.own_s
        self.has_own = self.has_own or own_s is not None
        if own_s is None and before is not None and mark.at_s > before.at_s:
            own_s = mark.at_s - before.at_s
        if own_s is None:
            return
        role = self._roles[rank]
        steps = self._steps[role]
        told = steps.setdefault(number, {})
        told[rank] = own_s
        if len(told) == len(self.ranks_of[role]) or len(steps) > _STEPS_OPEN:
            self._judge(role, number if len(told) == len(self.ranks_of[role]) else min(steps))

    def _judge(self, role: str, number: int) -> None:
        told = self._steps[role].pop(number)
        ranks = self.ranks_of[role]
        watch = self._watches[role]
        own_s = np.array([told.get(rank, np.nan) for rank in ranks])
        self.grids[role].add(number, own_s)
        watch.add_step(own_s)
        slow = {ranks[at]: found for at, found in watch.slow.items()}
        for rank in ranks:
            self.slow.pop(rank, None)
        self.slow.update(slow)
