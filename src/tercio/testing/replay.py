"""Replays submits of a trace through the real driver in virtual time, and asks for estimates."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.model.effects import LaunchTask, StopTask
from tercio.model.events import (
    AnyEvent,
    JobSubmitted,
    NodeReported,
    PolicyChanged,
    ServerStarted,
    TaskExited,
    TaskStarted,
)
from tercio.model.ids import JobId, job_id
from tercio.model.job import JobSpec
from tercio.model.node import NodeSpec
from tercio.model.queue import Policy
from tercio.model.reasons import StartEstimate


class Arrival(NamedTuple):
    """One submit: when, what, how long its tasks run once started, and who submits it."""

    at_s: float
    spec: JobSpec
    run_s: float
    user: str = "ana"


class Forecast(NamedTuple):
    """What a job that had to wait was told at its submit, and when it started (None: not yet)."""

    job_id: JobId
    submitted_s: float
    told: StartEstimate | None
    started_s: float | None


class Replay:
    """A calm world: every order is carried out at once, tasks run for as long as the trace says.

    Attributes:
        driver: the real one.
        starts: instant of the last start, by job.
        asked: what every `ask_every`-th job that had to wait was told.
    """

    def __init__(
        self,
        nodes: Iterable[NodeSpec],
        begin_s: float,
        *,
        ask_every: int = 1,
        ask_from_s: float = 0.0,
        policy: Policy | None = None,
    ) -> None:
        self.driver = Driver(Cluster(), settings=DriverSettings())
        self.starts: dict[JobId, float] = {}
        self.asked: list[tuple[JobId, float, StartEstimate | None]] = []
        self._ask_every, self._ask_from_s = ask_every, ask_from_s
        self._queued = self._launched = 0
        self._run_s: dict[JobId, float] = {}
        self._ends: list[tuple[float, int, TaskExited]] = []
        self._wake_s: float | None = None
        events: list[AnyEvent] = [ServerStarted(at_s=begin_s, epoch=1, version="replay")]
        events += [NodeReported(at_s=begin_s, spec=spec) for spec in nodes]
        if policy is not None:
            events.append(PolicyChanged(at_s=begin_s, version=1, policy=policy, by="replay"))
        self._feed(events, begin_s)

    def run(self, arrivals: Iterable[Arrival], *, until_told: bool = False) -> list[Forecast]:
        """Submit everything, let it all run, and return what was asked beside what happened.

        `until_told` ends it once all that were asked about have started.
        """
        for arrival in arrivals:
            self._pass(arrival.at_s)
            self._submit(arrival)
        self._pass(float("inf"), until_told=until_told)
        return [
            Forecast(name, submitted_s, told, self.starts.get(name))
            for name, submitted_s, told in self.asked
        ]

    def _submit(self, arrival: Arrival) -> None:
        name = job_id(self.driver.cluster.jobs_submitted + 1)
        self._run_s[name] = arrival.run_s
        submitted = JobSubmitted(
            at_s=arrival.at_s,
            job_id=name,
            spec=arrival.spec,
            queue=self.driver.cluster.policy.default_queue,
            user=arrival.user,
            tenant="default",
        )
        self._feed([submitted], arrival.at_s)
        if name in self.starts or arrival.at_s < self._ask_from_s:
            return
        self._queued += 1
        if self._queued % self._ask_every == 0:
            decision = self.driver.decisions.get(name)
            told = None if decision is None else decision.start
            self.asked.append((name, arrival.at_s, told))

    def _pass(self, until_s: float, *, until_told: bool = False) -> None:
        """Let everything happen that is due before an instant, or until all asked have started."""
        while not (until_told and all(name in self.starts for name, _, _ in self.asked)):
            end_s = self._ends[0][0] if self._ends else float("inf")
            wake_s = float("inf") if self._wake_s is None else self._wake_s
            now_s = min(end_s, wake_s)
            if now_s > until_s or now_s == float("inf"):
                return
            events: list[AnyEvent] = []
            while self._ends and self._ends[0][0] <= now_s:
                exited = heapq.heappop(self._ends)[2]
                job = self.driver.cluster.jobs[exited.job_id]
                if job.attempt == exited.attempt and job.live_tasks:
                    events.append(exited)
            if events or wake_s <= now_s:
                self._feed(events, now_s)

    def _feed(self, events: list[AnyEvent], now_s: float) -> None:
        while True:
            step = self.driver.step(events, now_s)
            self._wake_s = step.wake_at_s
            events = []
            for effect in step.effects:
                if isinstance(effect, LaunchTask):
                    events.append(self._launch(effect, now_s))
                elif isinstance(effect, StopTask):
                    events.append(
                        TaskExited(
                            at_s=now_s, job_id=effect.job_id, attempt=effect.attempt,
                            task=effect.task, signal=15,
                        )
                    )  # fmt: skip
            if not events:
                return

    def _launch(self, order: LaunchTask, now_s: float) -> TaskStarted:
        self.starts[order.job_id] = now_s
        self._launched += 1
        exited = TaskExited(
            at_s=now_s + self._run_s[order.job_id], job_id=order.job_id, attempt=order.attempt,
            task=order.task, exit_code=0,
        )  # fmt: skip
        heapq.heappush(self._ends, (exited.at_s, self._launched, exited))
        return TaskStarted(
            at_s=now_s, job_id=order.job_id, attempt=order.attempt, task=order.task,
            effect_id=order.effect_id,
        )  # fmt: skip
