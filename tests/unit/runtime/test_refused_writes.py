"""A journal that takes no writes: a clear error, no half state, and going on by itself."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from live_world import ANN, World, run, spin
from tercio.errors import StoreError
from tercio.model.commands import SubmitJob
from tercio.model.events import JobSubmitted, TaskExited
from tercio.model.ids import JobId
from tercio.model.job import JobState, TimeSpec
from tercio.runtime.faults import NoFaults, Point
from tercio.testing.factories import make_job

LONG = TimeSpec(expected_s=3600.0)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond 4 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class ReadOnly(NoFaults):
    """Writes fail while `error` is set, as on a file system that was remounted read-only."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.refused = 0

    def reach(self, point: Point) -> None:
        if point is Point.BEFORE_WRITE and self.error is not None:
            self.refused += 1
            raise StoreError(self.error)


def test_full_disk_refuses_the_command_keeps_nothing_and_goes_on_by_itself(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            first = await world.submit(make_job(time=LONG), is_held=True)
            before = world.running.driver.cluster.state_hash()
            with full_disk():
                with pytest.raises(StoreError, match="cannot write") as caught:
                    await world.submit(make_job(run="x" * 5000))
                assert str(tmp_path) in str(caught.value)
                assert world.running.driver.cluster.state_hash() == before
                assert not world.state.tasks
                # Reads go on, and the next command is told at once.
                assert world.job(first).state is JobState.HELD
                assert "no change is accepted: cannot write" in world.running.notes()[0]
                with pytest.raises(StoreError, match="cannot write"):
                    await world.submit(make_job())
                assert b"tercio_journal_stalled 1.0" in world.running.metrics.render()
            await spin(lambda: not world.running.notes())
            assert b"tercio_journal_stalled 0.0" in world.running.metrics.render()
            second = await world.submit(make_job(time=LONG))
            assert second == "job-00002"
            await world.until(lambda: world.job(second).state is JobState.RUNNING)
            assert len(world.events(JobSubmitted)) == 2

    run(test())


def test_end_of_a_task_during_the_stall_is_not_lost(tmp_path: Path) -> None:
    async def test() -> None:
        faults = ReadOnly()
        world = World(tmp_path)
        await world.start(faults=faults)
        job_id = await world.submit(make_job(time=LONG))
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        faults.error = "cannot write j.db: it cannot be written"
        world.running._inbox.deliver(
            TaskExited(at_s=world.clock.now_s(), job_id=job_id, attempt=1, task=0, exit_code=0)
        )
        await spin(lambda: faults.refused >= 3)
        with pytest.raises(StoreError, match="it cannot be written"):
            await world.submit(make_job())
        faults.error = None
        assert (await world.ended(job_id)).state is JobState.SUCCEEDED
        await world.stop()

    run(test())


def test_secrets_of_a_refused_submit_are_not_kept(tmp_path: Path) -> None:
    async def test() -> None:
        faults = ReadOnly()
        world = World(tmp_path)
        await world.start(faults=faults)
        faults.error = "cannot write"
        spec = make_job(secrets=("TOKEN",))
        with pytest.raises(StoreError):
            await world.running.execute(SubmitJob(spec=spec), ANN, secrets={"TOKEN": "hunter2"})
        faults.error = None
        assert not list((tmp_path / "secrets").iterdir())
        await world.stop()

    run(test())


def test_server_stops_cleanly_while_the_journal_is_stalled(tmp_path: Path) -> None:
    async def test() -> None:
        faults = ReadOnly()
        world = World(tmp_path)
        await world.start(faults=faults)
        faults.error = "cannot write"
        asked = [asyncio.create_task(world.submit(make_job())) for _ in range(20)]
        for task in asked:
            with pytest.raises(StoreError):
                await task
        await world.stop()
        async with world:
            assert not world.running.driver.cluster.jobs

    run(test())


def test_server_does_not_start_on_a_journal_that_takes_no_writes(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        async with world:
            pass
        faults = ReadOnly()
        faults.error = "cannot write"
        with pytest.raises(StoreError):
            await world.start(faults=faults)
        async with world:
            assert world.running.driver.cluster.epoch == 2

    run(test())


def test_secrets_reach_the_task_and_a_missing_one_fails_the_launch(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            spec = make_job(secrets=("TOKEN",), time=LONG)
            job_id = await world.submit(spec, secrets={"TOKEN": "hunter2", "OTHER": "x"})
            await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
            assert world.running.secrets.get(job_id)["TOKEN"] == "hunter2"
            assert b"hunter2" not in (tmp_path / "journal.db").read_bytes()
            assert b"hunter2" not in (tmp_path / "journal.db-wal").read_bytes()
            lacking = await world.ended(await world.submit(spec))
            assert lacking.state is JobState.FAILED
            assert "secret TOKEN is not kept" in lacking.message
            world.running.secrets.put(JobId("job-zzzzz"), {"A": "b"})
        async with world:
            assert not world.running.secrets.get(JobId("job-zzzzz")), "belongs to no job"
            assert world.running.secrets.get(job_id)

    run(test())
