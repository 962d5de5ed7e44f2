"""Tasks with an image on this machine: by stand-ins of docker and apptainer, and by real podman.

The contract of an engine is the same with an image as without one, so the whole conformance
suite runs here again, every task of it in a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from container_stand_ins import docker_daemon, install
from localbench import NODE, SITE, bench_of, found, until

from tercio.engines import containers
from tercio.engines.base import ExecRequest, LogQuery, TaskRef
from tercio.engines.bench import Bench, ShellPrograms
from tercio.engines.conformance import CHECKS, Check, run_check
from tercio.engines.containers import find_program
from tercio.engines.local import records
from tercio.engines.local.engine import LocalEngine
from tercio.engines.local.settings import LocalSettings
from tercio.model.effects import LaunchTask
from tercio.model.events import TaskLaunchFailed, TaskStarted
from tercio.model.job import Mount

IMAGE = "localhost/tercio-test:1"


class Imaged(LocalEngine):
    """An engine whose every task has an image, unless the order names one itself."""

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        image = order.image or IMAGE
        return await super().launch(msgspec.structs.replace(order, image=image), secrets)


def connect(root: Path, program: str) -> Imaged:
    return Imaged(
        site=SITE,
        settings=LocalSettings(
            tasks_dir=str(root), run_as="root" if os.geteuid() == 0 else None, containers=program
        ),
        clock=time.time,
        read_node=lambda is_ours: NODE,
        workdir_of=lambda name: root.parent / name,
    )


def bench(root: Path, program: str) -> Bench:
    return Bench(lambda: connect(root, program), ShellPrograms(), user="root", deadline_s=60.0)


@pytest.fixture
def stand_in(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path]]:
    """One of the stand-ins, first in PATH; its name, and the file with its calls."""
    name = request.param
    directory = tmp_path / "bin"
    directory.mkdir()
    _, told = install(directory, name)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    if name == "docker":
        if os.geteuid() != 0:
            pytest.skip("needs root: its containers have a process namespace")
        with docker_daemon(told):
            yield name, told
    else:
        yield name, told


by_each = pytest.mark.parametrize("stand_in", ["apptainer", "docker"], indirect=True)


@by_each
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_the_contract_holds_in_a_container(
    stand_in: tuple[str, Path], check: Check, root: Path
) -> None:
    name, _ = stand_in
    outcome = asyncio.run(
        run_check(
            check, lambda: connect(root, name), programs=ShellPrograms(), user="root",
            deadline_s=60.0,
        )
    )  # fmt: skip
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason


async def printed(bench: Bench, ref: TaskRef) -> list[str]:
    return [line.text for line in await bench.lines(ref, LogQuery())]


@by_each
def test_a_task_finds_its_things_inside(
    stand_in: tuple[str, Path], root: Path, tmp_path: Path
) -> None:
    name, told = stand_in
    (tmp_path / "data").mkdir()

    async def check() -> None:
        here = bench(root, name)
        await here.open()
        assert here.nodes[0].labels["containers"] == name
        assert here.engine.capabilities.runs_images
        _, ref = await here.start(
            {
                "setup": "echo made > made",
                "command": 'cat made; echo "$A"; echo $HOME; echo $PATH; echo $TERCIO_TASK; '
                "pwd; echo to > $TERCIO_OUTPUT_DIR/x; exit 3",
                "env": {"A": "zwei\nlines"},
                "outputs": "out",
                "image": "python:3.11",
                "mounts": (
                    Mount(source=str(tmp_path / "data"), target="/data", is_read_only=True),
                ),
                "ports": (),
            }
        )
        ended = await here.exit_of(ref)
        assert ended.exit_code == 3
        task = found.task_directory(root, ref) / records.TASK
        assert await printed(here, ref) == [
            "made", "zwei", "lines", str(task), "/usr/bin:/bin", "0", str(task),
        ]  # fmt: skip
        assert (task / "out" / "x").read_text() == "to\n"
        await here.close()
        calls = told.read_text()
        assert f"{tmp_path}/data:/data:ro" in calls
        assert "python:3.11" in calls
        assert "zwei" not in calls  # a value may be a secret, and a command line is for all to see

    asyncio.run(check())


@by_each
def test_exec_is_inside_and_a_stop_has_its_grace(stand_in: tuple[str, Path], root: Path) -> None:
    name, _ = stand_in

    async def check() -> None:
        here = bench(root, name)
        await here.open()
        save = "trap 'sleep 0.2; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
        _, ref = await here.start({"command": save, "env": {"A": "inside"}})
        await here.until_printed(ref, "ready")
        session = await here.engine.execute(
            ref, ExecRequest(argv=("sh", "-c", "echo $A $TERCIO_JOB"))
        )
        told = b""
        while chunk := await session.read():
            told += chunk
        assert told.decode().split() == ["inside", str(ref.job_id)]
        assert await session.wait() == 0
        await session.close()
        await here.engine.stop(here.stop_order(ref, grace_s=30.0))
        ended = await here.exit_of(ref)
        assert (ended.exit_code, ended.signal) == (0, None)
        assert "saved" in await printed(here, ref)
        await here.close()

    asyncio.run(check())


@by_each
def test_a_container_does_not_outlive_a_killed_supervisor(
    stand_in: tuple[str, Path], root: Path
) -> None:
    name, _ = stand_in

    async def check() -> None:
        here = bench(root, name)
        await here.open()
        _, ref = await here.start({"command": "echo up; exec sleep 600"})
        await here.until_printed(ref, "up")
        mark = f"TERCIO_TASK_DIR={found.task_directory(root, ref) / records.TASK}".encode()
        assert marked(mark)
        begun = records.read_record(str(found.task_directory(root, ref)), records.BEGUN)
        assert begun is not None
        os.kill(int(begun["pid"]), 9)
        assert (await here.exit_of(ref)).is_lost
        await until(lambda: not marked(mark))
        await here.close()

    asyncio.run(check())


def marked(mark: bytes) -> bool:
    """Whether some process here has this in its environment, in whatever namespace."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                return True
    return False


def refusal(root: Path, program: str, changes: dict[str, object]) -> str:
    async def ask() -> str:
        async with bench_of(root, containers=program) as here:
            answer = await here.engine.launch(here.order({"command": "true", **changes}), {})
            assert isinstance(answer, TaskLaunchFailed), answer
            assert not answer.is_retryable
            return answer.message

    return asyncio.run(ask())


def test_without_a_program_the_refusal_says_what_to_install(root: Path) -> None:
    told = refusal(root, "off", {"image": IMAGE})
    assert told == "n1 runs no container images: containers are switched off (local.containers)"


@pytest.mark.parametrize("stand_in", ["docker"], indirect=True)
def test_what_cannot_be_mounted_is_named_before_the_start(
    stand_in: tuple[str, Path], root: Path
) -> None:
    gone = (Mount(source="/no/such", target="/x"),)
    assert "/no/such is not there on n1" in refusal(
        root, "docker", {"image": IMAGE, "mounts": gone}
    )
    assert "is a file" in refusal(root, "docker", {"image": "/images/a.sif"})


def test_shared_memory_that_the_node_has_not_is_refused(root: Path) -> None:
    assert "mount it larger" in refusal(root, "off", {"shm_bytes": 1 << 50})


def test_a_docker_without_its_daemon_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("docker", "echo Cannot connect to the Docker daemon >&2; exit 1"),
        ("podman", "exit 0"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program().name == "podman"
    found = find_program("docker")
    assert (found.label, found.why) == ("none", "docker: Cannot connect to the Docker daemon")
    (tmp_path / "podman").unlink()
    assert find_program().why == "docker: Cannot connect to the Docker daemon"
    assert "apptainer is not installed" in find_program("apptainer").why
    (tmp_path / "docker").unlink()
    assert find_program().why == containers._MISSING


# Podman with runc: as little as it needs on a machine without systemd and without other limits.
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@pytest.fixture
def podman(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Real podman with one small image, and a store of its own."""
    for program in ("podman", "runc", "busybox"):
        if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists():
            if os.environ.get("CI"):
                pytest.fail(f"CI must have {program}")
            pytest.skip(f"needs {program}")
    if os.geteuid() != 0:
        pytest.skip("needs root: an ordinary user may have no numbers for podman's namespaces")
    home = root.parent / "podman"
    home.mkdir()
    (home / "containers.conf").write_text(CONTAINERS_CONF)
    (home / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{home}/store"\nrunroot = "{home}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_CONF", str(home / "containers.conf"))
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(home / "storage.conf"))
    with tarfile.open(home / "image.tar", "w") as archive:
        archive.add(os.path.realpath(shutil.which("busybox") or ""), "bin/busybox")
        for name in ("sh", "cat", "sleep", "env", "id", "pwd", "test"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    subprocess.run(
        ["podman", "import", "-q", home / "image.tar", IMAGE], check=True, capture_output=True
    )
    try:
        yield home
    finally:
        subprocess.run(["podman", "rm", "-f", "-a"], check=False, capture_output=True)


def test_a_task_in_a_real_container(podman: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("mounted\n")

    async def check() -> None:
        here = bench(root, "podman")
        await here.open()
        _, ref = await here.start(
            {
                "setup": "echo made > /made",
                "command": "cat /made /data/x; echo no > /data/y; pwd; test -e /etc/passwd; "
                "echo $? $A; echo up; trap 'echo saved; exit 4' TERM; "
                "while :; do sleep 0.05; done",
                "env": {"A": "b"},
                "outputs": "out",
                "mounts": (
                    Mount(source=str(tmp_path / "data"), target="/data", is_read_only=True),
                ),
                "memory_bytes": 256 << 20,
            }
        )
        await here.until_printed(ref, "up")
        session = await here.engine.execute(ref, ExecRequest(argv=("cat", "/made")))
        assert await session.read() == b"made\n"
        await session.close()
        await here.engine.stop(here.stop_order(ref, grace_s=30.0))
        ended = await here.exit_of(ref)
        assert ended.exit_code == 4
        task = str(found.task_directory(root, ref) / records.TASK)
        lines = await printed(here, ref)
        assert [line for line in lines if line[0] in "m/1us" and "/y" not in line] == [
            "made", "mounted", task, "1 b", "up", "saved",
        ]  # fmt: skip
        assert "Read-only file system" in next(line for line in lines if "/data/y" in line)
        await here.close()

    asyncio.run(check())
    left = subprocess.run(["podman", "ps", "-aq"], capture_output=True, check=True)
    assert left.stdout == b""


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if "exec" not in c.id][:12], ids=lambda check: check.id
)
def test_the_contract_holds_in_a_real_container(podman: Path, check: Check, root: Path) -> None:
    outcome = asyncio.run(
        run_check(
            check, lambda: connect(root, "podman"), programs=ShellPrograms(), user="root",
            deadline_s=60.0,
        )
    )  # fmt: skip
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason
