"""Jobs that stand still, and the rank that made them.

Deadlines are learned from the job's own rhythm, since the usual ten minutes cost 2,731 GPU-hours
for one hang of 16,384 GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

# nvidia-resiliency-ext: five times the longest interval seen; never under a minute.
SAFETY_FACTOR = 5.0
DEADLINE_MIN_S = 60.0


class Phase(StrEnum):
    """What a job is doing; each has its own rhythm."""

    INIT = "init"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"


# Before anything was learned: PyTorch's own collective timeout, and half an hour to load.
UNLEARNED_DEADLINE_S = {
    Phase.INIT: 1800.0,
    Phase.STEP: 600.0,
    Phase.CHECKPOINT: 1800.0,
    Phase.EVAL: 1800.0,
}


class HangRule(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job may be silent: `ratio` times the longest silence seen, `floor_s` at least."""

    ratio: float = SAFETY_FACTOR
    floor_s: float = DEADLINE_MIN_S


class HangWatch:
    """Learns how long each phase may be silent, and says when it was silent too long."""

    __slots__ = ("_longest_s", "_phase", "_progress_s")

    def __init__(self, *, started_s: float) -> None:
        self._longest_s: dict[Phase, float] = {}
        self._phase = Phase.INIT
        self._progress_s = started_s

    @property
    def last_progress_s(self) -> float:
        """Time of the last sign of progress; hung time counts from here."""
        return self._progress_s

    def note_progress(self, phase: Phase, *, at_s: float) -> None:
        """Take a sign of progress: a step mark, a log line, the begin or end of a phase."""
        if phase is self._phase:
            span_s = at_s - self._progress_s
            self._longest_s[phase] = max(self._longest_s.get(phase, 0.0), span_s)
        self._phase = phase
        self._progress_s = max(self._progress_s, at_s)

    @property
    def phase(self) -> Phase:
        """What the job is doing."""
        return self._phase

    def pause(self, now_s: float) -> None:
        """Note that the job could not move up to now: its silence begins anew."""
        self._progress_s = max(self._progress_s, now_s)

    def deadline_s(self, rule: HangRule | None = None) -> float:
        """Return how long the phase may be silent."""
        rule = rule or HangRule()
        longest = self._longest_s.get(self._phase)
        if longest is None:
            return max(rule.floor_s, UNLEARNED_DEADLINE_S[self._phase])
        return max(rule.floor_s, rule.ratio * longest)

    def is_hung(self, now_s: float, rule: HangRule | None = None) -> bool:
        """Return whether the silence is longer than the phase allows."""
        return now_s - self._progress_s > self.deadline_s(rule)


def culprit_ranks(last_sequence_by_rank: Mapping[int, int | None]) -> tuple[int, ...]:
    """Return the ranks that a collective waited for.

    A rank that reported nothing (None) is a culprit before any that did; else those whose last
    completed collective is the oldest. The ranks that print the timeout are victims. When all
    agree, nobody is named.
    """
    silent = tuple(sorted(r for r, s in last_sequence_by_rank.items() if s is None))
    if silent:
        return silent if len(silent) < len(last_sequence_by_rank) else ()
    sequences = {r: s for r, s in last_sequence_by_rank.items() if s is not None}
    if not sequences or len(set(sequences.values())) == 1:
        return ()
    oldest = min(sequences.values())
    return tuple(sorted(r for r, s in sequences.items() if s == oldest))


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a device says from outside of the job.

    Attributes:
        utilization_ratio: a kernel is resident; says nothing about work.
        tensor_ratio: matrix units at work, None where not measured.
        power_w, idle_power_w, limit_power_w: draw now, at idle, and the enforced limit.
    """

    utilization_ratio: float
    power_w: float
    idle_power_w: float
    limit_power_w: float
    tensor_ratio: float | None = None


def is_spin_wait(readings: Sequence[DeviceReading]) -> bool:
    """Return whether all devices of a job wait in a collective at once.

    Full utilisation with a fifth or less of the power above idle, and idle matrix units where
    that is measured. Two minutes of this on every rank is a hang; power is the cheapest signal.
    """
    return bool(readings) and all(_spins(reading) for reading in readings)


def _spins(reading: DeviceReading) -> bool:
    headroom_w = reading.limit_power_w - reading.idle_power_w
    is_drawing = reading.power_w > reading.idle_power_w + 0.2 * headroom_w
    is_computing = reading.tensor_ratio is not None and reading.tensor_ratio > 0.02
    return reading.utilization_ratio >= 0.95 and not is_drawing and not is_computing


def odd_stacks(stack_by_rank: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks outside the largest group of equal stacks: the suspects of a hang."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(stack_by_rank):
        groups.setdefault(stack_by_rank[rank], []).append(rank)
    if len(groups) < 2:
        return ()
    largest = max(groups.values(), key=len)
    return tuple(sorted(r for ranks in groups.values() if ranks is not largest for r in ranks))
