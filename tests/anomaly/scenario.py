"""A small scenario on simulated machines in virtual time, over servers that may be killed.

Two gangs and two single jobs: the first gang finishes, the second is cancelled while it runs;
one single job is requeued while it runs and finishes in its second attempt, the other fails in
its first and is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from live_world import ANN, World
from tercio.config import SchedulerConfig
from tercio.core.cluster import Cluster
from tercio.core.invariants import check
from tercio.engines.sim.script import Behaviour, Rule, SimScript
from tercio.errors import UserError
from tercio.model.commands import CancelJob, RequeueJob, SubmitJob
from tercio.model.effects import AnyEffect
from tercio.model.events import AnyEvent, JobPlaced
from tercio.model.ids import JobId
from tercio.model.job import TERMINAL_JOB_STATES, EndCause, JobSpec, JobState, RetrySpec, TimeSpec
from tercio.runtime.faults import Act, NoFaults, Point
from tercio.runtime.recovery import recover
from tercio.testing.factories import make_job, make_nodes

DONE, CANCELLED, REQUEUED, RETRIED = (JobId(f"job-0000{number}") for number in (1, 2, 3, 4))
DOWN_S: Final = 3.0
END_S: Final = 3600.0
SHORT: Final = TimeSpec(expected_s=4.0)
RETRY: Final = RetrySpec(on=(EndCause.FAILED, EndCause.NODE_FAILED), max=1, backoff_s=1.0)
# States, attempts, and the tasks that the machines have seen.
ENDED: Final = {
    DONE: (JobState.SUCCEEDED, 1),
    CANCELLED: (JobState.CANCELLED, 1),
    REQUEUED: (JobState.SUCCEEDED, 2),
    RETRIED: (JobState.SUCCEEDED, 2),
}
TASKS: Final = {
    "job-00001/1/0", "job-00001/1/1", "job-00002/1/0", "job-00002/1/1",
    "job-00003/1/0", "job-00003/2/0", "job-00004/1/0", "job-00004/2/0",
}  # fmt: skip


class Killed(BaseException):
    """The server is dead."""


class Faults(NoFaults):
    """Counts points and effects over all servers; kills at the points with these numbers."""

    def __init__(self, *kill_at: int) -> None:
        self.kill_at = kill_at
        self.is_dead = False
        self.points: list[Point] = []
        self.effects: list[str] = []
        self.world: World | None = None

    def reach(self, point: Point) -> None:
        if self.is_dead:
            raise Killed
        self.points.append(point)
        if len(self.points) - 1 in self.kill_at:
            self.is_dead = True
            raise Killed

    async def perform(self, effect: AnyEffect, act: Act) -> AnyEvent | None:
        self.effects.append(effect.effect_id)
        return await act()


class Scenario:
    """Plays the scenario: `await Scenario(path, faults).play()`, then `check()`."""

    def __init__(self, path: Path, faults: Faults, **options: object) -> None:
        path.mkdir()
        script = SimScript(
            rules=(
                Rule(job="retried", attempt=1, behaviour=Behaviour(exit_code=3)),
                Rule(behaviour=Behaviour(stop_s=2.0)),
            )
        )
        self.world = World(
            path,
            nodes=make_nodes(2),
            script=script,
            is_stepped=True,
            # On a busy machine no cycle may be taken for a long one: time here is virtual.
            scheduler=SchedulerConfig(short_cycle_s=1e9),
            **options,  # type: ignore[arg-type]
        )
        self.faults = faults
        self.faults.world = self.world
        self.starts = 0
        self.start_s = self.world.clock.now_s()
        self.todo: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (0.0, lambda: self._submit("done", make_gang(10.0))),
            (0.0, lambda: self._submit("cancelled", make_gang(1000.0))),
            (0.0, lambda: self._submit("requeued", make_job(time=TimeSpec(expected_s=20.0)))),
            (0.0, lambda: self._submit("retried", make_job("retried", retry=RETRY, time=SHORT))),
            (5.0, self._cancel),
            (7.0, self._requeue),
        ]

    # What people do; what was not answered is done again.

    async def _submit(self, key: str, spec: JobSpec) -> None:
        await self.world.running.execute(SubmitJob(spec=spec, submit_key=key), ANN)

    async def _cancel(self) -> None:
        with suppress(UserError):
            if self.world.job(CANCELLED).state not in TERMINAL_JOB_STATES:
                await self.world.running.execute(CancelJob(job_id=CANCELLED), ANN)

    async def _requeue(self) -> None:
        job = self.world.job(REQUEUED)
        if job.attempt == 1 and job.stop_cause is None:
            await self.world.running.execute(RequeueJob(job_id=REQUEUED), ANN)

    # Time.

    async def play(self) -> None:
        await self._start()
        while not self._is_over():
            assert self.now_s < END_S, "the scenario does not end"
            if self.todo and self.todo[0][0] <= self.now_s:
                await self._do(self.todo[0][1])
            elif not self.faults.is_dead:
                await self._advance()
            if self.faults.is_dead:
                await self._crash()
        await self.world.settle()
        if self.faults.is_dead:
            await self._crash()
            await self.world.settle()

    @property
    def now_s(self) -> float:
        return self.world.clock.now_s() - self.start_s

    def _is_over(self) -> bool:
        jobs = self.world.running.driver.cluster.jobs.values()
        return not self.todo and all(job.state in TERMINAL_JOB_STATES for job in jobs)

    async def _do(self, action: Callable[[], Awaitable[None]]) -> None:
        asked = asyncio.ensure_future(action())
        await self.world.settle(asked)
        if not asked.done():
            asked.cancel()
        (failure,) = await asyncio.gather(asked, return_exceptions=True)
        if not self.faults.is_dead:
            if failure is not None:
                raise failure
            self.todo.pop(0)

    async def _advance(self) -> None:
        await self.world.settle()
        if self.faults.is_dead or self._is_over():
            return
        due = [] if self.world.next_s is None else [self.world.next_s - self.start_s]
        to_s = min([*due, *[at_s for at_s, _ in self.todo[:1]]], default=END_S)
        await self.world.advance(max(0.0, to_s - self.now_s))
        await self.world.settle()

    async def _start(self) -> None:
        self.starts += 1
        try:
            await self.world.start(faults=self.faults)
        except Killed:
            self._revive()
            await self._start()

    async def _crash(self) -> None:
        await self.world.crash()
        self._revive()
        await self._start()

    def _revive(self) -> None:
        """The machines go on while no server runs."""
        self.faults.is_dead = False
        to_s = self.world.clock.now_s() + DOWN_S
        self.world.clock.not_before(to_s)
        self.world.machines_clock.now_s = to_s

    # What must be true.

    async def check(self) -> None:
        """Nothing lost, nothing twice, nothing left; the journal says the same. Ends it."""
        world = self.world
        jobs = world.running.driver.cluster.jobs
        assert {job.id: (job.state, job.attempt) for job in jobs.values()} == ENDED
        self.check_machines()
        assert not world.running.driver.cluster.open_effects
        tasks = world.state.tasks
        for job_id in (REQUEUED, RETRIED):
            first_end_s = tasks[f"{job_id}/1/0"].ends_s
            second_start_s = tasks[f"{job_id}/2/0"].started_s
            assert first_end_s is not None
            assert second_start_s is not None
            assert first_end_s <= second_start_s, "two attempts at once"
        await self.check_replay()

    def check_machines(self) -> None:
        tasks = self.world.state.tasks
        assert set(tasks) == TASKS
        assert not [key for key, task in tasks.items() if not task.is_ended], "a task leaked"

    async def check_replay(self) -> None:
        live = self.world.running.driver.cluster.state_hash()
        assert self.world.journal is not None
        assert recover(self.world.journal).cluster.state_hash() == live
        whole = Cluster()
        for entry in self.world.journal.read(limit=100_000):
            whole.apply(entry.event)
            check(whole)
        placed = [(e.job_id, e.attempt) for e in self.world.events(JobPlaced)]  # type: ignore[union-attr]
        assert len(placed) == len(set(placed)), "an attempt was placed twice"
        assert whole.state_hash() == live
        await self.world.crash()


def make_gang(expected_s: float) -> JobSpec:
    return make_job(tasks=2, devices=3, time=TimeSpec(expected_s=expected_s))
