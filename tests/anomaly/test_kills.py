"""The server dies at every point around every write and every effect of a small scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_world import run
from tercio.config import StoreConfig
from tercio.model.events import EffectTimedOut
from tercio.runtime.faults import Point

from .scenario import Faults, Scenario

# Often enough that a checkpoint falls between any two steps of some job.
STORE = StoreConfig(checkpoint_entries=6)


async def play(path: Path, *kill_at: int) -> Faults:
    faults = Faults(*kill_at)
    scenario = Scenario(path, faults, store=STORE)
    await scenario.play()
    # What was under way is done again at once; nobody waits for a time-out.
    assert not scenario.world.events(EffectTimedOut)
    await scenario.check()
    assert scenario.starts == 1 + sum(at < len(faults.points) for at in kill_at)
    return faults


def test_every_kind_of_point_is_passed(path: Path) -> None:
    async def test() -> None:
        calm = await play(path / "calm")
        assert set(calm.points) == set(Point)
        assert {effect.partition(":")[0] for effect in calm.effects} == {"launch", "stop"}
        assert len(calm.points) > 40

    run(test())


@pytest.mark.parametrize("again", [0, 1, 2, 4, 7])
def test_killed_at_every_point_and_again_soon_after(path: Path, again: int) -> None:
    """With `again` the second server is killed too: in its recovery, or soon after."""

    async def test() -> None:
        kill_at, most = 0, 1
        while kill_at < most:
            second = (kill_at + again,) if again else ()
            most = len((await play(path / str(kill_at), kill_at, *second)).points)
            kill_at += 1

    run(test(), timeout_s=110.0)
