"""Every effect of a small scenario, one at a time, fails, is late, doubled, lost or overtaken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from live_world import run
from tercio.engines.sim.engine import SimEngine
from tercio.errors import EngineError
from tercio.model.effects import AnyEffect
from tercio.model.events import AnyEvent, TaskExited, TaskStarted
from tercio.model.job import TERMINAL_JOB_STATES, JobState
from tercio.runtime.faults import Act

from .scenario import Faults, Scenario


class OneBad(Faults):
    """Spoils the performance with number `at` and lets all others be."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__()
        self.at = at
        self.how = how
        self.next_done = asyncio.Event()

    async def perform(self, effect: AnyEffect, act: Act) -> AnyEvent | None:
        number = len(self.effects)
        self.effects.append(effect.effect_id)
        if number != self.at:
            answer = await act()
            self.next_done.set()
            return answer
        self.next_done.clear()
        assert self.world is not None
        clock = self.world.clock
        match self.how:
            case "fails":
                raise EngineError("no luck", engine="sim", operation="act", retryable=True)
            case "fails after it was done":
                await act()
                raise EngineError("no luck", engine="sim", operation="act", retryable=True)
            case "is refused for good":
                raise EngineError("no luck", engine="sim", operation="act", retryable=False)
            case "is late":
                await clock.sleep_until(clock.now_s() + 30.0)
                return await act()
            case "is too late":
                await clock.sleep_until(clock.now_s() + 1000.0)
                return await act()
            case "is done twice":
                first = await act()
                if first is not None:
                    self.world.running._inbox.deliver(first)
                return await act()
            case "is not answered":
                await act()
                await asyncio.Event().wait()
                return None
            case "is never done":
                await asyncio.Event().wait()
                return None
            case "is overtaken":
                await self._overtaken()
                return await act()
            case _:
                raise AssertionError(self.how)

    async def _overtaken(self) -> None:
        """Wait for the next effect on another task, if one comes in time."""
        assert self.world is not None
        clock = self.world.clock
        try:
            async with clock.deadline(clock.now_s() + 5.0):
                await self.next_done.wait()
        except TimeoutError:
            return


async def play(path: Path, at: int, how: str, **options: object) -> tuple[Scenario, OneBad]:
    faults = OneBad(at, how)
    scenario = Scenario(path, faults, **options)
    await scenario.play()
    return scenario, faults


@pytest.mark.parametrize(
    "how",
    [
        "fails", "fails after it was done", "is late", "is too late", "is done twice",
        "is not answered", "is never done", "is overtaken",
    ],
)  # fmt: skip
def test_one_effect_after_another(path: Path, how: str) -> None:
    async def test() -> None:
        at, most = 0, 1
        while at < most:
            scenario, faults = await play(path / str(at), at, how)
            most = len(faults.effects)
            await scenario.check()
            at += 1
        assert most >= 11

    run(test(), timeout_s=110.0)


def test_one_effect_after_another_is_refused_for_good(path: Path) -> None:
    """A refused launch fails its job, with the engine's reason; a stop is asked for again."""

    async def test() -> None:
        refused = 0
        at, most = 0, 1
        while at < most:
            scenario, faults = await play(path / str(at), at, "is refused for good")
            most = len(faults.effects)
            jobs = scenario.world.running.driver.cluster.jobs.values()
            assert all(job.state in TERMINAL_JOB_STATES for job in jobs)
            assert all(task.is_ended for task in scenario.world.state.tasks.values())
            failed = [job for job in jobs if job.state is JobState.FAILED]
            kind, _, task = faults.effects[at].partition(":")
            if kind == "stop" or task == "job-00003/1/0":
                # This one was asked to run again: what became of its first attempt is past.
                assert not failed
            else:
                (job,) = failed
                assert task.startswith(job.id)
                assert "no luck" in job.message
                refused += 1
            await scenario.check_replay()
            at += 1
        assert refused == 7

    run(test(), timeout_s=110.0)


class Doubling(SimEngine):
    """Tells every start and every end twice."""

    def _send(self, observation: AnyEvent) -> None:  # type: ignore[override]
        super()._send(observation)  # type: ignore[arg-type]
        if isinstance(observation, (TaskStarted, TaskExited)):
            super()._send(observation)


class Holding(SimEngine):
    """Keeps every second observation back until the next one, which then overtakes it."""

    kept: AnyEvent | None = None

    def _send(self, observation: AnyEvent) -> None:  # type: ignore[override]
        if self.kept is None and isinstance(observation, TaskExited):
            self.kept = observation
            self._timeline.at(self._clock() + 3.0, self._release)
            return
        super()._send(observation)  # type: ignore[arg-type]
        self._release()

    def _release(self) -> None:
        kept, self.kept = self.kept, None
        if kept is not None:
            super()._send(kept)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine_class", [Doubling, Holding])
def test_observations_doubled_and_overtaken(path: Path, engine_class: type[SimEngine]) -> None:
    async def test() -> None:
        scenario, _ = await play(path / "x", -1, "", engine_class=engine_class)
        await scenario.check()

    run(test())
