"""Servers, supervisors and machines that die, at every point."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from localbench import (
    IS_ROOT,
    NODE,
    STUBBORN_TREE,
    bench_of,
    connect,
    is_gone,
    printed_pid,
    run,
    supervisor_pid,
    text_of,
    until,
)  # fmt: skip

from tercio.engines.base import TaskRef
from tercio.engines.bench import Bench, ref_of
from tercio.engines.local import control, found, records
from tercio.engines.local.engine import LocalEngine
from tercio.engines.local.settings import LocalSettings
from tercio.engines.local.watch import Watch
from tercio.model.events import TaskLaunchFailed, TaskStarted
from tercio.model.ids import JobId


def test_a_killed_supervisor_takes_its_task_with_it(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": STUBBORN_TREE})
            pids = [await printed_pid(bench, ref, name) for name in ("child", "orphan")]
            os.kill(supervisor_pid(root, ref), signal.SIGKILL)
            end = await bench.exit_of(ref)
            assert end.is_lost
            assert end.message == "its supervisor was killed"
            assert all(is_gone(pid) for pid in pids)

    run(check())


def test_a_supervisor_told_to_end_stops_its_task(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "exec sleep 600"})
            os.kill(supervisor_pid(root, ref), signal.SIGTERM)
            end = await bench.exit_of(ref)
            assert end.is_lost
            assert "SIGTERM" in end.message

    run(check())


def test_a_supervisor_that_hangs_is_killed_by_a_stop(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root, answer_timeout_s=0.1) as bench:
            _, ref = await bench.start({"command": "exec sleep 600"})
            os.kill(supervisor_pid(root, ref), signal.SIGSTOP)
            await bench.engine.stop(bench.stop_order(ref, grace_s=0.1))
            assert (await bench.exit_of(ref)).is_lost

    run(check())


def test_a_supervisor_that_died_while_the_server_was_away(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": STUBBORN_TREE})
            pid = await printed_pid(bench, ref, "orphan")
            await bench.engine.close()
            os.kill(supervisor_pid(root, ref), signal.SIGKILL)
            assert await bench.restart([ref]) == []
            assert (await bench.exit_of(ref)).is_lost
            assert is_gone(pid)

    run(check())


def test_a_reboot_loses_what_ran(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            ref = TaskRef(job_id=JobId("job-1"), attempt=1, task=0, node=NODE.name)
            directory = found.task_directory(root, ref)
            directory.mkdir(parents=True)
            begun = {"pid": "1", "boot_id": "an-earlier-one", "at_s": "5.0"}
            records.write_record(str(directory), records.BEGUN, begun)
            await bench.restart([ref])
            end = await bench.exit_of(ref)
            assert (end.is_lost, end.message) == (True, "the machine restarted")

    run(check())


def test_a_late_supervisor_of_a_dead_server_starts_nothing(root: Path) -> None:
    """The server died with the start in flight; the next one has stopped the task meanwhile."""

    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order({"command": "echo ran"})
            ref = ref_of(order)
            await bench.engine.stop(bench.stop_order(ref, grace_s=0.1))
            plan = plan_of(root, bench, order)
            spawner = control.Spawner()
            _, answer = await spawner.spawn(plan)
            assert os.read(answer, 100) == b"ended"
            os.close(answer)
            await spawner.close()
            assert not (found.task_directory(root, ref) / records.LOGS).exists()

    run(check())


def plan_of(root: Path, bench: Bench, order: object) -> object:
    from tercio.engines.local.cgroup import Cgroups
    from tercio.engines.local.prepare import make_plan

    return make_plan(
        order,  # type: ignore[arg-type]
        {},
        directory=found.task_directory(root, ref_of(order)),  # type: ignore[arg-type]
        settings=LocalSettings(tasks_dir=str(root), run_as="root" if IS_ROOT else None),
        cgroups=Cgroups(),
        vendors=frozenset(),
        workdir_of=None,
    )


LAUNCHER = """
import asyncio, os, signal, sys, time
from tercio.engines.local import control, engine, prepare
from tercio.engines.local.engine import LocalEngine
from tercio.engines.local.settings import LocalSettings
from tercio.model.effects import LaunchTask
from tercio.model.node import NodeSpec

point, root, run_as = sys.argv[1:4]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def dies_after(function):
    async def wrapped(*arguments):
        await function(*arguments)
        die()
    return wrapped

if point == "before the spawn":
    control.Spawner.spawn = die
elif point == "after the spawn":
    control.Spawner.spawn = dies_after(control.Spawner.spawn)
elif point == "while preparing":
    prepare.environment = die

async def main():
    local = engine.LocalEngine(
        site="here", settings=LocalSettings(tasks_dir=root, run_as=run_as or None),
        clock=time.time, read_node=lambda is_ours: NodeSpec(name="n1", site="here"),
    )
    await local.open(lambda observation: None)
    order = LaunchTask(
        effect_id="launch:job-1/1/0", epoch=1, deadline_s=0, site="here", node="n1",
        job_id="job-1", attempt=1, task=0, user="root",
        command="echo ran; exec sleep 600", setup="echo setup",
    )
    await local.launch(order, {})
    die()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "point", ["while preparing", "before the spawn", "after the spawn", "after the answer"]
)
def test_a_launch_is_done_once_wherever_the_server_dies(root: Path, point: str) -> None:
    async def check() -> None:
        run_as = "root" if IS_ROOT else ""
        launcher = [sys.executable, "-c", LAUNCHER, point, str(root), run_as]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        died = await asyncio.to_thread(subprocess.run, launcher, env=env, capture_output=True)
        assert died.returncode == -signal.SIGKILL, died.stderr
        async with bench_of(root) as bench:
            changes = {"job_id": JobId("job-1"), "command": "echo ran; exec sleep 600",
                       "setup": "echo setup"}  # fmt: skip
            unknown = await bench.engine.adopt([])
            assert [ref.job_id for ref in unknown] in ([], ["job-1"])
            _, ref = await bench.start(changes)
            await bench.until_printed(ref, "ran")
            assert await text_of(bench, ref) == ["setup", "ran"]
            assert bench.exits_of(ref) == []

    run(check())


def test_the_fence_survives_the_server(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            await bench.start({"command": "true"})
        async with bench_of(root) as bench:
            answer = await bench.engine.launch(bench.order({"command": "true"}, epoch=1), {})
            assert isinstance(answer, TaskLaunchFailed)

    run(check())


def test_a_supervisor_killed_before_it_began_leaves_nothing_in_the_way(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order({"command": "echo ran"})
            directory = found.task_directory(root, ref_of(order))
            (directory / records.LOGS).mkdir(parents=True)
            (directory / records.LOCK).touch()
            records.reserve(str(directory), records.EXIT)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
                left.bind(str(directory / records.CONTROL))
            bench.started.append(ref_of(order))
            assert isinstance(await bench.engine.launch(order, {}), TaskStarted)
            assert (await bench.exit_of(ref_of(order))).exit_code == 0

    run(check())


def test_a_killed_spawner_is_started_again(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, first = await bench.start({"command": "exec sleep 600"})
            assert isinstance(bench.engine, LocalEngine)
            os.kill(bench.engine._spawner._pid, signal.SIGKILL)
            _, second = await bench.start({"command": "exit 3"})
            assert (await bench.exit_of(second)).exit_code == 3
            assert bench.exits_of(first) == []

    run(check())


def test_a_supervisor_that_says_nothing_is_given_up(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root, launch_timeout_s=0.3) as bench:
            # Opening a pipe that nobody reads blocks for ever, as a dead network disk would.
            order = bench.order({"command": "echo ran"})
            directory = found.task_directory(root, ref_of(order))
            (directory / records.LOGS).mkdir(parents=True)
            os.mkfifo(directory / records.LOGS / "00000001")
            answer = await bench.engine.launch(order, {})
            assert isinstance(answer, TaskLaunchFailed)
            assert answer.is_retryable
            assert "did not answer" in answer.message
            again = await bench.engine.launch(order, {})
            assert isinstance(again, TaskLaunchFailed)

    run(check())


@pytest.mark.parametrize("how", ["stop", "kill", "end", "restart"])
def test_a_task_whose_directory_is_deleted_is_ended_and_told_lost(root: Path, how: str) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": STUBBORN_TREE, "grace_s": 0.2})
            pids = [await printed_pid(bench, ref, name) for name in ("child", "orphan")]
            supervisor = supervisor_pid(root, ref)
            directory = found.task_directory(root, ref)
            directory.rename(root.parent / "deleted")
            match how:
                case "stop":
                    await bench.engine.stop(bench.stop_order(ref, grace_s=0.1))
                case "kill":
                    os.kill(supervisor, signal.SIGKILL)
                case "end":
                    os.kill(supervisor, signal.SIGTERM)
                case _:
                    assert await bench.restart([ref]) == []
            end = await bench.exit_of(ref)
            assert end.is_lost
            await until(lambda: all(is_gone(pid) for pid in (*pids, supervisor)))

    run(check())


def test_damaged_records_keep_no_site_closed_and_no_task_from_its_end(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "exec sleep 600"})
            _, ended = await bench.start({"command": "exit 3"})
            await bench.exit_of(ended)
            await bench.engine.close()
            (found.task_directory(root, ref) / records.BEGUN).write_bytes(b"")
            (found.task_directory(root, ended) / records.EXIT).write_bytes(b"\0" * 40)
            (root / "epoch").write_bytes(b"epoch=\xff\n")
            assert await bench.restart([ref, ended]) == []
            told = bench.exits_of(ended)[-1]
            assert (told.is_lost, told.message) == (True, "its exit record is damaged")
            await bench.engine.stop(bench.stop_order(ref, grace_s=5.0))
            assert (await bench.exit_of(ref)).signal == signal.SIGTERM

    run(check())


def test_a_task_that_cannot_be_read_is_left_and_the_others_adopted(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, first = await bench.start({"command": "exec sleep 600"})
            _, second = await bench.start({"command": "exec sleep 600"})
            await bench.engine.close()
            directory = found.task_directory(root, first)
            begun = (directory / records.BEGUN).read_bytes()
            control_socket = directory / records.CONTROL
            (directory / records.BEGUN).write_bytes(b"")
            control_socket.rename(directory / "away")
            assert await bench.restart([first, second]) == []
            await bench.engine.stop(bench.stop_order(second, grace_s=5.0))
            assert (await bench.exit_of(second)).signal == signal.SIGTERM
            (directory / "away").rename(control_socket)
            (directory / records.BEGUN).write_bytes(begun)
            await bench.engine.stop(bench.stop_order(first, grace_s=5.0))
            assert (await bench.exit_of(first)).signal == signal.SIGTERM

    run(check())


def test_an_end_that_is_noticed_twice_is_told_once(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "exit 3"})
            await bench.exit_of(ref)
            assert isinstance(bench.engine, LocalEngine)
            bench.engine._settle_later(ref)
            bench.engine._settle_later(ref)
            _, other = await bench.start({"command": "true"})
            await bench.exit_of(other)
            assert len(bench.exits_of(ref)) == 2

    run(check())


def test_a_supervisor_that_ends_while_it_is_ended_is_no_error(tmp_path):
    local = connect(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", ""])
    pidfd = os.pidfd_open(child.pid)
    child.wait()
    ref = TaskRef(job_id="job-1", attempt=1, task=0, node="n1")
    local._watches[ref.key] = watch = Watch(ref=ref, pid=child.pid, pidfd=pidfd, begun_s=1.0)
    local._kill_supervisor(watch)
    os.close(pidfd)
