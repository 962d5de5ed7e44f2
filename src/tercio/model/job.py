"""Jobs: the normalised form of a job file, and the states of a job.

`formats.native` turns text into a `JobSpec`; everything after that sees only this.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from tercio.model.ids import JobId
from tercio.model.resources import Request
from tercio.model.sizing import ModelSpec, Sized
from tercio.model.topology import TopologyRequest


class JobState(StrEnum):
    """Where a job is in its life. Why it is there is a reason, not a state."""

    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_JOB_STATES: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
ACTIVE_JOB_STATES: Final = frozenset(
    {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPING}
)
WAITING_JOB_STATES: Final = frozenset({JobState.HELD, JobState.QUEUED})


class EndCause(StrEnum):
    """Why an attempt or a job ended, or was stopped. Names are those of `retry.on`."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LAUNCH_FAILED = "launch_failed"
    NODE_FAILED = "node_failed"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"
    DRAINED = "drained"
    QUARANTINED = "quarantined"
    HUNG = "hung"
    IDLE = "idle"
    DEPENDENCY = "dependency"


class Framework(StrEnum):
    """How the tasks of a gang find each other; see `launch`."""

    PLAIN = "plain"
    TORCH = "torch"
    TORCHRUN = "torchrun"
    TENSORFLOW = "tensorflow"
    JAX = "jax"
    MPI = "mpi"
    RAY = "ray"
    DASK = "dask"


FLEXIBLE_FRAMEWORKS: Final = frozenset({Framework.PLAIN, Framework.RAY, Framework.DASK})
"""Frameworks whose tasks may come and go while the others run on.

The others agree on their number and ranks once, at the start.
"""


class TaskGroup(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True, gc=False
):
    """Identical tasks placed together.

    Attributes:
        name: unique in the job; empty for the one unnamed group.
        tasks: exact size of the gang, or its minimum when `tasks_max` is set.
        tasks_max: largest size of an elastic gang, or None.
        per_task: what each task needs on its node.
        topology: constraints among this group's tasks, or None.
        subgroups: nested gangs.
        min_subgroups: how many of the subgroups must start, or None for all.
        exclusive: whether the tasks take whole nodes.
    """

    name: str = ""
    tasks: int = 1
    tasks_max: int | None = None
    per_task: Request = Request()
    topology: TopologyRequest | None = None
    subgroups: tuple[TaskGroup, ...] = ()
    min_subgroups: int | None = None
    exclusive: bool = False


class NodeFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which nodes may be used: a label expression (`formats.expression`) and excluded names."""

    match: str | None = None
    exclude: tuple[str, ...] = ()


class TimeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Times of a job: durations in seconds, instants in seconds since the epoch.

    Attributes:
        limit_s: the attempt is stopped after this long; None for no limit.
        expected_s: an estimate used for planning; never stops anything.
        deadline_s: instant by which the job should be done.
        earliest_s: instant before which the job may not start.
        flexible_s: how long after its submit the job may be put behind others, where the policy
            orders such jobs by what power costs.
    """

    limit_s: float | None = None
    expected_s: float | None = None
    deadline_s: float | None = None
    earliest_s: float | None = None
    flexible_s: float | None = None


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a job saves its work before a planned stop.

    Attributes:
        path: directory that the job writes checkpoints to, or None.
        signal: sent `grace_s` before the kill; None sends SIGTERM only.
        grace_s: time between the stop signal and the kill.
        every_s: interval between checkpoints, or None for `auto`, see `core.saving`.
    """

    path: str | None = None
    signal: str | None = None
    grace_s: float = 30.0
    every_s: float | None = None


class ChecksSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a gang checks before its command.

    Attributes:
        allreduce_s: how long it sums over all its tasks, see `launch.preflight`; None for not.
    """

    allreduce_s: float | None = None


class RetrySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Which ends of an attempt start another one.

    Attributes:
        on: causes that are retried. A drained or requeued attempt always starts again.
        max: most retries that count; preemption does not count.
        backoff_s: first delay; doubles with every retry up to an hour.
    """

    on: tuple[EndCause, ...] = (EndCause.NODE_FAILED, EndCause.PREEMPTED)
    max: int = 5
    backoff_s: float = 30.0


class Repair(StrEnum):
    """What a lost member does to its gang."""

    GANG = "gang"
    TASK = "task"


class DependsWhen(StrEnum):
    """Which end of the other job lets this one start."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


class Dependency(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This job starts only after another one has ended."""

    job: JobId
    when: DependsWhen = DependsWhen.OK


class IndexRange(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Indexes `start <= i < stop` by `step`."""

    start: int
    stop: int
    step: int = 1


class ArraySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An array job: one element per index.

    Attributes:
        ranges: indexes in order, not overlapping.
        concurrency: most elements that run at once, or None.
    """

    ranges: tuple[IndexRange, ...]
    concurrency: int | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(len(range(r.start, r.stop, r.step)) for r in self.ranges)


class Mount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path of the node in the container of a task: `source` there is `target` inside."""

    source: str
    target: str
    is_read_only: bool = False


class NotifySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A webhook: called when the job enters one of these states or events."""

    on: tuple[str, ...]
    url: str


class Goodput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measured goodput profile, used by elastic policies.

    Attributes:
        type: device type the profile was measured on.
        tasks: gang sizes, ascending.
        units_per_s: progress per second at each of them, same length as `tasks`.
    """

    type: str
    tasks: tuple[int, ...]
    units_per_s: tuple[float, ...]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job as its user described it, normalised.

    Attributes follow the job file key by key; see docs/job-file.md. `queue` None means the
    policy's default queue; `preemptible` None means the queue's default. `workdir` is the id
    of an uploaded snapshot, or an absolute path on the nodes, or None. `secrets` are names
    only: values never enter a spec. `sized` is what sizing
    answered for `devices: auto`. `cwd` is the directory below the snapshot to start in.
    """

    name: str
    queue: str | None = None
    priority: int = 0
    preemptible: bool | None = None
    groups: tuple[TaskGroup, ...] = (TaskGroup(),)
    topology: TopologyRequest | None = None
    nodes: NodeFilter | None = None
    time: TimeSpec = TimeSpec()
    run: str = ""
    setup: str | None = None
    framework: Framework = Framework.PLAIN
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    workdir: str | None = None
    outputs: str | None = None
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    checkpoint: CheckpointSpec = CheckpointSpec()
    checks: ChecksSpec = ChecksSpec()
    retry: RetrySpec = RetrySpec()
    repair: Repair = Repair.GANG
    depends_on: tuple[Dependency, ...] = ()
    array: ArraySpec | None = None
    reservation: str | None = None
    model: ModelSpec | None = None
    sized: Sized | None = None
    sites: tuple[str, ...] = ()
    speed: dict[str, float] = {}
    goodput: tuple[Goodput, ...] = ()
    notify: tuple[NotifySpec, ...] = ()
    labels: dict[str, str] = {}
    wait_for_capacity: bool = False

    @property
    def task_count(self) -> int:
        """Tasks of the job at its minimum size, all nested gangs included."""
        return sum(_group_tasks(group) for group in self.groups)

    @property
    def least_task_count(self) -> int:
        """Tasks without which the job does not run: of nested gangs only as many as it needs."""
        return sum(_least_tasks(group) for group in self.groups)


def _group_tasks(group: TaskGroup) -> int:
    if group.subgroups:
        return sum(_group_tasks(sub) for sub in group.subgroups)
    return group.tasks


def _least_tasks(group: TaskGroup) -> int:
    if group.subgroups:
        counts = sorted(_least_tasks(sub) for sub in group.subgroups)
        return sum(counts[: group.min_subgroups or len(counts)])
    return group.tasks
