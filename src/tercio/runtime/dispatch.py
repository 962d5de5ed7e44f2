"""Effects are performed here, after the entries that ordered them are durable.

| what happens at the engine | what the core is told |
|---|---|
| a launch is answered | the answer |
| a launch is refused for good (`EngineError`, not retryable) | `TaskLaunchFailed` |
| a stop is taken | nothing now; `TaskExited` comes as an observation |
| a signal is sent, a webhook called | `EffectAnswered` |
| the repair command has ended | `NodeRepairEnded` |
| a signal or webhook is refused for good | `EffectAnswered`, not done |
| a device was cut into slices, or could not be | `DeviceReconfigured` |
| a passing fault (`EngineError`, retryable) | nothing; tried again until the deadline |
| no answer by the deadline | nothing; the core notices by itself (`EffectTimedOut`) |

Effects on one task are performed one after the other, in the order they were given: a stop
never overtakes the launch it is to undo. Different tasks go side by side, up to a bound for
each engine. An engine that is not sure whether a launch left something behind must say
retryable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tercio.engines.base import CuttingEngine, Engine
from tercio.errors import EngineError, StoreError
from tercio.logs import facts
from tercio.model.effects import (
    AnyEffect,
    LaunchTask,
    Notify,
    ReconfigureDevice,
    RepairNode,
    SignalTask,
    StopTask,
)
from tercio.model.events import (
    AnyEvent,
    DeviceReconfigured,
    EffectAnswered,
    NodeRepairEnded,
    TaskLaunchFailed,
)
from tercio.model.ids import SiteName, task_key
from tercio.runtime import repairs, webhooks
from tercio.runtime.clock import Clock
from tercio.runtime.faults import FaultPoints, Point
from tercio.runtime.metrics import Metrics
from tercio.store.secrets import SecretStore

_BACKOFF_FIRST_S: Final = 0.25
_BACKOFF_MAX_S: Final = 10.0
log = logging.getLogger(__name__)


class Dispatcher:
    """Performs effects on the engines of this server."""

    def __init__(
        self,
        *,
        engines: Mapping[SiteName, Engine],
        secrets: SecretStore,
        clock: Clock,
        deliver: Callable[[AnyEvent], None],
        faults: FaultPoints,
        metrics: Metrics,
        effects_max: int,
        webhook_timeout_s: float,
        repair_command: str = "",
    ) -> None:
        self._engines = engines
        self._secrets = secrets
        self._clock = clock
        self._deliver = deliver
        self._faults = faults
        self._metrics = metrics
        self._webhook_timeout_s = webhook_timeout_s
        self._repair_command = repair_command
        self._slots = {site: asyncio.Semaphore(effects_max) for site in engines}
        self._webhook_slots = asyncio.Semaphore(8)
        self._open_sites = {site: asyncio.Event() for site in engines}
        self._last_by_task: dict[str, asyncio.Task[None]] = {}

    def set_open(self, site: SiteName, *, is_open: bool) -> None:
        """Say whether a site's engine takes orders; until then its effects wait."""
        event = self._open_sites[site]
        if is_open:
            event.set()
        else:
            event.clear()

    def perform(self, effect: AnyEffect) -> None:
        """Start to perform an effect; returns at once."""
        key = _chain_of(effect)
        task = asyncio.get_running_loop().create_task(
            self._perform(effect, self._last_by_task.get(key))
        )
        self._last_by_task[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    @property
    def in_flight(self) -> int:
        """Number of tasks and webhooks with an effect under way."""
        return len(self._last_by_task)

    async def drain(self) -> None:
        """Return when nothing is under way."""
        while self._last_by_task:
            await asyncio.wait(list(self._last_by_task.values()))

    async def abort(self) -> None:
        """Give up everything under way; a restart issues it again."""
        running = list(self._last_by_task.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _forget(self, key: str, done: asyncio.Task[None]) -> None:
        if self._last_by_task.get(key) is done:
            del self._last_by_task[key]
        if not done.cancelled() and (failure := done.exception()) is not None:
            log.error("effect_broke", exc_info=failure, extra=facts(subject=key))

    async def _perform(self, effect: AnyEffect, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        kind = type(effect).__name__
        try:
            async with self._clock.deadline(effect.deadline_s), self._slot(effect):
                answer = await self._until_done(effect)
        except TimeoutError:
            log.warning("effect_timed_out", extra=facts(effect_id=effect.effect_id))
            self._metrics.effects.labels(kind, "timed_out").inc()
            return
        self._metrics.effects.labels(kind, "done" if _is_good(answer) else "refused").inc()
        if answer is not None:
            self._deliver(answer)

    def _slot(self, effect: AnyEffect) -> asyncio.Semaphore:
        if isinstance(effect, Notify | RepairNode):
            return self._webhook_slots
        # A site that left the configuration has no engine; the effect will time out.
        return self._slots.get(effect.site, self._webhook_slots)

    async def _until_done(self, effect: AnyEffect) -> AnyEvent | None:
        pause_s = _BACKOFF_FIRST_S
        while True:
            try:
                self._faults.reach(Point.BEFORE_EFFECT)
                answer = await self._faults.perform(effect, lambda: self._act(effect))
                self._faults.reach(Point.AFTER_EFFECT)
                return answer
            except EngineError as failure:
                told = facts(
                    effect_id=effect.effect_id, error=str(failure), retryable=failure.retryable
                )
                log.warning("effect_failed", extra=told)
                self._metrics.effect_errors.labels(failure.engine, failure.operation).inc()
                if not failure.retryable and not isinstance(effect, StopTask):
                    return _refusal(effect, failure, self._clock.now_s())
            await self._clock.sleep_until(self._clock.now_s() + pause_s)
            pause_s = min(pause_s * 2, _BACKOFF_MAX_S)

    async def _act(self, effect: AnyEffect) -> AnyEvent | None:
        match effect:
            case LaunchTask():
                engine = await self._engine(effect.site)
                return await engine.launch(effect, await self._values(effect))
            case StopTask():
                await (await self._engine(effect.site)).stop(effect)
                return None
            case SignalTask():
                await (await self._engine(effect.site)).signal(effect)
            case ReconfigureDevice():
                return await _reconfigure(await self._engine(effect.site), effect)
            case RepairNode():
                done, told = await repairs.run(
                    self._repair_command, effect, until_s=effect.deadline_s - self._clock.now_s()
                )
                return NodeRepairEnded(
                    at_s=self._clock.now_s(),
                    node=effect.node,
                    effect_id=effect.effect_id,
                    succeeded=done,
                    message=told,
                )
            case Notify():
                await asyncio.to_thread(
                    webhooks.call, effect.url, effect.body, timeout_s=self._webhook_timeout_s
                )
        return EffectAnswered(at_s=self._clock.now_s(), effect_id=effect.effect_id)

    async def _engine(self, site: SiteName) -> Engine:
        if site not in self._engines:
            raise EngineError(
                f"site {site} is not in this server's configuration",
                engine=site,
                operation="find",
                retryable=True,
            )
        await self._open_sites[site].wait()
        return self._engines[site]

    async def _values(self, order: LaunchTask) -> Mapping[str, str]:
        if not order.secrets:
            return {}
        try:
            kept = await asyncio.to_thread(self._secrets.get, order.job_id)
        except StoreError as failure:
            raise EngineError(
                str(failure), engine=order.site, operation="read secrets", retryable=True
            ) from failure
        missing = [name for name in order.secrets if name not in kept]
        if missing:
            raise EngineError(
                f"the value of secret {missing[0]} is not kept here; submit the job again",
                engine=order.site,
                operation="read secrets",
                retryable=False,
            )
        return {name: kept[name] for name in order.secrets}


async def _reconfigure(engine: Engine, order: ReconfigureDevice) -> DeviceReconfigured:
    if not isinstance(engine, CuttingEngine):
        raise EngineError(
            f"the {engine.kind} engine cannot cut devices into slices",
            engine=engine.kind,
            operation="reconfigure",
            retryable=False,
        )
    return await engine.reconfigure(order)


def _chain_of(effect: AnyEffect) -> str:
    if isinstance(effect, ReconfigureDevice):
        return f"{effect.node}/{effect.index}"
    if isinstance(effect, Notify | RepairNode):
        return effect.effect_id
    return task_key(effect.job_id, effect.attempt, effect.task)


def _is_good(answer: AnyEvent | None) -> bool:
    if isinstance(answer, EffectAnswered):
        return answer.is_done
    if isinstance(answer, DeviceReconfigured):
        return answer.is_done
    return not isinstance(answer, TaskLaunchFailed)


def _refusal(effect: AnyEffect, failure: EngineError, now_s: float) -> AnyEvent:
    if isinstance(effect, LaunchTask):
        return TaskLaunchFailed(
            at_s=now_s,
            job_id=effect.job_id,
            attempt=effect.attempt,
            task=effect.task,
            effect_id=effect.effect_id,
            message=failure.message,
        )
    if isinstance(effect, ReconfigureDevice):
        return DeviceReconfigured(
            at_s=now_s,
            node=effect.node,
            effect_id=effect.effect_id,
            index=effect.index,
            is_done=False,
            message=failure.message,
        )
    return EffectAnswered(
        at_s=now_s, effect_id=effect.effect_id, is_done=False, message=failure.message
    )
