"""Recipes that Tercio wraps around a command, run as an engine would."""

import importlib.util
import os
import socket
import subprocess
import sys

import pytest
from gangs import launches

from tercio.model.job import Framework


def free_ports(count):
    """Return ports that nobody has: all are held until the last is found."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start(launch, directory, ports):
    """Start one task with its files; the recipe's fixed ports become free ones."""
    directory.mkdir()

    def moved(text):
        for known, free in ports.items():
            text = text.replace(str(known), str(free))
        return text

    for name, text in launch.files.items():
        (directory / name).write_text(text)
    env = {
        name: moved(value).replace("${TERCIO_TASK_DIR}", str(directory))
        for name, value in launch.env.items()
    }
    env |= {
        "TERCIO_TASK_DIR": str(directory),
        "PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin",
    }
    return subprocess.Popen(
        ["/bin/sh", "-c", moved(launch.command)], env=env, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("run", "code"), [("cat $TERCIO_HOSTFILE; exit 0", 0), ("exit 7", 7)])
def test_mpi_runs_the_command_once_and_ends_everywhere(tmp_path, run, code):
    found = launches(["n1", "n1", "n1"], framework=Framework.MPI, run=run, devices=2)
    ports = {20003: free_ports(1)[0]}
    # The others first: they wait for task 0 to come.
    tasks = [start(found[task], tmp_path / str(task), ports) for task in (1, 2, 0)]
    outputs = [task.communicate(timeout=60)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [code] * 3
    assert outputs[:2] == ["", ""]
    if code == 0:
        assert outputs[2] == "127.0.0.1 slots=6\n"


def test_mpi_names_its_hosts_for_open_mpi_and_mpich():
    found = launches(["n1", "n2", "n2"], framework=Framework.MPI, devices=4)
    assert found[0].files["hostfile"] == "10.0.0.1 slots=4\n10.0.0.2 slots=8\n"
    assert found[0].files["machinefile"] == "10.0.0.1:4\n10.0.0.2:8\n"
    assert found[0].env["WORLD_SIZE"] == "12"
    for name in ("OMPI_MCA_orte_default_hostfile", "TERCIO_HOSTFILE", "DSTACK_MPI_HOSTFILE"):
        assert found[0].env[name] == "${TERCIO_TASK_DIR}/hostfile"


def test_mpi_fails_where_task_0_is_gone(tmp_path):
    found = launches(["n1", "n1"], framework=Framework.MPI)
    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting = start(found[1], tmp_path / "1", {20003: server.getsockname()[1]})
        server.accept()[0].close()  # it dies without a word
        waiting.communicate(timeout=60)
    assert waiting.returncode == 1


PROGRAM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TERCIO_TASK")
print(*(os.environ[name] for name in names), int(total.item()), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torchrun_joins_two_tasks_of_two_ranks_on_one_host(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = launches(
        ["n1", "n1"], framework=Framework.TORCHRUN, run=f"{sys.executable} {program}", devices=2
    )
    ports = {20000: free_ports(1)[0]}
    tasks = [start(launch, tmp_path / str(n), ports) for n, launch in enumerate(found)]
    lines = []
    for task in tasks:
        lines += task.communicate(timeout=100)[0].splitlines()
        assert task.returncode == 0
    assert sorted(lines) == ["0 4 0 0 6", "1 4 1 0 6", "2 4 0 1 6", "3 4 1 1 6"]
