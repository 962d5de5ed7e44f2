"""The policy: the queue tree and the rules, as data. Every edit makes a new version."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tercio.model.ids import QueuePath
from tercio.model.limits import Limits
from tercio.model.resources import CPUS, DEVICES, MEMORY, Amounts
from tercio.model.topology import DEFAULT_LEVELS


class QueueOrder(StrEnum):
    """Whether a later job on the same pool may pass the blocked head."""

    BACKFILL = "backfill"
    STRICT = "strict"


class WithinQueue(StrEnum):
    """Preemption inside one queue."""

    OFF = "off"
    LOWER_PRIORITY = "lower_priority"


class AcrossQueues(StrEnum):
    """Reclaim between queues."""

    OFF = "off"
    RECLAIM = "reclaim"
    FAIR = "fair"
    PRIORITY = "priority"


class Predict(StrEnum):
    """What run times that are predicted from history are used for, where a job declares none.

    They never stop anything.
    """

    OFF = "off"
    ESTIMATES = "estimates"
    PROMISES = "promises"


class Flexible(StrEnum):
    """What flexible jobs are ordered by: cheaper hours for power, or those with less carbon."""

    OFF = "off"
    PRICE = "price"
    CARBON = "carbon"


class PreemptionPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may be stopped for whom, and how gently."""

    within_queue: WithinQueue = WithinQueue.LOWER_PRIORITY
    across_queues: AcrossQueues = AcrossQueues.FAIR
    grace_s: float = 120.0
    min_runtime_s: float = 600.0
    max_evictions_per_job_per_hour: int | None = 2


class PlacementPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How devices are chosen among those that fit: `fragmentation`, `bestfit` or `spread`."""

    pack: str = "fragmentation"
    defragment: bool = False


class ElasticPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How jobs with throughput profiles get sizes and device types; see `sched.elastic`.

    Attributes:
        fairness: power of a job's rate beside its least one, not 0: the lower, the more evenly.
        restart_s: what a move is assumed to cost a job.
        period_s: a running job is moved at most once in each period.
        turn_s: device time after which a job lets others have a turn, see `sched.turns`; None for
            never.
    """

    fairness: float = -0.5
    restart_s: float = 300.0
    period_s: float = 60.0
    turn_s: float | None = 3600.0


class DefaultShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cores and memory that go with each device when a task does not say."""

    cpus_milli_per_device: int = 8_000
    memory_bytes_per_device: int = 64 * 1024**3


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue of the tree.

    Attributes:
        guarantee: amounts the queue gets back on demand.
        guarantee_shape: whole domains by level (`{"node": 8}`), or empty.
        limit: amounts it may never pass; a resource not named has no limit.
        weight: part of the unguaranteed capacity among siblings.
        lend_limit: how much of the guarantee others may borrow; a resource not named: all.
        borrow_limit: how far above its guarantee it may go; a resource not named: no limit.
        order: see `QueueOrder`.
        preemptible: default for its jobs.
        submit: who may submit (`user:NAME`, `group:NAME`); empty for anyone with a token.
        admin: who may manage its jobs.
        user_limit: amounts per user; `running_jobs` counts jobs.
        children: sub-queues by name.
    """

    guarantee: Amounts = {}
    guarantee_shape: dict[str, int] = {}
    limit: Amounts = {}
    weight: int = 1
    lend_limit: Amounts = {}
    borrow_limit: Amounts = {}
    order: QueueOrder = QueueOrder.BACKFILL
    preemptible: bool = True
    submit: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    user_limit: Amounts = {}
    children: dict[str, QueueSpec] = {}


class PowerBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Most power that the nodes of a domain may draw, in watts."""

    domain: str
    power_w: int


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole policy.

    `reservation_depth` None stands for `all`. `fence_after_s` is how long a lost node's tasks
    may still run by themselves: only then are they taken as gone and replaced. `elastic` None
    leaves the sizes of jobs to their order.
    """

    default_queue: QueuePath = QueuePath("default")
    half_life_s: float = 7 * 86400.0
    reservation_depth: int | None = 1
    max_overtake_s: float = 3600.0
    fence_after_s: float = 300.0
    topology: tuple[str, ...] = DEFAULT_LEVELS
    preemption: PreemptionPolicy = PreemptionPolicy()
    placement: PlacementPolicy = PlacementPolicy()
    default_share: DefaultShare = DefaultShare()
    queues: dict[str, QueueSpec] = msgspec.field(default_factory=lambda: {"default": QueueSpec()})
    budgets: tuple[PowerBudget, ...] = ()
    limits: Limits = Limits()
    overcommit: bool = False
    predict: Predict = Predict.ESTIMATES
    elastic: ElasticPolicy | None = None
    flexible: Flexible = Flexible.OFF


def walk_queues(policy: Policy) -> dict[QueuePath, QueueSpec]:
    """Return every queue by path (`research/nlp`), parents before children, in file order."""
    found: dict[QueuePath, QueueSpec] = {}

    def visit(prefix: str, queues: dict[str, QueueSpec]) -> None:
        for name, queue in queues.items():
            path = QueuePath(f"{prefix}{name}")
            found[path] = queue
            visit(f"{path}/", queue.children)

    visit("", policy.queues)
    return found


def parent_queue(path: QueuePath) -> QueuePath | None:
    """Return the parent's path, or None at the top."""
    head, slash, _ = path.rpartition("/")
    return QueuePath(head) if slash else None


def promised(queues: Mapping[str, QueueSpec]) -> Amounts:
    """Return what these queues are guaranteed together; `devices` counts every type."""
    totals: Amounts = {}
    for queue in queues.values():
        for resource, amount in queue.guarantee.items():
            totals[resource] = totals.get(resource, 0) + amount
    if DEVICES in totals:
        typed = (a for name, a in totals.items() if name not in (CPUS, MEMORY, DEVICES))
        totals[DEVICES] += sum(typed)
    return totals


def above_capacity(
    queues: Mapping[str, QueueSpec], capacity: Mapping[str, int]
) -> tuple[str, int, int] | None:
    """Return the first resource of which more is guaranteed than there is, or None.

    The answer is (resource, guaranteed, there is), in the resource's unit.
    """
    types = [name for name in capacity if name not in (CPUS, MEMORY, DEVICES)]
    every = capacity.get(DEVICES, sum(capacity[name] for name in types))
    for resource, total in promised(queues).items():
        have = every if resource == DEVICES else capacity.get(resource, 0)
        if total > have:
            return resource, total, have
    return None
