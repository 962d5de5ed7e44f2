"""Fail, lose the answer of, delay, duplicate or reorder the k-th effect, for every k."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path

import pytest
from live_world import run
from scenario import Scenario

from tercio.errors import EngineError
from tercio.model.effects import AnyEffect
from tercio.model.events import AnyEvent
from tercio.runtime.faults import Act, NoFaults

EFFECTS = 6  # four launches of first attempts, one of a retry, one stop


class Harm(StrEnum):
    FAIL = "fail"
    LOSE_ANSWER = "lose_answer"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"


class Spoiler(NoFaults):
    """Harms the k-th effect that is performed, once."""

    def __init__(self, harm: Harm | None, k: int) -> None:
        self.harm = harm
        self.k = k
        self.count = 0
        self.done = 0
        self.next_done = asyncio.Event()

    async def perform(self, effect: AnyEffect, act: Act) -> AnyEvent | None:
        number = self.count
        self.count += 1
        if number != self.k or self.harm is None:
            answer = await act()
            if number > self.k:
                self.next_done.set()
            return answer
        match self.harm:
            case Harm.FAIL:
                raise self._fault()
            case Harm.LOSE_ANSWER:
                await act()
                raise self._fault()
            case Harm.DUPLICATE:
                await act()
                return await act()
            case Harm.DELAY:
                for _ in range(200):
                    await asyncio.sleep(0)
                return await act()
            case Harm.REORDER:
                # The next effect goes first, unless there is none to wait for.
                waiting = asyncio.create_task(self.next_done.wait())
                await asyncio.wait([waiting], timeout=0.1)
                waiting.cancel()
                return await act()

    def _fault(self) -> EngineError:
        return EngineError("spoiled", engine="sim", operation="x", retryable=True)


def test_scenario_has_as_many_effects_as_are_spoiled(tmp_path: Path) -> None:
    async def test() -> None:
        spoiler = Spoiler(None, 0)
        scenario = Scenario(tmp_path)
        await scenario.play(spoiler)
        await scenario.finish()
        assert spoiler.count == EFFECTS

    run(test())


@pytest.mark.parametrize("harm", list(Harm))
@pytest.mark.parametrize("k", range(EFFECTS))
def test_one_spoiled_effect_changes_no_outcome(tmp_path: Path, harm: Harm, k: int) -> None:
    async def test() -> None:
        spoiler = Spoiler(harm, k)
        scenario = Scenario(tmp_path)
        await scenario.play(spoiler)
        await scenario.finish()
        assert spoiler.count > k

    run(test())
