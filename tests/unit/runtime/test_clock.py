from __future__ import annotations

import asyncio

import pytest

from live_world import run
from tercio.runtime.clock import SteppedClock, SystemClock


class Hands:
    """The two clocks of a machine, moved by the test."""

    def __init__(self) -> None:
        self.wall_s = 1_000_000.0
        self.steady_s = 50.0

    def pass_time(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds

    def clock(self) -> SystemClock:
        return SystemClock(wall=lambda: self.wall_s, steady=lambda: self.steady_s)


def test_time_goes_on_steadily_when_the_wall_clock_is_set_back() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_s -= 3600.0
    assert clock.now_s() == 1_000_000.0
    hands.pass_time(10.0)
    assert clock.now_s() == 1_000_010.0


def test_wall_clock_that_is_set_forward_is_followed() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_s += 100.0
    assert clock.now_s() == 1_000_100.0
    hands.pass_time(1.0)
    assert clock.now_s() == 1_000_101.0


def test_clock_goes_on_from_the_journal_when_the_machine_is_behind() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.not_before(1_000_500.0)
    hands.pass_time(2.0)
    assert clock.now_s() == 1_000_502.0
    clock.not_before(1.0)
    assert clock.now_s() == 1_000_502.0


def test_deadline_of_the_system_clock_that_has_passed_ends_the_block() -> None:
    async def test() -> None:
        clock = SystemClock()
        await clock.sleep_until(clock.now_s() - 1.0)
        with pytest.raises(TimeoutError):
            async with clock.deadline(clock.now_s() - 1.0):
                await asyncio.Event().wait()

    run(test())


def test_stepped_clock_wakes_sleepers_in_order_each_at_its_time() -> None:
    async def test() -> None:
        clock = SteppedClock(100.0)
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, at_s: float) -> None:
            await clock.sleep_until(at_s)
            woken.append((name, clock.now_s()))

        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("late", 130.0))
            group.create_task(sleeper("early", 110.0))
            group.create_task(sleeper("past", 90.0))
            await asyncio.sleep(0)
            assert woken == [("past", 100.0)]
            assert clock.next_s == 110.0
            clock.advance(120.0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert woken[1:] == [("early", 120.0)]
            clock.advance(200.0)
        assert [name for name, _ in woken] == ["past", "early", "late"]
        assert clock.next_s is None

    run(test())


def test_stepped_deadline_ends_its_block_and_nothing_after_it() -> None:
    async def test() -> None:
        clock = SteppedClock(100.0)
        asyncio.get_running_loop().call_soon(clock.advance, 111.0)
        with pytest.raises(TimeoutError):
            async with clock.deadline(110.0):
                await asyncio.Event().wait()
        async with clock.deadline(120.0):
            pass
        assert clock.next_s is None
        clock.advance(500.0)
        with pytest.raises(TimeoutError):
            async with clock.deadline(400.0):
                await asyncio.Event().wait()

    run(test())
