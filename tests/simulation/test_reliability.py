"""The real driver, core and scheduler under seeded faults: safety first, then liveness."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tercio.model.events import TasksAdded

from .world import World

SEEDS = range(24)
# Seeds that once found a fault; they stay.
REGRESSIONS = (30, 106, 782, 2216, 2366, 2389)
TROUBLE_S = 6_000.0
HEALING_S = 40_000.0


def play(seed: int, **options: float) -> World:
    world = World(seed, **options)  # type: ignore[arg-type]
    start_s = world.now_s
    world.run(start_s + TROUBLE_S)
    world.calm()
    world.run(start_s + TROUBLE_S + HEALING_S)
    return world


@pytest.mark.parametrize("seed", [*SEEDS, *REGRESSIONS])
def test_nothing_is_lost_and_nothing_runs_twice(seed: int) -> None:
    world = play(seed)
    world.check_ended()
    world.check_replay()


@pytest.mark.parametrize("seed", range(6))
def test_members_that_come_and_go_are_not_lost_either(seed: int) -> None:
    """Half the gangs are repaired member by member, some of them grow."""
    world = play(seed, is_flexible=True)
    world.check_ended()
    world.check_replay()
    joined = [e.event for e in world.journal if isinstance(e.event, TasksAdded)]
    assert joined


def test_every_prefix_of_the_journal_can_be_restored() -> None:
    from tercio.core.cluster import Cluster
    from tercio.core.driver import Driver

    world = play(1, jobs=8)
    whole = world.driver.cluster.state_hash()
    for cut in range(0, len(world.journal) + 1, 7):
        driver = Driver(Cluster())
        driver.replay(world.journal[:cut])
        restored = Driver(Cluster.from_image(driver.cluster.image()), seq=driver.seq)
        restored.replay(world.journal[cut:])
        assert restored.cluster.state_hash() == whole, cut


def test_same_seed_same_journal_under_two_hash_seeds() -> None:
    program = (
        "import hashlib, msgspec\n"
        "from tests.simulation.test_reliability import play\n"
        "world = play(3)\n"
        "print(hashlib.sha256(msgspec.json.encode(world.journal)).hexdigest())\n"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join([p for p in sys.path if p])
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1
