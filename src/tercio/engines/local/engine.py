"""The local engine: tasks as processes of this machine, adopted again after a restart.

The server holds no state of its own about a task: what is true stands in the task's control
directory (`records`), and a pidfd tells when a supervisor has gone, so nothing is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from tercio.engines.base import (
    Capabilities,
    Clock,
    Deliver,
    ExecRequest,
    ExecSession,
    LogLine,
    LogQuery,
    TaskRef,
)
from tercio.engines.containers import ContainerProgram, find_program
from tercio.engines.local import (
    answers,
    cgroup,
    control,
    found,
    prepare,
    processes,
    records,
    session,
)
from tercio.engines.local.capabilities import capabilities_of, labelled
from tercio.engines.local.cutting import Cut, Cutter, with_answer
from tercio.engines.local.files import forget_tasks, read_epoch, write_epoch
from tercio.engines.local.found import Absent, Alive, Dead, Ended, task_directory
from tercio.engines.local.logread import read_log
from tercio.engines.local.settings import LocalSettings
from tercio.engines.local.watch import Watch
from tercio.engines.marks import read_marks, read_new_marks
from tercio.errors import EngineError
from tercio.logs import facts
from tercio.model.effects import (
    Effect,
    LaunchTask,
    ReconfigureDevice,
    SignalTask,
    StopTask,
)
from tercio.model.events import (
    DeviceReconfigured,
    NodeReported,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import NodeSpec

ReadNode = Callable[[Callable[[int], bool]], NodeSpec | tuple[NodeSpec, ...]]
"""Reads the facts of this machine's nodes; it may block. The argument tells whose a process is."""

_NEVER_STARTED = "it had not started when it was stopped"
_KILLED = "its supervisor was killed"
_NOT_HERE = "it is not on this machine"
log = logging.getLogger(__name__)
_AGAIN_S = 1.0
_DELETED = "its control directory was deleted"


class LocalEngine:
    """Runs tasks on this machine. See `base.Engine` for what each method promises."""

    kind = "local"

    def __init__(
        self,
        *,
        site: SiteName,
        settings: LocalSettings,
        clock: Clock,
        read_node: ReadNode,
        workdir_of: prepare.WorkdirOf | None = None,
        cut: Cut | None = None,
    ) -> None:
        self.site = site
        self._settings = settings
        self._clock = clock
        self._read_node = read_node
        self._workdir_of = workdir_of
        self._cutter = Cutter(cut)
        self._root = Path(settings.tasks_dir)
        self._deliver: Deliver | None = None
        self._cgroups = cgroup.Cgroups()
        self._program = ContainerProgram()
        self._nodes: dict[NodeName, NodeSpec] = {}
        self._epoch = 0
        self._spawner = control.Spawner()
        self._watches: dict[str, Watch] = {}
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._refresh: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What works here; known after `open`."""
        missing = self._cutter.missing(self._nodes.values())
        return capabilities_of(self._cgroups, self._program, cuts_missing=missing)

    async def open(self, deliver: Deliver) -> None:
        """Find what this machine has and can do, and report it; raises EngineError."""
        if not hasattr(os, "pidfd_open"):
            raise self._error("open", "needs Linux 5.3 or later (pidfd)")
        try:
            if not self._root.is_dir():
                self._root.mkdir(parents=True, exist_ok=True)
                # Whatever the umask: tasks of other users pass through.
                self._root.chmod(0o711)
            self._root = self._root.resolve()
            self._epoch = read_epoch(self._root)
        except OSError as error:
            raise self._error("open", f"{self._root}: {error.strerror}") from error
        name = "tercio-" + hashlib.sha256(os.fsencode(self._root)).hexdigest()[:8]
        self._cgroups = await asyncio.to_thread(cgroup.detect, name)
        self._spawner.start()
        self._deliver = deliver
        await self._report()
        self._refresh = asyncio.create_task(self._report_regularly())

    async def close(self) -> None:
        """Stop observing; tasks and their supervisors go on."""
        self._deliver = None
        if self._refresh is not None:
            self._refresh.cancel()
        waiting = [*self._settling.values(), *([self._refresh] if self._refresh else [])]
        await asyncio.gather(*waiting, return_exceptions=True)
        for key in list(self._watches):
            self._unwatch(key)
        await self._spawner.close()
        cgroup.remove(self._cgroups)

    async def adopt(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Watch every task that runs; answer `known` ones that do not; return the others."""
        here = await asyncio.to_thread(found.scan, self._root, self._node_names("adopt"))
        expected = dict.fromkeys(known)
        unknown = []
        for ref in [*expected, *(ref for ref in here if ref not in expected)]:
            async with self._lock(ref.key):
                try:
                    state = await self._settled(ref)
                except EngineError as error:
                    # One task that cannot be read must not keep the site from all others.
                    log.error("task_unreadable", extra=facts(task=ref.key, error=str(error)))
                    continue
                if isinstance(state, Alive):
                    self._watch(ref, state.pid, state.begun_s)
                    if ref not in expected:
                        unknown.append(ref)
                elif ref in expected:
                    if isinstance(state, Absent):
                        # It was started here: somebody may have deleted its records only.
                        await asyncio.to_thread(found.sweep, self._directory(ref), {})
                    self._send(self._exited(ref, state))
        return unknown

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        """Start one task, once; see `base.Engine.launch`."""
        ref = answers.ref_of(order)
        names = self._node_names("launch")
        async with self._lock(ref.key):
            if not await self._admit(order):
                return self._failed(order, self._stale(order), is_retryable=False)
            if ref.node not in names:
                return self._failed(order, f"node {order.node} is not here", is_retryable=False)
            state = await self._settled(ref)
            if isinstance(state, Absent):
                try:
                    state = await self._start(order, ref, secrets)
                except prepare.Refused as error:
                    return self._failed(order, error.message, is_retryable=error.is_retryable)
            match state:
                case Alive(pid, begun_s):
                    self._watch(ref, pid, begun_s)
                    return answers.started(order, begun_s, f"supervisor {pid}")
                case Ended(begun_s=float(begun_s)) if not state.never_started:
                    self._settle_later(ref)
                    return answers.started(order, begun_s, "ended")
                case Ended(record):
                    message = record.get("message", "")
                    return self._failed(order, message, is_retryable=False)
                case Dead(begun):
                    self._settle_later(ref)
                    return answers.started(order, found.at_s(begun), "ended")
                case _:
                    return self._failed(order, "it did not start", is_retryable=True)

    async def stop(self, order: StopTask) -> None:
        """Have the supervisor stop its task; answer at once for one that does not run."""
        ref = answers.ref_of(order)
        number = self._signal_number(order.signal, "stop")
        async with self._lock(ref.key):
            if not await self._admit(order):
                raise self._error("stop", self._stale(order))
            state = await self._settled(ref)
            if isinstance(state, Absent):
                fence = found.fence
                done = await asyncio.to_thread(
                    fence, self._directory(ref), message=_NEVER_STARTED, at_s=self._clock()
                )
                state = Absent() if done else await self._settled(ref)
            if not isinstance(state, Alive):
                self._send(self._exited(ref, state, message=_NEVER_STARTED))
                return
            watch = self._watch(ref, state.pid, state.begun_s)
            fields = ("stop", str(number), repr(order.grace_s))
            if order.note:
                # A supervisor of an older version does not know the order.
                with contextlib.suppress(OSError):
                    await self._tell(ref, "note", order.note)
            try:
                await self._tell(ref, *fields)
            except OSError:
                # It does not listen: whatever it is, the task must end.
                self._kill_supervisor(watch)
                return
            delay_s = order.grace_s + self._settings.overdue_s
            if watch.overdue is None:
                loop = asyncio.get_running_loop()
                watch.overdue = loop.call_later(delay_s, self._kill_supervisor, watch)

    async def signal(self, order: SignalTask) -> None:
        """Send a signal to all processes of the task; a task that has ended is no error."""
        ref = answers.ref_of(order)
        number = self._signal_number(order.signal, "signal")
        async with self._lock(ref.key):
            if not await self._admit(order):
                raise self._error("signal", self._stale(order))
            if isinstance(await self._settled(ref), Alive):
                try:
                    if order.note:
                        await self._tell(ref, "note", order.note)
                    await self._tell(ref, "signal", str(number))
                except OSError as error:
                    raise self._error("signal", str(error), retryable=True) from error

    async def reconfigure(self, order: ReconfigureDevice) -> DeviceReconfigured:
        """Cut a device of this machine; see `base.CuttingEngine`."""
        refusal = "" if await self._admit(order) else self._stale(order)
        self._node_names("reconfigure")
        node = self._nodes.get(order.node)
        answer = await self._cutter.run(order, node, refusal=refusal, now_s=self._clock)
        if order.node in self._nodes:
            self._nodes[order.node] = with_answer(self._nodes[order.node], answer)
        return answer

    async def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """Return what tasks marked since; see `base.MarkingEngine`."""
        places = [(self._directory(ref) / records.TASK, offset) for ref, offset in wanted]
        return await asyncio.to_thread(read_new_marks, places)

    async def logs(self, task: TaskRef, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield lines, oldest first; of running and of ended tasks."""
        directory = self._directory(task)

        def is_ended() -> bool:
            return not directory.is_dir() or (directory / records.EXIT).exists()

        async for line in read_log(directory / records.LOGS, query, is_ended=is_ended):
            yield line

    async def execute(self, task: TaskRef, request: ExecRequest) -> ExecSession:
        """Start a command inside a running task; raises EngineError when it does not run."""
        if task.key not in self._watches:
            raise self._error("execute", f"task {task.key} does not run here")
        timeout_s = self._settings.answer_timeout_s
        return await session.open_session(self._directory(task), request, timeout_s=timeout_s)

    async def forget(self, tasks: Sequence[TaskRef]) -> None:
        """Delete logs and records of ended tasks; unknown ones are no error."""
        ended = [task for task in tasks if task.key not in self._watches]
        await asyncio.to_thread(forget_tasks, self._root, ended)

    async def _tell(self, ref: TaskRef, *fields: str) -> None:
        """Send an order to the supervisor of a task. Raises OSError."""
        timeout_s = self._settings.answer_timeout_s
        directory = self._directory(ref)
        await asyncio.to_thread(control.order, directory, *fields, timeout_s=timeout_s)

    async def _start(
        self, order: LaunchTask, ref: TaskRef, secrets: Mapping[str, str]
    ) -> found.Found:
        directory = self._directory(ref)
        plan = await asyncio.to_thread(
            prepare.make_plan,
            order,
            secrets,
            directory=directory,
            settings=self._settings,
            cgroups=self._cgroups,
            vendors=frozenset(d.vendor for spec in self._nodes.values() for d in spec.devices),
            workdir_of=self._workdir_of,
            program=self._program,
        )
        try:
            pid, answer_fd = await self._spawner.spawn(plan)
        except OSError as error:
            raise prepare.Refused(f"no supervisor: {error}", is_retryable=True) from error
        watch = self._watch(ref, pid, None)
        answer = await control.read_answer(answer_fd, timeout_s=self._settings.launch_timeout_s)
        if answer.startswith(("begun", "failed")):
            state = await self._settled(ref)
            if isinstance(state, Absent):
                self._unwatch(ref.key)
                raise prepare.Refused(answer.partition("\n")[2], is_retryable=True)
            if isinstance(state, Alive):
                watch.begun_s = state.begun_s
            return state
        self._unwatch(ref.key)
        if answer.startswith(("busy", "ended")):
            return await self._settled(ref)
        processes.send(watch.pid, signal.SIGKILL)
        reason = "its supervisor did not answer"
        await asyncio.to_thread(found.give_up, directory, message=reason, at_s=self._clock())
        processes.remove_cgroups(plan)
        raise prepare.Refused(reason + found.last_error(directory), is_retryable=True)

    async def _settled(self, ref: TaskRef) -> found.Found:
        """Return the state of a task, after putting right what a dead supervisor left."""
        directory = self._directory(ref)
        state = await asyncio.to_thread(found.look, directory)
        if isinstance(state, Dead):
            now_s = self._clock()
            await asyncio.to_thread(found.bury, directory, state.begun, at_s=now_s)
            state = await asyncio.to_thread(found.look, directory)
        watch = self._watches.get(ref.key)
        if isinstance(state, Absent) and watch is not None and watch.begun_s is not None:
            # Its directory was deleted under it, and the task runs all the same.
            return Alive(watch.pid, watch.begun_s)
        return state

    async def _settle(self, ref: TaskRef, *, has_begun: bool) -> None:
        """Tell the end of a task whose supervisor has gone."""
        async with self._lock(ref.key):
            self._settling.pop(ref.key, None)
            if ref.key in self._watches:
                return
            try:
                state = await self._settled(ref)
            except (EngineError, OSError) as error:
                # No descriptors left, say: its end must be told all the same, later.
                log.error("task_unreadable", extra=facts(task=ref.key, error=str(error)))
                self._settle_after(_AGAIN_S, ref, has_begun=has_begun)
                return
            if isinstance(state, Absent) and has_begun:
                await asyncio.to_thread(found.sweep, self._directory(ref), {})
                self._send(self._exited(ref, state, message=_DELETED))
            elif isinstance(state, Dead) or (isinstance(state, Ended) and not state.never_started):
                self._send(self._exited(ref, state, message=_KILLED))

    def _watch(self, ref: TaskRef, pid: int, begun_s: float | None) -> Watch:
        known = self._watches.get(ref.key)
        if known is not None:
            return known
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            # It has ended since: there is nothing to wait for.
            self._settle_later(ref, has_begun=begun_s is not None)
            return Watch(ref=ref, pid=pid, pidfd=-1, begun_s=begun_s)
        watch = Watch(ref=ref, pid=pid, pidfd=pidfd, begun_s=begun_s)
        self._watches[ref.key] = watch
        asyncio.get_running_loop().add_reader(pidfd, self._on_gone, watch)
        return watch

    def _unwatch(self, key: str) -> None:
        watch = self._watches.pop(key, None)
        if watch is None:
            return
        if watch.overdue is not None:
            watch.overdue.cancel()
        asyncio.get_running_loop().remove_reader(watch.pidfd)
        os.close(watch.pidfd)

    def _on_gone(self, watch: Watch) -> None:
        self._unwatch(watch.ref.key)
        self._settle_later(watch.ref, has_begun=watch.begun_s is not None)

    def _kill_supervisor(self, watch: Watch) -> None:
        """End a supervisor that does not do its work; its task is swept when it has gone."""
        if self._watches.get(watch.ref.key) is watch:
            # One that has just ended by itself is what was wanted; `_on_gone` hears of it.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(watch.pidfd, signal.SIGKILL)

    def _settle_later(self, ref: TaskRef, *, has_begun: bool = True) -> None:
        """Tell the end of a task once whoever holds its lock is done; once, if asked twice."""
        if ref.key not in self._settling:
            settle = self._settle(ref, has_begun=has_begun)
            self._settling[ref.key] = asyncio.create_task(settle)

    def _settle_after(self, pause_s: float, ref: TaskRef, *, has_begun: bool) -> None:
        def settle() -> None:
            if self._deliver is not None:
                self._settle_later(ref, has_begun=has_begun)

        asyncio.get_running_loop().call_later(pause_s, settle)

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.refresh_s)
            await self._report()

    async def _report(self) -> None:
        self._program = await asyncio.to_thread(find_program, self._settings.containers)
        read = await asyncio.to_thread(self._read_node, self._is_ours)
        for spec in labelled(read, self._program):
            if spec != self._nodes.get(spec.name):
                self._nodes[spec.name] = spec
                self._send(NodeReported(at_s=self._clock(), spec=spec))

    def _is_ours(self, pid: int) -> bool:
        supervisors = {watch.pid for watch in list(self._watches.values())}
        while pid > 1:
            if pid in supervisors:
                return True
            fields = records.stat_fields(pid)
            pid = int(fields[1]) if fields else 0
        return False

    async def _admit(self, order: Effect) -> bool:
        """Whether the order is of the newest server run; a newer one is remembered for good."""
        if order.epoch > self._epoch:
            self._epoch = order.epoch
            await asyncio.to_thread(write_epoch, self._root, order.epoch)
        return order.epoch == self._epoch

    def _stale(self, order: Effect) -> str:
        return f"refused an order of server run {order.epoch}: run {self._epoch} is the newest"

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _directory(self, ref: TaskRef) -> Path:
        return task_directory(self._root, ref)

    def _node_names(self, operation: str) -> tuple[NodeName, ...]:
        if not self._nodes:
            raise self._error(operation, "the engine is not open")
        return tuple(self._nodes)

    def _send(self, observation: TaskExited | NodeReported) -> None:
        if self._deliver is not None:
            self._deliver(observation)

    def _exited(self, ref: TaskRef, state: found.Found, *, message: str = _NOT_HERE) -> TaskExited:
        if isinstance(state, Ended):
            return found.exited(ref, state, marks=read_marks(self._directory(ref) / records.TASK))
        return TaskExited(
            at_s=self._clock(),
            job_id=ref.job_id,
            attempt=ref.attempt,
            task=ref.task,
            is_lost=True,
            message=message,
        )

    def _failed(self, order: LaunchTask, message: str, *, is_retryable: bool) -> TaskLaunchFailed:
        return answers.failed(order, self._clock(), message, is_retryable=is_retryable)

    def _error(self, operation: str, message: str, *, retryable: bool = False) -> EngineError:
        return EngineError(message, engine=self.kind, operation=operation, retryable=retryable)

    def _signal_number(self, name: str, operation: str) -> int:
        if name not in signal.Signals.__members__:
            raise self._error(operation, f"unknown signal {name}")
        return signal.Signals[name].value
