"""Our states and reasons in Slurm's words: one total table for each."""

from __future__ import annotations

from typing import Final, NamedTuple

from tercio.errors import UserError, did_you_mean
from tercio.model.ids import JobId, array_parent, job_number
from tercio.model.job import EndCause, JobState
from tercio.model.node import NodeState
from tercio.model.reasons import Reason
from tercio.model.views import JobView, NodeView, TaskView


class State(NamedTuple):
    """A state of Slurm, long and compact."""

    word: str
    code: str


_CANCELLED: Final = State("CANCELLED", "CA")
_FAILED: Final = State("FAILED", "F")
LIVING: Final[dict[JobState, State]] = {
    JobState.HELD: State("PENDING", "PD"),
    JobState.QUEUED: State("PENDING", "PD"),
    JobState.STARTING: State("CONFIGURING", "CF"),
    JobState.RUNNING: State("RUNNING", "R"),
    JobState.SUSPENDED: State("SUSPENDED", "S"),
    JobState.STOPPING: State("COMPLETING", "CG"),
    JobState.SUCCEEDED: State("COMPLETED", "CD"),
    JobState.FAILED: _FAILED,
    JobState.CANCELLED: _CANCELLED,
}
ENDED: Final[dict[EndCause, State]] = {
    EndCause.SUCCEEDED: State("COMPLETED", "CD"),
    EndCause.FAILED: _FAILED,
    EndCause.LAUNCH_FAILED: State("BOOT_FAIL", "BF"),
    EndCause.NODE_FAILED: State("NODE_FAIL", "NF"),
    EndCause.PREEMPTED: State("PREEMPTED", "PR"),
    EndCause.TIME_LIMIT: State("TIMEOUT", "TO"),
    EndCause.CANCELLED: _CANCELLED,
    EndCause.REQUEUED: State("REQUEUED", "RQ"),
    EndCause.DRAINED: State("NODE_FAIL", "NF"),
    EndCause.QUARANTINED: State("NODE_FAIL", "NF"),
    EndCause.HUNG: _FAILED,
    EndCause.IDLE: State("REQUEUED", "RQ"),
    EndCause.DEPENDENCY: _CANCELLED,
}
"""Of failed jobs by the cause of their end."""

REASONS: Final[dict[Reason, str]] = {
    Reason.READY: "None",
    Reason.HELD: "JobHeldUser",
    Reason.DEPENDENCY: "Dependency",
    Reason.NOT_BEFORE: "BeginTime",
    Reason.QUEUE_LIMIT: "AssocGrpGRES",
    Reason.USER_LIMIT: "QOSMaxGRESPerUser",
    Reason.WAITING_FOR_SHARE: "Priority",
    Reason.ORDER: "Priority",
    Reason.RESERVED: "Resources",
    Reason.TOPOLOGY: "Resources",
    Reason.SHAPE: "Resources",
    Reason.FRAGMENTED: "Resources",
    Reason.NODE_SLOTS: "Resources",
    Reason.NO_FREE_DEVICES: "Resources",
    Reason.TYPE_UNAVAILABLE: "ReqNodeNotAvail",
    Reason.HEALTH: "ReqNodeNotAvail",
    Reason.CONSTRAINT: "BadConstraints",
    Reason.POWER: "PowerNotAvail",
    Reason.SITE_UNAVAILABLE: "PartitionDown",
    Reason.PREEMPTING: "Resources",
    Reason.BACK_OFF: "BeginTime",
    Reason.SEARCH_BUDGET: "Priority",
    Reason.NEVER_FITS: "PartitionConfig",
}
"""Why a job waits. 'tercio explain JOB' says it with numbers."""

_NODES: Final[dict[NodeState, str]] = {
    NodeState.UNKNOWN: "unk",
    NodeState.READY: "idle",
    NodeState.CORDONED: "drain",
    NodeState.DRAINING: "drng",
    NodeState.DOWN: "down",
}


def is_waiting_array(view: JobView) -> bool:
    """Whether a job is an array of which elements wait."""
    return view.array is not None and bool(view.array.pending) and view.ended_s is None


def state_of(view: JobView) -> State:
    """Return the state of a job in Slurm's words; an array stands for its elements that wait."""
    state = JobState(view.state)
    if is_waiting_array(view):
        return LIVING[JobState.QUEUED]
    if state is JobState.FAILED and view.reason in set(EndCause):
        return ENDED[EndCause(view.reason)]
    return LIVING[state]


def task_state(task: TaskView, of_job: State) -> str:
    """Return the state of a task in Slurm's words: that of its job while it has not ended."""
    if task.ended_s is None:
        return of_job.word
    if task.signal:
        return _CANCELLED.word if of_job.word == "FAILED" else of_job.word
    return "FAILED" if task.exit_code else LIVING[JobState.SUCCEEDED].word


def reason_of(view: JobView) -> str:
    """Return why a job waits, or why it ended badly, as squeue says it."""
    if JobState(view.state) is JobState.HELD:
        return "JobHeldUser"
    if is_waiting_array(view) and view.array is not None and view.array.active:
        return "JobArrayTaskLimit" if view.reason == Reason.USER_LIMIT else "Resources"
    if view.reason in set(Reason):
        return REASONS[Reason(view.reason)]
    if view.reason == EndCause.TIME_LIMIT:
        return "TimeLimit"
    return "NonZeroExitCode" if view.exit_code else "None"


def node_state(view: NodeView) -> str:
    """Return the state of a node: idle, mix, alloc, drain, drng, down or unk."""
    state = NodeState(view.state)
    if state is NodeState.CORDONED and view.jobs:
        return "drng"
    if state is not NodeState.READY or not (view.jobs or view.cpus_free < view.cpus):
        return _NODES[state]
    counted = view.total if any(view.total.values()) else {"cpu": view.cpus}
    left = view.free if any(view.total.values()) else {"cpu": view.cpus_free}
    return "mix" if any(left.get(kind, 0) > 0 for kind in counted) else "alloc"


def read_states(text: str) -> frozenset[str]:
    """Read `PD,running`: the long words; empty for all.

    Raises:
        UserError: it is no state of Slurm.
    """
    known = [*LIVING.values(), *ENDED.values(), State("OUT_OF_MEMORY", "OOM")]
    by_name = {name: state.word for state in known for name in state}
    found = []
    for word in text.upper().split(","):
        if word == "ALL":
            return frozenset()
        if word not in by_name:
            hint = did_you_mean(word, by_name) or f"write one of {', '.join(sorted(by_name))}"
            raise UserError(f"'{word}' is no job state of Slurm", hint=hint)
        found.append(by_name[word])
    return frozenset(found)


def shown_id(job: str) -> str:
    """Return the id that Slurm's programs print: `31`, or `32_3` for an element of an array."""
    parent = array_parent(JobId(job))
    number = str(job_number(parent or JobId(job)))
    return number if parent is None else f"{number}_{job.rpartition('.')[2]}"
