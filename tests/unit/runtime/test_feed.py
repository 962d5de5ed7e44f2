from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from live_world import World, run
from tercio.model.job import TimeSpec
from tercio.runtime.controller import Resync
from tercio.testing.factories import make_job

SHORT = TimeSpec(expected_s=0.0)


def test_followers_get_every_entry_once_from_the_journal_and_then_live(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        async with world:
            for _ in range(5):
                await world.ended(await world.submit(make_job(time=SHORT)))
        await world.start()
        got: dict[int, list[int]] = {}

        async def follow(since: int) -> None:
            got[since] = [entry.seq async for entry in world.running.subscribe(since)]

        followers = [asyncio.create_task(follow(since)) for since in (0, 3, 20)]
        for _ in range(5):
            await world.ended(await world.submit(make_job(time=SHORT)))
        last = world.running.driver.seq
        await world.stop()
        await asyncio.gather(*followers)
        assert got == {since: list(range(since + 1, last + 1)) for since in (0, 3, 20)}

    run(test())


def test_entries_that_are_gone_or_never_were_ask_for_a_resync(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        for _ in range(3):
            async with world:
                await world.ended(await world.submit(make_job(time=SHORT)))
        async with world:
            assert world.journal is not None
            dropped = world.journal.prune(10_000)
            assert dropped > 0
            with pytest.raises(Resync, match="are no longer kept; 1 was asked for") as caught:
                await anext(world.running.subscribe(0))
            assert caught.value.code == "resync"
            assert (await anext(world.running.subscribe(dropped))).seq == dropped + 1
            with pytest.raises(Resync, match="restored"):
                await anext(world.running.subscribe(100_000))

    run(test())
