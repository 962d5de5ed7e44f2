"""The mutable records of the machine. Only `Cluster.apply` and what it calls change them.

They are encodable as they stand, so the checkpoint is these records and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from tercio.core.transitions import LIVE_TASK_STATES, TaskState
from tercio.forecast.lengths import Kind
from tercio.model.ids import JobId, NodeName, QueuePath, array_parent
from tercio.model.job import EndCause, IndexRange, JobSpec, JobState, RetrySpec, TaskGroup
from tercio.model.node import Node
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy
from tercio.model.readings import Marks, Measured
from tercio.model.reasons import Reason, StartEstimate
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.model.sizing import SizedChoice, choice_of
from tercio.model.spans import AttemptSpan, SlowSpan


class Task(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True, gc=False):
    """One task of the current or last attempt.

    Attributes:
        placement: where it is and what it holds until it ends.
        ports: TCP ports on its node that are its own until it ends.
        started_s, ended_s: as reported.
        is_replaced: lost, and the rest went on: another task takes its place.
        joined_s: when it joined a running attempt; None for those of its start.
        marks, measured: what its end told of its progress and of its devices.
        is_surplus: told to stop while the rest of an elastic job goes on: its end is no fault.
    """

    placement: TaskPlacement
    state: TaskState = TaskState.LAUNCHING
    ports: tuple[int, ...] = ()
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    is_lost: bool = False
    is_surplus: bool = False
    message: str = ""
    joined_s: float | None = None
    is_replaced: bool = False
    marks: Marks | None = None
    measured: Measured | None = None

    @property
    def is_live(self) -> bool:
        """Whether it still holds its node."""
        return self.state in LIVE_TASK_STATES


class Missing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lost member of the current attempt that the others wait for, and why it was lost."""

    member: int
    group: int
    lost_s: float
    cause: EndCause
    message: str
    not_before_s: float | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate of its start that a waiting job was told first, and when."""

    at_s: float
    start: StartEstimate


class Hang(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That an attempt was found to stand still: since when, and why it goes on nevertheless."""

    since_s: float
    held_by: str = ""


class Idle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That the devices of an attempt stay idle: since when, and when it is stopped for that."""

    since_s: float
    stop_s: float | None = None


class ArrayProgress(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """How far an array job is.

    Attributes:
        pending: elements never started yet.
        element: the spec that all elements share.
        active, requeued, ...: started elements by what became of them.
    """

    pending: tuple[IndexRange, ...]
    element: JobSpec
    active: int = 0
    requeued: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class Job(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True, gc=False):
    """One job, or one started element of an array.

    Attributes:
        sequence: journal sequence of its submit.
        attempt: number of the current or last attempt, 0 before the first.
        stop_cause: why the current attempt is being stopped, or None.
        cause: why the last attempt ended, or None.
        retries: attempts that count against `retry.max`.
        blocked_on: jobs it depends on that have not ended.
        waited: last reason code told in its story, and when.
        predicted_s: how long it will probably run, by its like, when it says nothing itself.
        told: what it was told about its start since it waits, or None.
        limit_extension_s: time spent suspended in this attempt.
        charge_s: seconds of use charged in advance for this attempt.
        missing: members of the current attempt that are to be replaced alone.
        grows_from_s: end of the pause after a task could not join, or None.
        stop_ordered_s: when the current attempt was told to stop, or None.
        queued_since_s: when it began to wait again, None before its first end.
        past: its ended attempts.
        hang: of the current attempt, while it stands still for too long.
        idle: of the current attempt, while its user is warned.
        slow: times of the current attempt in which tasks were slower than their peers.
    """

    id: JobId
    spec: JobSpec
    queue: QueuePath
    user: str
    tenant: str
    submitted_s: float
    sequence: int
    state: JobState = JobState.QUEUED
    is_held: bool = False
    submit_key: str | None = None
    attempt: int = 0
    tasks: list[Task] = []
    placed_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    stop_cause: EndCause | None = None
    stops_by_s: float | None = None
    cause: EndCause | None = None
    message: str = ""
    exit_code: int | None = None
    retries: int = 0
    not_before_s: float | None = None
    is_backing_off: bool = False
    blocked_on: tuple[JobId, ...] = ()
    last_nodes: tuple[NodeName, ...] = ()
    evictions_s: tuple[float, ...] = ()
    waited: Reason | None = None
    waited_message: str = ""
    waited_s: float = 0.0
    told: Told | None = None
    predicted_s: float | None = None
    suspended_s: float | None = None
    limit_extension_s: float = 0.0
    charge_s: float = 0.0
    missing: tuple[Missing, ...] = ()
    grows_from_s: float | None = None
    stop_ordered_s: float | None = None
    queued_since_s: float | None = None
    past: tuple[AttemptSpan, ...] = ()
    hang: Hang | None = None
    idle: Idle | None = None
    slow: tuple[SlowSpan, ...] = ()
    array: ArrayProgress | None = None

    @property
    def parent(self) -> JobId | None:
        """The array it is an element of, or None."""
        return array_parent(self.id)

    @property
    def ends_s(self) -> float | None:
        """When the time limit stops the current attempt, or None."""
        if self.started_s is None or self.spec.time.limit_s is None:
            return None
        return self.started_s + self.spec.time.limit_s + self.limit_extension_s

    @property
    def live_tasks(self) -> list[Task]:
        """Tasks of the current attempt that still hold their nodes."""
        return [task for task in self.tasks if task.is_live]


def kind_of(job: Job) -> Kind:
    """What the job is like, to those that ran before it."""
    return Kind(job.tenant, job.user, job.queue, job.spec.name, wanted_milli(job.spec.groups))


@functools.lru_cache(maxsize=1024)
def wanted_milli(groups: tuple[TaskGroup, ...]) -> int:
    """Devices of all tasks together, in thousandths; nested gangs counted.

    A rough size, to tell jobs apart: of alternatives and of slices, the first counts.
    """
    total = 0
    for group in groups:
        each = sum(
            device.count * WHOLE_DEVICE_MILLI + device.share_milli
            for device in group.per_task.devices[:1]
        )
        total += group.tasks * (each + wanted_milli(group.subgroups))
    return total


_ALWAYS_RETRIED = frozenset(
    {EndCause.REQUEUED, EndCause.DRAINED, EndCause.QUARANTINED, EndCause.HUNG, EndCause.IDLE}
)


def may_retry(retry: RetrySpec, cause: EndCause, retries: int) -> bool:
    """Whether an attempt that ended for `cause` is followed by another."""
    if cause in _ALWAYS_RETRIED:
        return True
    if cause is EndCause.PREEMPTED:
        return cause in retry.on
    return cause in retry.on and retries < retry.max


def backoff_s(retry: RetrySpec, retries: int) -> float:
    """Delay before the retry with this number (from 1): doubles each time, an hour at most."""
    return min(retry.backoff_s * float(2 ** min(retries - 1, 20)), 3600.0)


def is_elastic(spec: JobSpec) -> bool:
    """Whether the number of tasks may change while the job runs; nested gangs may hide it."""
    groups = spec.groups
    if len(groups) == 1:
        return groups[0].tasks_max is not None or bool(groups[0].subgroups)
    return any(group.tasks_max is not None or group.subgroups for group in groups)


def is_preemptible(policy: Policy, queue: QueuePath, spec: JobSpec) -> bool:
    """Whether the job may be evicted: its own word, else its queue's default."""
    if spec.preemptible is not None:
        return spec.preemptible
    if "/" not in queue:
        top = policy.queues.get(queue)
        return True if top is None else top.preemptible
    queues = policy.queues
    found = True
    for name in queue.split("/"):
        if name not in queues:
            break
        found = queues[name].preemptible
        queues = queues[name].children
    return found


def taken_choice(job: Job, nodes: Mapping[NodeName, Node]) -> SizedChoice | None:
    """Return the alternative that the job's attempt runs or ran on, or None."""
    sized = job.spec.sized
    if sized is None or not job.tasks:
        return None
    placement = job.tasks[0].placement
    node = nodes.get(placement.node)
    if node is None or not placement.devices:
        return None
    device = node.spec.devices[placement.devices[0].index]
    wanted = job.spec.groups[0].per_task.devices
    return choice_of(sized, wanted, device, len(placement.devices))
