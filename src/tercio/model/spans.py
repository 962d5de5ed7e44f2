"""What a job held, when, and what it did with it: kept with the job for its waterfall."""

from __future__ import annotations

import msgspec

from tercio.model.ids import NodeName
from tercio.model.job import EndCause
from tercio.model.readings import Marks, Measured


class HeldSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Devices of one type held by tasks of one attempt from one instant to another.

    Attributes:
        milli: thousandths of devices, all tasks together.
        site: where they are; empty where that was not noted.
        measured: what readings say of them, None without readings.
    """

    type: str
    milli: int
    start_s: float
    stop_s: float
    measured: Measured | None = None
    site: str = ""


class SlowSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A time in which one task was slower than its peers.

    Attributes:
        ratio: its own time per step over that of the median task.
        end_s: when it kept pace again, None while it does not.
    """

    task: int
    ratio: float
    start_s: float
    end_s: float | None = None


class AttemptSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One attempt that has ended.

    Attributes:
        running_s: when all its tasks ran, None if they never did.
        stop_ordered_s: when it was told to stop, None if it ended by itself.
        marks: of the task that marked most, None where none did.
        queued_s: how long the job waited before it.
        hung_s: its last progress, if it was declared hung; None if not.
        slow: times in which tasks were slower than their peers.
        nodes: where it ran, kept only of one that failed.
    """

    number: int
    cause: EndCause
    held: tuple[HeldSpan, ...]
    running_s: float | None = None
    stop_ordered_s: float | None = None
    marks: Marks | None = None
    queued_s: float = 0.0
    hung_s: float | None = None
    slow: tuple[SlowSpan, ...] = ()
    nodes: tuple[NodeName, ...] = ()
