"""Events: facts in the past tense. The journal is a list of them; nothing else changes state.

Every event says when it happened (`at_s`, seconds since the epoch). Order among equal times
is the journal sequence. `subjects` names the objects whose story an event belongs to.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.event_roots import Event as Event
from tercio.model.event_roots import JobEvent as JobEvent
from tercio.model.event_roots import NodeEvent as NodeEvent
from tercio.model.event_roots import TaskEvent as TaskEvent
from tercio.model.health_events import FaultCleared as FaultCleared
from tercio.model.health_events import FaultFound as FaultFound
from tercio.model.health_events import HealthBreakerMoved as HealthBreakerMoved
from tercio.model.health_events import HealthDecided as HealthDecided
from tercio.model.health_events import HealthPolicyChanged as HealthPolicyChanged
from tercio.model.health_events import JobHung as JobHung
from tercio.model.health_events import JobIdled as JobIdled
from tercio.model.health_events import LimitMeasured as LimitMeasured
from tercio.model.health_events import NodeHealthChanged as NodeHealthChanged
from tercio.model.health_events import NodeRepairEnded as NodeRepairEnded
from tercio.model.health_events import PowerCapped as PowerCapped
from tercio.model.health_events import PricesRead as PricesRead
from tercio.model.health_events import RankPaceChanged as RankPaceChanged
from tercio.model.health_events import SpareActivated as SpareActivated
from tercio.model.identity import Token
from tercio.model.ids import EffectId, JobId, QueuePath
from tercio.model.job import EndCause, JobSpec
from tercio.model.node import Cordon, MigSpec, NodeSpec
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy
from tercio.model.readings import Marks, Measured
from tercio.model.reasons import Reason, StartEstimate
from tercio.model.reservation import Promise, Reservation

# Requests of people, accepted.


class JobSubmitted(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A job was accepted. `submit_key` makes a repeated submit return the same job."""

    spec: JobSpec
    queue: QueuePath
    user: str
    tenant: str
    submit_key: str | None = None
    is_held: bool = False


class JobHeld(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A waiting job may not start until released."""

    by: str


class JobReleased(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A held job may start again."""

    by: str


class JobCancelRequested(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Someone wants the job stopped for good."""

    by: str
    reason: str = ""


class JobRequeueRequested(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Someone wants the job stopped, or a finished one run again, from the queue."""

    by: str


class JobSuspendRequested(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Someone wants a running job paused; it keeps what it holds."""

    by: str


class JobResumeRequested(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Someone wants a paused job to go on."""

    by: str


class PolicyChanged(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A new version of the policy is in force."""

    version: int
    policy: Policy
    by: str


class NodeCordoned(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """No new work goes to the node until the cordon's owner lifts it."""

    cordon: Cordon


class NodeUncordoned(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The cordon of this owner was lifted."""

    owner: str


class NodeDrainRequested(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The node is to be emptied: cordoned, and its jobs stopped with grace and requeued."""

    cordon: Cordon


class TokenCreated(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A token may be used from now on."""

    token: Token
    by: str


class TokenRevoked(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A token may not be used any more."""

    token_id: str
    by: str


class ReservationAdded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Capacity is kept for a queue or a user."""

    reservation: Reservation
    by: str


class ReservationRemoved(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A reservation ended early, or its last window is over."""

    name: str
    by: str


# Decisions of a scheduling cycle, applied.


class JobPlaced(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A job got its nodes and devices; its tasks are to be launched.

    For an array, `job_id` is the element's id. `label` is `immediate`, `backfill` or
    `reserved`. `estimate_s` is the start that was last promised to people, or None.
    """

    attempt: int
    tasks: tuple[TaskPlacement, ...]
    label: str = "immediate"
    estimate_s: float | None = None


class JobEvicted(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A running job is to be stopped to free what it holds, for `for_job` if there is one.

    `tasks` names the surplus tasks of an elastic job that are to stop; empty means the whole
    job.
    """

    cause: EndCause
    for_job: JobId | None = None
    message: str = ""
    tasks: tuple[int, ...] = ()


class TasksAdded(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Tasks join a running attempt: in the place of lost members, or because there is room.

    Their numbers are new in the attempt; `member` of each says whose place it takes.
    """

    attempt: int
    tasks: tuple[TaskPlacement, ...]
    is_repair: bool = False


class JobWaited(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The reason for which a job waits changed. For its story.

    `start` is the first estimate since it waits; how it came out is recorded at its start.
    """

    reason: Reason
    message: str
    start: StartEstimate | None = None


class PromisesChanged(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The set of promises, whole."""

    promises: tuple[Promise, ...]


# Observations of engines.


class TaskStarted(TaskEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `LaunchTask`: the task's command runs."""

    effect_id: EffectId
    detail: str = ""


class TaskLaunchFailed(TaskEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `LaunchTask`: nothing runs and nothing of this launch ever will."""

    effect_id: EffectId
    message: str
    is_retryable: bool = False


class TaskExited(TaskEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The task's processes are gone.

    Attributes:
        exit_code: of the command, or None when it was ended by a signal or is not known.
        signal: that ended it, or None.
        is_lost: the task ended by a fault of the node or engine, not by itself.
        message: one line for people, such as `out of memory (limit 2GiB)`.
        marks: what the task marked itself, None where it marked nothing.
        measured: what readings of its devices say, None without readings.
    """

    exit_code: int | None = None
    signal: int | None = None
    is_lost: bool = False
    message: str = ""
    marks: Marks | None = None
    measured: Measured | None = None


class NodeReported(Event, frozen=True, kw_only=True, omit_defaults=True):
    """An engine reported a node's facts; the node is there and answers."""

    spec: NodeSpec


class NodeLost(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Contact with the node was lost. Its tasks may still run."""

    reason: str


class NodeFenced(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing of ours can still run on the lost node: fenced, or its deadline passed."""

    reason: str


class NodeRemoved(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The engine no longer has the node."""


class EffectAnswered(Event, frozen=True, kw_only=True, omit_defaults=True):
    """An effect without an answer of its own kind was done, or was refused for good."""

    effect_id: EffectId
    is_done: bool = True
    message: str = ""


class DeviceReconfigured(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `ReconfigureDevice`: the device has its slices, or why it has not.

    `mig` is how it is cut now, where that is known, also after a failure.
    """

    effect_id: EffectId
    index: int
    mig: MigSpec | None = None
    is_done: bool = True
    message: str = ""
    is_retryable: bool = False


# Time, made a fact.


class SlicePauseEnded(NodeEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A device whose slices could not be changed may be tried again."""

    index: int


class EffectTimedOut(Event, frozen=True, kw_only=True, omit_defaults=True):
    """No answer came before the effect's deadline."""

    effect_id: EffectId


class TimeLimitReached(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """The attempt used up its time limit."""

    attempt: int


class RepairTimedOut(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """No room was found in time for a lost member: the gang is to be released whole."""

    attempt: int


class JobsForgotten(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Finished jobs left the state after their retention; the journal may drop them too."""

    job_ids: tuple[JobId, ...]


class ServerStarted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A server run began. Epochs grow, and fence the effects of earlier runs.

    `jobs_floor` is not 0 after a restore: the ids of as many jobs may have been used by what
    the restore undid, and an engine knows tasks by them, so that new jobs are numbered above.
    `first_port` is where this run begins to hand out rendezvous ports, 0 to go on where the
    last one was: drawn by the server, so that two servers on one machine seldom meet.
    """

    epoch: int
    version: str
    jobs_floor: int = 0
    first_port: int = 0


AnyEvent = (
    JobSubmitted
    | JobHeld
    | JobReleased
    | JobCancelRequested
    | JobRequeueRequested
    | JobSuspendRequested
    | JobResumeRequested
    | PolicyChanged
    | NodeCordoned
    | NodeUncordoned
    | NodeDrainRequested
    | TokenCreated
    | TokenRevoked
    | ReservationAdded
    | ReservationRemoved
    | JobPlaced
    | TasksAdded
    | JobEvicted
    | JobWaited
    | PromisesChanged
    | TaskStarted
    | TaskLaunchFailed
    | TaskExited
    | NodeReported
    | NodeLost
    | NodeFenced
    | NodeRemoved
    | FaultFound
    | FaultCleared
    | NodeHealthChanged
    | HealthDecided
    | SpareActivated
    | NodeRepairEnded
    | HealthPolicyChanged
    | HealthBreakerMoved
    | PowerCapped
    | LimitMeasured
    | PricesRead
    | RankPaceChanged
    | JobHung
    | JobIdled
    | EffectAnswered
    | DeviceReconfigured
    | SlicePauseEnded
    | EffectTimedOut
    | TimeLimitReached
    | RepairTimedOut
    | JobsForgotten
    | ServerStarted
)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line of the journal: an event with its place in the order, from 1."""

    seq: int
    event: AnyEvent


SERVER: Final = "server"
"""Subject of the server's own story."""


def subjects(event: AnyEvent) -> tuple[str, ...]:
    """Return the objects whose story the event belongs to, such as `('job-00001',)`."""
    match event:
        case JobEvicted(job_id=job, for_job=other) if other is not None:
            return (job, other)
        case JobPlaced(job_id=job, tasks=tasks) | TasksAdded(job_id=job, tasks=tasks):
            return (job, *dict.fromkeys(f"node/{t.node}" for t in tasks))
        case RankPaceChanged(job_id=job, node=node):
            return (job, f"node/{node}")
        case JobEvent(job_id=job):
            return (job,)
        case NodeHealthChanged(node=node, jobs=jobs) | HealthDecided(node=node, jobs=jobs):
            return (f"node/{node}", *jobs)
        case SpareActivated(node=node, replaces=replaced, job_id=job):
            return (f"node/{node}", f"node/{replaced}", job)
        case PowerCapped(node=node, stop=stopped):
            return (f"node/{node}", *stopped)
        case NodeEvent(node=node):
            return (f"node/{node}",)
        case HealthPolicyChanged() | HealthBreakerMoved():
            return ("health",)
        case NodeReported(spec=spec):
            return (f"node/{spec.name}",)
        case EffectTimedOut(effect_id=effect) | EffectAnswered(effect_id=effect):
            # `launch:job-00001/1/0` belongs to the job it names, `slices:n1/0/17` to the node.
            name = effect.partition(":")[2].partition("/")[0]
            return (f"node/{name}" if effect.startswith("slices:") else name,)
        case PricesRead():
            return ("prices",)
        case PolicyChanged():
            return ("policy",)
        case TokenCreated() | TokenRevoked():
            return ("tokens",)
        case ReservationAdded(reservation=reservation):
            return ("reservations", *(f"node/{node}" for node in reservation.nodes))
        case ReservationRemoved():
            return ("reservations",)
        case ServerStarted():
            return (SERVER,)
        case _:
            return ()
