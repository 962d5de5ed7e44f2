"""The live server: one writer task around the driver.

A turn takes what is in the inbox, decides, writes the entries in one durable transaction,
and only then answers, performs effects, and shows the entries to followers. While the write
is on its way the next turn's work collects, so that one transaction carries many requests.

When the journal refuses a write, the driver is rebuilt from the journal, so that nothing of
the turn is kept; its requests are answered with the error, its observations wait. Reads go
on. The server tries again by itself, and goes on when the journal takes writes.

    controller = Controller(journal, {SiteName("local"): engine}, config, SystemClock())
    await controller.start()
    outcome = await controller.execute(SubmitJob(spec=spec), principal)
    await controller.stop()
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from tercio.config import Config
from tercio.core.driver import Driver, DriverSettings
from tercio.engines.base import Engine
from tercio.errors import StoreError, UserError
from tercio.logs import facts
from tercio.model.commands import AnyCommand, SubmitJob
from tercio.model.events import AnyEvent, Entry, ServerStarted, TaskExited
from tercio.model.identity import Principal
from tercio.model.ids import SiteName
from tercio.model.units import format_duration
from tercio.runtime.cadence import Cadence
from tercio.runtime.clock import Clock
from tercio.runtime.dispatch import Dispatcher
from tercio.runtime.faults import FaultPoints, NoFaults
from tercio.runtime.feed import Feed, Resync
from tercio.runtime.inbox import Inbox, Outcome, Request, stopping
from tercio.runtime.metrics import Metrics
from tercio.runtime.powering import Powering
from tercio.runtime.progress import Progress
from tercio.runtime.recorder import Recorder
from tercio.runtime.retention import Retention
from tercio.runtime.sites import Sites
from tercio.runtime.telemetry import Telemetry
from tercio.runtime.turn import Turn, give_answers, refuse, take_in
from tercio.store.journal import Journal
from tercio.store.secrets import SecretStore
from tercio.store.workdirs import WorkdirStore

__all__ = ["Controller", "Outcome", "Resync"]

_DRAIN_S: Final = 5.0
_RETRY_FACTOR_MAX: Final = 16
_CLOCK_SLACK_S: Final = 5.0
log = logging.getLogger(__name__)


class Controller:
    """See the module's description.

    Args:
        journal: open; closed by its owner after `stop`.
        engines: by site, not open yet.
        config: of the process.
        clock: all waiting goes through it.
        version: of the program, for the journal.
        settings: of the driver.
        faults: points at which a test can break things.

    Attributes:
        metrics: of this server.
        telemetry: what the nodes say of themselves.
        progress: follows running jobs by their marks; started by its owner.
        secrets, workdirs: the stores beside the journal.
    """

    def __init__(
        self,
        journal: Journal,
        engines: Mapping[SiteName, Engine],
        config: Config,
        clock: Clock,
        *,
        version: str = "0",
        first_port: int = 0,
        settings: DriverSettings | None = None,
        faults: FaultPoints | None = None,
    ) -> None:
        self.metrics = Metrics()
        state_path = config.state_path
        self.secrets = SecretStore(state_path / "secrets")
        self.workdirs = WorkdirStore(
            state_path / "workdirs", bytes_max=config.store.workdir_bytes_max
        )
        self._journal = journal
        self._engines = engines
        self._config = config
        self._clock = clock
        self._version = version
        self._first_port = first_port
        self._settings = settings
        self._faults = faults or NoFaults()
        self._driver: Driver | None = None
        self._inbox = Inbox(clock, requests_max=config.runtime.requests_max)
        self._feed = Feed(journal, newest=lambda: self.driver.seq)
        self.telemetry = Telemetry(
            cluster=lambda: self.driver.cluster,
            deliver=self._inbox.deliver,
            now=clock.now_s,
            overrides=config.health.overrides,
            poll_s=config.health.poll_s,
            keep_s=config.health.keep_s,
        )
        self.progress = Progress(
            cluster=lambda: self.driver.cluster,
            engines=engines,
            telemetry=self.telemetry,
            deliver=self._inbox.deliver,
            now=clock.now_s,
            poll_s=config.health.poll_s,
        )
        self._dispatcher, self._sites, self.retention, self.powering = self._connect()
        self._recorder = Recorder(journal, self.secrets, self._faults, self.metrics)
        self._writer: asyncio.Task[None] | None = None
        self._forgetter: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._ending = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stall: StoreError | None = None
        self._is_stale = False
        self._retry_factor = 1
        self._behind_s = 0.0
        self._wake_s: float | None = None
        self._cadence = Cadence(config.scheduler)

    @property
    def driver(self) -> Driver:
        """The driver, to be read only. Another object after the journal refused a write."""
        if self._driver is None:
            raise RuntimeError("the controller is not started")
        return self._driver

    @property
    def sites(self) -> tuple[SiteName, ...]:
        """Names of the connected sites."""
        return tuple(self._engines)

    @property
    def site_errors(self) -> Mapping[SiteName, str]:
        """Why sites are not open, by site."""
        return self._sites.errors

    def engine_of(self, site: SiteName) -> Engine:
        """Return the engine of a site.

        Raises:
            UserError: `not_found` when this server has no such site.
        """
        engine = self._engines.get(site)
        if engine is None:
            raise UserError(f"site {site} is not in this server's configuration", code="not_found")
        return engine

    def notes(self) -> tuple[str, ...]:
        """Return what an operator should know now, one line each."""
        found = [f"site {site}: {why}" for site, why in self._sites.errors.items()]
        if self._behind_s > _CLOCK_SLACK_S:
            behind = format_duration(self._behind_s)
            found.append(f"this machine's clock was {behind} behind the journal at the start")
        if self._stall is not None:
            found.append(f"no change is accepted: {self._stall}")
        return tuple(found)

    async def start(self) -> None:
        """Recover, begin a new epoch, open the engines, adopt what runs, and go on.

        Raises:
            StoreError: the journal cannot be read or written.
        """
        try:
            await self._begin()
        except BaseException:
            await self.abort()
            raise

    async def stop(self) -> None:
        """Answer what was asked, let effects under way end, write a checkpoint, close engines.

        Jobs go on. The journal stays open.
        """
        self._is_stopping = True
        await self._end(self._forgetter)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._dispatcher.drain()
        self._ending.set()
        self._inbox.ring()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        await self._dispatcher.abort()
        await self._sites.close()
        if self._stall is None and not self._failed.done():
            await self._recorder.checkpoint(self.driver)
        self._close()
        log.info("server_stopped", extra=facts(seq=self.driver.seq))

    async def abort(self) -> None:
        """Stop at once, as a crash does: nothing is drained, nothing is written."""
        self._is_stopping = True
        await self._end(self._forgetter)
        await self._end(self._writer)
        await self._dispatcher.abort()
        await self._sites.close()
        self._close()

    async def failed(self) -> None:
        """Return never; raise what made the writer stop, which is a bug or a crash.

        The process should end then: after a restart the state is again that of the journal.
        """
        await asyncio.shield(self._failed)

    async def execute(
        self,
        command: AnyCommand,
        principal: Principal,
        *,
        secrets: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Do one command; returns when it is durable.

        Raises:
            UserError: it was refused; nothing changed.
            StoreError: the journal takes no writes now; nothing changed.
        """
        return await self._ask([command], principal, [secrets or {}])

    async def execute_many(
        self,
        commands: Sequence[SubmitJob],
        principal: Principal,
        *,
        secrets: Sequence[Mapping[str, str]] | None = None,
    ) -> Outcome:
        """Submit many jobs, all or none; `secrets` are by position.

        Raises:
            UserError: one was refused; nothing changed.
            StoreError: the journal takes no writes now; nothing changed.
        """
        return await self._ask(commands, principal, secrets or [{}] * len(commands))

    def subscribe(self, since: int) -> AsyncIterator[Entry]:
        """Yield durable entries after sequence `since`, until the server stops.

        Raises:
            Resync: while iterating, when they are no longer kept.
        """
        return self._feed.follow(since)

    def subscribe_pages(self, since: int) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the same, as many entries at once as there are."""
        return self._feed.pages(since)

    async def _ask(
        self,
        commands: Sequence[AnyCommand],
        principal: Principal,
        secrets: Sequence[Mapping[str, str]],
    ) -> Outcome:
        if self._is_stopping or self._failed.done():
            raise stopping()
        if self._stall is not None:
            raise StoreError(str(self._stall))
        request = Request(commands, principal, secrets)
        kind = type(commands[0]).__name__ if commands else "none"
        try:
            outcome = await self._inbox.ask(request)
        except UserError:
            self.metrics.commands.labels(kind, "refused").inc(len(commands))
            raise
        except Exception:
            self.metrics.commands.labels(kind, "failed").inc(len(commands))
            raise
        self.metrics.commands.labels(kind, "done").inc(len(commands))
        return outcome

    def _connect(self) -> tuple[Dispatcher, Sites, Retention, Powering]:
        """Make what works beside the writer and tells it by the inbox."""
        dispatcher = Dispatcher(
            engines=self._engines,
            secrets=self.secrets,
            clock=self._clock,
            deliver=self._inbox.deliver,
            faults=self._faults,
            metrics=self.metrics,
            effects_max=self._config.runtime.effects_max,
            webhook_timeout_s=self._config.runtime.webhook_timeout_s,
            repair_command=self._config.health.repair_command,
        )
        sites = Sites(
            engines=self._engines,
            dispatcher=dispatcher,
            clock=self._clock,
            cluster=lambda: self.driver.cluster,
            deliver=self.observe,
        )
        retention = Retention(
            config=self._config.store,
            journal=self._journal,
            engines=self._engines,
            workdirs=self.workdirs,
            clock=self._clock,
            cluster=lambda: self.driver.cluster,
            deliver=self._inbox.deliver,
        )
        powering = Powering(
            driver=lambda: self.driver, telemetry=self.telemetry,
            deliver=self._inbox.deliver, now=self._clock.now_s, poll_s=self._config.health.poll_s,
            steps=self.progress.steps_of,
        )  # fmt: skip
        return dispatcher, sites, retention, powering

    async def _begin(self) -> None:
        self._driver = await self._recover()
        self._behind_s = self.driver.cluster.now_s - self._clock.now_s()
        if self._behind_s > _CLOCK_SLACK_S:
            log.warning("clock_behind_journal", extra=facts(behind_s=round(self._behind_s, 1)))
        self._clock.not_before(self.driver.cluster.now_s)
        epoch = max(self.driver.cluster.epoch, self._journal.epoch_floor) + 1
        begun = Turn([], [])
        event = ServerStarted(
            at_s=self._clock.now_s(),
            epoch=epoch,
            version=self._version,
            jobs_floor=self._journal.jobs_floor,
            first_port=self._first_port,
        )
        begun.add(self.driver.step([event], self._clock.now_s(), is_scheduling=False))
        await self._recorder.write(begun)
        self._publish(begun)
        await asyncio.to_thread(self.secrets.prune, list(self.driver.cluster.jobs))
        self.metrics.watch(
            cluster=lambda: self.driver.cluster,
            inbox_depth=lambda: self._inbox.depth,
            in_flight=lambda: self._dispatcher.in_flight,
        )
        self.metrics.watch_nodes(self.telemetry.exported)
        for effect in self.driver.reissue():
            # They wait in the dispatcher until their site is open.
            self._dispatcher.perform(effect)
        await self._sites.open()
        await self._turn()  # what the engines reported
        self._writer = asyncio.create_task(self._run())
        self._forgetter = asyncio.create_task(self.retention.run())
        log.info("server_started", extra=facts(epoch=epoch, seq=self.driver.seq))

    def observe(self, event: AnyEvent) -> None:
        """Take what an engine saw; the end of a task with what its devices measured."""
        self._inbox.deliver(self.telemetry.ended(event) if isinstance(event, TaskExited) else event)

    # The writer.

    async def _run(self) -> None:
        try:
            while not self._ending.is_set() or (self._inbox.depth and self._stall is None):
                if self._stall is None:
                    await self._inbox.wait(self._wake_s)
                    await self._turn()
                else:
                    await self._try_again()
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            log.critical("writer_failed", exc_info=failure)
            if not self._failed.done():
                self._failed.set_exception(failure)
            for request in self._inbox.take_requests():
                request.fail(UserError("the server failed", code="unavailable"))

    async def _turn(self) -> None:
        requests, observations = self._inbox.take(self._config.runtime.turn_max)
        turn = Turn(requests, observations)
        try:
            self._decide(turn)
            await self._recorder.write(turn)
        except StoreError as refusal:
            await self._undo(turn, refusal)
        except BaseException:
            for request in turn.requests:
                request.fail(UserError("the server failed", code="unavailable"))
            raise
        else:
            self._publish(turn)
            fresh = self.driver.seq - self._recorder.checkpoint_seq
            if fresh >= self._config.store.checkpoint_entries:
                await self._recorder.checkpoint(self.driver)

    def _decide(self, turn: Turn) -> None:
        now_s = self._clock.now_s()
        take_in(self.driver, turn, now_s)
        is_scheduling = not self._is_stopping and self._cadence.allows(
            now_s, has_requests=bool(turn.requests)
        )
        begun_s = time.perf_counter()
        step = self.driver.step((), now_s, is_scheduling=is_scheduling)
        spent_s = time.perf_counter() - begun_s
        turn.add(step)
        self._wake_s = step.wake_at_s
        if is_scheduling:
            self.metrics.cycle_s.observe(spent_s)
            self._cadence.ran(now_s, spent_s)
        elif self.driver.is_cycle_due(now_s):
            # The step asks to be woken at once for the cycle that was put off.
            ready_s = max(now_s, self._cadence.ready_s)
            timer_s = self.driver.cluster.next_timer_s()
            self._wake_s = ready_s if timer_s is None else min(ready_s, timer_s)

    def _publish(self, turn: Turn) -> None:
        """Everything that waits for durability."""
        self._feed.publish(turn.entries)
        give_answers(turn)
        for effect in turn.effects:
            self._dispatcher.perform(effect)
        if turn.entries:
            self.metrics.write_entries.observe(len(turn.entries))
        for entry in turn.entries:
            self.metrics.entries.labels(type(entry.event).__name__).inc()
        for part in turn.refused:
            self.metrics.refused_plan_parts.inc()
            log.error("plan_part_refused", extra=facts(part=part))

    # A journal that refuses.

    async def _undo(self, turn: Turn, refusal: StoreError) -> None:
        log.error("journal_stalled", extra=facts(error=str(refusal)))
        self.metrics.store_errors.inc()
        self.metrics.is_stalled.set(1)
        self._stall = refusal
        self._is_stale = True
        await self._recorder.drop_secrets(turn)
        await self._rebuild()
        refuse(turn, str(refusal))
        self._inbox.give_back(turn.observations)
        self._retry_factor = 1

    async def _rebuild(self) -> None:
        try:
            self._driver = await self._recover()
        except StoreError as failure:
            log.error("rebuild_failed", extra=facts(error=str(failure)))
        else:
            self._is_stale = False

    async def _try_again(self) -> None:
        if self._stall is not None:
            for request in self._inbox.take_requests():
                request.fail(StoreError(str(self._stall)))
        pause_s = self._config.runtime.store_retry_s * self._retry_factor
        self._retry_factor = min(self._retry_factor * 2, _RETRY_FACTOR_MAX)
        with suppress(TimeoutError):
            async with self._clock.deadline(self._clock.now_s() + pause_s):
                await self._ending.wait()
                return
        if self._is_stale:
            await self._rebuild()
        try:
            await self._recorder.probe()
        except StoreError as failure:
            self._stall = failure
            return
        if not self._is_stale:
            log.info("journal_goes_on", extra=facts(seq=self.driver.seq))
            self._stall = None
            self.metrics.is_stalled.set(0)
            self._wake_s = self._clock.now_s()

    async def _recover(self) -> Driver:
        return await self._recorder.recover(
            settings=self._settings, seed=self._config.scheduler.seed
        )

    async def _end(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _close(self) -> None:
        self._inbox.close()
        self._feed.close()
        self._recorder.close()
        if self._failed.done():
            self._failed.exception()
