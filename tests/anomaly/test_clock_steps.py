"""The wall clock is set back, and forward, under a running server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from live_world import World, run
from tercio.model.events import JobSubmitted
from tercio.model.job import EndCause, JobState, TimeSpec
from tercio.runtime.clock import SystemClock
from tercio.testing.factories import make_job

HOUR_S = 3600.0


class Wall:
    """The machine's wall clock, as somebody may set it."""

    def __init__(self) -> None:
        self.step_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.step_s


def test_jobs_go_on_while_the_clock_is_set_back(path: Path) -> None:
    async def test() -> None:
        wall = Wall()
        world = World(path)
        world.clock = SystemClock(wall=wall)
        await world.start()
        before_s = world.clock.now_s()
        short = await world.submit(make_job(time=TimeSpec(expected_s=0.2)))
        limited = await world.submit(make_job(time=TimeSpec(limit_s=0.3, expected_s=9e9)))
        for job_id in (short, limited):
            await world.until(lambda job_id=job_id: world.job(job_id).state is JobState.RUNNING)
        wall.step_s = -HOUR_S
        # The end and the limit fall due as if nothing had happened.
        assert (await world.ended(short)).state is JobState.SUCCEEDED
        ended = await world.ended(limited)
        assert ended.cause is EndCause.TIME_LIMIT
        assert ended.ended_s is not None
        assert before_s < ended.ended_s < before_s + HOUR_S / 2
        # A restart with the clock still behind does not undo the journal's time.
        await world.crash()
        world.clock = SystemClock(wall=wall)
        await world.start()
        third = await world.submit(make_job(time=TimeSpec(expected_s=0.0)))
        assert (await world.ended(third)).state is JobState.SUCCEEDED
        assert len(world.events(JobSubmitted)) == 3
        assert world.journal is not None
        times = [entry.event.at_s for entry in world.journal.read(limit=1000)]
        assert times == sorted(times)
        assert any("behind the journal" in note for note in world.running.notes())
        await world.stop()

    run(test())


def test_a_step_forward_is_followed_and_only_deadlines_in_it_pass(path: Path) -> None:
    async def test() -> None:
        wall = Wall()
        world = World(path)
        world.clock = SystemClock(wall=wall)
        await world.start()
        limited = await world.submit(make_job(time=TimeSpec(limit_s=600.0, expected_s=9e9)))
        free = await world.submit(make_job(time=TimeSpec(expected_s=9e9)))
        for job_id in (limited, free):
            await world.until(lambda job_id=job_id: world.job(job_id).state is JobState.RUNNING)
        wall.step_s = HOUR_S
        # Anything that happens lets the server look at the clock.
        await world.submit(make_job(), is_held=True)
        assert (await world.ended(limited)).cause is EndCause.TIME_LIMIT
        assert world.job(free).state is JobState.RUNNING
        await asyncio.sleep(0)
        await world.stop()

    run(test())
