"""Whose Slurm jobs the tasks are: the submitting user's, or the reason why not."""

from __future__ import annotations

import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest
from slurm_room import H100, add_site, in_slurm
from slurmd_cluster import SlurmCluster

from e2e.room import Room

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm")]

NAME = "tercio-ana"


@pytest.fixture
def ana(cluster: SlurmCluster) -> Iterator[pwd.struct_passwd]:
    """An unprivileged user of this machine and of Slurm's accounts, for the test only."""
    if shutil.which("useradd") is None:
        pytest.skip("there is no useradd")
    subprocess.run(["useradd", "--system", "--shell", "/bin/sh", NAME], check=False)
    try:
        words = ("user", NAME, "account=research", "defaultaccount=research")
        cluster.out("sacctmgr", "-i", "add", *words)
        yield pwd.getpwnam(NAME)
    finally:
        cluster.run("scancel", "--user", NAME, "--quiet", check=False)
        cluster.run("sacctmgr", "-i", "delete", "user", NAME, check=False)
        subprocess.run(["userdel", NAME], check=True, capture_output=True)


def test_a_root_server_submits_as_the_submitting_user(
    room: Room, cluster: SlurmCluster, ana: pwd.struct_passwd
) -> None:
    room.kill(signal.SIGTERM)
    room.cli("site", "remove", "hpc")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("there is no Python that every user can reach")
    add_site(room, cluster, "--spool", str(cluster.root / "spool-users"), "--python", python)
    room.up()
    secret = room.cli("token", "create", "--user", NAME).strip()
    run = "id -un; id -u; echo $HOME; exec sleep 600"
    job_id = as_user(room, secret, run)
    with room.following("logs", "-f", job_id) as log:
        log.until(ana.pw_dir)
        (number,) = in_slurm(cluster, job_id)
        assert cluster.out("squeue", "-h", "-j", number, "-o", "%u %a") == f"{NAME} research"
        # Beside it, in its environment, as the same user.
        assert room.cli("exec", job_id, "--", "id", "-un").strip() == NAME
        room.cli("cancel", job_id)
        log.rest()
    assert room.ended(job_id).state == "cancelled"
    assert [line.split()[-1] for line in log.lines[:2]] == [NAME, str(ana.pw_uid)]


def test_a_spool_that_the_user_cannot_reach_is_named(room: Room, ana: pwd.struct_passwd) -> None:
    # The directories of tests are root's own.
    room.path.parent.chmod(0o700)
    job_id = as_user(room, room.cli("token", "create", "--user", NAME).strip(), "true")
    told = str(room.ended(job_id).message)
    assert "Slurm could not write below " in told
    assert "/sites/hpc on n1: the spool must be there at the same path" in told


def as_user(room: Room, secret: str, run: str) -> str:
    """Submit with the token of a user."""
    own = room.env
    room.env = {**own, "TERCIO_TOKEN": secret}
    try:
        return room.submit(run, per_task=H100)
    finally:
        room.env = own


def test_it_says_why_it_submits_nothing_for_a_user_whom_it_cannot_become(
    room: Room, cluster: SlurmCluster
) -> None:
    room.kill(signal.SIGTERM)
    room.cli("site", "remove", "hpc")
    room.cli("site", "add", "slurm", "hpc", "--conf", str(cluster.conf), "--poll-s", "0.3")
    room.up()
    view = room.ended(room.submit("true", per_task=H100))
    told = str(view.message)
    assert view.state == "failed"
    assert "'root' is no unprivileged user here, and Slurm jobs are not submitted as root" in told
    assert "--run-as USER" in told
