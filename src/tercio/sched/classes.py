"""Equivalence classes of waiting jobs: what is decided for one is decided for all of them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tercio.model.ids import JobId, element_id
from tercio.model.job import JobSpec
from tercio.model.reasons import Reason
from tercio.model.resources import Amounts
from tercio.model.snapshot import WaitingJob
from tercio.sched.fairshare import QueueNode
from tercio.sched.ground import Tenant
from tercio.sched.holds import Asker
from tercio.sched.need import Need, Shape
from tercio.sched.owners import Blocked, owner_of

Rank = tuple[bool, float, float, int]
"""Order inside a queue: whether it gives way, larger priority, earlier submit, sequence."""


Entry = tuple[Rank, int, "JobClass"]
"""Place of a class inside its queue: the rank of its head, then its number."""


class Member(NamedTuple):
    """A waiting job (or an array with its waiting elements) in its class."""

    submitted_s: float
    sequence: int
    job_id: JobId


class Verdict(NamedTuple):
    """Why a class did not start.

    Attributes:
        reason: code.
        limit: the limit that refused it, for reasons of quota.
        ahead: the job it waits behind or whose promise it would break.
        can_never: whether no change of load alone would let it start.
        alternative: index of the combination of device alternatives that this is about.
        is_declined: it may fit, but a faster alternative is done earlier, wait included.
    """

    reason: Reason
    limit: Blocked | None = None
    ahead: JobId | None = None
    can_never: bool = False
    alternative: int = 0
    is_declined: bool = False


class ClassKey(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """What the jobs of a class have in common; its hash is worked out once.

    `gives_way` is whether they are flexible and go behind others until power is cheaper.
    """

    parts: tuple[object, ...]
    gives_way: bool = False


class Likeness(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """What classes share that are the same to nodes and victims; its hash is worked out once."""

    queue: str
    priority: int
    shape: int
    is_preemptible: bool


class JobClass:
    """Waiting jobs that no rule can tell apart, in order.

    Attributes:
        key: what they have in common.
        spec: of one of them, for everything the key covers.
        shape, amounts: compiled request, and quota amounts by combination.
        queue, owner, user, priority, is_preemptible: who they are to the rules.
        limit_s: time limit of an attempt, or None.
        members: in order of submit.
        verdict: why the head did not start in the last cycle, or None.
        told: reason code that was last reported.
        stamp: state of the cluster for which `verdict` holds.
        needs: every need of every combination.
        likeness: what decides who may be stopped for it and where it may stand, its time limit
            left out.
        is_plain: whether nothing else of its description decides whether its head may start now.
    """

    __slots__ = (
        "_asker", "_entry", "_pools", "_tenant", "amounts", "is_plain", "is_preemptible", "key",
        "likeness", "limit_s", "members", "needs", "number", "owner", "priority", "queue",
        "shape", "spec", "stamp", "told", "user", "verdict",
    )  # fmt: skip

    def __init__(
        self,
        *,
        key: ClassKey,
        number: int,
        job: WaitingJob,
        shape: Shape,
        amounts: tuple[Amounts, ...],
        queue: QueueNode,
    ) -> None:
        self.key = key
        self.number = number
        self.spec: JobSpec = job.spec
        self.shape = shape
        self.amounts = amounts
        self.queue = queue
        self.owner = owner_of(job)
        self.user = job.user
        self.priority = job.priority
        self.is_preemptible = job.is_preemptible
        self.limit_s = job.spec.time.limit_s
        self.members: list[Member] = []
        self._entry: Entry | None = None
        self.verdict: Verdict | None = None
        self.told: Reason | None = None
        self.stamp: tuple[int, ...] = ()
        self.needs: tuple[Need, ...] = tuple(
            dict.fromkeys(need for leaf in shape.leaves for need in leaf.needs)
        )
        self._pools = tuple(dict.fromkeys(pool for need in self.needs for pool in need.pools))
        self._asker = Asker(queue.path, job.user, job.spec.reservation)
        is_elastic = shape.is_elastic
        self._tenant = Tenant(queue, not job.is_preemptible, is_elastic)
        self.likeness = Likeness(
            queue=queue.path,
            priority=job.priority,
            shape=shape.number,
            is_preemptible=job.is_preemptible,
        )
        self.is_plain = (
            not key.gives_way
            and not is_elastic
            and not job.spec.speed
            and job.spec.time.deadline_s is None
        )

    def reuse(self, job: WaitingJob, number: int) -> None:
        """Begin anew, when the class was empty, with a job of the same key."""
        self.spec, self.number = job.spec, number
        self.verdict, self.told, self.stamp, self._entry = None, None, (), None

    @property
    def head(self) -> Member:
        """The first member."""
        return self.members[0]

    @property
    def rank(self) -> Rank:
        """Place of the head inside its queue, smaller first."""
        submitted_s, sequence, _ = self.members[0]
        return (self.key.gives_way, -self.priority, submitted_s, sequence)

    @property
    def entry(self) -> Entry:
        """Rank, number and self for sorting; kept, since making many wakes the collector."""
        if self._entry is None:
            self._entry = (self.rank, self.number, self)
        return self._entry

    def add(self, job: WaitingJob) -> None:
        """Insert a member in order."""
        self._entry = None
        bisect.insort(self.members, Member(job.submitted_s, job.sequence, job.job_id))

    def remove(self, job: WaitingJob) -> None:
        """Take a member out."""
        at = bisect.bisect_left(self.members, (job.submitted_s, job.sequence, job.job_id))
        self._entry = None
        del self.members[at]

    def asker(self) -> Asker:
        """Whose job it is, to reservations."""
        return self._asker

    def tenant(self) -> Tenant:
        """Whose job it is, to guarantees by shape."""
        return self._tenant

    def pools(self) -> tuple[str, ...]:
        """Device types that its alternatives can use; `none` for a job without devices."""
        return self._pools


def class_key(job: WaitingJob, now_s: float) -> ClassKey:
    """What makes two waiting jobs equal to every rule of the scheduler."""
    spec = job.spec
    parts = (
        spec.groups, spec.topology, spec.nodes, spec.sites, spec.image is None,
        spec.reservation, spec.repair,
        tuple(sorted(spec.speed.items())) if spec.speed else (),
        spec.goodput and (spec.goodput, spec.checkpoint.path, spec.retry.on),
        spec.time.limit_s, spec.time.expected_s, spec.time.deadline_s, spec.checkpoint.grace_s,
        job.queue, job.user, job.tenant, job.priority, job.is_preemptible,
    )  # fmt: skip
    return ClassKey(parts, job.rather_from_s(now_s) is not None)


def elements(job: WaitingJob) -> Iterator[JobId]:
    """Ids to start, in order: the job itself, or the waiting elements of an array."""
    if job.pending is None:
        yield job.job_id
        return
    for span in job.pending:
        for index in range(span.start, span.stop, span.step):
            yield element_id(job.job_id, index)


def startable(job: WaitingJob) -> int:
    """How many starts the job may have at once: 1, or what an array's concurrency leaves."""
    if job.pending is None:
        return 1
    waiting = sum(len(range(span.start, span.stop, span.step)) for span in job.pending)
    most = job.spec.array.concurrency if job.spec.array is not None else None
    return waiting if most is None else max(0, min(waiting, most - job.active_elements))
