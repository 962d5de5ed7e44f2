"""A state directory and simulated machines that outlive the servers started on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tercio.config import Config, RuntimeConfig, SchedulerConfig, StoreConfig
from tercio.core.driver import DriverSettings
from tercio.core.records import Job
from tercio.engines.sim.engine import SimEngine
from tercio.engines.sim.script import SimScript
from tercio.engines.sim.state import SimState
from tercio.engines.sim.timeline import VirtualClock
from tercio.model.commands import SubmitJob
from tercio.model.events import AnyEvent
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId, SiteName
from tercio.model.job import TERMINAL_JOB_STATES, JobSpec
from tercio.model.node import NodeSpec
from tercio.runtime.clock import Clock, SteppedClock, SystemClock
from tercio.runtime.controller import Controller
from tercio.runtime.faults import FaultPoints
from tercio.store.journal import Journal
from tercio.testing.factories import make_nodes, make_principal

SIM = SiteName("sim")
ADMIN = make_principal("root", Role.ADMIN)
ANN = make_principal("ann")
T = TypeVar("T")


def run(test: Coroutine[Any, Any, T], *, timeout_s: float = 30.0) -> T:
    """Run one asynchronous test with a bound that only a defect reaches."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await test

    return asyncio.run(bounded())


async def spin(holds: Callable[[], bool]) -> None:
    """Let the loop turn until something holds that no journal entry tells of."""
    while not holds():
        await asyncio.sleep(0)


class World:
    """Starts, stops and crashes servers. `clock` and the machines are moved by `advance`."""

    def __init__(
        self,
        path: Path,
        *,
        nodes: list[NodeSpec] | None = None,
        script: SimScript | None = None,
        is_stepped: bool = False,
        state: SimState | None = None,
        store: StoreConfig | None = None,
        scheduler: SchedulerConfig | None = None,
        engine_class: type[SimEngine] = SimEngine,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        self.path = path
        self.nodes = make_nodes(2) if nodes is None else nodes
        self.script = script
        self.state = SimState() if state is None else state
        self.machines_clock = VirtualClock(1_700_000_000.0)
        self.is_stepped = is_stepped
        self.clock: Clock = SteppedClock(1_700_000_000.0) if is_stepped else SystemClock()
        self.config = Config(
            state_dir=str(path),
            store=store or StoreConfig(),
            scheduler=scheduler or SchedulerConfig(),
            runtime=runtime or RuntimeConfig(store_retry_s=0.001),
        )
        self.engine_class = engine_class
        self.engine = self.new_engine()
        self.journal: Journal | None = None
        self.controller: Controller | None = None

    def new_engine(self) -> SimEngine:
        clock = self.machines_clock if self.is_stepped else self.clock.now_s
        return self.engine_class(
            site=SIM, nodes=self.nodes, clock=clock, script=self.script, state=self.state
        )

    async def start(self, *, faults: FaultPoints | None = None) -> Controller:
        """Start a server on what the last one left."""
        self.engine = self.new_engine()
        self.journal = Journal.open(self.path / "journal.db")
        self.controller = Controller(
            self.journal,
            {SIM: self.engine},
            self.config,
            self.clock,
            settings=DriverSettings(is_validating=True),
            faults=faults,
        )
        try:
            await self.controller.start()
        except BaseException:
            self.journal.close()
            raise
        return self.controller

    async def stop(self) -> None:
        assert self.controller is not None
        assert self.journal is not None
        await self.controller.stop()
        self.journal.close()

    async def crash(self) -> None:
        """End the server as a kill does; the machines go on."""
        assert self.controller is not None
        assert self.journal is not None
        await self.controller.abort()
        self.journal.close()

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass on the server and the machines."""
        assert isinstance(self.clock, SteppedClock)
        to_s = self.clock.now_s() + seconds
        self.engine.advance(to_s)
        self.clock.advance(to_s)

    @property
    def next_s(self) -> float | None:
        """When something is due next on the server or the machines."""
        assert isinstance(self.clock, SteppedClock)
        due = [self.clock.next_s, self.engine.next_s]
        return min((at_s for at_s in due if at_s is not None), default=None)

    async def settle(self, *asked: asyncio.Task[Any]) -> None:
        """Let the server do everything that it can do without time passing."""
        idle, before = 0, ()
        while idle < 4:
            await self.running._recorder._run(lambda: None)
            for _ in range(10):
                await asyncio.sleep(0)
            depth = (self.running._inbox.depth, self.running._dispatcher.in_flight)
            seen = (self.running.driver.seq, *depth, *[task.done() for task in asked])
            idle, before = (idle + 1 if seen == before else 0), seen

    async def __aenter__(self) -> World:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await (self.stop() if kind is None else self.crash())

    @property
    def running(self) -> Controller:
        assert self.controller is not None
        return self.controller

    def job(self, job_id: JobId) -> Job:
        return self.running.driver.cluster.jobs[job_id]

    async def submit(self, spec: JobSpec, by: Principal = ANN, **fields: Any) -> JobId:
        secrets = fields.pop("secrets", None)
        outcome = await self.running.execute(SubmitJob(spec=spec, **fields), by, secrets=secrets)
        (job_id,) = outcome.job_ids
        return job_id

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when the condition holds after some durable entry."""
        since = self.running.driver.seq
        if holds():
            return
        async for _ in self.running.subscribe(since):
            if holds():
                return

    async def ended(self, job_id: JobId) -> Job:
        await self.until(lambda: self.job(job_id).state in TERMINAL_JOB_STATES)
        return self.job(job_id)

    def events(self, kind: type[AnyEvent] | None = None) -> list[AnyEvent]:
        assert self.journal is not None
        found = [entry.event for entry in self.journal.read(limit=1_000_000)]
        return [event for event in found if kind is None or isinstance(event, kind)]
