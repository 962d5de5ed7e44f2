"""Gangs of real frameworks on real Slurm: preempted and resumed; and how each finds its ranks."""

from __future__ import annotations

import signal

import pytest
from slurmd_cluster import NODES, SlurmCluster, until

from e2e.room import Room
from e2e.test_frameworks import PAIRS, RunPair, jax_pair, preempted
from e2e.test_hang import hang_once

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(300)]

WHOLE = {"devices": "H100:8", "cpus": 8, "memory": "64GiB"}


@pytest.mark.full
def test_a_preempted_gang_saves_on_its_signal_and_resumes_from_there(
    room: Room, cluster: SlurmCluster
) -> None:
    preempted(room, per_task=WHOLE, nodes={"exclude": NODES[2:]})
    until(lambda: not cluster.out("squeue", "-h"), "Slurm to be empty")


@pytest.mark.full
def test_a_gang_that_hangs_in_slurm_is_seen_by_its_marks_and_begins_again(room: Room) -> None:
    room.kill(signal.SIGTERM)
    room.up(TERCIO_HEALTH__POLL_S="0.2")
    hang_once(room, **WHOLE)


SPREAD = {
    "per_task": {"devices": "H100:1", "cpus": 1, "memory": "3GiB"},
    "topology": {"spread": "node"},
}


def test_jax_processes_find_each_other_in_slurm(room: Room) -> None:
    jax_pair(room, **SPREAD)


@pytest.mark.full
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_every_framework_finds_its_ranks_in_slurm(room: Room, pair: RunPair) -> None:
    pair(room, **SPREAD)
