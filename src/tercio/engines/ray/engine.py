"""The Ray engine: the contract of `base.Engine` on a Ray cluster, through the bridge.

The order of things keeps two promises. A task's devices are held in Ray before its agent is told
to start it, and are given back only after its end was told by the agent or its node is dead; and
what this server does not know any more is found again by the names of groups and agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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
from tercio.engines.ray import inventory
from tercio.engines.ray.child import BridgeError, Child
from tercio.engines.ray.messages import (
    CHUNK_BYTES,
    Adopt,
    AgentFacts,
    Attach,
    Body,
    Call,
    Facts,
    Held,
    RayNode,
    Release,
    Reserve,
    Survey,
    Told,
    encode,
)
from tercio.engines.ray.session import RaySession
from tercio.engines.ray.settings import RaySettings
from tercio.errors import EngineError
from tercio.logs import facts as log_facts
from tercio.model.effects import LaunchTask, SignalTask, StopTask, TaskEffect
from tercio.model.events import NodeLost, NodeReported, TaskExited, TaskLaunchFailed, TaskStarted
from tercio.model.ids import EffectId, NodeName, SiteName
from tercio.model.node import NodeSpec

_ANSWER_MARGIN_S: Final = 5.0
_RECONNECT_FIRST_S: Final = 1.0
_RECONNECT_MAX_S: Final = 15.0
_ABILITIES: Final = tuple(
    field.name for field in msgspec.structs.fields(Capabilities) if field.name != "notes"
)
_NOTES: Final = {
    "runs_images": "Ray tasks are plain processes of the node; start Ray itself in the image",
    "survives_server": "no node of this site has answered yet",
}
log = logging.getLogger(__name__)


class _Node(msgspec.Struct):
    """A node with an agent: Ray's id of it now, what we reported, and its live tasks."""

    id: str
    facts: AgentFacts
    spec: NodeSpec | None = None
    is_adopted: bool = False
    is_lost: bool = False


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
        self._deliver: Deliver | None = None
        self._child: Child | None = None
        self._nodes: dict[NodeName, _Node] = {}
        self._attaching: dict[str, asyncio.Task[None]] = {}
        self._live: defaultdict[NodeName, dict[str, TaskRef]] = defaultdict(dict)
        self._slots: dict[str, tuple[NodeName, tuple[int, ...]]] = {}
        self._launching: dict[str, asyncio.Event] = {}
        self._heard_s = 0.0
        self._is_adopted = False
        self._epoch = 0
        self._work: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What works on every node that answers; known after `open`."""
        told = [node.facts for node in self._nodes.values()]
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
        self._deliver = deliver
        try:
            await self._connect()
            await self._survey(wait=True)
        except BridgeError as error:
            await self.close()
            raise self._error("open", error) from error
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        """Stop observing; agents and tasks go on."""
        self._deliver = None
        doing = [*self._work, *self._attaching.values()]
        doing += [self._polling] if self._polling else []
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
        if self._child is not None:
            await self._child.close()

    async def adopt(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Take over the tasks of every node that answers; see `base.Engine.adopt`."""
        self._live.clear()
        for ref in known:
            self._live[ref.node][ref.key] = ref
        self._is_adopted = True
        found = await asyncio.gather(*(self._adopt_node(name) for name in list(self._nodes)))
        return [ref for refs in found for ref in refs]

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        """Hold the devices, then have the agent start the task; see `base.Engine.launch`."""
        node = self._nodes.get(order.node)
        if node is None or node.spec is None:
            return self._failed(order, f"node {order.node} is not here", is_retryable=False)
        if order.image:
            return self._failed(
                order, "the Ray engine runs no container images", is_retryable=False
            )
        ref = _ref(order)
        answered = self._launching.setdefault(ref.key, asyncio.Event())
        try:
            held = await self._reserve(order, node)
            if not held.is_held:
                return self._failed(order, held.message, is_retryable=True)
            await self._send_snapshot(order, node)
            # From here it may run, whatever becomes of the answer.
            self._note_live(ref, order)
            answer = await self._ask_agent(
                "launch",
                node.id,
                (order, dict(secrets)),
                TaskStarted | TaskLaunchFailed,
                timeout_s=max(self._settings.call_timeout_s, order.deadline_s - self._clock()),
            )
            if isinstance(answer, TaskLaunchFailed) and held.is_new:
                # Nothing of it runs; what runs under an older hold keeps that hold.
                self._live[ref.node].pop(ref.key, None)
                self._slots.pop(ref.key, None)
                await self._ask(Release(names=(ref.key,)))
            return answer  # type: ignore[no-any-return]
        except BridgeError as error:
            raise self._error("launch", error) from error
        finally:
            self._launching.pop(ref.key, None)
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
            number = await self._ask_agent("log_open", node.id, (task, query), int)
            try:
                is_over = False
                while not is_over:
                    lines, is_over = await self._ask_agent(
                        "log_next", node.id, number, tuple[list[LogLine], bool]
                    )
                    for line in lines:
                        yield line
            finally:
                with contextlib.suppress(BridgeError):
                    await self._ask_agent("log_close", node.id, number, None)
        except BridgeError as error:
            raise self._error("logs", error) from error

    async def execute(self, task: TaskRef, request: ExecRequest) -> ExecSession:
        """Start a command inside a running task; raises EngineError when it does not run."""
        node = self._node(task.node, "execute")
        try:
            number = await self._ask_agent("exec_open", node.id, (task, request), int)
        except BridgeError as error:
            raise self._error("execute", error) from error

        async def ask(what: str, chunk: bytes, rows: int, columns: int, timeout_s: float) -> bytes:
            arguments = (number, what, chunk, rows, columns)
            try:
                call = Call(
                    node_id=node.id, method="exec", payload=encode(arguments), timeout_s=timeout_s
                )
                answer: bytes = await self._ask(call, bytes, timeout_s=timeout_s)
                return answer
            except BridgeError as error:
                raise self._error("execute", error) from error

        return RaySession(ask)

    async def forget(self, tasks: Sequence[TaskRef]) -> None:
        """Delete logs and records of ended tasks; unknown ones are no error."""
        by_node: defaultdict[NodeName, list[TaskRef]] = defaultdict(list)
        for task in tasks:
            by_node[task.node].append(task)
        for name, refs in by_node.items():
            node = self._nodes.get(name)
            if node is not None and not node.is_lost:
                try:
                    await self._ask_agent("forget", node.id, refs, None)
                except BridgeError as error:
                    raise self._error("forget", error) from error

    async def _order(self, method: str, order: StopTask | SignalTask) -> None:
        node = self._node(order.node, method)
        try:
            await self._ask_agent(method, node.id, order, None)
        except BridgeError as error:
            raise self._error(method, error) from error

    async def _reserve(self, order: LaunchTask, node: _Node) -> Held:
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
        held: Held = await self._ask(wanted, Held, timeout_s=wait_s)
        return held

    async def _send_snapshot(self, order: LaunchTask, node: _Node) -> None:
        """Give the node the files that the task starts in, once."""
        if order.workdir is None or order.workdir.startswith("/") or self._workdir_of is None:
            return
        name = order.workdir
        if await self._ask_agent("has_snapshot", node.id, None, bool, raw=name.encode()):
            return
        path = self._workdir_of(name)
        size, offset = path.stat().st_size, 0
        while True:
            chunk = await asyncio.to_thread(_read_at, path, offset)
            is_last = offset + len(chunk) >= size
            await self._ask_agent("put_snapshot", node.id, (name, chunk, offset, is_last), None)
            offset += len(chunk)
            if is_last:
                return

    async def _connect(self) -> None:
        self._child = Child(self._settings, self._hear)
        await self._child.start()
        self._heard_s = self._clock()

    async def _poll(self) -> None:
        """Read the cluster again and again; a silent one is given its time before it is lost."""
        pause_s = _RECONNECT_FIRST_S
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                if self._child is None or not self._child.is_running:
                    await self._connect()
                    for node in self._nodes.values():
                        node.is_adopted = False
                await self._survey(wait=False)
                pause_s = _RECONNECT_FIRST_S
            except BridgeError as error:
                log.warning("ray_silent", extra=log_facts(site=self.site, error=str(error)))
                if self._child is not None:
                    await self._child.close()
                if self._clock() - self._heard_s > self._settings.lost_after_s:
                    for name in self._nodes:
                        self._lose(name, f"Ray at {self._settings.address} is silent: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RECONNECT_MAX_S)
            except Exception as error:
                # A bug of ours must not end the observing.
                log.error("ray_survey_broke", exc_info=error, extra=log_facts(site=self.site))

    async def _survey(self, *, wait: bool) -> None:
        """Compare what Ray says with what was reported, and put right what differs."""
        told = await self._ask(Survey(), Facts)
        self._heard_s = self._clock()
        names = inventory.node_names(told.nodes, site=self.site)
        alive = {names[node.id]: node for node in told.nodes if inventory.can_run(node)}
        for name, node in self._nodes.items():
            if name not in alive or alive[name].id != node.id:
                self._lose(name, self._why_dead(told, node.id))
        for name, ray_node in alive.items():
            attached = self._nodes.get(name)
            if ray_node.id in self._attaching:
                continue
            if attached is None or attached.id != ray_node.id or not attached.is_adopted:
                attach = self._attach(name, ray_node)
                self._attaching[ray_node.id] = asyncio.create_task(attach)
        if wait and self._attaching:
            await asyncio.wait(list(self._attaching.values()))
        self._report(told, alive)
        if self._is_adopted:
            await self._sweep(told)

    async def _attach(self, name: NodeName, ray_node: RayNode) -> None:
        """Start the agent of a node, or find it, and take over its tasks."""
        settings = self._settings
        devices = tuple(inventory.devices_of(ray_node, device_type=settings.device_type))
        try:
            facts = await self._ask(
                Attach(
                    node_id=ray_node.id,
                    name=name,
                    site=self.site,
                    address=ray_node.address,
                    devices=devices,
                    node_dir=settings.node_dir,
                    log_cap_bytes=settings.log_cap_bytes,
                ),
                AgentFacts,
                timeout_s=settings.agent_timeout_s * 2,
            )
            before = self._nodes.get(name)
            spec = before.spec if before and before.id == ray_node.id else None
            self._nodes[name] = _Node(id=ray_node.id, facts=facts, spec=spec)
            strays = await self._adopt_node(name)
            # Before the server has said what it knows, nothing is a stray.
            for ref in strays if self._is_adopted else ():
                self._keep(self._stop_stray(ref))
        except BridgeError as error:
            told = log_facts(site=self.site, node=name, error=str(error))
            log.warning("ray_agent_silent", extra=told)
        finally:
            self._attaching.pop(ray_node.id, None)

    async def _adopt_node(self, name: NodeName) -> list[TaskRef]:
        node = self._nodes[name]
        known = tuple(self._live[name].values())
        try:
            unknown: list[TaskRef] = await self._ask(
                Adopt(node_id=node.id, known=known), list[TaskRef]
            )
        except BridgeError as error:
            log.warning("ray_agent_silent", extra=log_facts(node=name, error=str(error)))
            return []
        node.is_adopted = True
        # Until it ends it holds what it holds, whoever knows it.
        self._live[name].update({ref.key: ref for ref in unknown})
        return unknown

    async def _stop_stray(self, ref: TaskRef) -> None:
        """Stop a task that a node came back with and nobody knows."""
        log.warning("stray_task_stopped", extra=log_facts(site=self.site, task=ref.key))
        order = StopTask(
            effect_id=EffectId(f"stop:{ref.key}"),
            epoch=self._epoch,
            deadline_s=self._clock() + self._settings.call_timeout_s,
            site=self.site,
            node=ref.node,
            job_id=ref.job_id,
            attempt=ref.attempt,
            task=ref.task,
            grace_s=_ANSWER_MARGIN_S,
        )
        with contextlib.suppress(EngineError):
            await self.stop(order)

    def _report(self, told: Facts, alive: Mapping[NodeName, RayNode]) -> None:
        foreign = inventory.foreign_use(told, prefix=f"{self._settings.namespace}:")
        for name, ray_node in alive.items():
            node = self._nodes.get(name)
            if node is None or node.id != ray_node.id:
                continue
            held = [slots for where, slots in self._slots.values() if where == name]
            spec = inventory.node_spec(
                ray_node,
                name=name,
                site=self.site,
                ids=node.facts.ids,
                foreign=foreign[ray_node.id],
                held=frozenset(slot for slots in held for slot in slots),
                device_type=self._settings.device_type,
            )
            if spec != node.spec or node.is_lost:
                node.spec, node.is_lost = spec, False
                self._send(NodeReported(at_s=self._clock(), spec=spec))

    async def _sweep(self, told: Facts) -> None:
        """Give back what is held for tasks that have ended, such as before a crash."""
        prefix = f"{self._settings.namespace}:"
        live = {key for refs in self._live.values() for key in refs} | set(self._launching)
        settled = {node.id for node in self._nodes.values() if node.is_adopted}
        names = tuple(
            bundle.name.removeprefix(prefix)
            for bundle in told.bundles
            if bundle.name.startswith(prefix)
            and bundle.node_id in settled
            and bundle.name.removeprefix(prefix) not in live
            and "decoy" not in bundle.name
        )
        if names:
            await self._ask(Release(names=names))

    def _hear(self, told: Told) -> None:
        name = next((name for name, node in self._nodes.items() if node.id == told.node_id), None)
        if name is None:
            return
        if not told.payload:
            # The agent was restarted, or somebody else listens now: adopt again.
            self._nodes[name].is_adopted = False
            return
        for event in msgspec.msgpack.decode(told.payload, type=list[TaskExited]):
            self._keep(self._take_end(name, event))

    async def _take_end(self, name: NodeName, event: TaskExited) -> None:
        """Give back what the task held, then tell its end: the next one finds the room."""
        ref = TaskRef(job_id=event.job_id, attempt=event.attempt, task=event.task, node=name)
        launching = self._launching.get(ref.key)
        if launching is not None:
            await launching.wait()
        self._live[name].pop(ref.key, None)
        self._slots.pop(ref.key, None)
        with contextlib.suppress(BridgeError):
            await self._ask(Release(names=(ref.key,)))
        self._send(event)

    def _note_live(self, ref: TaskRef, order: LaunchTask) -> None:
        self._live[ref.node][ref.key] = ref
        self._slots[ref.key] = (ref.node, tuple(device.share.index for device in order.devices))
        self._epoch = max(self._epoch, order.epoch)

    def _lose(self, name: NodeName, reason: str) -> None:
        node = self._nodes[name]
        if not node.is_lost:
            node.is_lost, node.is_adopted = True, False
            self._send(NodeLost(at_s=self._clock(), node=name, reason=reason))

    def _why_dead(self, told: Facts, node_id: str) -> str:
        is_known = any(node.id == node_id for node in told.nodes)
        return "Ray says the node is dead" if is_known else "Ray does not know the node any more"

    def _node(self, name: NodeName, operation: str) -> _Node:
        node = self._nodes.get(name)
        if node is None or node.is_lost:
            why = BridgeError(f"node {name} does not answer")
            raise self._error(operation, why)
        return node

    async def _ask(self, body: Body, type: Any = None, *, timeout_s: float | None = None) -> Any:
        if self._child is None:
            raise BridgeError("the engine is not open")
        wait_s = timeout_s or self._settings.call_timeout_s
        payload = await self._child.ask(body, timeout_s=wait_s + _ANSWER_MARGIN_S)
        return payload if type is bytes else msgspec.msgpack.decode(payload, type=type)

    async def _ask_agent(
        self,
        method: str,
        node_id: str,
        arguments: object,
        type: Any,
        *,
        raw: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        wait_s = timeout_s or self._settings.call_timeout_s
        payload = encode(arguments) if raw is None else raw
        call = Call(node_id=node_id, method=method, payload=payload, timeout_s=wait_s)
        return await self._ask(call, type, timeout_s=wait_s)

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _send(self, observation: Observation) -> None:
        if self._deliver is not None:
            self._deliver(observation)

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
