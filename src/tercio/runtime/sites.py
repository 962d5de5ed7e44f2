"""The engines of this server: opened, given back their running tasks, tried again when away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tercio.core.cluster import Cluster
from tercio.engines.base import ClosingEngine, Engine, Observation, TaskRef
from tercio.errors import EngineError
from tercio.logs import facts
from tercio.model.effects import StopTask
from tercio.model.events import AnyEvent, NodeLost, NodeReported
from tercio.model.ids import EffectId, NodeName, SiteName
from tercio.runtime.clock import Clock
from tercio.runtime.closing import keep_closed
from tercio.runtime.dispatch import Dispatcher
from tercio.runtime.recovery import believed_tasks, is_live

_START_WAIT_S: Final = 20.0
_OPEN_TIMEOUT_S: Final = 120.0
_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0
_STRAY_GRACE_S: Final = 10.0
_STRAY_DEADLINE_S: Final = 300.0
log = logging.getLogger(__name__)


class Sites:
    """Opens every engine and keeps at it.

    Attributes:
        errors: why a site is not open, or what of it does not work, by site.
    """

    def __init__(
        self,
        *,
        engines: Mapping[SiteName, Engine],
        dispatcher: Dispatcher,
        clock: Clock,
        cluster: Callable[[], Cluster],
        deliver: Callable[[AnyEvent], None],
    ) -> None:
        self.errors: dict[SiteName, str] = {}
        self._engines = engines
        self._dispatcher = dispatcher
        self._clock = clock
        self._cluster = cluster
        self._deliver = deliver
        self._opening: dict[SiteName, asyncio.Task[None]] = {}
        self._closing: list[asyncio.Task[None]] = []
        self._open: list[SiteName] = []

    async def open(self) -> None:
        """Open all sites; those that take longer than a start may wait go on by themselves."""
        self._lose_nodes_without_site()
        first_tries: list[asyncio.Event] = []
        for site in self._engines:
            tried = asyncio.Event()
            first_tries.append(tried)
            self._opening[site] = asyncio.create_task(self._keep_opening(site, tried))
        try:
            async with self._clock.deadline(self._clock.now_s() + _START_WAIT_S):
                for tried in first_tries:
                    await tried.wait()
        except TimeoutError:
            log.warning("sites_slow", extra=facts(open=len(self._open), all=len(self._engines)))

    async def close(self) -> None:
        """Close what is open. Tasks go on where the engine lets them."""
        tasks = [*self._opening.values(), *self._closing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for site in self._open:
            try:
                async with asyncio.timeout(_START_WAIT_S):
                    await self._engines[site].close()
            except (EngineError, TimeoutError) as failure:
                log.warning("site_close_failed", extra=facts(site=site, error=str(failure)))

    async def _keep_opening(self, site: SiteName, tried: asyncio.Event) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                async with self._clock.deadline(self._clock.now_s() + _OPEN_TIMEOUT_S):
                    await self._open_once(site)
            except (EngineError, TimeoutError) as failure:
                self._note_failure(site, str(failure) or "no answer")
            except Exception as failure:
                # A bug of the engine: said aloud and tried again, or its jobs would hang unseen.
                log.error("site_broke", exc_info=failure, extra=facts(site=site))
                self._note_failure(site, f"{type(failure).__name__}: {failure}")
            else:
                self.errors.pop(site, None)
                return
            finally:
                tried.set()
            await self._clock.sleep_until(self._clock.now_s() + pause_s)
            pause_s = min(pause_s * 2, _RETRY_MAX_S)

    def _note_failure(self, site: SiteName, why: str) -> None:
        self.errors[site] = why
        log.warning("site_unreachable", extra=facts(site=site, error=why))
        self._lose_nodes(site, set(), f"site {site} is unreachable: {why}")

    async def _open_once(self, site: SiteName) -> None:
        engine = self._engines[site]
        reported: set[NodeName] = set()

        def deliver(event: Observation) -> None:
            if isinstance(event, NodeReported):
                reported.add(event.spec.name)
            self._deliver(event)

        await engine.open(deliver)
        try:
            self._lose_nodes(site, reported, f"site {site} does not report it")
            strays = await engine.adopt(believed_tasks(self._cluster(), site))
        except BaseException:
            await engine.close()
            raise
        self._open.append(site)
        self._dispatcher.set_open(site, is_open=True)
        for ref in strays:
            self._stop_stray(site, ref)
        if engine.capabilities.closes_nodes and isinstance(engine, ClosingEngine):
            keeping = keep_closed(
                engine, clock=self._clock, cluster=self._cluster, note=partial(self._note, site)
            )
            self._closing.append(asyncio.create_task(keeping))

    def _note(self, site: SiteName, wrong: str) -> None:
        if wrong:
            self.errors[site] = wrong
        else:
            self.errors.pop(site, None)

    def _stop_stray(self, site: SiteName, ref: TaskRef) -> None:
        """Stop a task that the state does not know; one in launch is completed by its order."""
        cluster = self._cluster()
        if is_live(cluster, ref.job_id, ref.attempt, ref.task):
            return
        log.warning("stray_task_stopped", extra=facts(site=site, task=ref.key, node=ref.node))
        self._dispatcher.perform(
            StopTask(
                effect_id=EffectId(f"stop:{ref.key}"),
                epoch=cluster.epoch,
                deadline_s=self._clock.now_s() + _STRAY_DEADLINE_S,
                site=site,
                node=ref.node,
                job_id=ref.job_id,
                attempt=ref.attempt,
                task=ref.task,
                grace_s=_STRAY_GRACE_S,
            )
        )

    def _lose_nodes(self, site: SiteName, reported: set[NodeName], reason: str) -> None:
        for name, node in self._cluster().nodes.items():
            if node.spec.site == site and name not in reported and node.lost_s is None:
                self._deliver(NodeLost(at_s=self._clock.now_s(), node=name, reason=reason))

    def _lose_nodes_without_site(self) -> None:
        unknown = dict.fromkeys(node.spec.site for node in self._cluster().nodes.values())
        for site in unknown:
            if site not in self._engines:
                reason = f"site {site} is not in this server's configuration"
                self._lose_nodes(site, set(), reason)
