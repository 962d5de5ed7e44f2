"""One real Slurm cluster for all tests of this directory; they share a worker by their group."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from slurmd_cluster import SlurmCluster, missing


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
