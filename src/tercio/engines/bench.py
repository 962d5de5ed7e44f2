"""Puts one engine to the test: orders for it, and everything it tells. See `conformance`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from tercio.engines.base import CuttingEngine, Engine, LogLine, LogQuery, Observation, TaskRef
from tercio.model.effects import LaunchTask, ReconfigureDevice, SignalTask, StopTask
from tercio.model.events import (
    DeviceReconfigured,
    NodeReported,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.ids import EffectId, JobId
from tercio.model.node import MigSlice, NodeSpec
from tercio.sched.mig import profiles_of

EPOCH: Final = 2
DEADLINE_S: Final = 30.0
LONG_S: Final = 600.0
RETRY_S: Final = 0.5


class Programs(Protocol):
    """Says, in the terms of one kind of engine, what a task is to do: changes to an order."""

    def exits(self, code: int) -> dict[str, object]:
        """End at once with this code."""
        ...

    def runs(self) -> dict[str, object]:
        """Run until it is stopped."""
        ...

    def refuses_to_stop(self) -> dict[str, object]:
        """Print `ready`, then run on through every signal that can be ignored."""
        ...

    def prints(self, lines: Sequence[str]) -> dict[str, object]:
        """Print these lines, nothing else, and end with code 0."""
        ...


class ShellPrograms:
    """Programs for engines that run a shell."""

    def exits(self, code: int) -> dict[str, object]:
        """See `Programs.exits`."""
        return {"command": f"exit {code}"}

    def runs(self) -> dict[str, object]:
        """See `Programs.runs`."""
        return {"command": f"exec sleep {LONG_S:g}"}

    def refuses_to_stop(self) -> dict[str, object]:
        """See `Programs.refuses_to_stop`."""
        return {"command": "trap '' TERM; echo ready; while :; do sleep 0.05; done"}

    def prints(self, lines: Sequence[str]) -> dict[str, object]:
        """See `Programs.prints`."""
        return {"command": "\n".join(f"echo {line}" for line in lines)}


class SimPrograms:
    """Programs for the simulated engine."""

    def exits(self, code: int) -> dict[str, object]:
        """See `Programs.exits`."""
        return _simulated({"exit_code": code, "duration_s": 0.0})

    def runs(self) -> dict[str, object]:
        """See `Programs.runs`."""
        return _simulated({"duration_s": LONG_S})

    def refuses_to_stop(self) -> dict[str, object]:
        """See `Programs.refuses_to_stop`."""
        return _simulated({"duration_s": LONG_S, "ignores_stop": True, "lines": ["ready"]})

    def prints(self, lines: Sequence[str]) -> dict[str, object]:
        """See `Programs.prints`."""
        return _simulated({"duration_s": 0.0, "line_every_s": 0.0, "lines": list(lines)})


def _simulated(behaviour: dict[str, object]) -> dict[str, object]:
    return {"command": "simulated", "env": {"TERCIO_SIM": msgspec.json.encode(behaviour).decode()}}


class Failure(AssertionError):
    """The engine did not keep its contract."""


class Bench:
    """One engine under check: everything it told, and orders for it."""

    _numbers = itertools.count(1)

    def __init__(
        self, connect: Callable[[], Engine], programs: Programs, *, user: str, deadline_s: float
    ) -> None:
        self.programs = programs
        self._connect = connect
        self._user = user
        self._deadline_s = deadline_s
        self._news = asyncio.Condition()
        self.engine = connect()
        self.seen: list[Observation] = []
        self.started: list[TaskRef] = []

    async def open(self) -> None:
        """Open the engine and wait for its first node."""
        await self.engine.open(self._deliver)
        await self.until(lambda: bool(self.nodes), "a NodeReported after open")

    async def restart(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Close the engine and adopt with a new one; return the unknown tasks."""
        await self.engine.close()
        self.seen = []
        self.engine = self._connect()
        await self.open()
        return await self.engine.adopt(known)

    async def close(self) -> None:
        """Stop and forget every task of this check, then close the engine."""
        try:
            for ref in self.started:
                await self.engine.stop(self.stop_order(ref, grace_s=0.0))
            for ref in self.started:
                await self.exit_of(ref)
            await self.engine.forget(self.started)
        finally:
            await self.engine.close()

    @property
    def nodes(self) -> list[NodeSpec]:
        """The nodes reported, in order of their first report."""
        return [seen.spec for seen in self.seen if isinstance(seen, NodeReported)]

    def order(self, changes: dict[str, object], *, epoch: int = EPOCH) -> LaunchTask:
        """Return an order for a new task on the first node."""
        job = JobId(f"conformance-{next(self._numbers):05d}")
        base = LaunchTask(
            effect_id=EffectId(f"launch:{job}/1/0"),
            epoch=epoch,
            deadline_s=time.time() + self._deadline_s,
            site=self.engine.site,
            node=self.nodes[0].name,
            job_id=job,
            attempt=1,
            task=0,
            user=self._user,
            command="",
        )
        return msgspec.structs.replace(base, **changes)

    async def start(self, changes: dict[str, object]) -> tuple[LaunchTask, TaskRef]:
        """Launch a new task and check the answer.

        A refusal that may be tried again is, with a new task: who had the devices before may
        not have let go of them yet.
        """
        give_up_s = time.monotonic() + self._deadline_s
        while True:
            order = self.order(changes)
            ref = ref_of(order)
            self.started.append(ref)
            answer = await self.engine.launch(order, {})
            is_refused = isinstance(answer, TaskLaunchFailed) and answer.is_retryable
            if not is_refused or time.monotonic() > give_up_s:
                break
            await asyncio.sleep(RETRY_S)
        require(isinstance(answer, TaskStarted), f"launch answered {answer}")
        require(answer.effect_id == order.effect_id, "the answer names another effect")
        return order, ref

    def stop_order(self, ref: TaskRef, *, grace_s: float, epoch: int = EPOCH) -> StopTask:
        """Return an order to stop a task."""
        return StopTask(
            effect_id=EffectId(f"stop:{ref.key}"),
            epoch=epoch,
            deadline_s=time.time() + self._deadline_s,
            site=self.engine.site,
            node=ref.node,
            job_id=ref.job_id,
            attempt=ref.attempt,
            task=ref.task,
            grace_s=grace_s,
        )

    def signal_order(self, ref: TaskRef, signal: str) -> SignalTask:
        """Return an order to signal a task."""
        stop = self.stop_order(ref, grace_s=0.0)
        return SignalTask(
            effect_id=EffectId(f"signal:{ref.key}"),
            epoch=stop.epoch,
            deadline_s=stop.deadline_s,
            site=stop.site,
            node=stop.node,
            job_id=stop.job_id,
            attempt=stop.attempt,
            task=stop.task,
            signal=signal,
        )

    def cut_order(self, number: int, count: int) -> ReconfigureDevice:
        """Return an order to cut the first device that can be, into so many smallest slices.

        No slice makes it whole.
        """
        for node in self.nodes:
            for device in node.devices:
                profiles = profiles_of(device)
                if not profiles or (device.mig is not None and device.mig.fixed):
                    continue
                small = min(profiles, key=lambda profile: (profile.size, profile.compute))
                return ReconfigureDevice(
                    effect_id=EffectId(f"slices:{node.name}/{device.index}/{number}"),
                    epoch=EPOCH,
                    deadline_s=time.time() + self._deadline_s,
                    site=self.engine.site,
                    node=node.name,
                    index=device.index,
                    number=number,
                    uuid=device.uuid,
                    is_on=count > 0,
                    slices=tuple(
                        MigSlice(profile=small.name, start=start, size=small.size)
                        for start in small.starts[:count]
                    ),
                )
        raise Failure("cuts_devices is claimed, and no device can be cut")

    async def reconfigure(self, order: ReconfigureDevice) -> DeviceReconfigured:
        """Have a device cut and check whom the answer is for."""
        require(isinstance(self.engine, CuttingEngine), "cuts_devices without `reconfigure`")
        assert isinstance(self.engine, CuttingEngine)
        answer = await self.engine.reconfigure(order)
        require(answer.effect_id == order.effect_id, "the answer names another effect")
        return answer

    def exits_of(self, ref: TaskRef) -> list[TaskExited]:
        """Return the ends of a task told so far."""
        return [
            seen
            for seen in self.seen
            if isinstance(seen, TaskExited)
            and (seen.job_id, seen.attempt, seen.task) == (ref.job_id, ref.attempt, ref.task)
        ]

    async def exit_of(self, ref: TaskRef, *, count: int = 1) -> TaskExited:
        """Wait until the end of a task was told so often; return the last."""
        await self.until(lambda: len(self.exits_of(ref)) >= count, f"TaskExited of {ref.key}")
        return self.exits_of(ref)[-1]

    async def lines(self, ref: TaskRef, query: LogQuery) -> list[LogLine]:
        """Return a task's own log lines (those of the engine left out)."""
        async with asyncio.timeout(self._deadline_s):
            found = [line async for line in self.engine.logs(ref, query)]
        return [line for line in found if line.stream != "tercio"]

    async def until_printed(self, ref: TaskRef, text: str) -> None:
        """Wait until a running task has printed a line."""
        async with asyncio.timeout(self._deadline_s):
            async for line in self.engine.logs(ref, LogQuery(is_following=True)):
                if line.text == text:
                    return
        raise Failure(f"{ref.key} never printed {text!r}")

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for an observation."""
        try:
            async with asyncio.timeout(self._deadline_s), self._news:
                await self._news.wait_for(is_so)
        except TimeoutError:
            raise Failure(f"no {what} within {self._deadline_s:g}s; got {self.seen}") from None

    def _deliver(self, observation: Observation) -> None:
        self.seen.append(observation)
        task = asyncio.ensure_future(self._wake())
        task.add_done_callback(lambda done: done.result())

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()


def require(is_so: bool, otherwise: str) -> None:
    """Raise Failure unless something holds."""
    if not is_so:
        raise Failure(otherwise)


def ref_of(order: LaunchTask) -> TaskRef:
    """Return the reference of the task that an order starts."""
    return TaskRef(job_id=order.job_id, attempt=order.attempt, task=order.task, node=order.node)
