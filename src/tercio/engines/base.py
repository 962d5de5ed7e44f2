"""The contract of an engine. `engines.conformance` is its executable form.

An engine runs tasks; it decides nothing. Retry, back-off, deadlines and fencing are data in
`core`. An engine raises `EngineError` for a fault of its own and answers everything else by
events. All its methods run on the server's one event loop: a blocking SDK is wrapped inside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tercio.model.effects import LaunchTask, ReconfigureDevice, SignalTask, StopTask
from tercio.model.events import (
    DeviceReconfigured,
    NodeFenced,
    NodeLost,
    NodeRemoved,
    NodeReported,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.ids import JobId, NodeName, SiteName, task_key

Observation = TaskStarted | TaskExited | NodeReported | NodeLost | NodeFenced | NodeRemoved
Deliver = Callable[[Observation], None]
"""Gives one observation to the server; never blocks, keeps the order per task and node."""

Clock = Callable[[], float]
"""Returns seconds since the epoch; virtual in tests."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do on this site, as data. Conformance checks skip by it, with a reason.

    Attributes:
        survives_server: tasks go on while the server is down, and are adopted after.
        isolates_devices: a task sees only its own devices.
        limits_memory, limits_cpus: enforced, not only declared.
        signals, suspends: `SignalTask` works; SIGSTOP and SIGCONT too.
        executes: `execute` opens a command inside a running task.
        runs_images: `image` is honoured.
        switches_user: tasks run as the submitting system user.
        cuts_devices: MIG slices can be made and removed, see `CuttingEngine`; without it a device
            offers the slices it has, if its facts name any.
        closes_nodes: nodes can be closed for everybody's work, see `ClosingEngine`.
        reads_marks: what tasks mark of their progress is read, see `MarkingEngine`.
        notes: by capability that is missing, one line for people that says why.
    """

    survives_server: bool
    isolates_devices: bool
    limits_memory: bool
    limits_cpus: bool
    signals: bool
    suspends: bool
    executes: bool
    runs_images: bool
    switches_user: bool
    cuts_devices: bool = False
    closes_nodes: bool = False
    reads_marks: bool = False
    notes: dict[str, str] = {}


class TaskRef(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One task of one attempt on its node."""

    job_id: JobId
    attempt: int
    task: int
    node: NodeName

    @property
    def key(self) -> str:
        """Unique for ever: `job-00001/2/0`."""
        return task_key(self.job_id, self.attempt, self.task)


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of a task's log.

    Attributes:
        tail: only the last so many lines, or None for all.
        since_s: only lines written at or after this instant, or None.
        is_following: go on until the task has ended and everything was read.
    """

    tail: int | None = None
    since_s: float | None = None
    is_following: bool = False


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a task's log, without its newline.

    Attributes:
        at_s: when the task wrote it.
        stream: `out`, `err`, or `tercio` for lines of the engine itself.
        text: decoded with replacement characters; control characters kept.
        is_partial: whether the line goes on in the next record (it was too long).
    """

    at_s: float
    stream: str
    text: str
    is_partial: bool = False


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run inside a running task. `has_terminal` gives it a pseudo-terminal."""

    argv: tuple[str, ...]
    has_terminal: bool = False
    rows: int = 24
    columns: int = 80


class ExecSession(Protocol):
    """A command that runs inside a task."""

    async def read(self) -> bytes:
        """Return the next output bytes; empty when the output has ended."""
        ...

    async def write(self, chunk: bytes) -> None:
        """Give bytes to its input; empty bytes close the input."""
        ...

    async def resize(self, *, rows: int, columns: int) -> None:
        """Tell its terminal the new size; nothing happens without a terminal."""
        ...

    async def wait(self) -> int:
        """Return its exit code, 128 + signal when a signal ended it."""
        ...

    async def close(self) -> None:
        """End it if it still runs."""
        ...


class Engine(Protocol):
    """Runs tasks on one site.

    Attributes:
        kind: name in the registry, such as `local`.
        site: the connected instance.
    """

    kind: str
    site: SiteName

    @property
    def capabilities(self) -> Capabilities:
        """What works here; known after `open`."""
        ...

    async def open(self, deliver: Deliver) -> None:
        """Connect, report every node by `NodeReported`, and go on observing until `close`."""
        ...

    async def close(self) -> None:
        """Stop observing. Running tasks go on where `survives_server` says so."""
        ...

    async def adopt(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Take over after a restart; called once, after `open`, before any order.

        `known` are the tasks that the journal believes started or stopping. Each that has
        ended, or is not there, is answered by a `TaskExited` (`is_lost` when its end was
        not its own). Returns the tasks of ours that run but are not in `known`: the server
        stops them or completes their launch.
        """
        ...

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        """Start one task, once: a repeated order finds the first start and answers it again.

        An order of an epoch older than the newest seen is refused (`is_retryable` false), and
        so is the launch of a task that was told to stop before. The end of the task is never
        delivered before this answer.
        """
        ...

    async def stop(self, order: StopTask) -> None:
        """Send the signal, and kill the whole tree after the grace; idempotent.

        Returns when the order is taken. The end arrives as `TaskExited`, also for a task that
        was never started here (`is_lost`; a launch that comes later is refused), and again for
        one that had ended before. A suspended task is resumed, so that it can end with grace.
        """
        ...

    async def signal(self, order: SignalTask) -> None:
        """Send a signal to all processes of the task; a task that has ended is no error."""
        ...

    def logs(self, task: TaskRef, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield lines, oldest first; of running and of ended tasks."""
        ...

    async def execute(self, task: TaskRef, request: ExecRequest) -> ExecSession:
        """Start a command inside a running task: same user, environment, devices and limits."""
        ...

    async def forget(self, tasks: Sequence[TaskRef]) -> None:
        """Delete logs and records of ended tasks; unknown ones are no error."""
        ...


@runtime_checkable
class CuttingEngine(Engine, Protocol):
    """An engine that can give devices slices; `capabilities.cuts_devices` says whether here."""

    async def reconfigure(self, order: ReconfigureDevice) -> DeviceReconfigured:
        """Give a device the MIG mode and the slices that the order names.

        Slices that are there and wanted are not touched. The answer carries how the device is
        cut now; a repeated order finds it as wanted and answers the same. What is in use by
        somebody else, or refused by the driver, is an answer that is not done, with the
        driver's words; so is an order of an epoch or a number older than the newest seen. An order
        that was answered as not done is never carried out later.
        """
        ...


@runtime_checkable
class MarkingEngine(Engine, Protocol):
    """An engine that can read what running tasks mark of their progress, see `health.marks`."""

    async def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """Return, for each task, the whole lines from an offset on, and the offset after them.

        A task without marks gives no text and offset 0, one that ended is no error. Raises
        EngineError where somebody who would know does not answer: silence of the site must not
        be taken for silence of the tasks.
        """
        ...


@runtime_checkable
class ClosingEngine(Engine, Protocol):
    """An engine that can close nodes to all work, also of others; `closes_nodes` says if here."""

    async def close_nodes(self, wanted: Mapping[NodeName, str]) -> None:
        """Close exactly these nodes, by name with the reason, as far as that is this server's.

        Nodes that it closed before and that are not named are opened; what others closed is
        neither opened nor given another reason. Idempotent. Raises EngineError, retryable.
        """
        ...
