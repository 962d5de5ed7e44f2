"""The hunt of the twin: a fresh batch of seeds, and those that once found something."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tercio.twin.coverage import never
from tercio.twin.fuzz import hunt

FRESH = range(30)
# Seeds that once found a fault, of ours or of the simulated world; they stay.
PLAIN = (43, 61, 105, 112, 324, 498, 510, 30577, 30669, 31216, 31341, 40428, 300647)
WIDE = (32, 50, 63, 140, 148, 410119, 410204, 410283, 420865, 421016, 421643,
        421700, 430049)  # fmt: skip
NOT_DRAWN = {
    f"job {name}" for name in ("devices.auto", "image", "nodes.match", "outputs", "setup", "shm")
}
"""What no schedule depends on, or what is gone before a job is accepted."""


@pytest.mark.parametrize("seed", [*FRESH, *WIDE])
def test_no_seed_finds_a_fault(seed: int) -> None:
    found = hunt(seed)
    assert found.fault is None, f"seed {seed} at {found.at_s}: {found.fault}"
    assert found.entries > 30


@pytest.mark.parametrize("seed", [*FRESH[:10], *PLAIN])
def test_no_seed_of_a_plain_world_finds_a_fault(seed: int) -> None:
    found = hunt(seed, is_wide=False)
    assert found.fault is None, f"seed {seed} at {found.at_s}: {found.fault}"
    assert found.entries > 50


def test_a_batch_sees_what_jobs_and_policies_can_say() -> None:
    seen = [name for seed in range(40) for name in hunt(seed).covered]
    missed = [name for name in never(seen) if not name.startswith("event")]
    assert set(missed) <= NOT_DRAWN, set(missed) - NOT_DRAWN


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
