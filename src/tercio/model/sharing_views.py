"""What the API shows of sharing: policy edits and plans, topology, reservations."""

from __future__ import annotations

import msgspec

from tercio.model.views import View


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One edit of the policy. `changed` names the keys and queues that differ from before."""

    version: int
    at_s: float
    by: str
    changed: tuple[str, ...] = ()


class PolicyHistory(View, frozen=True, kw_only=True):
    """The versions of the policy that the journal still has, newest first."""

    kind: str = "PolicyHistory"
    rows: tuple[PolicyVersion, ...]
    next: str | None = None


class EvictionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A running job that would be stopped, and for whom."""

    job: str
    name: str
    queue: str
    user: str
    for_job: str | None = None
    message: str = ""


class StartRow(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting job that would start: `when` is `now` or `after evictions`."""

    job: str
    name: str
    queue: str
    user: str
    when: str
    nodes: tuple[str, ...] = ()


class ShareRow(msgspec.Struct, frozen=True, kw_only=True):
    """Entitlement of one queue before and after; None where there is no such queue."""

    path: str
    before: dict[str, float] | None = None
    after: dict[str, float] | None = None


class PolicyPlanView(View, frozen=True, kw_only=True):
    """What another policy would do at once, beside what happens anyway.

    `version` is that of the policy in force.
    """

    kind: str = "PolicyPlan"
    version: int
    evicts: tuple[EvictionRow, ...] = ()
    starts: tuple[StartRow, ...] = ()
    queues: tuple[ShareRow, ...] = ()
    warnings: tuple[str, ...] = ()


class DomainView(msgspec.Struct, frozen=True, kw_only=True):
    """One domain of the topology.

    Attributes:
        nodes, up: how many it has, and how many of them take work.
        total, free: whole devices by type.
        fits: tasks of the largest gang that fits in it now, by type.
        slices: more MIG slices of one profile that fit on cards cut already, such as
            `{"H100/1g.10gb": 3}`; each counted as if nothing else were taken.
    """

    level: str
    name: str
    nodes: int
    up: int
    total: dict[str, float] = {}
    free: dict[str, float] = {}
    fits: dict[str, int] = {}
    slices: dict[str, int] = {}


class LargestGang(msgspec.Struct, frozen=True, kw_only=True):
    """The largest gang of a type that fits in one domain of a level, and in which."""

    level: str
    type: str
    tasks: int
    domain: str


class TopologyView(View, frozen=True, kw_only=True):
    """Free capacity by domain, from the largest level to the smallest.

    `per_task` is how many devices of its type each task of the gangs has.
    """

    kind: str = "Topology"
    levels: tuple[str, ...]
    per_task: dict[str, int]
    rows: tuple[DomainView, ...]
    largest: tuple[LargestGang, ...]


class ReservationView(View, frozen=True, kw_only=True):
    """Capacity kept for a queue or a user.

    Attributes:
        is_open: whether a window is open now.
        window: start and end of the open window, or of the next one.
        nodes: of a maintenance window, which is for nobody; `reason` says what for.
        warnings: of a new one, what its maker should know.
    """

    kind: str = "Reservation"
    name: str
    queue: str | None = None
    user: str | None = None
    type: str | None = None
    devices: int = 0
    shape: dict[str, int] = msgspec.field(default_factory=dict)
    from_s: float
    duration_s: float
    every_s: float | None = None
    until_s: float | None = None
    is_open: bool = False
    window: tuple[float, float] | None = None
    nodes: tuple[str, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = ()


class ReservationList(View, frozen=True, kw_only=True):
    """A page of reservations."""

    kind: str = "ReservationList"
    rows: tuple[ReservationView, ...]
    next: str | None = None


class GapRow(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that are free until a promise or a reservation begins: a short job may have them.

    Attributes:
        type, devices, nodes: how many of which type, and on which nodes.
        site: where all of them are.
        from_s, until_s: `from_s` is now for devices that are free already, else the planned end of
            the jobs that hold them.
        device_hours: devices times length.
        tasks, per_task: the largest gang of which every task has as many devices as one node gives.
        limit_s: longest time limit, in whole minutes, with which a job fits; a minute less than
            the gap where it has to be submitted first.
        reservation: what begins at `until_s`; or
        job: the waiting job to which they are promised.
    """

    type: str
    devices: int
    nodes: tuple[str, ...]
    from_s: float
    until_s: float
    device_hours: float
    tasks: int
    per_task: int
    limit_s: float
    reservation: str | None = None
    job: str | None = None
    site: str = ""


class GapList(View, frozen=True, kw_only=True):
    """A page of the gaps, those that open first in front."""

    kind: str = "GapList"
    rows: tuple[GapRow, ...]
    next: str | None = None


# Limits of users and tenants.


class OwnerLimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a user or a tenant, and what counts against it.

    Attributes:
        kind: `user` or `tenant`.
        queue: whose limit per user it is; None for one over all queues.
        resource: `devices`, a device type, `cpus`, `memory`, `running_jobs` or `device_hours`.
        used: held now; of `device_hours`, what counts in the window, running jobs to their planned
            ends included.
        days: length of the window, for `device_hours`.
        frees_s, frees: when the window next loses use, and how much of it.
    """

    kind: str
    name: str
    queue: str | None = None
    resource: str
    used: float
    limit: float
    days: int | None = None
    frees_s: float | None = None
    frees: float = 0.0


class OwnerLimitList(View, frozen=True, kw_only=True):
    """The limits of users and tenants."""

    kind: str = "OwnerLimitList"
    rows: tuple[OwnerLimitRow, ...]


# Start estimates.


class StartAccuracyRow(msgspec.Struct, frozen=True, kw_only=True):
    """How start estimates came out for one group of jobs; medians over its jobs.

    Attributes:
        key: `all`, `queue PATH`, or a size in devices.
        wait_s: from when a job was told to its start.
        error_s: of start against what was told, without its sign.
        bias_s: the same with its sign: above 0, jobs start later than told.
        inside_ratio: part of the jobs that started inside their band; 0.8 is meant.
        early_ratio, late_ratio: parts that started before it and after it.
    """

    key: str
    jobs: int
    wait_s: float
    error_s: float
    bias_s: float
    inside_ratio: float
    early_ratio: float
    late_ratio: float


class StartAccuracy(View, frozen=True, kw_only=True):
    """How the last start estimates came out: over all, by queue and by size.

    Attributes:
        since_s: start of the oldest job that counts, or None when none does.
        low_ratio, mid_ratio, high_ratio: what waits are multiplied by since.
    """

    kind: str = "StartAccuracy"
    rows: tuple[StartAccuracyRow, ...]
    since_s: float | None = None
    low_ratio: float
    mid_ratio: float
    high_ratio: float
