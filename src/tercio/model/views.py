"""What the API shows: the bodies that server, client, command line and web page agree on.

Every body carries `schema` and `kind`. Times are seconds since the epoch, durations seconds,
devices plain numbers by type (0.5 is half a device). A list is paged: `rows` and `next`, the
cursor of the following page, None on the last.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.events import AnyEvent
from tercio.model.job import JobSpec
from tercio.model.node import Cordon
from tercio.model.queue import Policy
from tercio.model.reasons import Decision, StartEstimate
from tercio.model.sizing import Layout, Sized

SCHEMA: Final = "tercio/v1"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Root of the bodies; never built itself."""

    schema: str = SCHEMA


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One task of the current or last attempt.

    `slices` are parts of devices, such as `0/3g.40gb` for one of device 0.
    """

    task: int
    group: str
    state: str
    node: str
    devices: tuple[int, ...] = ()
    slices: tuple[str, ...] = ()
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""


class ArrayView(msgspec.Struct, frozen=True, kw_only=True):
    """How far an array job is, in elements; `pending` are the indexes never started: `0-3,7`."""

    size: int
    waiting: int
    active: int
    succeeded: int
    failed: int
    cancelled: int
    pending: str = ""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What sizing said of the devices that a job runs or ran on, beside what happened.

    `ratio` is the run time over the prediction, once the job has succeeded.
    """

    devices: str
    tasks: int
    why: str
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    cost_usd: float | None = None
    actual_s: float | None = None
    ratio: float | None = None
    tokens_per_s: float | None = None
    layout: Layout | None = None


class JobView(View, frozen=True, kw_only=True):
    """One job. `spec` and `tasks` are filled when one job is asked for, not in lists.

    `reason` is the code of the current decision while the job waits, and the cause of its end
    after; `message` says it in words. `devices` is what it asks for, or holds when active.
    `predicted_run_s` is what its like ran, for a job that does not say how long it runs.
    `sites` are where its tasks are or were; before that where it may start, none for anywhere.
    `fabric` says which variables of NCCL are set and why; with `spec` only.
    """

    kind: str = "Job"
    id: str
    name: str
    queue: str
    user: str
    tenant: str
    state: str
    reason: str = ""
    message: str = ""
    priority: int = 0
    attempt: int = 0
    task_count: int = 1
    devices: dict[str, float] = {}
    nodes: tuple[str, ...] = ()
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    limit_s: float | None = None
    exit_code: int | None = None
    start: StartEstimate | None = None
    array: ArrayView | None = None
    labels: dict[str, str] = {}
    sites: tuple[str, ...] = ()
    spec: JobSpec | None = None
    tasks: tuple[TaskView, ...] = ()
    predicted: Prediction | None = None
    predicted_run_s: float | None = None
    fabric: tuple[str, ...] = ()


class JobList(View, frozen=True, kw_only=True):
    """A page of jobs."""

    kind: str = "JobList"
    rows: tuple[JobView, ...]
    next: str | None = None


class SubmitAnswer(View, frozen=True, kw_only=True):
    """Jobs accepted, in the order given. `warnings` are shown to the user."""

    kind: str = "Submitted"
    ids: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class DecisionView(View, frozen=True, kw_only=True):
    """Why a job waits or was placed."""

    kind: str = "Decision"
    decision: Decision


class PlanView(View, frozen=True, kw_only=True):
    """Answer of a dry run.

    Attributes:
        outcome: `now`, `later` or `never`; exit codes 0, 7 and 8.
        evicts: jobs that would be stopped for it.
        changes: of a what-if, what was changed.
        sized: for `devices: auto`, the alternatives and why.
    """

    kind: str = "Plan"
    outcome: str
    decision: Decision
    evicts: tuple[str, ...] = ()
    changes: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    sized: Sized | None = None


class StoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an object's story. `kind` is the event's name."""

    seq: int
    at_s: float
    kind: str
    text: str


class Story(View, frozen=True, kw_only=True):
    """Everything that happened to one object, oldest first."""

    kind: str = "Story"
    subject: str
    rows: tuple[StoryLine, ...]


class SliceView(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG slice that a card has or is to get: its first memory slice, and who holds it."""

    profile: str
    start: int
    job: str = ""


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """One device and who holds it.

    `is_outside` says that work that is not ours holds it, until `outside_end_s` by its
    walltime; 0.0 where unknown.

    Attributes:
        mig: `off` or `on` for a card that can be cut into slices, empty for any other.
        slices: those that it has, and those that jobs hold, in order of their start.
        slices_fault: why its slices cannot be changed, empty when they can.
    """

    index: int
    type: str
    uuid: str = ""
    memory_bytes: int = 0
    healthy: bool = True
    used: float = 0.0
    jobs: tuple[str, ...] = ()
    mig: str = ""
    slices: tuple[SliceView, ...] = ()
    slices_fault: str = ""
    is_outside: bool = False
    outside_end_s: float = 0.0


class NodeView(View, frozen=True, kw_only=True):
    """One node. `free` and `total` are devices by type; cores and bytes beside."""

    kind: str = "Node"
    name: str
    site: str
    state: str
    reason: str = ""
    cordons: tuple[Cordon, ...] = ()
    pool: str = ""
    total: dict[str, float] = {}
    free: dict[str, float] = {}
    cpus: float = 0.0
    cpus_free: float = 0.0
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    labels: dict[str, str] = {}
    devices: tuple[DeviceView, ...] = ()
    jobs: tuple[str, ...] = ()


class NodeList(View, frozen=True, kw_only=True):
    """A page of nodes."""

    kind: str = "NodeList"
    rows: tuple[NodeView, ...]
    next: str | None = None


class QueueView(View, frozen=True, kw_only=True):
    """One queue: what it may use, uses and waits for, sub-queues included.

    Attributes:
        guarantee_shape: whole domains it gets back on demand, by level.
        entitled: its share now, of what is guaranteed or contended; never more than it wants.
        borrowed: what it uses above its guarantee.
        lent: what it is guaranteed, does not use, and others hold.
        wanted: devices that its waiting jobs ask for.
        used_elsewhere: where one site was asked for, what it uses at others. Then `used` and
            `running` are of that site, `wanted` and `waiting` of jobs that may start there, be it
            elsewhere too; all else is of all sites.
        decayed_use: past use in device-seconds, decayed to now.
    """

    kind: str = "Queue"
    path: str
    guarantee: dict[str, float] = {}
    guarantee_shape: dict[str, int] = {}
    limit: dict[str, float] = {}
    weight: int = 1
    used: dict[str, float] = {}
    used_elsewhere: dict[str, float] = {}
    entitled: dict[str, float] = {}
    borrowed: dict[str, float] = {}
    lent: dict[str, float] = {}
    wanted: dict[str, float] = {}
    decayed_use: float = 0.0
    running: int = 0
    waiting: int = 0
    preemptible: bool = True
    order: str = "backfill"


class QueueList(View, frozen=True, kw_only=True):
    """A page of queues, parents before children."""

    kind: str = "QueueList"
    rows: tuple[QueueView, ...]
    next: str | None = None


class PolicyView(View, frozen=True, kw_only=True):
    """The policy in force, or an earlier version of it; `file` is its text, when asked for."""

    kind: str = "Policy"
    version: int
    policy: Policy
    file: str | None = None
    warnings: tuple[str, ...] = ()


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One journal entry, redacted for its reader."""

    seq: int
    event: AnyEvent


class EventList(View, frozen=True, kw_only=True):
    """A page of events."""

    kind: str = "EventList"
    rows: tuple[EventView, ...]
    next: str | None = None


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Device time of one user or queue, in exact device-milliseconds by type."""

    key: str
    device_ms: dict[str, int]
    jobs: int


class UsageList(View, frozen=True, kw_only=True):
    """A page of device time by user or queue."""

    kind: str = "UsageList"
    by: str
    rows: tuple[UsageRow, ...]
    next: str | None = None


class ServerView(View, frozen=True, kw_only=True):
    """The server itself."""

    kind: str = "Server"
    version: str
    epoch: int
    started_s: float
    now_s: float
    seq: int
    sites: tuple[str, ...]
    jobs_waiting: int
    jobs_active: int
    nodes: int
    journal_schema: int
    notes: tuple[str, ...] = ()


class TokenView(View, frozen=True, kw_only=True):
    """A token; `secret` only in the answer that creates it."""

    kind: str = "Token"
    token_id: str
    user: str
    tenant: str
    role: str
    groups: tuple[str, ...] = ()
    expires_s: float | None = None
    secret: str | None = None


class TokenList(View, frozen=True, kw_only=True):
    """A page of tokens."""

    kind: str = "TokenList"
    rows: tuple[TokenView, ...]
    next: str | None = None


class SessionView(View, frozen=True, kw_only=True):
    """Whom a request stands for."""

    kind: str = "Session"
    user: str
    tenant: str
    role: str


class SignInCodeView(View, frozen=True, kw_only=True):
    """A code that signs a browser in once, and the server's public URL where it has one."""

    kind: str = "SignInCode"
    code: str
    public_url: str = ""
    expires_after_s: float


class LogView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a task's log, without its newline.

    Attributes:
        task: index of the task that wrote it.
        at_s: when it was written.
        stream: `out`, `err`, or `tercio` for lines of the engine itself.
        text: decoded with replacement characters; control characters kept.
        is_partial: whether the line goes on in the next one (it was too long).
    """

    task: int
    at_s: float
    stream: str
    text: str
    is_partial: bool = False


class ExecView(View, frozen=True, kw_only=True):
    """A command that was started inside a running task; `exec` names its session."""

    kind: str = "Exec"
    exec: str


class WorkdirView(View, frozen=True, kw_only=True):
    """A snapshot of a directory that the server keeps; `workdir` goes into submit bodies."""

    kind: str = "Workdir"
    workdir: str


class HealthView(View, frozen=True, kw_only=True):
    """The server answers: `status` is `ok`. The only body that needs no token."""

    kind: str = "Health"
    status: str = "ok"
    version: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457 problem details. `code` is the stable token of `UserError`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None
    field: str | None = None
