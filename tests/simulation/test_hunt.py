"""The hunt of the twin: a fresh batch of seeds, and those that once found something."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tercio.core.health_commands import check_settings
from tercio.health.policy import Mode
from tercio.twin.ailments import draw_settings
from tercio.twin.coverage import NAMES, PASSED_ON, never
from tercio.twin.fuzz import hunt
from tercio.twin.rng import Stream


def of_this_commit(count: int) -> range:
    """Seeds that no commit before has played, the same whenever this commit is tested."""
    command = ["git", "rev-parse", "HEAD"]
    here = os.path.dirname(__file__)
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except OSError:  # no git: the first seeds are as good as any
        return range(count)
    first = 1_000_000 + int(done.stdout[:8] or "0", 16)
    return range(first, first + count)


FRESH = of_this_commit(30)
# Seeds that once found a fault, of ours or of the simulated world; they stay.
PLAIN = (43, 61, 105, 112, 324, 498, 510, 30577, 30669, 31216, 31341, 40428, 300647)
WIDE = (32, 50, 63, 140, 148, 410119, 410204, 410283, 420865, 421016, 421643,
        421700, 430049)  # fmt: skip
AILING = (440000, 440010, 440223, 450037, 451149, 451241, 451278, 484469, 486126, 486580, 486791,
          492379, 494711, 496996, 510839, 561220)  # fmt: skip
RARE = {
    f"event {name}"
    for name in ("HealthBreakerMoved", "RepairTimedOut", "SlicePauseEnded", "SpareActivated")
}


@pytest.mark.parametrize("seed", [*FRESH, *AILING])
def test_no_seed_finds_a_fault(seed: int) -> None:
    found = hunt(seed)
    assert found.fault is None, f"seed {seed} at {found.at_s}: {found.fault}"
    assert found.entries > 30


@pytest.mark.parametrize("seed", [*FRESH[:10], *WIDE])
def test_no_seed_of_a_world_without_ailments_finds_a_fault(seed: int) -> None:
    found = hunt(seed, has_ailments=False)
    assert found.fault is None, f"seed {seed} at {found.at_s}: {found.fault}"
    assert found.entries > 30


@pytest.mark.parametrize("seed", [*FRESH[:10], *PLAIN])
def test_no_seed_of_a_plain_world_finds_a_fault(seed: int) -> None:
    found = hunt(seed, is_wide=False)
    assert found.fault is None, f"seed {seed} at {found.at_s}: {found.fault}"
    assert found.entries > 50


def test_a_batch_sees_what_jobs_and_policies_can_say_and_what_can_happen() -> None:
    seen = [name for seed in range(40) for name in hunt(seed).covered]
    assert set(never(seen)) <= RARE
    assert not {f"job {name}" for name in PASSED_ON} & set(NAMES)


def test_every_drawn_health_policy_is_one() -> None:
    stream = Stream(1, "settings")
    modes = {check_settings(draw_settings(stream)).mode for _ in range(50)}
    assert modes == {Mode.ACT, Mode.SHADOW}


def test_a_seed_gives_the_same_journal_under_two_hash_seeds() -> None:
    program = "from tercio.twin.fuzz import hunt; print(hunt(7).journal_hash)"
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
