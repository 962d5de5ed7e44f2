from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from live_world import SIM, run, spin
from tercio.engines.sim.engine import SimEngine
from tercio.engines.sim.timeline import VirtualClock
from tercio.errors import EngineError
from tercio.model.effects import AnyEffect, LaunchTask, SignalTask, StopTask
from tercio.model.events import (
    AnyEvent,
    EffectAnswered,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.runtime.clock import SteppedClock
from tercio.runtime.dispatch import Dispatcher
from tercio.runtime.faults import NoFaults
from tercio.runtime.metrics import Metrics
from tercio.store.secrets import SecretStore
from tercio.testing.factories import make_node

START_S = 1_700_000_000.0


class Faulty(SimEngine):
    """Raises the next of `errors` at each order; counts how many go side by side."""

    def __init__(self, errors: list[EngineError | None]) -> None:
        super().__init__(site=SIM, nodes=[make_node("n1")], clock=VirtualClock(START_S))
        self.errors = errors
        self.orders: list[str] = []
        self.now_in = 0
        self.most_in = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def _trip(self, name: str) -> None:
        self.orders.append(name)
        self.now_in += 1
        self.most_in = max(self.most_in, self.now_in)
        try:
            await self.gate.wait()
        finally:
            self.now_in -= 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        await self._trip(f"launch {order.task}")
        return await super().launch(order, secrets)

    async def stop(self, order: StopTask) -> None:
        await self._trip(f"stop {order.task}")
        await super().stop(order)

    async def signal(self, order: SignalTask) -> None:
        await self._trip(f"signal {order.task}")
        await super().signal(order)


class Bench:
    """A dispatcher on one engine, with what it told the core."""

    def __init__(self, path: Path, *errors: EngineError | None, effects_max: int = 4) -> None:
        self.clock = SteppedClock(START_S)
        self.engine = Faulty(list(errors))
        self.told: list[AnyEvent] = []
        self.dispatcher = Dispatcher(
            engines={SIM: self.engine},
            secrets=SecretStore(path / "secrets"),
            clock=self.clock,
            deliver=self.told.append,
            faults=NoFaults(),
            metrics=Metrics(),
            effects_max=effects_max,
            webhook_timeout_s=1.0,
        )

    async def open(self) -> Bench:
        await self.engine.open(self.told.append)
        self.told.clear()
        self.dispatcher.set_open(SIM, is_open=True)
        return self

    async def settle(self) -> None:
        await self.dispatcher.drain()

    async def after(self, *effects: AnyEffect) -> list[AnyEvent]:
        for effect in effects:
            self.dispatcher.perform(effect)
        await self.settle()
        return self.told


def fault(*, retryable: bool) -> EngineError:
    return EngineError("busy", engine="sim", operation="x", retryable=retryable)


def base(kind: str, task: int, site: SiteName = SIM) -> dict[str, object]:
    return {
        "effect_id": EffectId(f"{kind}:job-00001/1/{task}"),
        "epoch": 1,
        "deadline_s": START_S + 60.0,
        "site": site,
        "node": NodeName("n1"),
        "job_id": JobId("job-00001"),
        "attempt": 1,
        "task": task,
    }


def launch(task: int = 0, **fields: object) -> LaunchTask:
    return LaunchTask(**{**base("launch", task), "user": "ann", "command": "true", **fields})  # type: ignore[arg-type]


def stop(task: int = 0) -> StopTask:
    return StopTask(**base("stop", task), grace_s=1.0)  # type: ignore[arg-type]


def signal(name: str = "SIGSTOP") -> SignalTask:
    return SignalTask(**base("signal", 0), signal=name)  # type: ignore[arg-type]


def test_passing_fault_is_tried_again_with_growing_pauses(tmp_path: Path) -> None:
    async def test() -> None:
        bench = await Bench(tmp_path, fault(retryable=True), fault(retryable=True)).open()
        bench.dispatcher.perform(launch())
        pauses = []
        for count in (1, 2):
            await spin(lambda count=count: len(bench.engine.orders) == count)
            await spin(lambda: bench.clock.next_s < START_S + 60.0)  # type: ignore[operator]
            next_s = bench.clock.next_s
            assert next_s is not None
            pauses.append(round(next_s - bench.clock.now_s(), 3))
            bench.clock.advance(next_s)
        await bench.settle()
        assert pauses == [0.25, 0.5]
        assert [type(event) for event in bench.told] == [TaskStarted]

    run(test())


def test_launch_refused_for_good_fails_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        bench = await Bench(tmp_path, fault(retryable=False)).open()
        (event,) = await bench.after(launch())
        assert isinstance(event, TaskLaunchFailed)
        assert (event.effect_id, event.message) == ("launch:job-00001/1/0", "busy")
        assert not event.is_retryable

    run(test())


def test_signal_is_answered_done_or_not(tmp_path: Path) -> None:
    async def test() -> None:
        bench = await Bench(tmp_path, None, fault(retryable=False)).open()
        done, refused = await bench.after(signal(), signal("SIGCONT"))
        assert isinstance(done, EffectAnswered)
        assert isinstance(refused, EffectAnswered)
        assert (done.is_done, refused.is_done, refused.message) == (True, False, "busy")

    run(test())


def test_stop_is_tried_again_even_when_refused_for_good(tmp_path: Path) -> None:
    async def test() -> None:
        bench = await Bench(tmp_path, None, fault(retryable=False)).open()
        bench.dispatcher.perform(launch())
        bench.dispatcher.perform(stop())
        await spin(lambda: bench.engine.orders == ["launch 0", "stop 0"])
        await spin(lambda: bench.engine.now_in == 0)
        bench.clock.advance(START_S + 1.0)
        await bench.settle()
        bench.engine.advance(START_S + 5.0)
        assert bench.engine.orders == ["launch 0", "stop 0", "stop 0"]
        assert isinstance(bench.told[-1], TaskExited)

    run(test())


def test_no_answer_by_the_deadline_is_left_to_the_core_and_the_next_order_goes_on(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        bench = await Bench(tmp_path).open()
        bench.engine.gate.clear()
        bench.dispatcher.perform(launch())
        bench.dispatcher.perform(launch(deadline_s=START_S + 500.0))
        await spin(lambda: len(bench.engine.orders) == 1)
        bench.clock.advance(START_S + 61.0)
        bench.engine.gate.set()
        await bench.settle()
        assert bench.engine.orders == ["launch 0", "launch 0"]
        assert [type(event) for event in bench.told] == [TaskStarted]

    run(test())


def test_one_engine_takes_no_more_than_its_bound_side_by_side(tmp_path: Path) -> None:
    async def test() -> None:
        bench = await Bench(tmp_path, effects_max=4).open()
        bench.engine.gate.clear()
        for task in range(20):
            bench.dispatcher.perform(launch(task))
        await spin(lambda: bench.engine.now_in == 4)
        for _ in range(50):
            await asyncio.sleep(0)
        assert bench.dispatcher.in_flight == 20
        bench.engine.gate.set()
        await bench.settle()
        assert (bench.engine.most_in, len(bench.told)) == (4, 20)

    run(test())


def test_effects_wait_for_their_site_to_open(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path)
        bench.dispatcher.perform(launch())
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.engine.orders == []
        await bench.open()
        await bench.settle()
        assert bench.engine.orders == ["launch 0"]

    run(test())


def test_effect_of_a_site_that_is_not_configured_times_out(tmp_path: Path) -> None:
    async def test() -> None:
        bench = await Bench(tmp_path).open()
        bench.dispatcher.perform(launch(site=SiteName("gone")))
        for _ in range(20):
            await asyncio.sleep(0)
        bench.clock.advance(START_S + 61.0)
        await bench.settle()
        assert bench.told == []

    run(test())
