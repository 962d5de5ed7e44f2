"""A local engine under test, in a directory that other system users can enter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from tercio.engines.base import LogQuery, TaskRef
from tercio.engines.bench import Bench, ShellPrograms
from tercio.engines.local import found, records
from tercio.engines.local.engine import LocalEngine
from tercio.engines.local.settings import LocalSettings
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import DeviceSpec, NodeSpec

SITE = SiteName("here")
NODE = NodeSpec(
    name=NodeName("n1"), site=SITE, devices=(DeviceSpec(type="CPU", index=0, vendor="cpu"),)
)
IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root to change users")


def connect(root: Path, **changes: object) -> LocalEngine:
    workdir_of: Callable[[str], Path] = lambda name: root.parent / name  # noqa: E731
    settings = {"run_as": "root" if IS_ROOT else None, **changes}
    return LocalEngine(
        site=SITE,
        settings=LocalSettings(tasks_dir=str(root), **settings),  # type: ignore[arg-type]
        clock=time.time,
        read_node=lambda is_ours: NODE,
        workdir_of=workdir_of,
    )


@contextlib.asynccontextmanager
async def bench_of(root: Path, **changes: object) -> AsyncIterator[Bench]:
    bench = Bench(lambda: connect(root, **changes), ShellPrograms(), user="root", deadline_s=20.0)
    await bench.open()
    try:
        yield bench
    finally:
        await bench.close()
        # A supervisor tells the end a moment before it is gone itself.
        await until(lambda: not any(is_held(path) for path in task_directories(root)))


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that the kernel does a moment after it was asked to."""

    def wait() -> None:
        give_up = time.monotonic() + 10
        while not is_so():
            assert time.monotonic() < give_up
            time.sleep(0.001)

    await asyncio.to_thread(wait)


def task_directories(root: Path) -> list[Path]:
    """Every control directory that is there."""
    return [path for path in root.glob("*/*/*") if path.name.isdigit()]


def is_held(directory: Path) -> bool:
    lock = records.claim(str(directory))
    if lock is None:
        return True
    os.close(lock)
    return False


def run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(test, debug=False)


def is_gone(pid: int) -> bool:
    fields = records.stat_fields(pid)
    return fields is None or fields[0] == "Z"


async def printed_pid(bench: Bench, ref: TaskRef, name: str) -> int:
    """The number in the line `NAME NUMBER` of a running task."""
    async for line in bench.engine.logs(ref, LogQuery(is_following=True)):
        if line.text.startswith(f"{name} "):
            return int(line.text.split()[1])
    raise AssertionError(f"no line {name}")


async def text_of(bench: Bench, ref: TaskRef) -> list[str]:
    return [line.text for line in await bench.lines(ref, LogQuery())]


def supervisor_pid(root: Path, ref: TaskRef) -> int:
    begun = records.read_record(str(found.task_directory(root, ref)), records.BEGUN)
    assert begun is not None
    return int(begun["pid"])


STUBBORN_TREE = """
trap '' TERM
setsid bash -c 'trap "" TERM; echo "child $$"; while :; do sleep 0.05; done' &
( setsid bash -c 'trap "" TERM; echo "orphan $$"; while :; do sleep 0.05; done' & )
while :; do sleep 0.05; done
"""
