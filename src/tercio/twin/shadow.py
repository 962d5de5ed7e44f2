"""Another policy beside the live server: same jobs, same ends and faults, its own decisions.

The shadow begins with the live state and reads the live journal. What people and machines did is
made to happen here too; what the scheduler decided is only compared. A job runs here as long as
it held its devices there, and ends as it did.

A job that starts here first has a run time that nobody knows yet. Then the shadow stands still,
and the journal waits, until enough of it is known: while the job runs there, the shadow is behind
by as much as it started it earlier. When that grows beyond `lag_s`, the run time is guessed from
what the job says of itself and what recent jobs made of theirs; what becomes known later counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings, Step
from tercio.core.transitions import TaskState
from tercio.errors import UserError
from tercio.model.commands import (
    AnyCommand,
    CancelJob,
    HoldJob,
    ReleaseJob,
    RequeueJob,
    ResumeJob,
    SuspendJob,
)
from tercio.model.effects import LaunchTask
from tercio.model.events import (
    AnyEvent,
    Entry,
    FaultCleared,
    FaultFound,
    HealthBreakerMoved,
    HealthDecided,
    HealthPolicyChanged,
    JobCancelRequested,
    JobEvicted,
    JobHeld,
    JobPlaced,
    JobReleased,
    JobRequeueRequested,
    JobResumeRequested,
    JobsForgotten,
    JobSubmitted,
    JobSuspendRequested,
    NodeCordoned,
    NodeDrainRequested,
    NodeFenced,
    NodeHealthChanged,
    NodeLost,
    NodeRemoved,
    NodeReported,
    NodeUncordoned,
    PolicyChanged,
    PowerCapped,
    PricesRead,
    ReservationAdded,
    ReservationRemoved,
    SpareActivated,
)
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId, array_parent
from tercio.model.job import ACTIVE_JOB_STATES, TERMINAL_JOB_STATES, JobState
from tercio.model.queue import Policy, walk_queues
from tercio.model.shadow_views import ShadowReport
from tercio.twin.ahead import draw_run_s, running_order
from tercio.twin.engine import Engine
from tercio.twin.loop import NEVER_S, Loop
from tercio.twin.runs import Work
from tercio.twin.shadow_facts import OWN_CAUSES, Facts, paused_s, speed_of
from tercio.twin.shadow_tally import Tally
from tercio.twin.world import World

PENDING_MAX: Final = 200_000
"""Entries that wait for a run time; with more of them it is guessed at once."""
SLACK_S: Final = 1e-3
"""Work that is known but for so little is known: sums of instants are rounded."""

_ROOT: Final = Principal(user="shadow", role=Role.ADMIN)
_COMMANDS: Final[Mapping[type[AnyEvent], Callable[[JobId], AnyCommand]]] = {
    JobHeld: lambda job: HoldJob(job_id=job),
    JobReleased: lambda job: ReleaseJob(job_id=job),
    JobRequeueRequested: lambda job: RequeueJob(job_id=job),
    JobSuspendRequested: lambda job: SuspendJob(job_id=job),
    JobResumeRequested: lambda job: ResumeJob(job_id=job),
    JobCancelRequested: lambda job: CancelJob(job_id=job),
}
_AS_IT_IS: Final = (
    JobSubmitted, NodeReported, NodeLost, NodeFenced, NodeRemoved, NodeCordoned, NodeUncordoned,
    NodeDrainRequested, FaultFound, FaultCleared, NodeHealthChanged, HealthDecided,
    SpareActivated, HealthPolicyChanged, HealthBreakerMoved, ReservationAdded, ReservationRemoved,
    JobEvicted, JobsForgotten, PowerCapped, PricesRead,
)  # fmt: skip


class Shadow:
    """See the module's description.

    Attributes:
        facts: of the live journal.
        loop: of the shadow.
        seq: of the last entry taken in.
    """

    def __init__(
        self, image: bytes, policy: Policy, *, seq: int, lag_s: float, seed: int = 0
    ) -> None:
        self.facts = Facts(Cluster.from_image(image))
        cluster = Cluster.from_image(image)
        self.seq = self.from_seq = seq
        self.since_s = cluster.now_s
        self._lag_s = lag_s
        settings = DriverSettings(tells_waiting=False, heals=False)
        driver = Driver(cluster, seq=seq, settings=settings, seed=seed)
        self.loop = Loop(driver, cluster.now_s, observers=(self,))
        self._speeds: dict[JobId, Mapping[str, float]] = {}
        self.engine = Engine(self.loop, World(), speeds=self._speeds)
        self.engine.epoch = cluster.epoch
        self.engine.keeps_ends = False
        self.engine.work_of = self._work_of
        self.engine.least_of = self._least_of
        self.engine.exit_code_of = self._exit_code_of
        self.loop.perform = self.engine.perform
        self._tally = Tally()
        self._queues = walk_queues(policy)
        self._pending: deque[AnyEvent] = deque()
        self._stretch: dict[JobId, int] = {}
        self._open: dict[JobId, None] = {}
        self._guesses: dict[JobId, float] = {}
        self._holding: dict[JobId, None] = {}
        self._refused: dict[JobId, None] = {}
        self._began_before: dict[JobId, None] = {}
        self._over: dict[JobId, None] = {}
        self._suspended: dict[JobId, None] = {}
        self._least: dict[JobId, int] = {}
        self._guessed = self._passed_over = self._live_changes = 0
        self._waits_for: JobId | None = None
        self._adopt(cluster)
        for effect in driver.reissue():
            self.engine.perform(effect)
        version = cluster.policy_version + 1
        self.loop.pending.append(
            PolicyChanged(at_s=cluster.now_s, version=version, policy=policy, by="shadow")
        )
        self.loop.settle()

    def take(self, entries: Sequence[Entry]) -> None:
        """Take entries of the live journal in; instants that are whole are played."""
        for entry in entries:
            head_s = self.facts.cluster.now_s
            if entry.event.at_s > head_s:
                self._go(head_s)
            self._learn(entry)

    def settle(self, now_s: float = 0.0) -> None:
        """Play what is known: there are no more entries up to an instant."""
        self._go(max(now_s, self.facts.cluster.now_s))

    def report(self) -> ShadowReport:
        """Return what the shadow came to so far."""
        as_of_s = self.loop.now_s
        total, queues = self._tally.queues(as_of_s)
        return ShadowReport(
            since_s=self.since_s,
            as_of_s=as_of_s,
            from_seq=self.from_seq,
            seq=self.seq,
            total=total,
            queues=queues,
            now=self._tally.now(as_of_s),
            recent=tuple(self._tally.recent),
            waits_for=self._waits_for,
            guessed=self._guessed,
            passed_over=self._passed_over,
            live_version=self.facts.cluster.policy_version,
            live_changes=self._live_changes,
        )

    # What the live server did.

    def _learn(self, entry: Entry) -> None:
        event = entry.event
        for name in self.facts.take(entry):
            self._reconsider(name)
            if name in self._suspended:
                # There a suspended run ended with its node, or by its user; here it goes on.
                del self._suspended[name]
                self._pending.append(JobResumeRequested(at_s=event.at_s, job_id=name, by="shadow"))
        self.seq = entry.seq
        match event:
            case JobPlaced(job_id=job, attempt=1) if job not in self._began_before:
                if self._is_ours(job):
                    self._tally.started(0, self.facts.cluster.jobs[job], event.at_s)
            case PolicyChanged():
                self._live_changes += 1
            case JobSuspendRequested(job_id=job):
                self._suspended[job] = None
            case JobResumeRequested(job_id=job):
                self._suspended.pop(job, None)
            case JobSubmitted(job_id=job) if event.queue not in self._queues:
                self._refused[job] = None
                self._tally.refused(self.facts.cluster.jobs[job])
                return
            case JobCancelRequested(job_id=job) if self.facts.cluster.is_holding(job):
                return  # it ends here too when it has run as long
            case _:
                pass
        if type(event) in _COMMANDS or isinstance(event, _AS_IT_IS):
            self._pending.append(event)

    def _reconsider(self, name: JobId) -> None:
        """More is known of a job: perhaps when it ends here."""
        if name in self._open:
            ending = self.facts.ending(name, self._stretch.get(name, 0))
            if ending is not None:
                del self._open[name]
                self._guesses.pop(name, None)
                self.engine.set_total(name, ending.work_s)
        self._see_whether_over(name)

    def _is_ours(self, name: JobId) -> bool:
        return name not in self._refused and array_parent(name) not in self._refused

    # Time.

    def _go(self, head_s: float) -> None:
        """Play until an instant up to which the live journal is known, or as far as can be."""
        loop, pending = self.loop, self._pending
        head_s = max(head_s, loop.now_s)
        while True:
            target_s = min(pending[0].at_s, head_s) if pending else head_s
            stop_s, waits_for = self._known_until_s(head_s)
            until_s = min(target_s, stop_s)
            next_s = loop.next_s()
            if next_s <= until_s:
                loop.run(max(next_s, loop.now_s))
            elif until_s < target_s:
                is_late = head_s - max(loop.now_s, until_s) > self._lag_s
                self._waits_for = waits_for
                if not is_late and len(pending) <= PENDING_MAX:
                    loop.run(until_s)
                    return
                assert waits_for is not None
                self._guess(waits_for, head_s)
            else:
                loop.run(target_s)
                self._waits_for = None
                if not pending or pending[0].at_s > target_s:
                    return
                while pending and pending[0].at_s <= target_s:
                    self._happen(pending.popleft())
                loop.settle()

    def _known_until_s(self, head_s: float) -> tuple[float, JobId | None]:
        """How far run times are known, and the job that is known least."""
        first_s, first = NEVER_S, None
        for name in self._open:
            if name in self._guesses:
                continue
            least_s = self.facts.least_s(name, self._stretch.get(name, 0), head_s)
            reached_s = self.engine.reaches_s(name, least_s) + SLACK_S
            if reached_s < first_s:
                first_s, first = reached_s, name
        return first_s, first

    def _guess(self, name: JobId, head_s: float) -> None:
        """Take a run time for likely; one that nothing is said of lasts until it is known."""
        job = self.loop.driver.cluster.jobs[name]
        least_s = self.facts.least_s(name, self._stretch.get(name, 0), head_s)
        ratios = self.facts.cluster.snapshot().run_ratios
        guess_s = draw_run_s(job.spec.time, ratios, least_s, 0.5, unknown_s=job.predicted_s)
        self._guesses[name] = guess_s
        self._guessed += 1
        self.engine.set_total(name, max(guess_s, least_s))

    def _work_of(self, order: LaunchTask) -> float:
        return self._total_s(order.job_id)

    def _least_of(self, name: JobId) -> int:
        return self._least.get(name) or self.loop.driver.cluster.jobs[name].spec.least_task_count

    def _total_s(self, name: JobId) -> float:
        ending = self.facts.ending(name, self._stretch.get(name, 0))
        if ending is not None:
            return ending.work_s
        self._open[name] = None
        return NEVER_S

    def _exit_code_of(self, name: JobId) -> int | None:
        ending = self.facts.ending(name, self._stretch.get(name, 0))
        return 0 if ending is None else ending.exit_code

    # What happens here.

    def _happen(self, event: AnyEvent) -> None:
        """Let one thing happen that happened there."""
        make = _COMMANDS.get(type(event))
        if make is not None:
            self._ask(make(event.job_id), event.at_s)  # type: ignore[union-attr]
            return
        cluster, pending = self.loop.driver.cluster, self.loop.pending
        match event:
            case JobEvicted(job_id=job):
                known = self.facts.cluster.jobs.get(job)
                if not event.tasks and known is not None and self._is_ours(job):
                    self._tally.evicted(0, known)
            case JobsForgotten(job_ids=jobs):
                self._over.update(dict.fromkeys(jobs))
                self._forget()
            case NodeLost(node=node):
                self.engine.lose(node, is_crash=True)
                pending.append(event)
            case NodeRemoved(node=node):
                self.engine.lose(node, is_crash=True)
                self.engine.bring_back(node)
                pending.append(event)
            case NodeFenced(node=node):
                if cluster.jobs_on(node):
                    pending.append(event)
            case NodeReported(spec=spec):
                own = self.engine.as_cut(spec)
                pending.append(msgspec.structs.replace(event, spec=own))
                pending.extend(self.engine.bring_back(spec.name))
            case PowerCapped():
                # The limits are those that the devices have; whom they stop there may not run here.
                pending.append(msgspec.structs.replace(event, stop=()))
            case ReservationRemoved(name=name):
                if name in cluster.reservations:
                    pending.append(event)
            case _:
                pending.append(event)

    def _ask(self, command: AnyCommand, at_s: float) -> None:
        """Let somebody ask for what was asked there; here it may make no sense."""
        if self.loop.pending:
            self.loop.settle()
        try:
            self.loop.pending += to_events(self.loop.driver.cluster, command, _ROOT, at_s)
        except UserError:
            self._passed_over += 1

    def stepped(self, loop: Loop, _: Sequence[AnyEvent], step: Step) -> None:
        """See what the shadow decided, and which attempts are over."""
        cluster = loop.driver.cluster
        for name in [name for name in self._holding if not cluster.is_holding(name)]:
            self._end(name)
        for entry in step.entries:
            event = entry.event
            match event:
                case JobPlaced(job_id=name):
                    if name in self._holding:  # stopped and started again at this instant
                        self._end(name)
                    self._holding[name] = None
                    if cluster.jobs[name].spec.speed:
                        self._speeds[name] = cluster.jobs[name].spec.speed
                    if event.attempt == 1 and name not in self._began_before:
                        self._tally.started(1, cluster.jobs[name], event.at_s)
                case JobEvicted(job_id=name, tasks=()):
                    self._tally.evicted(1, cluster.jobs[name])
                case _:
                    pass

    def _end(self, name: JobId) -> None:
        del self._holding[name]
        self._least.pop(name, None)
        job = self.loop.driver.cluster.jobs[name]
        if job.past[-1].cause in OWN_CAUSES:
            self._stretch[name] = self._stretch.get(name, 0) + 1
            self._open.pop(name, None)
            self._guesses.pop(name, None)
            self.engine.forget(name)
        elif job.spec.checkpoint.path is None:
            self.engine.begin_anew(name)  # as it does there: nothing was saved
        self._see_whether_over(name)

    def _see_whether_over(self, name: JobId) -> None:
        job = self.loop.driver.cluster.jobs.get(name)
        if job is None or job.state not in TERMINAL_JOB_STATES or not self.facts.is_over(name):
            return
        self._tally.is_over(name, self.loop.now_s)
        self._tally.ended_waiting(name)

    def _forget(self) -> None:
        """Drop jobs that the live server has forgotten and that have ended here."""
        cluster = self.loop.driver.cluster
        gone = tuple(
            name
            for name in self._over
            if name not in cluster.jobs or cluster.jobs[name].state in TERMINAL_JOB_STATES
        )
        for name in gone:
            for known in (self._over, self._stretch, self._refused, self._began_before):
                known.pop(name, None)
            self._speeds.pop(name, None)
        known_here = tuple(name for name in gone if name in cluster.jobs)
        if known_here:
            self.loop.pending.append(JobsForgotten(at_s=self.loop.now_s, job_ids=known_here))

    def _adopt(self, cluster: Cluster) -> None:
        """Let the tasks that run go on where they are."""
        now_s = cluster.now_s
        for job in cluster.jobs.values():
            if job.attempt:
                self._began_before[job.id] = None
            if job.state not in ACTIVE_JOB_STATES or job.array is not None:
                continue
            self._holding[job.id] = None
            if job.spec.speed:
                self._speeds[job.id] = job.spec.speed
            if job.state is JobState.SUSPENDED:
                self._suspended[job.id] = None
            # Some of its tasks may have ended already; the others do not need them.
            self._least[job.id] = min(job.spec.least_task_count, len(job.live_tasks))
            began_s = now_s if job.placed_s is None else job.placed_s
            done_s = max(now_s - began_s - paused_s(job, now_s), 0.0) * speed_of(cluster, job)
            self.engine.works[job.id] = Work(
                total_s=self._total_s(job.id), attempt=job.attempt, done_s=done_s
            )
            running = [task for task in job.live_tasks if task.state is not TaskState.LAUNCHING]
            if running:
                self.engine.adopt(
                    [running_order(job, t.placement.task, cluster.nodes) for t in running],
                    is_whole=len(running) == len(job.live_tasks),
                    is_paused=job.state is JobState.SUSPENDED,
                )
