"""The server is killed while it launches, stops and watches on real Slurm: nothing runs twice.

`Gate` stands before one of Slurm's programs: it holds the real one until the test opens it, so
that a kill meets the server exactly there. A held program outlives the server that began it.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from slurm_room import H100, add_site, in_slurm, words
from slurmd_cluster import SlurmCluster, program, until

from e2e.room import Room
from e2e.test_kill_points import killed_once

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(300)]

HOLD = "touch {dir}/came; until [ -e {dir}/open ]; do sleep 0.05; done"
BEFORE = '#!/bin/sh\n[ -e {dir}/open ] || {{ {hold}; }}\nexec {real} "$@"\n'
AFTER = (
    '#!/bin/sh\n{real} "$@" > {dir}/out 2> {dir}/err; code=$?\n'
    "[ -e {dir}/open ] || {{ {hold}; }}\ncat {dir}/out; cat {dir}/err >&2; exit $code\n"
)


class Gate:
    """Holds one program of Slurm before or after its work."""

    def __init__(self, directory: Path, name: str, text: str) -> None:
        self.directory = directory
        directory.mkdir()
        stand_in = directory / name
        hold = HOLD.format(dir=directory)
        stand_in.write_text(text.format(dir=directory, hold=hold, real=program(name)))
        stand_in.chmod(0o755)
        directory.chmod(0o777)

    @property
    def has_come(self) -> bool:
        return (self.directory / "came").exists()

    def open(self) -> None:
        (self.directory / "open").touch()

    def restart(self, room: Room) -> None:
        """Start the server with the gate in its way."""
        room.kill(signal.SIGTERM)
        room.up(PATH=f"{self.directory}:{room.env['PATH']}")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BEFORE, id="before"),
        pytest.param(AFTER, id="after", marks=pytest.mark.full),
    ],
)
def test_killed_around_the_submission_it_starts_once(
    room: Room, cluster: SlurmCluster, tmp_path: Path, text: str
) -> None:
    marks = tmp_path / "starts"
    gate = Gate(tmp_path / "gate", "sbatch", text)
    gate.restart(room)
    job_id = room.submit(f"echo $TERCIO_ATTEMPT >> {marks}; exec sleep 600", per_task=H100)
    until(lambda: gate.has_come, "the submission")
    room.kill()
    room.up()
    # The new server submits what it finds no sign of; the old submission is still on its way.
    room.reached(job_id, ("running",))
    until(lambda: words(marks), "the task to start")
    # Other tests had jobs of this id, too.
    known = len(in_slurm(cluster, job_id, "all"))
    gate.open()
    if text is BEFORE:
        # It comes through late: a second Slurm job of one task, which leaves as it finds it taken.
        until(lambda: len(in_slurm(cluster, job_id, "all")) > known, "the late submission")
    until(lambda: len(in_slurm(cluster, job_id)) == 1, "one job to be left in Slurm")
    assert words(marks) == ["1"]
    assert (room.job(job_id).state, room.job(job_id).attempt) == ("running", 1)
    room.cli("cancel", job_id)
    room.ended(job_id)
    until(lambda: not in_slurm(cluster, job_id), "Slurm to be empty")
    assert words(marks) == ["1"]


@pytest.mark.full
def test_a_late_submission_that_starts_first_is_the_task(
    room: Room, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """The job that the new server submitted comes second: it leaves, and nothing is called lost."""
    marks = tmp_path / "starts"
    room.kill(signal.SIGTERM)
    room.cli("site", "remove", "hpc")
    add_site(room, cluster, "--start-wait-s", "120")
    gate = Gate(tmp_path / "gate", "sbatch", BEFORE)
    room.up(PATH=f"{gate.directory}:{room.env['PATH']}")
    job_id = room.submit(f"echo $TERCIO_ATTEMPT >> {marks}; exec sleep 600", per_task=H100)
    until(lambda: gate.has_come, "the submission")
    room.kill()
    cluster.out("scontrol", "update", "partition=gpu", "state=down")
    room.up()
    until(lambda: in_slurm(cluster, job_id), "the submission of the next server")
    (second,) = in_slurm(cluster, job_id)
    cluster.out("scontrol", "update", f"jobid={second}", "starttime=now+600")
    gate.open()
    cluster.out("scontrol", "update", "partition=gpu", "state=up")
    room.reached(job_id, ("running",))
    until(lambda: words(marks), "the task to start")
    cluster.out("scontrol", "update", f"jobid={second}", "starttime=now")
    until(lambda: second not in in_slurm(cluster, job_id), "the second job to leave")
    room.cli("cancel", job_id)
    view = room.ended(job_id)
    assert (view.state, view.attempt) == ("cancelled", 1), room.story(job_id)
    until(lambda: not in_slurm(cluster, job_id), "Slurm to be empty")
    assert words(marks) == ["1"]


def test_killed_while_it_stops_the_stop_is_finished(
    room: Room, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """The order reaches the task, or is given again by the next server; its grace is its own."""
    gate = Gate(tmp_path / "gate", "scancel", BEFORE)
    gate.restart(room)
    marks, go = tmp_path / "stops", tmp_path / "go"
    run = (
        f"trap 'echo stop >> {marks}; until [ -e {go} ]; do sleep 0.1; done; echo saved; exit 0' "
        "TERM; echo ready; while :; do sleep 0.1; done"
    )
    job_id = room.submit(run, per_task=H100, checkpoint={"grace": "60s"})
    with room.following("logs", "-f", job_id) as log:
        log.until("ready")
        room.cli("cancel", job_id)
        until(lambda: gate.has_come, "the stop")
        room.kill()
        assert words(marks) == []
        room.up()
        until(lambda: words(marks), "the order to stop to come through")
        # A second kill in the middle of the grace: the runner needs no server for the rest.
        room.kill()
        go.touch()
        until(lambda: not in_slurm(cluster, job_id), "the task to end")
        room.up()
        log.rest()
    gate.open()
    view = room.ended(job_id)
    assert (view.state, view.attempt) == ("cancelled", 1), room.story(job_id)
    assert "saved" in room.cli("logs", job_id)


@pytest.mark.full
def test_the_end_is_heard_by_a_server_that_found_no_slurm_at_first(
    room: Room, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Server and controller are both away; the task ends meanwhile; nothing is called lost."""
    marks, go = tmp_path / "starts", tmp_path / "go"
    run = f"echo $TERCIO_ATTEMPT >> {marks}; until [ -e {go} ]; do sleep 0.1; done; exit 7"
    ends = room.submit(run, per_task=H100, retry={"on": ["node_failed"], "backoff": "1s"})
    lives = room.submit(f"echo $TERCIO_ATTEMPT >> {marks}; exec sleep 600", per_task=H100)
    for each in (ends, lives):
        room.reached(each, ("running",))
    until(lambda: len(words(marks)) == 2, "both to start")
    # Slurm saves its state every few seconds, and forgets in a crash what it began since.
    cluster.stop_controller(signal.SIGTERM)
    room.kill()
    room.up()
    until(lambda: "site_unreachable" in room.server_log(), "the outage to be noticed")
    assert "unreachable" in room.cli("node", "list") + room.cli("site", "list")
    assert [room.job(each).state for each in (ends, lives)] == ["running", "running"]
    go.touch()
    cluster.start_controller()
    view = room.ended(ends)
    assert (view.state, view.attempt) == ("failed", 1), room.story(ends)
    assert view.tasks[0].exit_code == 7
    assert words(marks) == ["1", "1"]
    assert (room.job(lives).state, room.job(lives).attempt) == ("running", 1)
    room.cli("cancel", lives)
    room.ended(lives)


PARTS = 9
FEW = (2,)


@pytest.mark.parametrize(
    "part",
    [part if part in FEW else pytest.param(part, marks=pytest.mark.full) for part in range(PARTS)],
)
def test_killed_at_a_point_of_its_own_choice(
    room: Room, cluster: SlurmCluster, mortal: subprocess.Popen[str], part: int
) -> None:
    room.kill(signal.SIGTERM)
    # A slow machine passes fewer points, as more entries share a write: 39 are few.
    killed_once(room, mortal, 3 + part * 4)
    until(lambda: not cluster.out("squeue", "-h", "-o", "%A"), "Slurm to be empty")
