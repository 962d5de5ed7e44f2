"""The Ray engine: the contract of `base.Engine` on a Ray cluster, through the bridge.

The order of things keeps two promises. A task's devices are held in Ray before its agent is told
to start it, and are given back only after its end was told by the agent or its node is dead; and
what this server does not know any more is found again by the names of groups and agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections import defaultdict
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
    TaskRef,
)
from tercio.engines.ray.child import BridgeError
from tercio.engines.ray.messages import (
    CHUNK_BYTES,
    Call,
    Held,
    Reserve,
    encode,
)
from tercio.engines.ray.session import RaySession
from tercio.engines.ray.settings import RaySettings
from tercio.engines.ray.watching import Node, Watch
from tercio.errors import EngineError
from tercio.model.effects import LaunchTask, SignalTask, StopTask, TaskEffect
from tercio.model.events import TaskLaunchFailed, TaskStarted
from tercio.model.ids import NodeName, SiteName

_ABILITIES: Final = tuple(
    field.name for field in msgspec.structs.fields(Capabilities) if field.name != "notes"
)
_MARKS_S: Final = 5.0
"""For the marks of one node: whoever follows jobs asks again soon."""
_NOTES: Final = {
    "runs_images": "Ray tasks are plain processes of the node; start Ray itself in the image",
    "survives_server": "no node of this site has answered yet",
}


class RayEngine:
    """Runs tasks on a Ray cluster. See `base.Engine` for what each method promises."""

    kind = "ray"

    def __init__(
        self,
        *,
        site: SiteName,
        settings: RaySettings,
        clock: Clock,
        workdir_of: Callable[[str], Path] | None = None,
    ) -> None:
        self.site = site
        self._settings = settings
        self._clock = clock
        self._workdir_of = workdir_of
        self._watch: Watch | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What works on every node that answers; known after `open`."""
        told = [node.facts for node in self._watch.nodes.values()] if self._watch else []
        notes = dict(_NOTES) if not told else {}
        for facts in told:
            notes.update(facts.notes)
        notes["runs_images"] = _NOTES["runs_images"]
        notes["switches_user"] = "tasks run as the user who started Ray on the node"
        holds = {
            name: bool(told) and all(name in facts.abilities for facts in told)
            for name in _ABILITIES
        }
        holds["runs_images"] = False
        return Capabilities(**holds, notes=notes)

    async def open(self, deliver: Deliver) -> None:
        """Connect, start the agents, report the nodes; raises EngineError."""
        if importlib.util.find_spec("ray") is None:
            why = "Ray is not installed beside the server: pip install 'tercio[ray]'"
            raise self._error("open", BridgeError(why, is_retryable=False))
        self._watch = Watch(
            site=self.site, settings=self._settings, clock=self._clock, deliver=deliver
        )
        try:
            await self._watch.open()
        except BridgeError as error:
            await self.close()
            raise self._error("open", error) from error

    async def poll(self) -> None:
        """Look at the cluster once, beside the regular looks. Raises EngineError."""
        try:
            await self._opened("poll").poll()
        except BridgeError as error:
            raise self._error("poll", error) from error

    async def close(self) -> None:
        """Stop observing; agents and tasks go on."""
        if self._watch is not None:
            await self._watch.close()

    async def adopt(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Take over the tasks of every node that answers; see `base.Engine.adopt`."""
        return await self._opened("adopt").adopt(known)

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        """Hold the devices, then have the agent start the task; see `base.Engine.launch`."""
        watch = self._opened("launch")
        node = watch.nodes.get(order.node)
        if node is None or node.spec is None:
            return self._failed(order, f"node {order.node} is not here", is_retryable=False)
        if order.image:
            return self._failed(
                order, "the Ray engine runs no container images", is_retryable=False
            )
        ref = _ref(order)
        answered = watch.launching.setdefault(ref.key, asyncio.Event())
        try:
            held = await self._reserve(order, node)
            if not held.is_held:
                # Who has it stands in the next look, and the next plan goes around it.
                watch.poll_soon()
                return self._failed(order, held.message, is_retryable=True)
            await self._send_snapshot(order, node)
            # From here it may run, whatever becomes of the answer.
            slots = tuple(device.share.index for device in order.devices)
            watch.note_live(ref, devices=slots, epoch=order.epoch)
            answer = await self._opened("ask").ask_agent(
                "launch",
                node.id,
                (order, dict(secrets)),
                TaskStarted | TaskLaunchFailed,
                timeout_s=max(self._settings.call_timeout_s, order.deadline_s - self._clock()),
            )
            if isinstance(answer, TaskLaunchFailed) and held.is_new:
                # Nothing of it runs; what runs under an older hold keeps that hold.
                await watch.let_go(ref)
            return answer  # type: ignore[no-any-return]
        except BridgeError as error:
            raise self._error("launch", error) from error
        finally:
            watch.launching.pop(ref.key, None)
            answered.set()

    async def stop(self, order: StopTask) -> None:
        """Have the agent stop its task; the end of one on a dead node is told as lost."""
        await self._order("stop", order)

    async def signal(self, order: SignalTask) -> None:
        """Send a signal to all processes of the task; a task that has ended is no error."""
        await self._order("signal", order)

    async def logs(self, task: TaskRef, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield lines, oldest first; of running and of ended tasks."""
        node = self._node(task.node, "logs")
        try:
            number = await self._opened("ask").ask_agent("log_open", node.id, (task, query), int)
            try:
                is_over = False
                while not is_over:
                    lines, is_over = await self._opened("ask").ask_agent(
                        "log_next", node.id, number, tuple[list[LogLine], bool]
                    )
                    for line in lines:
                        yield line
            finally:
                with contextlib.suppress(BridgeError):
                    await self._opened("ask").ask_agent("log_close", node.id, number, None)
        except BridgeError as error:
            raise self._error("logs", error) from error

    async def execute(self, task: TaskRef, request: ExecRequest) -> ExecSession:
        """Start a command inside a running task; raises EngineError when it does not run."""
        node = self._node(task.node, "execute")
        try:
            number = await self._opened("ask").ask_agent("exec_open", node.id, (task, request), int)
        except BridgeError as error:
            raise self._error("execute", error) from error

        async def ask(what: str, chunk: bytes, rows: int, columns: int, timeout_s: float) -> bytes:
            arguments = (number, what, chunk, rows, columns)
            try:
                call = Call(
                    node_id=node.id, method="exec", payload=encode(arguments), timeout_s=timeout_s
                )
                answer: bytes = await self._opened("ask").ask(call, bytes, timeout_s=timeout_s)
                return answer
            except BridgeError as error:
                raise self._error("execute", error) from error

        return RaySession(ask)

    async def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """Return what tasks marked since, one question a node; see `base.MarkingEngine`."""
        places: defaultdict[NodeName, list[int]] = defaultdict(list)
        for at, (ref, _) in enumerate(wanted):
            places[ref.node].append(at)
        asked = [
            self._ask_marks(self._node(name, "marks"), [wanted[at] for at in numbers])
            for name, numbers in places.items()
        ]
        found: dict[int, tuple[str, int]] = {}
        for numbers, told in zip(places.values(), await asyncio.gather(*asked), strict=True):
            found.update(zip(numbers, told, strict=True))
        return [found[at] for at in range(len(wanted))]

    async def _ask_marks(
        self, node: Node, wanted: Sequence[tuple[TaskRef, int]]
    ) -> list[tuple[str, int]]:
        try:
            told = await self._opened("marks").ask_agent(
                "marks", node.id, wanted, list[tuple[bytes, int]], timeout_s=_MARKS_S
            )
        except BridgeError as error:
            raise self._error("marks", error) from error
        return [(raw.decode(errors="surrogateescape"), offset) for raw, offset in told]

    async def forget(self, tasks: Sequence[TaskRef]) -> None:
        """Delete logs and records of ended tasks; unknown ones are no error."""
        by_node: defaultdict[NodeName, list[TaskRef]] = defaultdict(list)
        for task in tasks:
            by_node[task.node].append(task)
        for name, refs in by_node.items():
            node = self._opened("forget").nodes.get(name)
            if node is not None and not node.is_lost:
                try:
                    await self._opened("ask").ask_agent("forget", node.id, refs, None)
                except BridgeError as error:
                    raise self._error("forget", error) from error

    async def _order(self, method: str, order: StopTask | SignalTask) -> None:
        node = self._node(order.node, method)
        try:
            await self._opened("ask").ask_agent(method, node.id, order, None)
        except BridgeError as error:
            raise self._error(method, error) from error

    async def _reserve(self, order: LaunchTask, node: Node) -> Held:
        assert node.spec is not None
        known = {device.index: device for device in node.spec.devices}
        ids = tuple(
            known[share.index].uuid or str(share.index)
            for share in (device.share for device in order.devices)
            if share.index in known
        )
        if len(ids) < len(order.devices):
            return Held(is_held=False, message=f"node {order.node} has fewer devices than planned")
        wanted = Reserve(
            node_id=node.id,
            name=_ref(order).key,
            ids=ids,
            device_milli=sum(device.share.milli for device in order.devices),
            cpus_milli=order.cpus_milli,
            memory_bytes=order.memory_bytes,
        )
        wait_s = self._settings.call_timeout_s * 4
        held: Held = await self._opened("ask").ask(wanted, Held, timeout_s=wait_s)
        return held

    async def _send_snapshot(self, order: LaunchTask, node: Node) -> None:
        """Give the node the files that the task starts in, once."""
        if order.workdir is None or order.workdir.startswith("/") or self._workdir_of is None:
            return
        ask = self._opened("launch").ask_agent
        name = order.workdir
        if await ask("has_snapshot", node.id, None, bool, raw=name.encode()):
            return
        path = self._workdir_of(name)
        size, offset = path.stat().st_size, 0
        while True:
            chunk = await asyncio.to_thread(_read_at, path, offset)
            is_last = offset + len(chunk) >= size
            await ask("put_snapshot", node.id, (name, chunk, offset, is_last), None)
            offset += len(chunk)
            if is_last:
                return

    def _node(self, name: NodeName, operation: str) -> Node:
        node = self._opened(operation).nodes.get(name)
        if node is None or node.is_lost:
            why = BridgeError(f"node {name} does not answer")
            raise self._error(operation, why)
        return node

    def _opened(self, operation: str) -> Watch:
        if self._watch is None:
            raise self._error(operation, BridgeError("the engine is not open"))
        return self._watch

    def _failed(self, order: LaunchTask, message: str, *, is_retryable: bool) -> TaskLaunchFailed:
        return TaskLaunchFailed(
            at_s=self._clock(),
            job_id=order.job_id,
            attempt=order.attempt,
            task=order.task,
            effect_id=order.effect_id,
            message=message,
            is_retryable=is_retryable,
        )

    def _error(self, operation: str, error: BridgeError) -> EngineError:
        retryable = error.is_retryable
        return EngineError(str(error), engine=self.kind, operation=operation, retryable=retryable)


def _ref(order: TaskEffect) -> TaskRef:
    return TaskRef(job_id=order.job_id, attempt=order.attempt, task=order.task, node=order.node)


def _read_at(path: Path, offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)
