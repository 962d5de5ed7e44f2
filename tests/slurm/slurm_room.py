"""A server on the real cluster, and what tests ask of both."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from slurmd_cluster import SlurmCluster

from e2e.room import Room
from tercio.engines.base import Engine
from tercio.engines.registry import SiteRoom
from tercio.engines.slurm.connect import connect
from tercio.engines.slurm.options import SlurmOptions
from tercio.model.ids import SiteName
from tercio.model.views import JobView

H100 = {"devices": "H100:4", "cpus": 4, "memory": "8GiB"}
SLEEP = "echo here $SLURMD_NODENAME; exec sleep 600"


def engine_of(cluster: SlurmCluster, path: Path, **changes: object) -> Engine:
    options = {
        "conf": str(cluster.conf), "run_as": "root", "poll_s": 0.2, "python": sys.executable,
        **changes,
    }  # fmt: skip
    room = SiteRoom(clock=time.time, state_dir=path, workdir_of=lambda name: path / name)
    return connect(SiteName("hpc"), SlurmOptions(**options), room)  # type: ignore[arg-type]


def add_site(room: Room, cluster: SlurmCluster, *options: str, name: str = "hpc") -> None:
    """Add the cluster as a site that is looked at often."""
    room.cli(
        "site", "add", "slurm", name, "--conf", str(cluster.conf), "--run-as", "root",
        "--poll-s", "0.3", "--python", sys.executable, *options,
    )  # fmt: skip


def placed_on(room: Room, job_id: str) -> list[str]:
    rows = json.loads(room.cli("show", "-o", "json", job_id))
    return sorted({task["node"] for task in rows["tasks"]})


def words(path: Path) -> list[str]:
    """What tasks wrote into a file; it may be there before its first word is."""
    return path.read_text().split() if path.exists() else []


def in_slurm(cluster: SlurmCluster, job_id: str, *states: str) -> dict[str, str]:
    """Slurm's own view of a job's tasks: node by Slurm job number; `all` shows ended ones too."""
    more = ("-t", ",".join(states)) if states else ()
    lines = cluster.out("squeue", "-h", *more, "-o", "%A|%N|%k").splitlines()
    rows = [line.split("|") for line in lines if f"launch:{job_id}/" in line]
    return {number: node for number, node, _ in rows}


def succeeded(room: Room, job_id: str) -> JobView:
    view = room.ended(job_id)
    assert view.state == "succeeded", f"{room.cli('logs', job_id)}\n{room.story(job_id)}"
    return view
