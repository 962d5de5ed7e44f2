"""What an engine knows of its cluster: nodes and agents, live tasks, and who must be told.

It looks at the cluster every few seconds, and puts right what differs from what was reported:
new nodes get an agent, dead ones are told as lost, foreign use is read anew, and devices that
are held for nobody are given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from tercio.engines.base import Clock, Deliver, Observation, TaskRef
from tercio.engines.ray import inventory
from tercio.engines.ray.child import BridgeError, Child
from tercio.engines.ray.messages import (
    Adopt,
    AgentFacts,
    Attach,
    Body,
    Call,
    Facts,
    RayNode,
    Release,
    Survey,
    Told,
    encode,
)
from tercio.engines.ray.settings import RaySettings
from tercio.logs import facts as log_facts
from tercio.model.effects import StopTask
from tercio.model.events import NodeLost, NodeReported, TaskExited
from tercio.model.ids import EffectId, NodeName, SiteName
from tercio.model.node import NodeSpec

_ANSWER_MARGIN_S: Final = 5.0
_STRAY_GRACE_S: Final = 10.0
_RECONNECT_FIRST_S: Final = 1.0
_RECONNECT_MAX_S: Final = 15.0
log = logging.getLogger(__name__)


class Node(msgspec.Struct):
    """A node with an agent: Ray's id of it now, what was reported, and the last it told."""

    id: str
    facts: AgentFacts
    spec: NodeSpec | None = None
    is_adopted: bool = False
    is_lost: bool = False
    heard: tuple[str, int] = ("", 0)


class Watch:
    """Watches one cluster for its engine.

    Attributes:
        nodes: those that have an agent, or had one.
        launching: by key of a task whose launch is not answered yet; set when it is.
    """

    def __init__(
        self, *, site: SiteName, settings: RaySettings, clock: Clock, deliver: Deliver
    ) -> None:
        self.nodes: dict[NodeName, Node] = {}
        self.launching: dict[str, asyncio.Event] = {}
        self._site = site
        self._settings = settings
        self._clock = clock
        self._deliver: Deliver | None = deliver
        self._child: Child | None = None
        self._attaching: dict[str, asyncio.Task[None]] = {}
        self._live: defaultdict[NodeName, dict[str, TaskRef]] = defaultdict(dict)
        self._slots: dict[str, tuple[NodeName, tuple[int, ...]]] = {}
        self._heard_s = 0.0
        self._looking = asyncio.Lock()
        self._soon = asyncio.Event()
        self._is_adopted = False
        self._epoch = 0
        self._work: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, start the agents and report the nodes. Raises BridgeError."""
        await self._connect()
        self._heard_s = self._clock()
        await self._survey(wait=True)
        self._polling = asyncio.create_task(self._poll())

    async def poll(self) -> None:
        """Look at the cluster once, over a new connection where the old one has gone.

        Raises BridgeError; what was reported then stays as it is until `lost_after_s` is over.
        """
        async with self._looking:
            try:
                if self._child is None or not self._child.is_running:
                    await self._connect()
                    for node in self.nodes.values():
                        node.is_adopted = False
                await self._survey(wait=False)
            except BridgeError as error:
                log.warning("ray_silent", extra=log_facts(site=self._site, error=str(error)))
                if self._child is not None:
                    await self._child.close()
                if self._clock() - self._heard_s > self._settings.lost_after_s:
                    for name in self.nodes:
                        self._lose(name, f"Ray at {self._settings.address} is silent: {error}")
                raise

    def poll_soon(self) -> None:
        """Look before the next regular time: something is not as it was reported."""
        self._soon.set()

    async def close(self) -> None:
        """Stop watching; agents and tasks go on."""
        self._deliver = None
        doing = [*self._work, *self._attaching.values()]
        doing += [self._polling] if self._polling else []
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
        if self._child is not None:
            await self._child.close()

    async def adopt(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Take over the tasks of every node that answers; return those that are not known."""
        self._live.clear()
        for ref in known:
            self._live[ref.node][ref.key] = ref
        self._is_adopted = True
        found = await asyncio.gather(*(self._adopt_node(name) for name in list(self.nodes)))
        return [ref for refs in found for ref in refs]

    def note_live(self, ref: TaskRef, *, devices: tuple[int, ...], epoch: int) -> None:
        """Remember that a task runs, or may: what is held for it is kept."""
        self._live[ref.node][ref.key] = ref
        self._slots[ref.key] = (ref.node, devices)
        self._epoch = max(self._epoch, epoch)

    async def let_go(self, ref: TaskRef) -> None:
        """Give back what was held for a task that does not run. Raises BridgeError."""
        self._live[ref.node].pop(ref.key, None)
        self._slots.pop(ref.key, None)
        await self.ask(Release(names=(ref.key,)))

    async def ask(self, body: Body, type: Any = None, *, timeout_s: float | None = None) -> Any:
        """Return the bridge's answer as `type`. Raises BridgeError."""
        if self._child is None:
            raise BridgeError("the engine is not open")
        wait_s = timeout_s or self._settings.call_timeout_s
        payload = await self._child.ask(body, timeout_s=wait_s + _ANSWER_MARGIN_S)
        return payload if type is bytes else msgspec.msgpack.decode(payload, type=type)

    async def ask_agent(
        self,
        method: str,
        node_id: str,
        arguments: object,
        type: Any,
        *,
        raw: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Return the answer of a node's agent; `raw` replaces encoded arguments."""
        wait_s = timeout_s or self._settings.call_timeout_s
        payload = encode(arguments) if raw is None else raw
        call = Call(node_id=node_id, method=method, payload=payload, timeout_s=wait_s)
        return await self.ask(call, type, timeout_s=wait_s)

    async def _connect(self) -> None:
        self._child = Child(self._settings, self._hear)
        await self._child.start()

    async def _poll(self) -> None:
        """Look again and again; less often where nobody answers."""
        pause_s = _RECONNECT_FIRST_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_s):
                    await self._soon.wait()
            self._soon.clear()
            try:
                await self.poll()
                pause_s = _RECONNECT_FIRST_S
            except BridgeError:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RECONNECT_MAX_S)
            except Exception as error:
                # A bug of ours must not end the observing.
                log.error("ray_survey_broke", exc_info=error, extra=log_facts(site=self._site))

    async def _survey(self, *, wait: bool) -> None:
        """Compare what Ray says with what was reported, and put right what differs."""
        told = await self.ask(Survey(), Facts)
        self._heard_s = self._clock()
        names = inventory.node_names(told.nodes, site=self._site)
        alive = {names[node.id]: node for node in told.nodes if inventory.can_run(node)}
        for name, node in self.nodes.items():
            if name not in alive or alive[name].id != node.id:
                self._lose(name, self._why_dead(told, node.id))
        for name, ray_node in alive.items():
            attached = self.nodes.get(name)
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
            facts = await self.ask(
                Attach(
                    node_id=ray_node.id,
                    name=name,
                    site=self._site,
                    address=ray_node.address,
                    devices=devices,
                    node_dir=settings.node_dir,
                    log_cap_bytes=settings.log_cap_bytes,
                ),
                AgentFacts,
                timeout_s=settings.agent_timeout_s * 2,
            )
            before = self.nodes.get(name)
            spec = before.spec if before and before.id == ray_node.id else None
            self.nodes[name] = Node(id=ray_node.id, facts=facts, spec=spec)
            strays = await self._adopt_node(name)
            # Before the server has said what it knows, nothing is a stray.
            for ref in strays if self._is_adopted else ():
                self._keep(self._stop_stray(ref))
        except BridgeError as error:
            told = log_facts(site=self._site, node=name, error=str(error))
            log.warning("ray_agent_silent", extra=told)
        finally:
            self._attaching.pop(ray_node.id, None)

    async def _adopt_node(self, name: NodeName) -> list[TaskRef]:
        node = self.nodes[name]
        known = tuple(self._live[name].values())
        try:
            unknown: list[TaskRef] = await self.ask(
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
        log.warning("stray_task_stopped", extra=log_facts(site=self._site, task=ref.key))
        order = StopTask(
            effect_id=EffectId(f"stop:{ref.key}"),
            epoch=self._epoch,
            deadline_s=self._clock() + self._settings.call_timeout_s,
            site=self._site,
            node=ref.node,
            job_id=ref.job_id,
            attempt=ref.attempt,
            task=ref.task,
            grace_s=_STRAY_GRACE_S,
        )
        with contextlib.suppress(BridgeError):
            await self.ask_agent("stop", self.nodes[ref.node].id, order, None)

    def _report(self, told: Facts, alive: Mapping[NodeName, RayNode]) -> None:
        foreign = inventory.foreign_use(told, prefix=f"{self._settings.namespace}:")
        for name, ray_node in alive.items():
            node = self.nodes.get(name)
            if node is None or node.id != ray_node.id:
                continue
            held = [slots for where, slots in self._slots.values() if where == name]
            spec = inventory.node_spec(
                ray_node,
                name=name,
                site=self._site,
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
        names = inventory.held_for_nobody(
            told,
            prefix=f"{self._settings.namespace}:",
            live={key for refs in self._live.values() for key in refs} | set(self.launching),
            settled={node.id for node in self.nodes.values() if node.is_adopted},
        )
        if names:
            await self.ask(Release(names=names))

    def _hear(self, told: Told) -> None:
        name = next((name for name, node in self.nodes.items() if node.id == told.node_id), None)
        if name is None:
            return
        if not told.payload:
            # The agent was restarted, or somebody else listens now: adopt again.
            self.nodes[name].is_adopted = False
            return
        listener, number = self.nodes[name].heard
        if listener == told.listener and told.number <= number:
            return
        self.nodes[name].heard = (told.listener, told.number)
        for event in msgspec.msgpack.decode(told.payload, type=list[TaskExited]):
            self._keep(self._take_end(name, event))

    async def _take_end(self, name: NodeName, event: TaskExited) -> None:
        """Give back what the task held, then tell its end: the next one finds the room.

        An end is never told before the launch was answered.
        """
        ref = TaskRef(job_id=event.job_id, attempt=event.attempt, task=event.task, node=name)
        launching = self.launching.get(ref.key)
        if launching is not None:
            await launching.wait()
        # Where Ray is silent, the next look at it finds what is still held.
        with contextlib.suppress(BridgeError):
            await self.let_go(ref)
        self._send(event)

    def _lose(self, name: NodeName, reason: str) -> None:
        node = self.nodes[name]
        if not node.is_lost:
            node.is_lost, node.is_adopted = True, False
            self._send(NodeLost(at_s=self._clock(), node=name, reason=reason))

    def _why_dead(self, told: Facts, node_id: str) -> str:
        is_known = any(node.id == node_id for node in told.nodes)
        return "Ray says the node is dead" if is_known else "Ray does not know the node any more"

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _send(self, observation: Observation) -> None:
        if self._deliver is not None:
            self._deliver(observation)
