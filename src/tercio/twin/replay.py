"""Replay of a recorded workload: `run(trace, nodes, policy) -> TwinResult`.

The cluster, its driver and the scheduler are those that run live; only the clock and the engine
are simulated. Finished jobs are forgotten as the live server forgets them after its retention,
so that a run of any length needs memory for the jobs at hand and one record per job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings, Step
from tercio.core.fitting import Fitting
from tercio.model.effects import LaunchTask
from tercio.model.events import (
    AnyEvent,
    Entry,
    JobEvicted,
    JobPlaced,
    JobsForgotten,
    JobSubmitted,
    JobWaited,
    NodeReported,
    PolicyChanged,
    PromisesChanged,
    ServerStarted,
    TaskExited,
)
from tercio.model.ids import JobId, QueuePath, job_id
from tercio.model.job import TERMINAL_JOB_STATES, JobSpec
from tercio.model.node import Node, NodeSpec
from tercio.sched.cycle import schedule
from tercio.sched.owners import Owner
from tercio.twin.engine import Engine
from tercio.twin.faults import Fault, Weather
from tercio.twin.loop import NEVER_S, Loop, Observer
from tercio.twin.pace import ProfilePace
from tercio.twin.policies import Discipline
from tercio.twin.progress.book import ProfileBook
from tercio.twin.result import Course, JobRecord, TwinResult, summarize
from tercio.twin.trace import JobEnd, Trace, TraceJob
from tercio.twin.workload import Recipes, whole
from tercio.twin.world import World

FORGET_EVERY: Final = 64
"""Finished jobs are forgotten in batches of so many."""

_KEEPS_ALL: Final = frozenset({JobSubmitted, JobWaited, PromisesChanged})
"""Events that end no attempt."""

Tell = Callable[[float, int, int], None]
"""Told now and then: the virtual time, jobs ended, and jobs in all."""


def run(
    trace: Trace,
    nodes: Sequence[NodeSpec],
    discipline: Discipline,
    *,
    seed: int = 0,
    world: World | None = None,
    profiles: ProfileBook | None = None,
    faults: Iterable[Fault] = (),
    until_s: float | None = None,
    observers: Sequence[Observer] = (),
    journal: list[Entry] | None = None,
    tell: Tell | None = None,
    estimates: bool = False,
) -> TwinResult:
    """Replay a trace and return what became of it.

    Args:
        trace: the workload, in order of submit.
        nodes: the cluster.
        discipline: who comes when and where; see `twin.policies`.
        seed: names every random stream.
        world: how engines and tasks behave; calm when not given.
        profiles: by which jobs that name one advance, at the type and size that they have.
        faults: of nodes, with instants in the time of the trace.
        until_s: stop so many seconds after the first submit; None lets every job end.
        observers: look at every step.
        journal: gets every entry, when given; nothing is forgotten then.
        tell: called about a hundred times, for a progress bar.
        estimates: tell waiting jobs when they start and learn by it, as the live server does;
            `twin.estimates` keeps how it came out.
    """
    replay = Replay(trace, nodes, discipline, seed=seed,
                    world=world or World(), profiles=profiles, faults=tuple(faults),
                    observers=observers, journal=journal, estimates=estimates)  # fmt: skip
    return replay.run(until_s=until_s, tell=tell)


class Replay:
    """One run; see `run`."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[NodeSpec],
        discipline: Discipline,
        *,
        seed: int,
        world: World,
        profiles: ProfileBook | None,
        faults: tuple[Fault, ...],
        observers: Sequence[Observer],
        journal: list[Entry] | None,
        estimates: bool,
    ) -> None:
        self.trace, self.nodes, self.discipline, self.seed = trace, nodes, discipline, seed
        self.world = world
        self.start_s = trace.jobs[0].submit_s if trace.jobs else 0.0
        scheduler = discipline.scheduler()
        settings = DriverSettings(tells_waiting=estimates, skips_empty=scheduler is schedule)
        cluster = Cluster(renders=journal is not None)
        driver = Driver(cluster, settings=settings, seed=seed, scheduler=scheduler)
        self.loop = Loop(
            driver, self.start_s, observers=(self, *observers), journal=journal,
            defers_starts=not world.launch_s and not world.slow_start_ratio,
        )  # fmt: skip
        self.pace = None if profiles is None else ProfilePace(profiles, nodes)
        self.engine = Engine(self.loop, world, seed=seed, pace=self.pace)
        self.engine.keeps_ends = bool(faults) or bool(world.lost_ratio or world.repeat_ratio)
        self.engine.work_of = self._work_of
        self.engine.exit_code_of = self._exit_code_of
        self.engine.least_of = lambda job: self._tasks[job]
        self.loop.perform = self.engine.perform
        self.loop.settled = self._note_course
        self.weather = Weather(self.loop, self.engine, nodes, faults)
        self.records: list[JobRecord] = []
        self.warnings = list(trace.warnings)
        self._of: dict[JobId, JobRecord] = {}
        self._ends: dict[JobId, JobEnd] = {}
        self._tasks: dict[JobId, int] = {}
        self._placed_s: dict[JobId, float] = {}
        self._recipes = Recipes(nodes)
        self._next = self._ended = self._never_fit = self._wholes = 0
        self._shares = scheduler is schedule
        self._over: list[JobId] = []
        self._is_kept = journal is not None
        self._devices = sum(len(node.devices) for node in nodes)
        self._course: tuple[list[float], list[int], list[int], list[int]] = ([], [], [], [])
        node_states = [Node(spec=spec) for spec in nodes]
        self._fitting = Fitting(node_states, discipline.policy)
        self._fits: dict[tuple[object, ...], bool] = {}

    def run(self, *, until_s: float | None, tell: Tell | None) -> TwinResult:
        """Do the run."""
        loop = self.loop
        loop.pending += [
            ServerStarted(at_s=self.start_s, epoch=1, version="twin"),
            PolicyChanged(at_s=self.start_s, version=1, policy=self.discipline.policy, by="twin"),
            *(NodeReported(at_s=self.start_s, spec=spec) for spec in self.nodes),
        ]
        loop.settle()
        self._arm()
        end_s = NEVER_S if until_s is None else self.start_s + until_s
        if tell is None:
            self._go(end_s)
        else:
            self._go_telling(end_s, tell)
        self._close()
        return self._result()

    def _go(self, end_s: float) -> None:
        """Let time pass, until no job is left that could still move."""
        self.loop.run(end_s)

    def _go_telling(self, end_s: float, tell: Tell) -> None:
        jobs = self.trace.jobs
        last_s = min(end_s, jobs[-1].submit_s if jobs else self.start_s)
        step_s = max((last_s - self.start_s) / 100, 1.0)
        at_s = self.start_s
        while at_s < end_s and not self.loop.is_over and self.loop.next_s() != NEVER_S:
            before = self.loop.events
            at_s = min(max(at_s + step_s, self.loop.next_s()), end_s)
            self.loop.run(at_s)
            tell(self.loop.now_s, self._ended, len(jobs))
            if self.loop.events == before and self._next == len(jobs) and not self._placed_s:
                self._go(end_s)  # nothing but wake-ups is left
                return

    # Submits.

    def _arm(self) -> None:
        """Put the next instant of submits on the clock."""
        if self._next < len(self.trace.jobs):
            self.loop.at(self.trace.jobs[self._next].submit_s, self._arrive, None)

    def _arrive(self, _: None) -> None:
        jobs, now_s = self.trace.jobs, self.loop.now_s
        while self._next < len(jobs) and jobs[self._next].submit_s <= now_s:
            self._submit(jobs[self._next])
            self._next += 1
        self._arm()
        self._see_whether_over()

    def _submit(self, job: TraceJob) -> None:
        if job.share_milli and not self._shares:
            job = whole(job)
            self._wholes += 1
        record = JobRecord(
            id=job.id, queue=job.queue, user=job.user, devices=job.devices,
            submit_s=job.submit_s, run_s=job.run_s,
        )  # fmt: skip
        self.records.append(record)
        discipline = self.discipline
        spec, queue = self._spec(job), discipline.queue_of(job)
        user = job.user or "trace"
        if not self._can_fit(job, spec, queue, user):
            record.state = "never_fits"
            self._never_fit += 1
            return
        name = job_id(len(self.records))
        self._of[name] = record
        self._tasks[name] = spec.least_task_count
        if job.end in ("failed", "cancelled"):
            self._ends[name] = job.end
        if self.pace is not None:
            self.pace.jobs[name] = job
        self.loop.pending.append(
            JobSubmitted(
                at_s=job.submit_s, job_id=name, spec=spec, queue=queue, user=user,
                tenant="default",
            )
        )  # fmt: skip

    def _can_fit(self, job: TraceJob, spec: JobSpec, queue: QueuePath, user: str) -> bool:
        """Whether the cluster could ever hold the job; asked once for jobs that ask alike."""
        key = (spec.groups, queue, user, spec.goodput)
        found = self._fits.get(key)
        if found is None:
            is_small = job.devices <= self._devices
            found = is_small and self._fitting.refusal(spec, queue, Owner(user, "default")) is None
            self._fits[key] = found
        return found

    def _spec(self, job: TraceJob) -> JobSpec:
        limit_s, expected_s = job.limit_s, None
        if self.discipline.knows_run_times:
            expected_s = job.run_s
        if self.discipline.sets_limits and limit_s is None:
            limit_s = job.run_s + self.world.restart_s + self.world.launch_s
        priority = self.discipline.priority_of(job)
        spec = self._recipes.spec(job, limit_s=limit_s, expected_s=expected_s, priority=priority)
        if self.pace is None or self.discipline.policy.elastic is None:
            return spec
        profile = self.pace.profile(
            job, job.tasks * job.devices_per_task if self.discipline.keeps_sizes else None
        )
        return self._recipes.elastic(spec, profile) if profile else spec

    def _work_of(self, order: LaunchTask) -> float:
        return self._of[order.job_id].run_s

    def _exit_code_of(self, name: JobId) -> int | None:
        """A job ends as it did: a failed one fails, a cancelled one is cancelled."""
        end = self._ends.get(name)
        return 0 if end is None else None if end == "cancelled" else 1

    # What happened.

    def stepped(self, loop: Loop, events: Sequence[AnyEvent], step: Step) -> None:
        """Keep the records."""
        cluster = loop.driver.cluster
        for event in events:
            if type(event) is TaskExited:
                self._note_end(cluster, event.job_id)
        for entry in step.entries[len(events) :]:
            event = entry.event
            if type(event) is JobPlaced:
                record = self._of[event.job_id]
                if record.start_s is None:
                    record.start_s = event.at_s
                record.state = "running"
                record.attempts = event.attempt
                record.node = event.tasks[0].node
                before_s = self._placed_s.get(event.job_id)
                if before_s is not None:  # stopped and started again at this instant
                    record.held_s += event.at_s - before_s
                self._placed_s[event.job_id] = event.at_s
            elif type(event) is JobEvicted:
                self._of[event.job_id].evictions += 1
            elif type(event) not in _KEEPS_ALL:
                self._note_gone(cluster)

    def _note_gone(self, cluster: Cluster) -> None:
        """Something else happened in the core: see which attempts are over."""
        for name in list(self._placed_s):
            self._note_end(cluster, name)

    def _note_end(self, cluster: Cluster, name: JobId) -> None:
        job = cluster.jobs.get(name)
        placed_s = self._placed_s.get(name)
        if job is None or placed_s is None or cluster.is_holding(name):
            return
        record = self._of[name]
        record.held_s += self.loop.now_s - placed_s
        del self._placed_s[name]
        record.state = "waiting"
        if job.state in TERMINAL_JOB_STATES:
            self._finish(name, record, job.state.value)

    def _finish(self, name: JobId, record: JobRecord, state: str) -> None:
        record.end_s = self.loop.now_s
        record.state = state  # type: ignore[assignment]
        self._ended += 1
        work = self.engine.works.get(name)
        if work is not None:
            record.lost_device_s = work.lost_device_s
        self._see_whether_over()
        if self._is_kept:
            return
        self._over.append(name)
        if len(self._over) >= FORGET_EVERY:
            self._forget()

    def _see_whether_over(self) -> None:
        self.loop.is_over = self._ended + self._never_fit == len(self.trace.jobs)

    def _forget(self) -> None:
        over, self._over = self._over, []
        self.loop.pending.append(JobsForgotten(at_s=self.loop.now_s, job_ids=tuple(over)))
        for name in over:
            del self._of[name], self._tasks[name]
            self._ends.pop(name, None)
            self.engine.forget(name)
            if self.pace is not None:
                del self.pace.jobs[name]

    def _note_course(self) -> None:
        at, used, waiting, up = self._course
        now = (self.engine.held_milli, self.loop.driver.cluster.waiting_count, self.weather.up)
        if at and at[-1] == self.loop.now_s:
            used[-1], waiting[-1], up[-1] = now
        elif not at or (used[-1], waiting[-1], up[-1]) != now:
            at.append(self.loop.now_s)
            used.append(now[0])
            waiting.append(now[1])
            up.append(now[2])

    # The end.

    def _close(self) -> None:
        for name, placed_s in self._placed_s.items():
            self._of[name].held_s += self.loop.now_s - placed_s
            work = self.engine.works.get(name)
            if work is not None:
                self._of[name].lost_device_s = work.lost_device_s

    def _result(self) -> TwinResult:
        at, used, waiting, up = self._course
        course = Course(
            at_s=np.array(at, np.float64),
            devices_used=np.array(used, np.float64) / 1000,
            waiting=np.array(waiting, np.int64),
            devices_up=np.array(up, np.float64),
        )
        if self._never_fit:
            what = "1 job" if self._never_fit == 1 else f"{self._never_fit:,} jobs"
            was = "was" if self._never_fit == 1 else "were"
            text = f"{what} can never fit the cluster and {was} left out"
            self.warnings.append(text)
        if self._wholes:
            text = f"{self._wholes:,} jobs that share a device have a whole one: "
            self.warnings.append(text + f"{self.discipline.name} knows nothing else")
        return TwinResult(
            policy=self.discipline.name,
            source=self.trace.source,
            nodes=len(self.nodes),
            devices=self._devices,
            seed=self.seed,
            jobs=tuple(self.records),
            course=course,
            summary=summarize(
                self.records, course, devices=self._devices, events=self.loop.events,
                faults=self.weather.begun,
            ),
            state_hash=self.loop.driver.cluster.state_hash(),
            warnings=tuple(self.warnings),
        )  # fmt: skip
