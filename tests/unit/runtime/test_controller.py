from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from live_world import ADMIN, ANN, World, run, spin

from tercio.config import SchedulerConfig, StoreConfig
from tercio.core.cluster import Cluster
from tercio.engines.sim.engine import SimEngine
from tercio.errors import EngineError, UserError
from tercio.model.commands import CancelJob, CordonNode, HoldJob, SubmitJob
from tercio.model.effects import AnyEffect
from tercio.model.events import (
    AnyEvent,
    JobCancelRequested,
    JobSubmitted,
    NodeLost,
    NodeReported,
    NodeUncordoned,
    ServerStarted,
    TaskStarted,
)
from tercio.model.ids import JobId, NodeName
from tercio.model.job import EndCause, JobState, RetrySpec, TimeSpec
from tercio.model.node import NodeState
from tercio.runtime.clock import SteppedClock
from tercio.runtime.faults import Act, NoFaults, Point
from tercio.runtime.recovery import recover
from tercio.store.journal import Journal
from tercio.testing.factories import make_job

SHORT = TimeSpec(expected_s=0.0)
LONG = TimeSpec(expected_s=3600.0)


class Gate(NoFaults):
    """Holds the journal's thread before a write until it is opened; counts writes."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.writes = 0
        self.reached = threading.Event()

    def reach(self, point: Point) -> None:
        if point is Point.BEFORE_WRITE:
            self.writes += 1
            self.reached.set()
            assert self.is_open.wait(20.0)

    def close(self) -> None:
        self.is_open.clear()
        self.reached.clear()


def test_job_goes_from_submit_to_its_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            job_id = await world.submit(make_job(tasks=2, devices=8, time=SHORT))
            job = await world.ended(job_id)
            assert (job.state, job.exit_code) == (JobState.SUCCEEDED, None)
            assert not world.running.driver.cluster.open_effects
            starts = world.events(TaskStarted)
            assert len(starts) == len(world.state.tasks) == 2

    run(test())


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


def test_nothing_is_answered_performed_or_shown_before_it_is_durable(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()
        world = World(tmp_path)
        controller = await world.start(faults=gate)
        follower = controller.subscribe(controller.driver.seq)
        shown = asyncio.ensure_future(anext(follower))
        gate.close()
        asked = asyncio.create_task(world.submit(make_job(time=LONG)))
        await asyncio.to_thread(gate.reached.wait, 20.0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        assert not shown.done()
        assert not world.state.tasks
        gate.is_open.set()
        job_id = await asked
        assert isinstance((await shown).event, JobSubmitted)
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        await world.stop()

    run(test())


def test_requests_that_come_during_a_write_share_the_next_one(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()
        world = World(tmp_path)
        await world.start(faults=gate)
        gate.close()
        first = asyncio.create_task(world.submit(make_job(), is_held=True))
        await asyncio.to_thread(gate.reached.wait, 20.0)
        before = gate.writes
        many = [asyncio.create_task(world.submit(make_job(), is_held=True)) for _ in range(200)]
        await spin(lambda: world.running._inbox.depth == 200)
        gate.is_open.set()
        ids = [await first, *[await task for task in many]]
        assert gate.writes == before + 1
        assert len(set(ids)) == 201
        await world.stop()

    run(test())


def test_refused_command_changes_nothing_and_a_batch_is_all_or_none(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            before = world.running.driver.cluster.state_hash()
            with pytest.raises(UserError, match="no queue 'nowhere'"):
                await world.submit(make_job(queue="nowhere"))
            batch = [SubmitJob(spec=make_job()), SubmitJob(spec=make_job(queue="nowhere"))]
            with pytest.raises(UserError, match="no queue 'nowhere'"):
                await world.running.execute_many(batch, ANN)
            assert world.running.driver.cluster.state_hash() == before
            good = [SubmitJob(spec=make_job(), is_held=True) for _ in range(3)]
            outcome = await world.running.execute_many(good, ANN)
            assert outcome.job_ids == ["job-00001", "job-00002", "job-00003"]
            assert [type(event) for event in outcome.events] == [JobSubmitted] * 3
            assert (await world.running.execute_many([], ANN)).job_ids == []

    run(test())


def test_repeated_submit_key_returns_the_first_job(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            spec = make_job()
            first = await world.submit(spec, submit_key="k", is_held=True)
            assert await world.submit(spec, submit_key="k", is_held=True) == first
            twice = [SubmitJob(spec=spec, submit_key="x", is_held=True)] * 2
            outcome = await world.running.execute_many(twice, ANN)
            assert outcome.job_ids == ["job-00002", "job-00002"]
        async with world:
            assert await world.submit(spec, submit_key="k", is_held=True) == first
            assert len(world.running.driver.cluster.jobs) == 2

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

    async def open(self, deliver: object) -> None:
        type(self).tries += 1
        if self.tries in (2, 3):
            raise EngineError("no route", engine="sim", operation="open", retryable=True)
        await super().open(deliver)  # type: ignore[arg-type]


def test_unreachable_site_loses_its_nodes_and_is_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        UnreachableTwice.tries = 0
        world = World(tmp_path, engine_class=UnreachableTwice, is_stepped=True)
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
        await world.advance(60.0)
        await world.until(lambda: world.job(job_id).state is not JobState.RUNNING)
        assert world.job(job_id).stop_cause is EndCause.TIME_LIMIT
        times = [entry.event.at_s for entry in world.journal.read(limit=1000)]  # type: ignore[union-attr]
        assert times == sorted(times)
        await world.stop()

    run(test())


def test_observation_from_the_future_does_not_carry_the_clock_away(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, is_stepped=True) as world:
            now_s = world.clock.now_s()
            world.running._inbox.deliver(
                NodeLost(at_s=now_s + 1e6, node=NodeName("n1"), reason="x")
            )
            await world.until(lambda: bool(world.events(NodeLost)))
            assert world.running.driver.cluster.now_s == now_s

    run(test())


def test_long_cycles_leave_time_for_the_rest(tmp_path: Path) -> None:
    async def test() -> None:
        greedy = SchedulerConfig(short_cycle_s=0.0, busy_ratio=0.01)
        async with World(tmp_path, is_stepped=True, scheduler=greedy) as world:
            job_id = await world.submit(make_job(time=LONG))
            held = await world.submit(make_job(), is_held=True)
            # Time stands still, so the pause after the last cycle is not over: commands are
            # served, decisions wait.
            assert world.job(job_id).state is JobState.QUEUED
            assert world.job(held).state is JobState.HELD
            await world.advance(3600.0)
            await world.until(lambda: world.job(job_id).state is JobState.RUNNING)

    run(test())


def test_bug_in_a_turn_stops_the_writer_and_keeps_the_journal(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        await world.start()
        before = world.journal.last_seq  # type: ignore[union-attr]
        ghost = NodeUncordoned(at_s=1.0, node=NodeName("ghost"), owner="x")
        world.running._inbox.deliver(ghost)
        with pytest.raises(KeyError):
            await world.running.failed()
        with pytest.raises(UserError) as caught:
            await world.submit(make_job())
        assert caught.value.code == "unavailable"
        assert world.journal.last_seq == before  # type: ignore[union-attr]
        await world.crash()
        async with world:
            await world.ended(await world.submit(make_job(time=SHORT)))

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


class LateFirst(NoFaults):
    """The first effect is performed only when allowed."""

    def __init__(self) -> None:
        self.allowed = asyncio.Event()
        self.performed: list[str] = []

    async def perform(self, effect: AnyEffect, act: Act) -> AnyEvent | None:
        if effect.effect_id.startswith("launch:"):
            await self.allowed.wait()
        self.performed.append(effect.effect_id.partition(":")[0])
        return await act()


def test_stop_never_overtakes_the_launch_that_it_undoes(tmp_path: Path) -> None:
    async def test() -> None:
        faults = LateFirst()
        world = World(tmp_path)
        await world.start(faults=faults)
        job_id = await world.submit(make_job(time=LONG))
        await world.until(lambda: world.job(job_id).state is JobState.STARTING)
        await world.running.execute(CancelJob(job_id=job_id), ANN)
        for _ in range(20):
            await asyncio.sleep(0)
        assert faults.performed == []
        faults.allowed.set()
        assert (await world.ended(job_id)).state is JobState.CANCELLED
        assert faults.performed == ["launch", "stop"]
        assert all(task.is_ended for task in world.state.tasks.values())
        assert len(world.events(JobCancelRequested)) == 1
        await world.stop()

    run(test())


class HangsOnce(NoFaults):
    """The first launch never answers."""

    def __init__(self) -> None:
        self.count = 0

    async def perform(self, effect: AnyEffect, act: Act) -> AnyEvent | None:
        self.count += 1
        if self.count == 1:
            await asyncio.Event().wait()
        return await act()


def test_launch_without_an_answer_is_ordered_again_after_its_deadline(tmp_path: Path) -> None:
    async def test() -> None:
        faults = HangsOnce()
        world = World(tmp_path, is_stepped=True)
        await world.start(faults=faults)
        job_id = await world.submit(make_job(time=LONG))
        await world.until(lambda: world.job(job_id).state is JobState.STARTING)
        await spin(lambda: faults.count == 1)
        await world.advance(121.0)
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        assert (faults.count, len(world.state.tasks)) == (2, 1)
        await world.stop()

    run(test())


def test_hold_of_an_unknown_job_names_the_nearest(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            await world.submit(make_job(), is_held=True)
            with pytest.raises(UserError) as caught:
                await world.running.execute(HoldJob(job_id=JobId("job-0001")), ANN)
            assert caught.value.code == "not_found"
            assert "job-00001" in (caught.value.hint or "")

    run(test())


def test_requests_are_answered_before_a_long_cycle_which_follows_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()
        every_cycle_is_long = SchedulerConfig(short_cycle_s=0.0, busy_ratio=1.0)
        world = World(tmp_path, scheduler=every_cycle_is_long)
        await world.start(faults=gate)
        job_id = await world.submit(make_job(time=LONG))
        assert world.job(job_id).state is JobState.QUEUED
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        # Under a steady stream of requests every second turn decides.
        for _ in range(3):
            last = await world.submit(make_job(time=LONG))
            await world.submit(make_job(), is_held=True)
            await world.submit(make_job(), is_held=True)
        await world.until(lambda: world.job(last).state is JobState.RUNNING)
        await world.stop()

    run(test())
