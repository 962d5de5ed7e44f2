"""Effects: orders to the outside, in the imperative.

Every effect is idempotent and carries an id that never changes over retries and restarts,
and the epoch of the server run that issued it (a fence: an engine refuses an older epoch).
Each is answered by exactly one event, or by `EffectTimedOut` after `deadline_s`.

| effect | answered by |
|---|---|
| `LaunchTask` | `TaskStarted`, `TaskLaunchFailed` |
| `StopTask` | `TaskExited` of that task |
| `SignalTask`, `Notify` | `EffectAnswered` |
| `ReconfigureDevice` | `DeviceReconfigured` |
| `RepairNode` | `NodeRepairEnded` |
"""

from __future__ import annotations

import msgspec

from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.model.job import Mount
from tercio.model.node import MigSlice
from tercio.model.resources import DeviceShare


class DeviceOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A device share with what the engine needs to isolate it."""

    share: DeviceShare
    type: str
    vendor: str
    uuid: str = ""


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """Root of the effects; never built itself.

    Attributes:
        effect_id: identity over retries, such as `launch:job-00001/1/0`.
        epoch: server run that issued it.
        deadline_s: when to give up waiting for the answer.
    """

    effect_id: EffectId
    epoch: int
    deadline_s: float


class TaskEffect(Effect, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the effects on one task of one attempt."""

    site: SiteName
    node: NodeName
    job_id: JobId
    attempt: int
    task: int


class LaunchTask(TaskEffect, frozen=True, kw_only=True, omit_defaults=True):
    """Start one task. Doing it twice for one (job, attempt, task) must start one process set.

    Attributes:
        user: submitting user.
        command: shell script run once.
        setup: shell script run before it, or None.
        env: complete job environment from the launch recipe, devices left to the engine.
        files: small files to write into the task's directory before the start (host files);
            `env` may refer to the directory as `${TERCIO_TASK_DIR}`.
        secrets: names whose values the engine reads from the server's secret store.
        workdir: snapshot id, absolute path, or None.
        outputs: directory to create and pass as TERCIO_OUTPUT_DIR, or None.
        image: container image, or None.
        mounts: paths of the node that the container sees, with an image only.
        devices: shares to isolate.
        cpus_milli: limit in thousandths of a core; 0 for none.
        memory_bytes: limit; 0 for none.
        shm_bytes: size of /dev/shm, or None.
        ports: TCP ports on the node that belong to this task, for its rendezvous.
        grace_s: between stop signal and kill, also when the engine stops it by itself.
        limit_s: time limit for engines that enforce one, or None.
        duration_s: run time for simulated engines, ignored elsewhere; None for their default.
    """

    user: str
    command: str
    setup: str | None = None
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    workdir: str | None = None
    outputs: str | None = None
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceOrder, ...] = ()
    cpus_milli: int = 0
    memory_bytes: int = 0
    shm_bytes: int | None = None
    ports: tuple[int, ...] = ()
    grace_s: float = 30.0
    limit_s: float | None = None
    duration_s: float | None = None


class StopTask(TaskEffect, frozen=True, kw_only=True, omit_defaults=True):
    """Stop one task: `signal` now, SIGKILL to the whole tree after `grace_s`.

    `note` is one line for the task's own log, empty for none.
    """

    grace_s: float
    signal: str = "SIGTERM"
    note: str = ""


class SignalTask(TaskEffect, frozen=True, kw_only=True, omit_defaults=True):
    """Send a signal to all processes of a task; SIGSTOP and SIGCONT suspend and resume it.

    `note` is one line for the task's own log, where the engine can write there; empty for none.
    """

    signal: str
    note: str = ""


class ReconfigureDevice(Effect, frozen=True, kw_only=True, omit_defaults=True):
    """Give a device the MIG mode and the slices that it is to have, all of them.

    Slices that are there already stay untouched with what runs in them, others are removed, and
    what is missing is made; doing it twice changes nothing.

    Attributes:
        index, uuid: the device.
        number: grows from order to order; a device that has seen a newer one refuses it.
        is_on: whether it is to be in MIG mode; else it is to be whole, and has no slices.
        slices: by profile and start.
    """

    site: SiteName
    node: NodeName
    index: int
    number: int
    uuid: str = ""
    is_on: bool = True
    slices: tuple[MigSlice, ...] = ()


class RepairNode(Effect, frozen=True, kw_only=True, omit_defaults=True):
    """Have the site's repair command mend a node: `action` is a word of the fault table."""

    node: NodeName
    action: str
    reason: str
    serial: str = ""


class Notify(Effect, frozen=True, kw_only=True, omit_defaults=True):
    """Call a webhook with a JSON body."""

    url: str
    body: dict[str, str]


AnyEffect = LaunchTask | StopTask | SignalTask | ReconfigureDevice | RepairNode | Notify
