"""Jobs with an image on real Slurm: by Pyxis as a step of `srun`, by Apptainer in the job.

Neither program is in Debian. Stand-ins take their options, write them down, and run the command
on the node; Slurm, its steps and its signals are real.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from slurm_room import H100, add_site, placed_on, succeeded
from slurmd_cluster import SlurmCluster, program

from e2e.room import Room

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm")]

PYXIS = """\
#!/bin/sh
# `srun` with Pyxis's options: takes them off, and goes on as the real one.
[ "$1" != --help ] || { echo "--container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH"; exit 0; }
for word; do
  shift
  case "$word" in
    --container-*|--no-container-*) echo "$word" >> TOLD ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec SRUN "$@"
"""
APPTAINER = """\
#!/bin/sh
shift
while :; do
  case "$1" in
    --pwd=*) cd "${1#*=}" ;;
    --*) ;;
    *) break ;;
  esac
  echo "$1" >> TOLD; shift
done
echo "image $1" >> TOLD; shift
exec "$@"
"""


def put(path: Path, name: str, text: str) -> Path:
    path.mkdir()
    told = path / "told"
    srun = program("srun") or "srun"
    (path / name).write_text(text.replace("TOLD", str(told)).replace("SRUN", srun))
    (path / name).chmod(0o755)
    return told


@pytest.fixture
def contained(cluster: SlurmCluster, tmp_path: Path) -> Room:
    room = Room(tmp_path)
    room.env |= {
        "TERCIO_LOCAL__ENABLED": "false",
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
    }
    return room


COMMAND = """\
cat made
trap 'sleep 0.3; echo saved $TERCIO_TASK; exit 0' TERM
echo "image task $TERCIO_TASK of $TERCIO_TASKS gpus $CUDA_VISIBLE_DEVICES: $WORD"
while :; do sleep 0.1; done
"""
JOB = {
    "image": "nvcr.io/nvidia/pytorch:24.07-py3",
    "mounts": ["/tmp:/data:ro"],
    "setup": "echo made on $SLURMD_NODENAME > made",
    "env": {"WORD": "it's here"},
    "checkpoint": {"grace": "30s"},
}


@pytest.mark.parametrize(("kind", "text"), [("srun", PYXIS), ("apptainer", APPTAINER)])
def test_a_gang_in_containers_runs_and_stops_with_grace(
    kind: str, text: str, contained: Room, cluster: SlurmCluster, tmp_path: Path
) -> None:
    told = put(tmp_path / "bin", kind, text)
    room = contained
    try:
        add_site(room, cluster)
        room.up()
        label = "pyxis" if kind == "srun" else "apptainer"
        assert json.loads(room.cli("node", "show", "-o", "json", "n1"))["labels"][
            "containers"
        ] == label  # fmt: skip
        job_id = room.submit(COMMAND, tasks=2, per_task=H100, **JOB)
        with room.following("logs", "-f", job_id) as log:
            for _ in range(2):
                log.until(": it's here")
            assert len(placed_on(room, job_id)) >= 1
            room.cli("cancel", job_id)
            log.rest()
        whole = room.cli("logs", job_id)
        assert room.job(job_id).state == "cancelled"
        assert whole.count("saved ") == 2, whole
        said = [line for line in whole.splitlines() if ": it's here" in line]
        assert all(
            len(line.partition("gpus ")[2].partition(":")[0].split(",")) == 4 for line in said
        )
        words = told.read_text()
        assert "/tmp:/data:ro" in words
        assert ("nvcr.io#nvidia/pytorch:24.07-py3" if kind == "srun" else
                "image docker://nvcr.io/nvidia/pytorch:24.07-py3") in words  # fmt: skip
        assert "it's here" not in words
        done = room.submit("exit 0", per_task=H100, image="python:3.11")
        succeeded(room, done)
        failed = room.submit("exit 7", per_task=H100, image="python:3.11")
        assert room.ended(failed).exit_code == 7
    finally:
        cluster.run("scancel", "--user", "root", "--quiet", check=False)
        room.close()


def test_a_site_without_containers_refuses_at_plan_and_submit(
    room: Room, cluster: SlurmCluster
) -> None:
    for verb in ("plan", "submit"):
        told = room.run(verb, "--image", "python:3.11", "--", "true")
        assert told.returncode == 8, told
        assert "no node runs containers" in told.stderr + told.stdout
        assert "install docker, podman or apptainer" in told.stderr + told.stdout
