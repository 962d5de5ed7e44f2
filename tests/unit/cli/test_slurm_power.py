"""`tercio slurm resume` and `suspend` as slurmctld calls them: a host list in, an exit code out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tercio
from tercio.cli.commands.slurm import host_names
from tercio.errors import UserError

SOURCE = Path(tercio.__file__).parents[1]


def called(tmp_path: Path, *argv: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Call it as slurmctld does: in /, with hardly an environment."""
    lines = [f"{name} = {value!r}".replace("'", '"') for name, value in settings.items()]
    (tmp_path / "tercio.toml").write_text("[slurm]\n" + "\n".join(lines) + "\n")
    return subprocess.run(
        [sys.executable, "-m", "tercio", "slurm", *argv],
        env={
            "PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE), "SLURM_RESUME_FILE": "/r.json",
            "TERCIO_CONFIG": str(tmp_path / "tercio.toml"),
        },
        cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip


def hook(tmp_path: Path, text: str) -> str:
    path = tmp_path / "power.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_all_nodes_are_switched_by_one_call(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = hook(
        tmp_path, f'echo "$TERCIO_POWER_ORDER $* $SLURM_RESUME_FILE" >> {told}; echo fine'
    )
    log = tmp_path / "power.log"
    done = called(
        tmp_path, "resume", "n[1-3,08],gpu-a", resume_command=f"{program} on", power_log=str(log)
    )
    assert done.returncode == 0, done.stderr
    assert told.read_text() == "resume on n1 n2 n3 n08 gpu-a /r.json\n"
    assert done.stdout == ""
    (line,) = log.read_text().splitlines()
    assert f"{line}\n" == done.stderr
    assert "slurm resume nodes=n1,n2,n3,n08,gpu-a count=5 exit=0 took_s=" in line
    assert line.endswith("said='fine'")
    called(tmp_path, "suspend", "n1", suspend_command=f"{program} off", power_log=str(log))
    assert told.read_text().splitlines()[1] == "suspend off n1 /r.json"
    assert len(log.read_text().splitlines()) == 2


def test_it_works_with_all_streams_closed_as_slurmctld_leaves_them(tmp_path: Path) -> None:
    log = tmp_path / "power.log"
    program = hook(tmp_path, "echo fine; echo more >&2")
    (tmp_path / "tercio.toml").write_text(
        f'[slurm]\nresume_command = "{program}"\npower_log = "{log}"\n'
    )
    env = {"PYTHONPATH": str(SOURCE), "TERCIO_CONFIG": str(tmp_path / "tercio.toml")}
    words = f"{sys.executable} -m tercio slurm resume n1 <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", words], env=env, cwd="/", check=False)
    assert done.returncode == 0
    (line,) = log.read_text().splitlines()
    assert "exit=0" in line
    assert line.endswith("said='more'")


def test_a_command_that_fails_is_a_failure(tmp_path: Path) -> None:
    program = hook(tmp_path, "echo first >&2; echo BMC of $1 is silent >&2; exit 7")
    done = called(tmp_path, "suspend", "n4", suspend_command=program)
    assert done.returncode == 1
    assert "nodes=n4 count=1 exit=7" in done.stderr
    assert "said='BMC of n4 is silent'" in done.stderr
    gone = called(tmp_path, "resume", "n4", resume_command="/no/such/program on")
    assert (gone.returncode, "/no/such/program: No such file" in gone.stderr) == (1, True)


def test_one_that_takes_too_long_is_a_failure(tmp_path: Path) -> None:
    program = hook(tmp_path, "exec sleep 600")
    done = called(tmp_path, "resume", "n4", resume_command=program, power_timeout_s=0.2)
    assert (done.returncode, "no end in 0.2s" in done.stderr) == (1, True)


def test_without_a_command_it_says_what_to_set(tmp_path: Path) -> None:
    done = called(tmp_path, "resume", "n[1-2]")
    assert done.returncode == 2
    assert "set slurm.resume_command" in done.stderr


@pytest.mark.parametrize("text", ["", "n[1-", "n1;reboot", "(null)", "n1 n2", "-x", "n[1-200000]"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        host_names(text)


def test_a_node_named_twice_is_switched_once() -> None:
    assert host_names("n[1-2],n1") == ("n1", "n2")
