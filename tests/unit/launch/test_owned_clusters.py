"""A job's own Dask cluster, really started, by tasks run as an engine would run them."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from gangs import launches
from test_running_recipes import free_ports

from tercio.model.job import Framework

DASK = """
import dask.array as da
from distributed import Client
with Client() as client:
    workers = client.scheduler_info()["workers"].values()
    print(sorted(w["name"] for w in workers), int(da.ones((400, 400), chunks=100).sum().compute()))
"""


def needs(module):
    there = importlib.util.find_spec(module) is not None
    return pytest.mark.skipif(not there, reason=f"{module} is not installed")


@pytest.fixture
def run(tmp_path):
    """Starts two tasks on one host; whatever they leave is killed."""
    started = []

    def run(framework, run, **fields):
        found = launches(["n1", "n1"], framework=framework, run=run, **fields)
        ports = dict(zip(("20000", "20003"), map(str, free_ports(2)), strict=True))

        def moved(text):
            for known, free in ports.items():
                text = text.replace(known, free)
            return text

        for number, launch in enumerate(found):
            directory = tmp_path / str(number)
            directory.mkdir()
            for name, text in launch.files.items():
                (directory / name).write_text(moved(text))
            env = {
                **{name: moved(value) for name, value in launch.env.items()},
                "TERCIO_TASK_DIR": str(directory),
                "PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin",
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(4))),
            }
            started.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", launch.command],
                    env=env,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        return started

    yield run
    # What a task leaves may have lost its parent, and holds the task's output.
    while left := of(tmp_path):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for task in started:
        task.communicate()


def of(directory):
    """Processes that live and were started by a task whose directory is in this one."""
    mark, found = f"TERCIO_TASK_DIR={directory}/".encode(), []
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError), open(f"/proc/{int(entry)}/environ", "rb") as file:
            if mark in file.read():
                found.append(int(entry))
    return found


def ended(tasks):
    outputs = [task.communicate(timeout=100)[0] for task in tasks]
    return outputs[0], [task.returncode for task in tasks]


@needs("distributed")
def test_a_dask_array_is_summed_on_all_workers(run, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(DASK)
    tasks = run(Framework.DASK, f"{sys.executable} {program}", devices=0)
    assert ended(tasks) == ("['task-0', 'task-1'] 160000\n", [0, 0])


@needs("distributed")
def test_the_commands_code_ends_every_task(run):
    tasks = run(Framework.DASK, "exit 7", devices=0)
    assert ended(tasks) == ("", [7, 7])


@needs("distributed")
def test_a_dead_worker_fails_the_job(run):
    tasks = run(Framework.DASK, "echo begun; sleep 600", devices=0)
    assert tasks[0].stdout.readline() == "begun\n"
    (worker,) = children(tasks[1].pid)
    os.kill(worker, signal.SIGKILL)
    assert tasks[1].wait(timeout=100) == 1


def children(pid):
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
    return []
