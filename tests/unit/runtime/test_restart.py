"""What a server finds after a stop, a crash, or a change around it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from live_world import ADMIN, ANN, World, run, spin
from tercio.config import StoreConfig
from tercio.core.cluster import Cluster
from tercio.engines.sim.engine import SimEngine
from tercio.errors import EngineError, UserError
from tercio.model.commands import CancelJob, CordonNode
from tercio.model.events import (
    JobSubmitted,
    NodeLost,
    NodeReported,
    ServerStarted,
)
from tercio.model.ids import NodeName
from tercio.model.job import EndCause, JobState, RetrySpec, TimeSpec
from tercio.model.node import NodeState
from tercio.runtime.clock import SteppedClock
from tercio.runtime.recovery import recover
from tercio.store.journal import Journal
from tercio.store.restore import restore
from tercio.testing.factories import make_job

SHORT = TimeSpec(expected_s=0.0)
LONG = TimeSpec(expected_s=3600.0)


def test_replay_is_bit_identical_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path, store=StoreConfig(checkpoint_entries=7))
        await world.start()
        retry = RetrySpec(on=(EndCause.FAILED,), max=1, backoff_s=0.0)
        fails = {"TERCIO_SIM": '{"exit_code": 3, "duration_s": 0}'}
        first = await world.submit(make_job(env=fails, retry=retry))
        second = await world.submit(make_job(tasks=2, time=LONG))
        await world.submit(make_job(time=LONG), is_held=True)
        await world.running.execute(CordonNode(node=NodeName("n2"), reason="x"), ADMIN)
        await world.ended(first)
        await world.running.execute(CancelJob(job_id=second), ANN)
        assert (await world.ended(second)).state is JobState.CANCELLED
        live = world.running.driver.cluster.state_hash()
        await world.crash()
        journal = Journal.open(tmp_path / "journal.db")
        assert len(journal.checkpoints()) == 2
        assert recover(journal).cluster.state_hash() == live
        whole = Cluster()
        for entry in journal.read(limit=10_000):
            whole.apply(entry.event)
        assert whole.state_hash() == live
        journal.close()

    run(test())


def test_every_prefix_of_the_journal_recovers(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path / "a") as world:
            for _ in range(3):
                await world.ended(await world.submit(make_job(tasks=2, time=SHORT)))
        journal = Journal.open(tmp_path / "a" / "journal.db")
        entries = journal.read(limit=10_000)
        journal.close()
        for length in range(1, len(entries) + 1, 3):
            world = World(tmp_path / str(length), state=world.state)
            (tmp_path / str(length)).mkdir()
            part = Journal.open(tmp_path / str(length) / "journal.db")
            part.append(entries[:length])
            part.close()
            world.state.epoch = 0
            async with world:
                jobs = world.running.driver.cluster.jobs
                for job_id in list(jobs):
                    assert (await world.ended(job_id)).state is JobState.SUCCEEDED

    run(test())


def test_restart_adopts_what_runs_and_starts_nothing_twice(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        await world.start()
        job_id = await world.submit(make_job(tasks=2, time=LONG))
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        started = {key: task.started_s for key, task in world.state.tasks.items()}
        await world.stop()
        async with world:
            assert world.job(job_id).state is JobState.RUNNING
            assert world.running.driver.cluster.epoch == 2
            assert {k: t.started_s for k, t in world.state.tasks.items()} == started
            assert len(world.events(ServerStarted)) == 2
            assert len(world.events(NodeReported)) == 2, "an unchanged node is not journalled again"
            await world.running.execute(CancelJob(job_id=job_id), ANN)
            assert (await world.ended(job_id)).state is JobState.CANCELLED

    run(test())


def test_end_that_happened_while_no_server_ran_is_found(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path, is_stepped=True)
        await world.start()
        job_id = await world.submit(make_job(time=TimeSpec(expected_s=50.0)))
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        await world.crash()
        # The machines go on without the server, whose engine is closed.
        machines = world.new_engine()
        await machines.open(lambda _: None)
        machines.advance(world.machines_clock.now_s + 60.0)
        async with world:
            assert (await world.ended(job_id)).state is JobState.SUCCEEDED

    run(test())


def test_task_that_the_journal_does_not_know_is_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path / "a")
        await world.start()
        job_id = await world.submit(make_job(time=LONG))
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        await world.crash()
        other = World(tmp_path / "b", state=world.state)
        world.state.epoch = 0
        async with other:
            (task,) = world.state.tasks.values()
            await spin(lambda: task.is_ended)
            assert not other.events(JobSubmitted)

    run(test())


class UnreachableTwice(SimEngine):
    """Cannot be opened at first."""

    tries = 0
    failure: Exception = EngineError("no route", engine="sim", operation="open", retryable=True)

    async def open(self, deliver: object) -> None:
        type(self).tries += 1
        if self.tries in (2, 3):
            raise self.failure
        await super().open(deliver)  # type: ignore[arg-type]


class BrokenTwice(UnreachableTwice):
    """Has a bug that shows in its opening."""

    failure = ValueError("no route")


@pytest.mark.parametrize("engine_class", [UnreachableTwice, BrokenTwice])
def test_unreachable_site_loses_its_nodes_and_is_tried_again(
    tmp_path: Path, engine_class: type[UnreachableTwice]
) -> None:
    async def test() -> None:
        engine_class.tries = 0
        world = World(tmp_path, engine_class=engine_class, is_stepped=True)
        async with world:
            pass
        await world.start()
        nodes = world.running.driver.cluster.nodes
        await world.until(lambda: all(n.state is NodeState.DOWN for n in nodes.values()))
        assert "no route" in world.running.notes()[0]
        job_id = await world.submit(make_job(time=SHORT))
        assert world.job(job_id).state is JobState.QUEUED
        for _ in range(2):
            await world.advance(5.0)
            for _ in range(50):
                await asyncio.sleep(0)
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        await world.advance(1.0)
        assert (await world.ended(job_id)).state is JobState.SUCCEEDED
        assert world.running.notes() == ()
        await world.stop()

    run(test())


def test_node_that_its_site_no_longer_reports_is_lost(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        async with world:
            pass
        world.nodes = world.nodes[:1]
        async with world:
            await world.until(lambda: bool(world.events(NodeLost)))
            nodes = world.running.driver.cluster.nodes
            assert (nodes["n1"].state, nodes["n2"].state) == (NodeState.READY, NodeState.DOWN)

    run(test())


def test_journal_time_never_goes_back_and_limits_still_end_jobs(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path, is_stepped=True)
        await world.start()
        job_id = await world.submit(make_job(time=TimeSpec(limit_s=100.0, expected_s=9e9)))
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        await world.advance(50.0)
        await world.running.execute(CordonNode(node=NodeName("n2")), ADMIN)
        await world.stop()
        # The machine comes back with its clock an hour behind.
        world.clock = SteppedClock(world.clock.now_s() - 3600.0)
        await world.start()
        assert world.clock.now_s() >= world.running.driver.cluster.now_s
        (note,) = world.running.notes()
        assert note == "this machine's clock was 1h behind the journal at the start"
        await world.advance(60.0)
        await world.until(lambda: world.job(job_id).state is not JobState.RUNNING)
        assert world.job(job_id).stop_cause is EndCause.TIME_LIMIT
        times = [entry.event.at_s for entry in world.journal.read(limit=1000)]  # type: ignore[union-attr]
        assert times == sorted(times)
        await world.stop()

    run(test())


def test_stop_refuses_new_commands_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        await world.start()
        await world.submit(make_job(time=LONG))
        await world.stop()
        live = world.running.driver.cluster.state_hash()
        with pytest.raises(UserError) as caught:
            await world.submit(make_job())
        assert caught.value.code == "unavailable"
        journal = Journal.open(tmp_path / "journal.db")
        newest = journal.latest_checkpoint()
        assert newest is not None
        assert newest.seq == journal.last_seq
        assert recover(journal).cluster.state_hash() == live
        journal.close()

    run(test())


def test_unsound_checkpoint_is_passed_over(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        async with world:
            await world.ended(await world.submit(make_job(time=SHORT)))
        journal = Journal.open(tmp_path / "journal.db")
        good = recover(journal).cluster.state_hash()
        newest = journal.latest_checkpoint()
        assert newest is not None
        journal.save_checkpoint(newest.seq, newest.image[:-1] + b"\x00", newest.digest)
        assert recover(journal).cluster.state_hash() == good
        journal.save_checkpoint(newest.seq, newest.image, "another digest")
        assert recover(journal).cluster.state_hash() == good
        journal.close()

    run(test())


def test_restored_server_stops_what_it_does_not_know_and_takes_no_used_job_id(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        world = World(tmp_path)
        await world.start()
        kept = await world.submit(make_job(time=LONG))
        await world.until(lambda: world.job(kept).state is JobState.RUNNING)
        assert world.journal is not None
        world.journal.backup(tmp_path / "backup.db")
        undone = await world.submit(make_job(time=LONG))
        await world.until(lambda: world.job(undone).state is JobState.RUNNING)
        for _ in range(3):
            await world.stop()
            await world.start()
        await world.stop()
        restore(tmp_path / "backup.db", tmp_path / "journal.db")
        async with world:
            assert list(world.running.driver.cluster.jobs) == [kept]
            stray = world.state.tasks[f"{undone}/1/0"]
            await spin(lambda: stray.is_ended)
            fresh = await world.submit(make_job(time=SHORT))
            assert fresh > undone
            assert (await world.ended(fresh)).state is JobState.SUCCEEDED
            assert world.job(kept).state is JobState.RUNNING

    run(test())
