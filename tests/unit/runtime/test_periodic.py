"""What is done again and again: it goes on after a failure, and always stops."""

import asyncio
import logging

import pytest

from tercio.runtime.clock import SteppedClock
from tercio.runtime.periodic import Periodic

START_S = 1000.0


class Site:
    """Work that may fail, paused by a clock that a test moves on."""

    def __init__(self, *, fails_at: tuple[int, ...] = ()) -> None:
        self.clock = SteppedClock(START_S)
        self.turns: list[float] = []
        self.fails_at = fails_at

    def work(self) -> None:
        self.turns.append(self.clock.now_s() - START_S)
        if len(self.turns) in self.fails_at:
            raise RuntimeError("it broke")

    async def awaited(self) -> None:
        await asyncio.sleep(0)
        self.work()

    async def pause(self) -> None:
        await self.clock.sleep_until(self.clock.now_s() + 10.0)

    async def sleeping(self) -> None:
        """Return when the loop pauses."""
        while self.clock.next_s is None:
            await asyncio.sleep(0)

    async def rounds(self, loop: Periodic, count: int) -> None:
        loop.start()
        for _ in range(count):
            await self.sleeping()
            self.clock.advance(self.clock.now_s() + 10.0)
        await self.sleeping()
        await loop.stop()


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize(
    ("pauses_first", "turns"), [(False, [0.0, 10.0, 20.0]), (True, [10.0, 20.0])]
)
def test_it_works_pauses_and_works_again(
    is_awaited: bool, pauses_first: bool, turns: list[float]
) -> None:
    site = Site()
    work = site.awaited if is_awaited else site.work
    loop = Periodic("it", work, pause=site.pause, pauses_first=pauses_first)
    asyncio.run(site.rounds(loop, 2))
    assert site.turns == turns


def test_a_turn_that_fails_is_logged_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site(fails_at=(1, 3))
    with caplog.at_level(logging.ERROR):
        asyncio.run(site.rounds(Periodic("it", site.work, pause=site.pause), 3))
    assert site.turns == [0.0, 10.0, 20.0, 30.0]
    told = [record for record in caplog.records if record.message == "periodic_broke"]
    assert len(told) == 2
    assert "it broke" in str(told[0].exc_info)


def test_it_stops_in_the_middle_of_a_turn_and_before_its_start() -> None:
    async def scene() -> bool:
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        site = Site()
        loop = Periodic("it", hang, pause=site.pause)
        await loop.stop()
        assert not loop.is_started
        loop.start()
        await begun.wait()
        await loop.stop()
        return loop.is_started

    assert asyncio.run(scene())


def test_who_stops_it_may_be_cancelled_meanwhile() -> None:
    """Its own end is not taken for that of the one who waits for it."""

    async def scene() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def stubborn() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()

        loop = Periodic("it", stubborn, pause=Site().pause)
        loop.start()
        await begun.wait()
        stopping = asyncio.create_task(loop.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await stopping

    asyncio.run(scene())
