"""A small scenario, and what must hold at its end whatever went wrong on the way.

A gang of two runs to its end, a job that fails once is retried, one is cancelled while it
runs, and one never runs because it is held.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from live_world import ANN, World

from tercio.config import RuntimeConfig, StoreConfig
from tercio.core.cluster import Cluster
from tercio.core.invariants import check
from tercio.engines.sim.script import Behaviour, Rule, SimScript
from tercio.engines.sim.state import SimState
from tercio.errors import UserError
from tercio.model.commands import CancelJob
from tercio.model.events import JobPlaced, TaskStarted
from tercio.model.ids import JobId
from tercio.model.job import TERMINAL_JOB_STATES, EndCause, JobSpec, JobState, RetrySpec, TimeSpec
from tercio.runtime.faults import FaultPoints
from tercio.store.journal import Journal
from tercio.testing.factories import make_job, make_nodes

GANG, FLAKY, LONG, HELD = (JobId(f"job-0000{number}") for number in (1, 2, 3, 4))
_SCRIPT = SimScript(
    rules=(
        Rule(job="flaky", attempt=1, behaviour=Behaviour(duration_s=0.0, exit_code=3)),
        Rule(job="long", behaviour=Behaviour(duration_s=9e6)),
        Rule(behaviour=Behaviour(duration_s=0.0)),
    )
)
_RETRY = RetrySpec(on=(EndCause.FAILED, EndCause.NODE_FAILED), max=3, backoff_s=0.0)


def specs() -> list[tuple[str, JobSpec, bool]]:
    """Return (submit key, spec, held)."""
    return [
        ("gang", make_job("gang", tasks=2, devices=4), False),
        ("flaky", make_job("flaky", retry=_RETRY), False),
        ("long", make_job("long", time=TimeSpec(limit_s=9e5)), False),
        ("held", make_job("held"), True),
    ]


class Scenario:
    """Plays the scenario to its end, over as many servers as it takes."""

    def __init__(self, path: Path, state: SimState | None = None) -> None:
        self.world = World(
            path,
            nodes=make_nodes(2),
            script=_SCRIPT,
            state=state,
            store=StoreConfig(checkpoint_entries=9),
            runtime=RuntimeConfig(store_retry_s=0.001),
        )

    async def play(self, faults: FaultPoints | None) -> None:
        """Do what users do; every step may be repeated after a crash."""
        world = self.world
        await world.start(faults=faults)
        for key, spec, is_held in specs():
            await world.submit(spec, submit_key=key, is_held=is_held)
        await world.until(lambda: self._is(LONG, JobState.RUNNING, *TERMINAL_JOB_STATES))
        await self._cancel()
        for job_id in (GANG, FLAKY, LONG):
            await world.ended(job_id)

    async def _cancel(self) -> None:
        try:
            await self.world.running.execute(CancelJob(job_id=LONG), ANN)
        except UserError as refusal:
            if refusal.code != "conflict":  # cancelled before the crash
                raise

    def _is(self, job_id: JobId, *states: JobState) -> bool:
        job = self.world.running.driver.cluster.jobs.get(job_id)
        return job is not None and job.state in states

    async def finish(self) -> None:
        """Stop the last server and check everything."""
        world = self.world
        await world.stop()  # takes in what is still under way, such as a second answer
        world.journal = Journal.open(world.path / "journal.db")
        cluster = world.running.driver.cluster
        assert {job_id: job.state for job_id, job in cluster.jobs.items()} == {
            GANG: JobState.SUCCEEDED,
            FLAKY: JobState.SUCCEEDED,
            LONG: JobState.CANCELLED,
            HELD: JobState.HELD,
        }
        assert not cluster.open_effects
        check(cluster)
        self._check_machines()
        self._check_journal()
        world.journal.close()

    def _check_machines(self) -> None:
        """Nothing leaks: every process set has ended."""
        left = [key for key, task in self.world.state.tasks.items() if not task.is_ended]
        assert not left, f"still running: {left}"

    def _check_journal(self) -> None:
        """Replay gives the same state; no attempt was placed and no task started twice."""
        whole = Cluster()
        journal = self.world.journal
        assert journal is not None
        for entry in journal.read(limit=100_000):
            whole.apply(entry.event)
            check(whole)
        assert whole.state_hash() == self.world.running.driver.cluster.state_hash()
        placed = Counter((event.job_id, event.attempt) for event in self.world.events(JobPlaced))  # type: ignore[union-attr]
        assert set(placed.values()) == {1}
        for event in self.world.events(TaskStarted):
            assert (event.job_id, event.attempt) in placed  # type: ignore[union-attr]
