"""Bodies of device readings over time and over the fleet, as columns for charts and the map."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tercio.model.views import View

Metric = Literal["utilization_ratio", "memory_used_bytes", "power_w", "temperature_c"]
METRICS: tuple[Metric, ...] = ("utilization_ratio", "memory_used_bytes", "power_w", "temperature_c")


class SeriesRow(msgspec.Struct, frozen=True, kw_only=True):
    """One device over time. `task` is the rank that holds it, None where nobody is asked about."""

    task: int | None
    node: str
    device: int
    values: tuple[float | None, ...]


class DeviceSeries(View, frozen=True, kw_only=True):
    """One metric of some devices over time, in base units.

    Attributes:
        at_s: instants, seconds since the epoch, ascending; each row has as many values.
        rows: by rank, or by position on the node; None where no reading says.
        left_off: devices beyond the most that are told.
        step_s: between two instants.
    """

    kind: str = "DeviceSeries"
    subject: str
    metric: Metric
    at_s: tuple[float, ...]
    rows: tuple[SeriesRow, ...]
    left_off: int = 0
    step_s: float


class FleetNow(View, frozen=True, kw_only=True):
    """All nodes at a glance.

    Attributes:
        health: nodes by the state of their health.
        reporting: nodes with a fresh reading.
        devices: devices that those readings know.
        power_w: drawn by them together; None where no device tells.
        power_limit_w: the most that they may draw; None where no device tells.
        utilization_ratio: mean of them; None where no device tells.
        temperature_max_c: of the hottest; None where no device tells.
        breaker_open_s: since when automation is stopped, or None.
    """

    kind: str = "FleetNow"
    health: dict[str, int]
    nodes: int
    reporting: int
    devices: int
    power_w: float | None = None
    power_limit_w: float | None = None
    utilization_ratio: float | None = None
    temperature_max_c: float | None = None
    breaker_open_s: float | None = None


class DeviceColumn(View, frozen=True, kw_only=True):
    """One metric of every device with a fresh reading, by node and position on the node.

    `health` names the nodes that are not `ok`.
    """

    kind: str = "DeviceColumn"
    metric: Metric
    nodes: dict[str, tuple[float | None, ...]]
    health: dict[str, str] = msgspec.field(default_factory=dict)


QUEUE_AMOUNTS: Final = ("used", "entitled", "wanted", "decayed_use", "running", "waiting")
"""What is told of a queue over time; the fields of `QueuePastRow` beside its path."""
Amounts = tuple[float | None, ...]


class QueuePastRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue over time, sub-queues included; None where nothing was seen.

    Attributes:
        used: devices that its jobs held, of all types together.
        entitled: devices that were its share of what it wanted.
        wanted: devices that its waiting jobs asked for.
        decayed_use: past use in device-seconds, decayed to that instant.
        running, waiting: jobs.
    """

    path: str
    used: Amounts
    entitled: Amounts
    wanted: Amounts
    decayed_use: Amounts
    running: Amounts
    waiting: Amounts


class QueuePast(View, frozen=True, kw_only=True):
    """Queues over time.

    Attributes:
        at_s: beginnings of steps, seconds since the epoch, ascending.
        rows: parents before children; each value is the mean of its step.
        step_s: seconds of a step.
    """

    kind: str = "QueuePast"
    at_s: tuple[float, ...]
    rows: tuple[QueuePastRow, ...]
    step_s: float


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank over the steps of an attempt.

    Attributes:
        own_s: mean own time of a step in each column, seconds; None where it did not tell.
        ratio: its newest columns against the median rank of its group; None without any.
        is_slow: the straggler rule says so now.
    """

    rank: int
    task: int
    node: str
    own_s: Amounts
    ratio: float | None
    is_slow: bool


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one task group: only these are compared.

    Attributes:
        first: number of the first step of each column.
        per_column: steps that a column stands for.
        left_off: ranks beyond the most that are told; slow ones are told first.
    """

    name: str
    first: tuple[int, ...]
    per_column: int
    rows: tuple[StepRow, ...]
    left_off: int = 0


class JobSteps(View, frozen=True, kw_only=True):
    """Own time per step of the ranks of a job's newest attempt, as its step marks tell it.

    Attributes:
        has_own: whether ranks tell their own time; without, it holds their wait for the others,
            and the ranks of a synchronous job look alike.
    """

    kind: str = "JobSteps"
    job: str
    attempt: int
    has_own: bool
    groups: tuple[StepGroup, ...]
