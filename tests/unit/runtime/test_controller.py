from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from live_world import ANN, World, run, spin
from tercio.config import SchedulerConfig
from tercio.errors import UserError
from tercio.model.commands import CancelJob, HoldJob, SubmitJob
from tercio.model.effects import AnyEffect
from tercio.model.events import (
    AnyEvent,
    JobCancelRequested,
    JobSubmitted,
    NodeLost,
    NodeUncordoned,
    TaskStarted,
)
from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobState, TimeSpec
from tercio.runtime.faults import Act, NoFaults, Point
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
            assert (job.state, job.exit_code) == (JobState.SUCCEEDED, 0)
            assert not world.running.driver.cluster.open_effects
            starts = world.events(TaskStarted)
            assert len(starts) == len(world.state.tasks) == 2

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


def test_what_the_journal_cannot_hold_is_refused_and_what_engines_say_is_made_readable(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            for bad in (make_job(run="\udc80"), make_job(priority=2**70)):
                with pytest.raises(UserError, match="this cannot be kept"):
                    await world.submit(bad)
                with pytest.raises(UserError, match="this cannot be kept"):
                    await world.running.execute_many([SubmitJob(spec=bad)] * 2, ANN)
            lost = NodeLost(at_s=1.0, node=NodeName("n1"), reason="tty\udc80 gone")
            world.running._inbox.deliver(lost)
            await world.until(lambda: bool(world.events(NodeLost)))
            assert world.events(NodeLost)[0].reason == "tty? gone"  # type: ignore[union-attr]

    run(test())
