"""Where the device time of a job went, to the integer millisecond.

Every instant of an attempt falls into exactly one class, the first that matches; so allocated
time is the sum of the classes by construction, in integers, whatever the floats were.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

# A device is idle below this utilisation for at least this long without a step.
IDLE_UTILIZATION_RATIO = 0.05
IDLE_MIN_S = 60.0


class TimeClass(StrEnum):
    """The classes, in the order in which they are matched."""

    STARTING = "starting"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    CHECKPOINT = "checkpoint"
    HUNG = "hung"
    LOST = "lost"
    FAILED = "failed"
    IDLE = "idle"
    USEFUL = "useful"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time, [start_s, end_s), seconds since the epoch."""

    start_s: float
    end_s: float


class CheckpointMark(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint: the time the job stood still for it, and whether it can be resumed from."""

    start_s: float
    end_s: float
    is_durable: bool = True


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """A span in which a rank took `ratio` times as long for a step as the median rank."""

    start_s: float
    end_s: float
    ratio: float


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a job on a fixed set of devices.

    Attributes:
        number: 1 for the first attempt of the job.
        milli_devices: devices held, in thousandths: 8000 is eight whole cards.
        allocated_s, released_s: span for which the devices were held.
        running_s: the processes ran; None if they never did.
        step_marks_s: instants at which a step ended, None where the job marks none.
        stop_ordered_s: the stop was ordered.
        checkpoints: spans between checkpoint marks.
        hung: from the last progress to the kill, if a hang was declared.
        ended_badly: the attempt failed, or its node was lost, and work had to be repeated.
        low_utilization: spans with utilisation under 5 %.
        telemetry: spans with utilisation readings; empty where none were taken.
        slow: spans in which a rank held up the others.
    """

    number: int
    milli_devices: int
    allocated_s: float
    released_s: float
    running_s: float | None = None
    step_marks_s: tuple[float, ...] | None = None
    stop_ordered_s: float | None = None
    checkpoints: tuple[CheckpointMark, ...] = ()
    hung: Span | None = None
    ended_badly: bool = False
    low_utilization: tuple[Span, ...] = ()
    telemetry: tuple[Span, ...] = ()
    slow: tuple[Slowness, ...] = ()


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Device time by class, integer device-milliseconds.

    Attributes:
        allocated_ms: the sum of the classes.
        queued_ms: wait times requested devices; stands outside the sum.
        idle_ms: None where no telemetry covers any of the time: unknown is not zero.
        unobserved_ms: the part of `useful_ms` that no telemetry covers; a note, not a class.
        slow_ms: the part of `useful_ms` that was lost to ranks slower than their peers: of a
            span with ratio r, 1 - 1/r of it. A note, not a class.
    """

    allocated_ms: int
    queued_ms: int
    starting_ms: int
    restarting_ms: int
    stopping_ms: int
    checkpoint_ms: int
    hung_ms: int
    lost_ms: int
    failed_ms: int
    idle_ms: int | None
    useful_ms: int
    unobserved_ms: int
    slow_ms: int = 0

    def classes(self) -> dict[TimeClass, int]:
        """Return the classes whose sum is the allocated time."""
        return {
            TimeClass.STARTING: self.starting_ms,
            TimeClass.RESTARTING: self.restarting_ms,
            TimeClass.STOPPING: self.stopping_ms,
            TimeClass.CHECKPOINT: self.checkpoint_ms,
            TimeClass.HUNG: self.hung_ms,
            TimeClass.LOST: self.lost_ms,
            TimeClass.FAILED: self.failed_ms,
            TimeClass.IDLE: self.idle_ms or 0,
            TimeClass.USEFUL: self.useful_ms,
        }

    def goodput_ratio(self) -> float | None:
        """Return useful over allocated time, None for a job that held nothing."""
        return self.useful_ms / self.allocated_ms if self.allocated_ms else None


_Piece = tuple[int, int]


def job_waterfall(
    attempts: Sequence[Attempt], *, finally_failed: bool, queued_ms: int = 0
) -> Waterfall:
    """Return where the device time of a job went.

    Args:
        attempts: the attempts of the job, in any order.
        finally_failed: the job ended as failed; what was not lost is then `failed`.
        queued_ms: wait times requested devices, device-milliseconds.
    """
    milli = dict.fromkeys(TimeClass, 0)
    unobserved = slow = 0
    for attempt in attempts:
        by_class, unobserved_ms, slow_ms = _attempt_ms(attempt, finally_failed=finally_failed)
        for name, ms in by_class.items():
            milli[name] += ms * attempt.milli_devices
        unobserved += unobserved_ms * attempt.milli_devices
        slow += slow_ms * attempt.milli_devices
    has_telemetry = any(attempt.telemetry for attempt in attempts)
    whole, allocated = _whole_device_ms(milli)
    return Waterfall(
        allocated_ms=allocated,
        queued_ms=queued_ms,
        starting_ms=whole[TimeClass.STARTING],
        restarting_ms=whole[TimeClass.RESTARTING],
        stopping_ms=whole[TimeClass.STOPPING],
        checkpoint_ms=whole[TimeClass.CHECKPOINT],
        hung_ms=whole[TimeClass.HUNG],
        lost_ms=whole[TimeClass.LOST],
        failed_ms=whole[TimeClass.FAILED],
        idle_ms=whole[TimeClass.IDLE] if has_telemetry else None,
        useful_ms=whole[TimeClass.USEFUL],
        unobserved_ms=min(unobserved // 1000, whole[TimeClass.USEFUL]),
        slow_ms=min(slow // 1000, whole[TimeClass.USEFUL]),
    )


def add_waterfalls(waterfalls: Sequence[Waterfall]) -> Waterfall:
    """Return the sum over jobs. Idle time is known where any of them knows it."""
    known = [w.idle_ms for w in waterfalls if w.idle_ms is not None]
    return Waterfall(
        allocated_ms=sum(w.allocated_ms for w in waterfalls),
        queued_ms=sum(w.queued_ms for w in waterfalls),
        starting_ms=sum(w.starting_ms for w in waterfalls),
        restarting_ms=sum(w.restarting_ms for w in waterfalls),
        stopping_ms=sum(w.stopping_ms for w in waterfalls),
        checkpoint_ms=sum(w.checkpoint_ms for w in waterfalls),
        hung_ms=sum(w.hung_ms for w in waterfalls),
        lost_ms=sum(w.lost_ms for w in waterfalls),
        failed_ms=sum(w.failed_ms for w in waterfalls),
        idle_ms=sum(known) if known else None,
        useful_ms=sum(w.useful_ms for w in waterfalls),
        unobserved_ms=sum(w.unobserved_ms for w in waterfalls),
        slow_ms=sum(w.slow_ms for w in waterfalls),
    )


def span_ms(start_s: float, end_s: float) -> int:
    """Return the length of a span in whole milliseconds, each end rounded by itself.

    Rounding the ends and not the length is what makes adjoining spans add up.
    """
    return max(0, _ms(end_s) - _ms(start_s))


def _ms(at_s: float) -> int:
    return round(at_s * 1000)


def _attempt_ms(attempt: Attempt, *, finally_failed: bool) -> tuple[dict[TimeClass, int], int, int]:
    """Return wall milliseconds by class, and the unobserved and slow parts of the useful ones."""
    start, end = _ms(attempt.allocated_s), max(_ms(attempt.allocated_s), _ms(attempt.released_s))
    layers = _layers(attempt, start, end, finally_failed=finally_failed)
    telemetry = _merged([(_ms(s.start_s), _ms(s.end_s)) for s in attempt.telemetry])
    cuts = {start, end}
    for pieces in [*(pieces for _, pieces in layers), telemetry]:
        for piece in pieces:
            cuts.update(min(max(at, start), end) for at in piece)
    for span in attempt.slow:
        cuts.update(min(max(_ms(at_s), start), end) for at_s in (span.start_s, span.end_s))
    by_class = dict.fromkeys(TimeClass, 0)
    unobserved = slow = 0
    bounds = sorted(cuts)
    for left, right in pairwise(bounds):
        name = next((n for n, pieces in layers if _covers(pieces, left)), TimeClass.USEFUL)
        by_class[name] += right - left
        if name is not TimeClass.USEFUL:
            continue
        if not _covers(telemetry, left):
            unobserved += right - left
        slow += _held_up_ms(attempt.slow, left, right)
    return by_class, unobserved, slow


def _held_up_ms(slow: Sequence[Slowness], left: int, right: int) -> int:
    """Return how much of a piece was lost to the slowest rank in it."""
    ratios = [s.ratio for s in slow if _ms(s.start_s) <= left < _ms(s.end_s) and s.ratio > 1]
    return round((right - left) * (1 - 1 / max(ratios))) if ratios else 0


def _merged(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return the same time as disjoint pieces in order, so that a search finds the right one."""
    merged: list[_Piece] = []
    for left, right in sorted(p for p in pieces if p[0] < p[1]):
        if merged and left <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], right))
        else:
            merged.append((left, right))
    return merged


def _covers(merged: Sequence[_Piece], at: int) -> bool:
    before = bisect_right(merged, (at, math.inf)) - 1
    return before >= 0 and at < merged[before][1]


def _layers(
    attempt: Attempt, start: int, end: int, *, finally_failed: bool
) -> list[tuple[TimeClass, list[_Piece]]]:
    """Return the pieces of each class but the last, first match first."""
    first_progress = _first_progress_s(attempt)
    starting = TimeClass.STARTING if attempt.number <= 1 else TimeClass.RESTARTING
    ready = end if first_progress is None else _ms(first_progress)
    stopping = [] if attempt.stop_ordered_s is None else [(_ms(attempt.stop_ordered_s), end)]
    hung = [] if attempt.hung is None else [(_ms(attempt.hung.start_s), _ms(attempt.hung.end_s))]
    lost: list[_Piece] = []
    if attempt.ended_badly:
        durable = [c.end_s for c in attempt.checkpoints if c.is_durable]
        lost = [(_ms(max(durable)) if durable else start, end)]
    layers = [
        (starting, [(start, ready)]),
        (TimeClass.STOPPING, stopping),
        (TimeClass.CHECKPOINT, [(_ms(c.start_s), _ms(c.end_s)) for c in attempt.checkpoints]),
        (TimeClass.HUNG, hung),
        (TimeClass.LOST, lost),
        (TimeClass.FAILED, [(start, end)] if finally_failed else []),
        (TimeClass.IDLE, _idle(attempt)),
    ]
    return [(name, _merged(pieces)) for name, pieces in layers]


def _first_progress_s(attempt: Attempt) -> float | None:
    """Return the first step mark, or the time of running where the job marks no steps."""
    if attempt.step_marks_s:
        return min(attempt.step_marks_s)
    return attempt.running_s


def _idle(attempt: Attempt) -> list[_Piece]:
    """Return the low-utilisation spans of a minute and more without a step in them."""
    steps = sorted(_ms(at) for at in attempt.step_marks_s or ())
    seen = _merged([(_ms(t.start_s), _ms(t.end_s)) for t in attempt.telemetry])
    pieces = []
    for span in attempt.low_utilization:
        left, end = _ms(span.start_s), _ms(span.end_s)
        for right in [*steps[bisect_right(steps, left) : bisect_left(steps, end)], end]:
            if right - left >= IDLE_MIN_S * 1000 and _covers(seen, left):
                pieces.append((left, right))
            left = right
    return pieces


def _whole_device_ms(milli: dict[TimeClass, int]) -> tuple[dict[TimeClass, int], int]:
    """Return milli-device-milliseconds as whole ones that add up to the whole total.

    The thousandths that the classes lose go back to those that lost most (largest remainder),
    ties by the order of the classes.
    """
    total = sum(milli.values()) // 1000
    whole = {name: value // 1000 for name, value in milli.items()}
    short = total - sum(whole.values())
    order = sorted(TimeClass, key=lambda name: -(milli[name] % 1000))
    for name in order[:short]:
        whole[name] += 1
    return whole, total
