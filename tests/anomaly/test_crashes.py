"""The server dies at every point around every write and effect; the machines go on.

In one process a crash is an exception that nothing catches, so that every point can be tried;
`test_killed_process` does the same with a real process and SIGKILL at some of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live_world import run
from scenario import Scenario

import tercio
from tercio.engines.sim.state import open_state
from tercio.errors import UserError
from tercio.runtime.faults import NoFaults, Point

POINTS_MAX = 80


class CrashError(Exception):
    """The server is gone."""


class CrashAt(NoFaults):
    """Dies at the k-th point that is reached."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.count = 0
        self.at: Point | None = None
        self.is_dead = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def reach(self, point: Point) -> None:
        if self.at is not None:
            raise CrashError  # nothing is done after death
        self.count += 1
        if self.count == self.k:
            self.at = point
            self._loop.call_soon_threadsafe(self.is_dead.set)
            raise CrashError


async def play_until_death(scenario: Scenario, faults: CrashAt) -> bool:
    """Return whether the server died; it is ended then."""
    playing = asyncio.create_task(scenario.play(faults))
    dying = asyncio.create_task(faults.is_dead.wait())
    await asyncio.wait([playing, dying], return_when=asyncio.FIRST_COMPLETED)
    is_dead = faults.is_dead.is_set()
    if not is_dead:
        dying.cancel()
        await playing
        return False
    playing.cancel()
    outcome = (await asyncio.gather(playing, return_exceptions=True))[0]
    assert outcome is None or isinstance(
        outcome, (CrashError, UserError, asyncio.CancelledError)
    ), outcome
    controller = scenario.world.controller
    if controller is not None and scenario.world.journal is not None:
        await scenario.world.crash()
    return True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_crash_at_every_point_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        seen: set[Point] = set()
        for k in range(1, POINTS_MAX):
            path = tmp_path / str(k)
            path.mkdir()
            scenario = Scenario(path)
            faults = CrashAt(k)
            if not await play_until_death(scenario, faults):
                try:
                    await scenario.finish()
                    break
                except CrashError:  # at the last checkpoint, while stopping
                    await scenario.world.crash()
            assert faults.at is not None
            seen.add(faults.at)
            await scenario.play(None)
            await scenario.finish()
        else:
            pytest.fail(f"the scenario has more than {POINTS_MAX} points")
        assert seen == set(Point)

    run(test(), timeout_s=110.0)


def test_crash_after_crash(tmp_path: Path) -> None:
    async def test() -> None:
        scenario = Scenario(tmp_path)
        for k in (3, 5, 7, 9, 11, 13):
            await play_until_death(scenario, CrashAt(k))
        await scenario.play(None)
        await scenario.finish()

    run(test())


_PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from scenario import Scenario
from tercio.engines.sim.state import open_state
from tercio.runtime.faults import NoFaults

class KillAt(NoFaults):
    left = int(sys.argv[2])
    def reach(self, point):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

path = Path(sys.argv[1])
asyncio.run(Scenario(path, open_state(path / "machines.json")).play(KillAt()))
"""


@pytest.mark.parametrize("k", [2, 5, 8, 12])
def test_killed_process(tmp_path: Path, k: int) -> None:
    here = Path(__file__).parent
    support = [str(here), str(here.parent / "unit" / "runtime")]
    killed = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), str(k), *support],
        env={**os.environ, "PYTHONPATH": str(Path(tercio.__file__).parents[1])},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL

    async def test() -> None:
        scenario = Scenario(tmp_path, open_state(tmp_path / "machines.json"))
        await scenario.play(None)
        await scenario.finish()

    run(test())
