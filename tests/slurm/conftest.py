"""One real Slurm cluster for all tests of this directory; they share a worker by their group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_room import add_site
from slurmd_cluster import SlurmCluster, missing

from e2e.room import Room


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[SlurmCluster]:
    reason = missing()
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI must have Slurm: it {reason}")
    if reason:
        pytest.skip(f"Slurm {reason}")
    cluster = SlurmCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(running_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, empty and whole; whatever the test left in it is removed."""
    yield running_cluster
    running_cluster.clean()


@pytest.fixture
def room(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Room]:
    """A room whose server drives the cluster and nothing else."""
    room = Room(tmp_path)
    room.env |= {"TERCIO_LOCAL__ENABLED": "false"}
    add_site(room, cluster, "--start-wait-s", "6")
    try:
        room.up()
        yield room
    finally:
        cluster.run("scancel", "--user", "root", "--quiet", check=False)
        room.close()
