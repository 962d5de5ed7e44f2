from __future__ import annotations

import os
from pathlib import Path

import pytest

from live_world import ANN, World, run
from tercio.config import StoreConfig
from tercio.model.commands import CancelJob
from tercio.model.events import JobsForgotten, JobSubmitted
from tercio.model.ids import JobId
from tercio.model.job import ArraySpec, Dependency, IndexRange, JobSpec, JobState, TimeSpec
from tercio.runtime.controller import Resync
from tercio.testing.factories import make_job

DAY_S = 86_400.0
KEPT = StoreConfig(job_days=2.0, event_days=1.0, checkpoint_entries=5)


async def finished(world: World, spec: JobSpec, **fields: object) -> JobId:
    job_id = await world.submit(spec, **fields)
    if spec.array is None:
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
    await world.advance(1.0)
    await world.ended(job_id)
    return job_id


def test_old_jobs_are_forgotten_with_logs_secrets_and_entries(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path, is_stepped=True, store=KEPT)
        async with world:
            spec = make_job(time=TimeSpec(expected_s=0.5), secrets=("A",))
            old = await finished(world, spec, secrets={"A": "b"})
            living = await world.submit(make_job(), is_held=True)
            await world.advance(3 * DAY_S)
            young = await finished(world, spec, secrets={"A": "b"})
            await world.running.retention.once()
            await world.until(lambda: old not in world.running.driver.cluster.jobs)
            assert set(world.running.driver.cluster.jobs) == {living, young}
            assert set(world.state.tasks) == {f"{young}/1/0"}
            assert not world.running.secrets.get(old)
        async with world:
            pass  # every stop leaves a checkpoint; two are kept
        async with world:
            await world.running.retention.once()
            assert not world.running.secrets.get(old)
            assert world.running.secrets.get(young)
            assert world.journal is not None
            assert world.journal.read(subject=old) == []
            begun = world.journal.read(subject=living)
            assert isinstance(begun[0].event, JobSubmitted), "a living job keeps its whole story"
            with pytest.raises(Resync):
                await anext(world.running.subscribe(0))
        async with world:
            assert set(world.running.driver.cluster.jobs) == {living, young}
            assert len(world.events(JobsForgotten)) == 1

    run(test())


def test_what_something_living_refers_to_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, is_stepped=True, store=KEPT) as world:
            short = TimeSpec(expected_s=0.5)
            first = await finished(world, make_job(time=short))
            waits = make_job(depends_on=(Dependency(job=first),))
            second = await world.submit(waits, is_held=True)
            await world.advance(3 * DAY_S)
            await world.running.retention.once()
            assert first in world.running.driver.cluster.jobs
            await world.running.execute(CancelJob(job_id=second), ANN)
            await world.running.retention.once()
            await world.until(lambda: first not in world.running.driver.cluster.jobs)

    run(test())


def test_array_goes_with_its_elements_and_only_when_all_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, is_stepped=True, store=KEPT) as world:
            array = ArraySpec(ranges=(IndexRange(start=0, stop=3),))
            parent = await world.submit(make_job(array=array, time=TimeSpec(expected_s=0.5)))
            jobs = world.running.driver.cluster.jobs
            await world.until(
                lambda: sum(job.state is JobState.RUNNING for job in jobs.values()) == 4
            )
            await world.advance(1.0)
            await world.ended(parent)
            await world.advance(3 * DAY_S)
            await world.running.retention.once()
            await world.until(lambda: not world.running.driver.cluster.jobs)
            assert not world.state.tasks

    run(test())


def test_retention_goes_round_by_itself_and_survives_a_failure(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path, is_stepped=True, store=KEPT)
        async with world:
            await finished(world, make_job(time=TimeSpec(expected_s=0.5)))
            (tmp_path / "workdirs").write_text("in the way", encoding="utf-8")
            await world.advance(3 * DAY_S)
            await world.until(lambda: not world.running.driver.cluster.jobs)
            (tmp_path / "workdirs").unlink()
            await finished(world, make_job(time=TimeSpec(expected_s=0.5)))
            await world.advance(3 * DAY_S)
            await world.until(lambda: not world.running.driver.cluster.jobs)

    run(test())


def test_unused_uploads_go_after_a_day(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, is_stepped=True, store=KEPT) as world:
            directory = tmp_path / "workdirs"
            directory.mkdir()
            used, unused = (f"wd-{digit * 40}" for digit in "ab")
            for name in (used, unused):
                (directory / f"{name}.tar.gz").write_bytes(b"")
                os.utime(directory / f"{name}.tar.gz", (1.0, 1.0))
            await world.submit(make_job(workdir=used), is_held=True)
            await world.running.retention.once()
            assert [path.name for path in directory.iterdir()] == [f"{used}.tar.gz"]

    run(test())
