"""Reasons and decisions: why a job waits or was placed, as data with one true message."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tercio.model.ids import JobId


class Reason(StrEnum):
    """Stable reason codes of a decision."""

    READY = "Ready"
    HELD = "Held"
    DEPENDENCY = "Dependency"
    NOT_BEFORE = "NotBefore"
    QUEUE_LIMIT = "QueueLimit"
    USER_LIMIT = "UserLimit"
    WAITING_FOR_SHARE = "WaitingForShare"
    ORDER = "Order"
    RESERVED = "Reserved"
    TOPOLOGY = "Topology"
    SHAPE = "Shape"
    FRAGMENTED = "Fragmented"
    NODE_SLOTS = "NodeSlots"
    NO_FREE_DEVICES = "NoFreeDevices"
    TYPE_UNAVAILABLE = "TypeUnavailable"
    HEALTH = "Health"
    CONSTRAINT = "Constraint"
    POWER = "Power"
    SITE_UNAVAILABLE = "SiteUnavailable"
    PREEMPTING = "Preempting"
    BACK_OFF = "BackOff"
    SEARCH_BUDGET = "SearchBudget"
    NEVER_FITS = "NeverFits"


class Outcome(StrEnum):
    """What a cycle did with a job."""

    WAITING = "waiting"
    PLACED = "placed"


class Best(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place that came nearest: a node or a domain, with its free amounts by type."""

    node: str | None = None
    domain: str | None = None
    free: dict[str, float] = {}


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who holds what the job wants."""

    job: JobId
    devices: dict[str, float]
    ends_s: float | None = None


class Excluded(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that one filter took out."""

    by: str
    nodes: int


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The smallest change that would start the job.

    Attributes:
        what: `tasks`, `devices`, `type`, `topology`, `queue`, `after`, `limit`, `uncordon`,
            `cpus`, `memory`, `release`, ...
        to: the new value.
        starts: `now`; an RFC 3339 instant; `then`, once the change has happened; `later`, when
            the job would still wait, for something else.
    """

    what: str
    to: str | int | float
    starts: str = "now"


class StartEstimate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the job should start, in seconds since the epoch, with its 80 % band.

    Attributes:
        label: `immediate`, `backfill` or `reserved`.
        raw_s: low, middle and high as the queue was played forward, before they were corrected
            by how earlier estimates came out; None for one that was not found so.
    """

    at_s: float
    low_s: float
    high_s: float
    label: str
    raw_s: tuple[float, float, float] | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why one job waits or was placed. Amounts of devices are plain numbers for people.

    Attributes:
        job: whom it concerns.
        outcome: `waiting` or `placed`.
        reason: stable code.
        message: one sentence that names the true blocker.
        wanted: what the job asks for in all, by device type (`any` for any accelerator).
        free: what is free of it now.
        best: the nearest miss.
        holders: who holds it, largest first.
        excluded: nodes taken out by each filter.
        change: the smallest change that would start it now.
        position: place in the total order of its pool, from 1.
        start: start estimate, or None when none can be computed.
        nodes: where it was placed.
    """

    job: JobId
    outcome: Outcome
    reason: Reason
    message: str
    wanted: dict[str, float] = {}
    free: dict[str, float] = {}
    best: Best | None = None
    holders: tuple[Holder, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    change: Change | None = None
    position: int | None = None
    start: StartEstimate | None = None
    nodes: tuple[str, ...] = ()
