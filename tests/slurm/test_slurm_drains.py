"""Nodes that Tercio cordons are drained in Slurm where the site says so, and only those lifted."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_room import H100, SLEEP, add_site, placed_on
from slurmd_cluster import SlurmCluster, until

from e2e.room import Room

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def draining(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Room]:
    """A room whose server may drain."""
    room = Room(tmp_path)
    room.env |= {"TERCIO_LOCAL__ENABLED": "false"}
    add_site(room, cluster, "--drains-nodes")
    try:
        room.up()
        yield room
    finally:
        cluster.run("scancel", "--user", "root", "--quiet", check=False)
        room.close()
        cluster.run("scontrol", "update", "node=n[1-4]", "state=undrain", check=False)


def reason(cluster: SlurmCluster, node: str) -> str:
    """Why a node is drained in Slurm; empty when it is not."""
    told = cluster.out("scontrol", "show", "node", node)
    found = re.search(r"Reason=(.*?)(?: \[|$)", told)
    return found[1] if found and "DRAIN" in told else ""


def test_a_cordon_drains_in_slurm_and_is_lifted_with_it(
    draining: Room, cluster: SlurmCluster
) -> None:
    cluster.out("scontrol", "update", "node=n2", "state=drain", "reason=bad fan")
    draining.cli("node", "cordon", "n1", "--reason", "it's warm")
    draining.cli("node", "cordon", "n2", "--reason", "ours too")
    until(lambda: reason(cluster, "n1"), "the drain")
    assert re.fullmatch(r"tercio: it's warm, user:\w+ \([0-9a-f]{8}\)", reason(cluster, "n1"))
    # A job of anybody stays away from it, and goes on elsewhere.
    elsewhere = cluster.sbatch("--gres=gpu:8", "-w", "n1", "--mem=1G", "--time=30")
    job_id = draining.submit(SLEEP, tasks=2, per_task={**H100, "devices": "H100:8"})
    draining.reached(job_id, ("running",))
    assert placed_on(draining, job_id) == ["n3", "n4"]
    assert cluster.state(elsewhere) == "PENDING"
    # The server is killed: its drain stands, and the next one lifts it.
    draining.kill(signal.SIGKILL)
    assert reason(cluster, "n1")
    draining.up()
    draining.cli("node", "uncordon", "n1")
    draining.cli("node", "uncordon", "n2")
    until(lambda: not reason(cluster, "n1"), "the drain to be lifted")
    cluster.until_running(elsewhere)
    # What others drained keeps their reason, and stays.
    assert reason(cluster, "n2") == "bad fan"
    draining.cli("cancel", job_id)
    draining.ended(job_id)


def test_who_opens_a_node_in_slurm_is_not_contradicted(
    draining: Room, cluster: SlurmCluster
) -> None:
    draining.cli("node", "cordon", "n1", "--reason", "first")
    until(lambda: "first" in reason(cluster, "n1"), "the drain")
    cluster.out("scontrol", "update", "node=n1", "state=resume")
    draining.cli("node", "cordon", "n3", "--reason", "second")
    until(lambda: "second" in reason(cluster, "n3"), "the other drain")
    assert reason(cluster, "n1") == ""
    # Tercio's own work still stays away.
    job_id = draining.submit(SLEEP, tasks=2, per_task={**H100, "devices": "H100:8"})
    draining.reached(job_id, ("running",))
    assert placed_on(draining, job_id) == ["n2", "n4"]
    # Somebody takes the drain over: it is theirs from then on.
    cluster.out("scontrol", "update", "node=n3", "state=drain", "reason=mine now")
    draining.cli("node", "uncordon", "n3")
    draining.cli("node", "uncordon", "n1")
    draining.cli("node", "cordon", "n1", "--reason", "third")
    until(lambda: "third" in reason(cluster, "n1"), "the new cordon to drain")
    assert reason(cluster, "n3") == "mine now"
    draining.cli("cancel", job_id)
    draining.ended(job_id)
