"""Events of health: faults, where nodes stand, what running jobs show. See `model.events`."""

from __future__ import annotations

from tercio.model.event_roots import Event, JobEvent, NodeEvent, TaskEvent
from tercio.model.grid import GridSeries
from tercio.model.health import FaultFact, HealthRecord, HealthSettings
from tercio.model.ids import EffectId, JobId, NodeName
from tercio.model.power import CapCurvePoint, NodeCaps


class FaultFound(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A fault of a node was recognised, or is told again with what is known by now."""

    fault: FaultFact


class FaultCleared(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A fault is over, by the driver's word or by a later reading."""

    fault_id: str


class NodeHealthChanged(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A node stands elsewhere now, or a repair of it ended. `jobs` ran on it then."""

    record: HealthRecord
    by: str
    jobs: tuple[JobId, ...] = ()


class HealthDecided(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """What health would do, or asks a person to do. For the story; changes no other state.

    `held_by` says why it is not done, empty where it is.
    """

    order: str
    action: str
    reason: str
    evidence: tuple[str, ...] = ()
    held_by: str = ""
    jobs: tuple[JobId, ...] = ()


class SpareActivated(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A spare takes the place of a quarantined node, for a job that lost it."""

    replaces: NodeName
    job_id: JobId


class NodeRepairEnded(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `RepairNode`: the repair and the checks after it are over."""

    effect_id: EffectId
    succeeded: bool
    message: str = ""


class HealthPolicyChanged(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A new version of the health policy is in force."""

    version: int
    settings: HealthSettings
    by: str


class HealthBreakerMoved(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The breaker stopped all automation, or a person let it act again."""

    is_open: bool
    reason: str
    by: str


class PowerCapped(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Power limits of a node were ordered or confirmed, or its power is left alone (None).

    Attributes:
        reason: what the limits are for.
        stop: jobs to stop, since not even the lowest limits fit the budget.
    """

    caps: NodeCaps | None = None
    reason: str = ""
    stop: tuple[JobId, ...] = ()


class PricesRead(Event, frozen=True, kw_only=True, omit_defaults=True):
    """What power costs from now on, by the site's series: another one than was known.

    `by` is who sent it; empty where the server read it from a file or an address.
    """

    series: GridSeries
    by: str = ""


class LimitMeasured(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """What a step of a running job took at one power limit; kept for its class."""

    job_class: str
    point: CapCurvePoint


class RankPaceChanged(TaskEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A task is slower than its peers now, or keeps pace again.

    Attributes:
        node: where it runs.
        ratio: its own time per step over that of the median task; 1 when it keeps pace again.
        words: what its devices say that would explain it, empty for nothing.
    """

    node: NodeName
    ratio: float = 1.0
    words: str = ""


class JobIdled(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The devices of a running attempt were idle for too long, or work again after that.

    Attributes:
        since_s: when they were last seen at work.
        stop_s: when it will be stopped if they stay idle, None for never.
        is_reclaimed: whether that time has come.
        is_over: whether they work again.
    """

    attempt: int
    since_s: float
    stop_s: float | None = None
    is_reclaimed: bool = False
    is_over: bool = False


class JobHung(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A running attempt has made no progress for too long, or moves again after that.

    Attributes:
        last_progress_s: time of its last sign of progress.
        limit_s: how long it may be silent in this phase.
        phase: what it was doing: `init step checkpoint eval`, or `collective` where only its
            devices say so.
        tasks: those that the others wait for, as far as the marks tell.
        held_by: why it is not stopped, empty where it is.
        is_over: whether it moves again.
    """

    attempt: int
    last_progress_s: float
    limit_s: float = 0.0
    phase: str = ""
    tasks: tuple[int, ...] = ()
    held_by: str = ""
    is_over: bool = False
