"""Gangs of real frameworks on real Slurm: preempted and resumed; and how each finds its ranks."""

from __future__ import annotations

import re
import shutil
import signal
import sys

import pytest
from slurm_room import in_slurm, placed_on
from slurmd_cluster import NODES, SlurmCluster, until

from e2e.room import Room
from e2e.test_frameworks import FSDP, JAX, MPI
from e2e.test_hang import hang_once

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(300)]

# Unbuffered, `print` writes a line in parts, and those of two ranks may mix on a busy machine.
WHOLE_LINES = """
import os
def print(*words, flush=True):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
WHOLE = {"devices": "H100:8", "cpus": 8, "memory": "64GiB"}
TWO = {"exclude": NODES[2:]}
POLICY = """\
preemption: {within_queue: lower_priority, min_runtime: 0s, grace: 120s}
queues: {default: {}}
"""


@pytest.mark.full
def test_a_preempted_gang_saves_on_its_signal_and_resumes_from_there(
    room: Room, cluster: SlurmCluster
) -> None:
    pytest.importorskip("torch", reason="FSDP is torch's")
    (room.work / "policy.yaml").write_text(POLICY)
    room.cli("policy", "set", "policy.yaml")
    (room.work / "program.py").write_text(WHOLE_LINES + FSDP)
    kept = room.work / "checkpoint"
    job_id = room.submit(
        "python program.py 100", tasks=2, per_task=WHOLE, nodes=TWO, priority=-10,
        framework="torch", workdir=str(room.work), preemptible=True,
        checkpoint={"path": str(kept), "signal": "SIGUSR1", "grace": "120s"},
        retry={"on": ["preempted"], "backoff": "0s"},
    )  # fmt: skip
    with room.following("logs", "-f", job_id) as log:
        log.until("step 10 ")
        first = in_slurm(cluster, job_id)
        assert sorted(first.values()) == ["n1", "n2"]
        urgent = room.submit("sleep 1; echo urgent", per_task=WHOLE, nodes=TWO, priority=10)
        # Nothing but the victims' own end makes its place: the signal, the save, the exit.
        assert room.ended(urgent).state == "succeeded"
        log.rest()
    view = room.ended(job_id)
    assert (view.state, view.attempt) == ("succeeded", 2), room.story(job_id)
    assert placed_on(room, urgent)[0] in ("n1", "n2")
    told = "\n".join(log.lines)
    saved = re.findall(r"rank (\d) saved at step (\d+)", told)
    assert sorted(rank for rank, _ in saved) == ["0", "1"], told
    (agreed,) = {int(step) for _, step in saved}
    assert re.findall(r"resumes after step (\d+)", told) == [str(agreed)] * 2
    losses = {int(s): float(v) for s, v in re.findall(r"step (\d+) loss ([0-9.e-]+)", told)}
    assert list(losses) == list(range(1, 101))
    assert all(losses[n + 1] < losses[n] for n in range(1, 100)), losses
    assert any("preempt" in line for line in room.story(job_id))
    until(lambda: not in_slurm(cluster, job_id), "Slurm to be empty")


@pytest.mark.full
def test_a_gang_that_hangs_in_slurm_is_seen_by_its_marks_and_begins_again(room: Room) -> None:
    room.kill(signal.SIGTERM)
    room.up(TERCIO_HEALTH__POLL_S="0.2")
    hang_once(room, **WHOLE)


def run_pair(room: Room, program: str, command: str = "python program.py", **fields: object) -> str:
    """Run a gang of two on two nodes; return its log."""
    (room.work / "program.py").write_text(program)
    one = {"devices": "H100:1", "cpus": 1, "memory": "3GiB"}
    job_id = room.submit(
        command, tasks=2, per_task=one, workdir=str(room.work),
        topology={"spread": "node"}, **fields,
    )  # fmt: skip
    view = room.ended(job_id)
    log = room.cli("logs", job_id)
    assert view.state == "succeeded", f"{room.story(job_id)}\n{log}"
    return log


def test_jax_processes_find_each_other_in_slurm(room: Room) -> None:
    pytest.importorskip("jax", reason="the program is JAX's")
    log = run_pair(room, JAX, framework="jax")
    assert "process 0 of 2 sum 3" in log
    assert "process 1 of 2 sum 3" in log


@pytest.mark.full
def test_mpi_ranks_find_each_other_in_slurm(room: Room) -> None:
    pytest.importorskip("mpi4py", reason="the program is mpi4py's")
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    command = f"mpirun --allow-run-as-root {sys.executable} program.py"
    log = run_pair(room, MPI, command, framework="mpi")
    assert "rank 0 of 2 sum 3" in log
    assert "rank 1 of 2 sum 3" in log
