"""The Slurm engine: tasks as Slurm jobs, found again by their comments after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tercio.engines.base import (
    Capabilities,
    Clock,
    Deliver,
    ExecRequest,
    ExecSession,
    LogLine,
    LogQuery,
    Observation,
    TaskRef,
)
from tercio.engines.slurm import logs, session
from tercio.engines.slurm.cancel import Canceller
from tercio.engines.slurm.commands import Commands, ask
from tercio.engines.slurm.drains import Drains
from tercio.engines.slurm.enclosing import find_site_program
from tercio.engines.slurm.ends import exit_of
from tercio.engines.slurm.inventory import Site
from tercio.engines.slurm.launch import Launcher, ref_of
from tercio.engines.slurm.options import SlurmOptions
from tercio.engines.slurm.order import Refused
from tercio.engines.slurm.reader import Reader
from tercio.engines.slurm.site_facts import capabilities_of
from tercio.engines.slurm.spool import Record, Spool, control_dir
from tercio.engines.slurm.submit import Submitter
from tercio.engines.slurm.tables import Phase
from tercio.engines.slurm.watch import Tracked, Watch
from tercio.errors import EngineError
from tercio.logs import facts
from tercio.model.effects import LaunchTask, SignalTask, StopTask, TaskEffect
from tercio.model.events import TaskExited, TaskLaunchFailed, TaskStarted
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import CONTAINERS_LABEL

log = logging.getLogger(__name__)
WorkdirOf = Callable[[str], Path]
_BUSY_S: Final = 0.3
"""Between two looks while a task starts or stops, unless the site polls faster anyway."""
_LOG_PAUSE_S: Final = 0.3
_OVERDUE_S: Final = 10.0
_NEVER_STARTED: Final = "it had not started when it was stopped"


class SlurmEngine:
    """Runs tasks on a Slurm cluster. See `base.Engine` for what each method promises."""

    kind = "slurm"

    def __init__(
        self,
        *,
        site: SiteName,
        options: SlurmOptions,
        commands: Commands,
        reader: Reader,
        submitter: Submitter,
        spool: Spool,
        clock: Clock,
        workdir_of: WorkdirOf,
    ) -> None:
        self.site = site
        self._options = options
        self._commands = commands
        self._spool = spool
        self._clock = clock
        self._deliver: Deliver | None = None
        self._reader = reader
        self._cancel = Canceller(commands)
        self._drains = Drains(commands)
        self._watch = Watch(
            reader=reader,
            commands=commands,
            spool=spool,
            clock=clock,
            site=Site(
                name=site,
                prefix=options.prefix,
                partitions=options.partition,
                device_types=options.types_by_partition(),
                fixed=options.labels(),
            ),
            poll_s=options.poll_s,
            send=self._send,
        )
        self._launcher = Launcher(
            watch=self._watch, submitter=submitter, spool=spool, options=options,
            cancel=self._cancel, clock=clock, workdir_of=workdir_of, wake=self._wake,
        )  # fmt: skip
        self._capabilities: Capabilities | None = None
        self._epoch = 0
        self._busy = asyncio.Event()
        self._observer: asyncio.Task[None] | None = None
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def capabilities(self) -> Capabilities:
        """What works here; known after `open`."""
        if self._capabilities is None:
            raise self._error("open", f"site {self.site} is not open")
        return self._capabilities

    async def open(self, deliver: Deliver) -> None:
        """Reach Slurm, make the spool, report every node, and go on observing."""
        config = await ask(self._commands, "scontrol", "show", "config")
        try:
            owner, self._epoch = await asyncio.to_thread(self._spool.prepare)
            await asyncio.to_thread(self._spool.runner_path)
        except OSError as failure:
            raise self._error("open", f"{self._spool.root}: {failure.strerror}") from failure
        self._watch.owner = owner
        program = await find_site_program(self._commands, self._options)
        self._launcher.program = program
        labels = {CONTAINERS_LABEL: program.label, **self._watch.site.fixed}
        self._watch.site = msgspec.structs.replace(self._watch.site, fixed=labels)
        self._capabilities = capabilities_of(
            config, self._options, is_root=os.geteuid() == 0, program=program
        )
        self._deliver = deliver
        await self._watch.poll()
        if not self._watch.views:
            wanted = ", ".join(self._options.partition) or "the default partition"
            raise self._error("open", f"Slurm has no node in {wanted}")
        self._observer = asyncio.create_task(self._observe())

    async def poll(self) -> None:
        """Look at the queue once, beside the regular looks. Raises EngineError."""
        await self._watch.poll()

    async def close(self) -> None:
        """Stop observing; Slurm jobs go on."""
        self._deliver = None
        if self._observer is not None:
            self._observer.cancel()
            await asyncio.gather(self._observer, return_exceptions=True)

    async def adopt(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Take over what runs; answer `known` tasks that do not; return the others."""
        gone = []
        for ref in known:
            task = self._watch.tasks.get(ref.key)
            if task is None:
                gone.append(ref)
            else:
                task.is_answered = True
                self._watch.tell(task)
        records = await asyncio.to_thread(self._spool.look, gone)
        for ref, record in zip(gone, records, strict=True):
            await self._settle_absent(ref, record)
        expected = dict.fromkeys(ref.key for ref in known)
        return [
            task.ref
            for key, task in self._watch.tasks.items()
            if key not in expected and task.end is None
        ]

    async def _settle_absent(self, ref: TaskRef, record: Record) -> None:
        """Tell the end of a task that the queue does not hold."""
        number = record.claimed or record.number
        if record.is_final or (record.end and number is None):
            self._send(exit_of(ref, record))
        elif number is None:
            self._send(self._lost(ref, "Slurm has no job for it"))
        else:
            task = Tracked(ref=ref, number=number, seats=(), is_answered=True)
            self._watch.tasks[ref.key] = task
            self._wake()

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        """Start one task, once; see `base.Engine.launch`."""
        ref = ref_of(order)
        async with self._lock(ref.key):
            if not await self._admit(order):
                return self._failed(order, self._stale(order), is_retryable=False)
            view = self._watch.views.get(order.node)
            if view is None:
                return self._failed(order, f"node {order.node} is not here", is_retryable=False)
            try:
                started = await self._launcher.launch(order, secrets, view.seat)
            except Refused as refusal:
                return self._failed(order, refusal.message, is_retryable=refusal.is_retryable)
            task = self._watch.tasks.get(ref.key)
            if task is not None:
                task.is_answered = True
                # Not before this answer is out: the caller goes on first.
                asyncio.get_running_loop().call_soon(self._watch.tell, task)
            return started

    async def stop(self, order: StopTask) -> None:
        """Have the runner stop its task; answer at once for one that does not run."""
        ref = ref_of(order)
        number = self._signal_number(order.signal, "stop")
        async with self._lock(ref.key):
            if not await self._admit(order):
                raise self._error("stop", self._stale(order))
            task = self._watch.tasks.get(ref.key)
            if task is None:
                await self._stop_absent(ref)
                return
            task.is_answered = True
            if task.end is not None:
                self._watch.tell(task)
                return
            await self._stop_task(task, number, order.grace_s)
        self._wake()

    async def _stop_absent(self, ref: TaskRef) -> None:
        """Answer for a task that is not in Slurm, and see to it that it never will be."""
        (record,) = await asyncio.to_thread(self._spool.look, [ref])
        if record.is_absent:
            is_fenced = await asyncio.to_thread(self._spool.fence, ref)
            if not is_fenced:
                raise self._error("stop", "it is just starting", retryable=True)
        if record.is_absent or record.is_stopped:
            self._send(self._lost(ref, _NEVER_STARTED))
        else:
            await self._settle_absent(ref, record)

    async def _stop_task(self, task: Tracked, number: int, grace_s: float) -> None:
        text = msgspec.json.encode({"signal": number, "grace_s": grace_s}).decode()
        await asyncio.to_thread(self._spool.note, task.ref, "stop", text)
        kill_s = self._clock() + grace_s + _OVERDUE_S
        task.stop_signal = number
        task.kill_s = kill_s if task.kill_s is None else min(task.kill_s, kill_s)
        if task.number is None:
            raise self._error("stop", "it is being submitted", retryable=True)
        if task.is_orphaned:
            # Slurm knows it no more, and may have given its number to somebody else's job.
            return
        if task.phase is Phase.WAITING:
            # It may start this moment: then the signal below, sent in the next poll, reaches it.
            await self._cancel.send(task.number, "--state=PENDING")
            await self._watch.poll()
        if task.phase in (Phase.RUNNING, Phase.STARTING):
            if task.is_suspended:
                await self._cancel.send(task.number, "--full", "--signal=CONT")
                task.is_suspended = False
            await self._cancel.send(task.number, "--batch", "--signal=TERM")

    async def signal(self, order: SignalTask) -> None:
        """Send a signal to all processes of the task; a task that has ended is no error."""
        ref = ref_of(order)
        name = order.signal
        self._signal_number(name, "signal")
        async with self._lock(ref.key):
            if not await self._admit(order):
                raise self._error("signal", self._stale(order))
            task = self._watch.tasks.get(ref.key)
            if task is None or task.number is None or task.end is not None or task.is_orphaned:
                return
            if name == "SIGKILL":
                # Slurm would begin with SIGTERM; the runner does what is asked.
                await self._stop_task(task, signal.SIGKILL, 0.0)
                return
            await self._cancel.send(task.number, "--full", f"--signal={name.removeprefix('SIG')}")
            if name in ("SIGSTOP", "SIGCONT"):
                task.is_suspended = name == "SIGSTOP"
        self._wake()

    async def logs(self, task: TaskRef, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield lines, oldest first; of running and of ended tasks."""

        def is_ended() -> bool:
            tracked = self._watch.tasks.get(task.key)
            return tracked is None or tracked.end is not None

        async for line in logs.read_log(
            self._spool, task, query, is_ended=is_ended, pause_s=_LOG_PAUSE_S
        ):
            yield line

    async def execute(self, task: TaskRef, request: ExecRequest) -> ExecSession:
        """Start a command inside a running task; raises EngineError when it does not run."""
        tracked = self._watch.tasks.get(task.key)
        if (
            tracked is None
            or tracked.number is None
            or tracked.phase is not Phase.RUNNING
            or tracked.is_orphaned
        ):
            raise self._error("execute", f"task {task.key} does not run here")
        account = await asyncio.to_thread(self._launcher.account_of_task, task)
        runner = await asyncio.to_thread(self._spool.runner_path)
        name = f"exec-{secrets.token_hex(4)}"
        directory = control_dir(self._spool.root, task)
        words = session.step_words(
            tracked.number, [self._options.python, runner, "--exec", directory, name], request
        )
        command, options = self._commands.process(words, account)

        def read_code() -> bytes | None:
            return self._spool.read(task, name, 0, 4096)

        return await session.open_session(command, options, request, read_code=read_code)

    async def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """Return what tasks marked since; see `base.MarkingEngine`."""
        try:
            return await asyncio.to_thread(self._spool.marks, wanted)
        except OSError as failure:
            raise self._error("marks", str(failure), retryable=True) from failure

    async def forget(self, tasks: Sequence[TaskRef]) -> None:
        """Delete logs and records of ended tasks; unknown ones are no error."""
        ended = [ref for ref in tasks if ref.key not in self._watch.tasks]
        await asyncio.to_thread(self._spool.remove, ended)

    async def close_nodes(self, wanted: Mapping[NodeName, str]) -> None:
        """Drain these nodes in Slurm, and lift what this server drained before."""
        if self._options.drains_nodes:
            prefix = self._options.prefix
            names = {str(name).removeprefix(prefix): why for name, why in wanted.items()}
            nodes = await self._reader.nodes()
            ours = dict.fromkeys(view.seat.node for view in self._watch.views.values())
            here = [node for node in nodes if node.name in ours]
            await self._drains.keep(names, here, owner=self._watch.owner)
            self._wake()

    async def _observe(self) -> None:
        """Look at the queue until `close`; more often while something starts or stops."""
        while True:
            is_busy = any(
                task.kill_s is not None
                or (not task.is_answered and task.end is None)
                or task.phase is Phase.ENDING
                for task in self._watch.tasks.values()
            )
            pause_s = min(_BUSY_S, self._options.poll_s) / 2 if is_busy else self._options.poll_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._busy.wait()
            self._busy.clear()
            try:
                await self.poll()
                await self._kill_overdue()
                # Orders that come together are answered by one look.
                await asyncio.sleep(min(_BUSY_S, self._options.poll_s) / 2)
            except EngineError:
                # Said by the watch. The queue is asked again; nothing is taken for lost.
                await asyncio.sleep(min(1.0, self._options.poll_s))
            except Exception as failure:
                # A bug must not end the observing unseen.
                log.error("slurm_poll_broke", exc_info=failure, extra=facts(site=self.site))
                await asyncio.sleep(self._options.poll_s)

    async def _kill_overdue(self) -> None:
        """End tasks whose runner did not stop them in time."""
        now_s = self._clock()
        for task in list(self._watch.tasks.values()):
            if task.kill_s is None or now_s < task.kill_s or task.end is not None:
                continue
            if task.number is not None and not task.is_orphaned:
                task.kill_s = now_s + _OVERDUE_S
                await self._cancel.send(task.number)

    def _wake(self) -> None:
        self._busy.set()

    async def _admit(self, order: TaskEffect) -> bool:
        """Take the order's epoch in; return whether the order is of the newest server run."""
        if order.epoch > self._epoch:
            self._epoch = order.epoch
            await asyncio.to_thread(self._spool.write_epoch, order.epoch)
        return order.epoch == self._epoch

    def _stale(self, order: TaskEffect) -> str:
        return f"refused an order of server run {order.epoch}: run {self._epoch} is the newest"

    def _lock(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _send(self, observation: Observation) -> None:
        if self._deliver is not None:
            self._deliver(observation)

    def _signal_number(self, name: str, operation: str) -> int:
        if name not in signal.Signals.__members__:
            raise self._error(operation, f"unknown signal {name}")
        return signal.Signals[name].value

    def _lost(self, ref: TaskRef, message: str) -> TaskExited:
        return TaskExited(
            at_s=self._clock(), job_id=ref.job_id, attempt=ref.attempt, task=ref.task,
            is_lost=True, message=message,
        )  # fmt: skip

    def _failed(self, order: LaunchTask, message: str, *, is_retryable: bool) -> TaskLaunchFailed:
        return TaskLaunchFailed(
            at_s=self._clock(), job_id=order.job_id, attempt=order.attempt, task=order.task,
            effect_id=order.effect_id, message=message, is_retryable=is_retryable,
        )  # fmt: skip

    def _error(self, operation: str, message: str, *, retryable: bool = False) -> EngineError:
        return EngineError(message, engine=self.kind, operation=operation, retryable=retryable)
