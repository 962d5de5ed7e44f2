"""Bodies of use: where the device time of a job or of a group of jobs went, energy and cost."""

from __future__ import annotations

import msgspec

from tercio.model.readings import Marks
from tercio.model.spans import SlowSpan
from tercio.model.views import View


class UseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where device time went, in integer device-milliseconds.

    `allocated_ms` is the exact sum of the classes below it down to `useful_ms`.

    Attributes:
        wasted_ms: restarting, hung, lost, failed and known idle time together.
        queued_ms: wait times devices asked for; not part of the sum.
        idle_ms: None where no readings cover any of the time: unknown is not zero.
        unobserved_ms: part of `useful_ms` that no readings cover.
        slow_ms: part of `useful_ms` that was lost to ranks slower than their peers.
        energy_mj: of the devices, in millijoules, as far as readings cover.
        energy_source: the worst of its parts; empty for none.
        energy_kwh: at the meter, PUE included; None where nothing was measured.
        cost_usd: of devices and hours, or of energy; None where no price is known.
        carbon_kg: None where no intensity is known.
    """

    key: str
    jobs: int
    allocated_ms: int
    starting_ms: int
    restarting_ms: int
    stopping_ms: int
    checkpoint_ms: int
    hung_ms: int
    lost_ms: int
    failed_ms: int
    idle_ms: int | None
    useful_ms: int
    wasted_ms: int = 0
    queued_ms: int = 0
    unobserved_ms: int = 0
    slow_ms: int = 0
    goodput_ratio: float | None = None
    energy_mj: int = 0
    energy_source: str = ""
    energy_kwh: float | None = None
    cost_usd: float | None = None
    carbon_kg: float | None = None


CLASSES = (
    "starting_ms",
    "restarting_ms",
    "stopping_ms",
    "checkpoint_ms",
    "hung_ms",
    "lost_ms",
    "failed_ms",
    "idle_ms",
    "useful_ms",
)
"""The classes whose sum is the allocated time, in the order in which they are matched."""


class UseReport(View, frozen=True, kw_only=True):
    """Use by user, queue or job, and of all together.

    `capacity_ms` is what the devices of now could have given since then, `free_ms` the part of it
    that nobody held; both 0 without `since`.
    """

    kind: str = "UseReport"
    by: str
    since_s: float
    until_s: float
    rows: tuple[UseRow, ...]
    total: UseRow
    capacity_ms: int = 0
    free_ms: int = 0
    next: str | None = None


class RankUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the devices of one task do now; None where no fresh reading says."""

    task: int
    node: str
    device: int
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_mask: int | None = None


class JobUse(View, frozen=True, kw_only=True):
    """Where the device time of one job went, its energy, and its devices now.

    `slow` are the tasks of the current attempt that were slower than their peers, and when;
    `marks` those of its last attempt that marked anything.
    """

    kind: str = "JobUse"
    job: str
    use: UseRow
    step_count: int = 0
    slow: tuple[SlowSpan, ...] = ()
    ranks: tuple[RankUse, ...] = ()
    marks: Marks | None = None


WASTED = ("restarting_ms", "hung_ms", "lost_ms", "failed_ms", "idle_ms")
"""The classes that serve nobody."""
