"""The bridge: a child of the server, and the only process of ours that is a Ray driver.

It reads requests from its standard input and ends when that is closed, that is, with the server.
What it starts in Ray is detached and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tercio.engines.ray import agent as agent_module
from tercio.engines.ray import cluster, shipping
from tercio.engines.ray import groups as groups_module
from tercio.engines.ray.groups import Groups
from tercio.engines.ray.messages import (
    Adopt,
    Attach,
    Call,
    Release,
    Reply,
    Request,
    Reserve,
    Survey,
    Told,
    decode_request,
    encode,
    framed,
    read_frame,
)
from tercio.engines.ray.settings import RaySettings

_LISTEN_S: Final = 20.0
_LATE_S: Final = 15.0
_PAUSE_S: Final = 1.0
_CONCURRENCY: Final = 1000


class Refused(Exception):
    """A request that cannot be answered; `is_retryable` says whether it could be later."""

    def __init__(self, message: str, *, is_retryable: bool = True) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable


class Bridge:
    """Answers the server's requests, side by side, and passes on what agents tell."""

    def __init__(self, settings: RaySettings, out: asyncio.StreamWriter) -> None:
        self._settings = settings
        self._out = out
        self._id = uuid.uuid4().hex
        self._agents: dict[str, Any] = {}
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._groups = Groups(settings)
        self._running: set[asyncio.Task[None]] = set()
        self._code_key = b""
        self._version = ""

    async def connect(self) -> None:
        """Join the cluster and put the agents' code into its store."""
        settings = self._settings
        await asyncio.to_thread(cluster.connect, settings)
        self._code_key = await asyncio.to_thread(shipping.ship)
        self._version = self._code_key.decode().rpartition(":")[2]
        await asyncio.to_thread(cluster.end_old_agents, settings, version=self._version)
        await self._groups.end_decoys()
        # The nodes have no Tercio to import these from.
        cloudpickle.register_pickle_by_value(agent_module)
        cloudpickle.register_pickle_by_value(groups_module)

    async def serve(self, requests: asyncio.StreamReader) -> None:
        """Answer requests until there are no more."""
        while (frame := await read_frame(requests)) is not None:
            self._spawn(self._answer(decode_request(frame)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, request: Request) -> None:
        try:
            payload = await self._perform(request)
        except Refused as error:
            reply = Reply(id=request.id, error=str(error), is_retryable=error.is_retryable)
        except Exception as error:
            # Whatever Ray or its transport raise: the server is told, and tries again.
            why = str(error).partition("\n")[0] or type(error).__name__
            reply = Reply(id=request.id, error=f"{type(error).__name__}: {why}")
        else:
            reply = Reply(id=request.id, payload=payload)
        await self._send(reply)

    async def _send(self, message: Reply | Told) -> None:
        self._out.write(framed(message))
        with contextlib.suppress(ConnectionError):
            await self._out.drain()

    async def _perform(self, request: Request) -> bytes:
        match request.body:
            case Survey():
                async with asyncio.timeout(self._settings.call_timeout_s):
                    return encode(await asyncio.to_thread(cluster.survey))
            case Attach() as attach:
                return await self._attach(attach)
            case Adopt() as adopt:
                return await self._adopt(adopt)
            case Reserve() as wanted:
                return encode(await self._groups.reserve(wanted))
            case Release(names=names):
                await self._groups.release(names)
                return encode(None)
            case Call() as call:
                return await self._call(call)

    async def _attach(self, attach: Attach) -> bytes:
        settings = {
            "namespace": self._settings.namespace,
            "node_dir": attach.node_dir,
            "name": attach.name,
            "site": attach.site,
            "vendor": attach.devices[0].vendor if attach.devices else "",
            "log_cap_bytes": attach.log_cap_bytes,
        }
        agent = (
            ray.remote(agent_module.NodeAgent)
            .options(
                # The code's version is part of the name: an upgraded server starts its own.
                name=f"agent:{attach.node_id}:{self._version}",
                namespace=self._settings.namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=_CONCURRENCY,
                scheduling_strategy=NodeAffinitySchedulingStrategy(attach.node_id, soft=False),
            )
            .remote(self._code_key, settings)
        )
        facts = await self._asked(agent.facts.remote(), self._settings.agent_timeout_s)
        self._agents[attach.node_id] = agent
        await self._groups.warm(attach)
        return bytes(facts)

    async def _adopt(self, adopt: Adopt) -> bytes:
        agent = self._agent(adopt.node_id)
        before = self._listening.pop(adopt.node_id, None)
        if before is not None:
            before.cancel()
        listener = f"{self._id}/{uuid.uuid4().hex}"
        known = encode(adopt.known)
        answer = await self._asked(
            agent.adopt.remote(listener, known), self._settings.call_timeout_s
        )
        task = asyncio.create_task(self._listen(adopt.node_id, agent, listener))
        self._listening[adopt.node_id] = task
        return bytes(answer)

    async def _listen(self, node_id: str, agent: Any, listener: str) -> None:
        """Pass on what an agent tells, until it has a new listener or has forgotten this one.

        The server adopts again when it hears nothing from a node (`Told` without payload).
        """
        after = 0
        while True:
            try:
                told = await self._asked(
                    agent.listen.remote(listener, after, _LISTEN_S), _LISTEN_S + _LATE_S
                )
            except (RayError, TimeoutError):
                # It may be restarting; the survey says when its node is dead.
                await asyncio.sleep(_PAUSE_S)
                continue
            if told is None:
                await self._send(Told(node_id=node_id, payload=b""))
                return
            after, payload = told
            await self._send(
                Told(node_id=node_id, payload=payload, listener=listener, number=after)
            )

    async def _call(self, call: Call) -> bytes:
        agent = self._agent(call.node_id)
        answer = agent.call.remote(call.method, call.payload)
        payload, error, is_retryable = await self._asked(answer, call.timeout_s)
        if error:
            raise Refused(error, is_retryable=is_retryable)
        return bytes(payload)

    def _agent(self, node_id: str) -> Any:
        agent = self._agents.get(node_id)
        if agent is None:
            raise Refused(f"no agent runs on node {node_id}")
        return agent

    async def _asked(self, reference: Any, timeout_s: float) -> Any:
        async with asyncio.timeout(timeout_s):
            return await reference


async def _main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=RaySettings)
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=2**20)
    # What Ray prints must not get between our frames: those go out by a descriptor of their own.
    answers = os.dup(1)
    os.dup2(2, 1)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(answers, "wb")
    )
    bridge = Bridge(settings, asyncio.StreamWriter(transport, protocol, None, loop))
    served = asyncio.create_task(bridge.serve(requests))
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await bridge.connect()
    except Exception as error:
        why = (str(error) or "no answer").partition("\n")[0]
        sys.stderr.write(f"cannot connect to {settings.address}: {why}\n")
        os._exit(3)
    await bridge._send(Reply(id=0))
    await served
    # Threads that still ask a silent Ray are not waited for.
    os._exit(0)


if __name__ == "__main__":
    code = 0
    try:
        asyncio.run(_main())
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    finally:
        # Ray's own threads are not waited for: what runs in the cluster is detached.
        os._exit(code)
