"""A pure simulator of many scheduling rounds, small enough to read: what tests and benches use.

It plays the part of the core: applies plans, lets jobs run, stop and come back, and gives the
scheduler snapshots with their changes. Every cycle may be checked against the rules that never
break, and against a scheduler that remembers nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import IndexRange, JobSpec, NodeFilter
from tercio.model.node import Cordon, Node, NodeState
from tercio.model.queue import Policy
from tercio.model.reasons import Decision
from tercio.model.reservation import Promise, Reservation
from tercio.model.snapshot import (
    Changes,
    Cheaper,
    MissingTask,
    MixEntry,
    RunningJob,
    Snapshot,
    WaitingJob,
)
from tercio.sched.cycle import schedule
from tercio.sched.memory import Memory
from tercio.sched.plan import Addition, Eviction, Plan
from tercio.testing.spending import Spent, spend
from tercio.testing.stops import again

Check = Callable[["Rounds", Snapshot, Plan], None]
"""Looks at one cycle before its plan is applied; raises AssertionError."""


class Line(NamedTuple):
    """One line of the log: what happened when."""

    at_s: float
    what: str
    job: JobId
    detail: str = ""


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How a job behaves in the simulation.

    Attributes:
        runs_s: how long it runs when let alone, or None for ever.
        dies_s: how long it takes to stop when told to, or None for never.
        comes_back: whether an evicted job waits again.
    """

    runs_s: float | None = None
    dies_s: float | None = 0.0
    comes_back: bool = True


class Rounds:
    """A cluster in virtual time.

    Attributes:
        now_s: virtual time.
        log: everything that happened, in order.
        plans: every plan made.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        policy: Policy,
        *,
        checks: Iterable[Check] = (),
        seed: int = 0,
        use_memory: bool = True,
    ) -> None:
        self.nodes: dict[NodeName, Node] = {node.name: node for node in nodes}
        self.policy = policy
        self.now_s = 0.0
        self.waiting: dict[JobId, WaitingJob] = {}
        self.running: dict[JobId, RunningJob] = {}
        self.promises: tuple[Promise, ...] = ()
        self.reservations: dict[str, Reservation] = {}
        self.log: list[Line] = []
        self.plans: list[Plan] = []
        self.decisions: dict[JobId, Decision] = {}
        self.checks = list(checks)
        self.seed = seed
        self.behaviour: dict[JobId, Behaviour] = {}
        self.mix: tuple[MixEntry, ...] = ()
        self.decayed_use: dict[QueuePath, float] = {}
        self.spent: Spent = {}
        self._memory = Memory() if use_memory else None
        self._revision = 0
        self._seen_revision = -1
        self._changed: tuple[dict[NodeName, None], dict[JobId, None], dict[JobId, None]] = (
            {}, {}, {},
        )  # fmt: skip
        self._heap: list[tuple[float, int, str, JobId, int]] = []
        self._sequence = 0
        self._submitted: dict[JobId, WaitingJob] = {}
        self._wake_s: float | None = None

    # What tests do.

    def submit(
        self,
        job: str,
        spec: JobSpec,
        *,
        queue: str = "default",
        user: str = "ana",
        tenant: str = "default",
        priority: int = 0,
        preemptible: bool = True,
        runs_s: float | None = None,
        dies_s: float | None = 0.0,
        comes_back: bool = True,
        pending: tuple[IndexRange, ...] | None = None,
        blocked_on: tuple[str, ...] = (),
        is_held: bool = False,
        not_before_s: float | None = None,
        cheaper: Cheaper | None = None,
    ) -> JobId:
        """Let a job wait."""
        self._sequence += 1
        job_id = JobId(job)
        waiting = WaitingJob(
            job_id=job_id,
            spec=spec,
            queue=QueuePath(queue),
            user=user,
            tenant=tenant,
            priority=priority,
            is_preemptible=preemptible,
            submitted_s=self.now_s,
            sequence=self._sequence,
            pending=pending,
            blocked_on=tuple(JobId(other) for other in blocked_on),
            is_held=is_held,
            not_before_s=not_before_s,
            cheaper=cheaper,
        )
        self.behaviour[job_id] = Behaviour(runs_s=runs_s, dies_s=dies_s, comes_back=comes_back)
        self._submitted[job_id] = waiting
        self._wait(waiting)
        return job_id

    def start(self, job: str, spec: JobSpec, *, on: Iterable[str] = (), **more: object) -> JobId:
        """Submit a job and have it running at once, on these nodes only when they are given."""
        place = tuple(name for name in self.nodes if name not in tuple(on)) if on else ()
        filtered = spec
        if place:
            nodes = msgspec.structs.replace(spec.nodes or NodeFilter(), exclude=place)
            filtered = msgspec.structs.replace(spec, nodes=nodes)
        job_id = self.submit(job, filtered, **more)  # type: ignore[arg-type]
        self.cycle()
        assert job_id in self.running, self.why(job)
        if place:
            running = self.running[job_id]
            self.running[job_id] = msgspec.structs.replace(running, spec=spec)
            self._submitted[job_id] = msgspec.structs.replace(self._submitted[job_id], spec=spec)
            self._touch_running(job_id)
        return job_id

    def cancel(self, job: str) -> None:
        """Take a waiting or running job away at once."""
        job_id = JobId(job)
        if self.waiting.pop(job_id, None) is not None:
            self._touch_waiting(job_id)
        if self.running.pop(job_id, None) is not None:
            self._touch_running(job_id)
        self._note("cancel", job_id)

    def finish(self, job: str) -> None:
        """Let a running job end now."""
        self._end(JobId(job), "end")

    def set_state(self, name: str, state: NodeState, *, cordon: bool = False) -> None:
        """Change a node; a node that goes down loses its tasks' jobs to the queue."""
        node = self.nodes[NodeName(name)]
        cordons = (Cordon(owner="user:op", reason="test"),) if cordon else ()
        self.nodes[NodeName(name)] = msgspec.structs.replace(node, state=state, cordons=cordons)
        self._changed[0][NodeName(name)] = None
        self._revision += 1

    def fail(self, job: str, *, node: str) -> None:
        """A node goes down under a running job: the whole attempt ends and is to be repaired."""
        self.set_state(node, NodeState.DOWN)
        job_id = JobId(job)
        running = self.running.pop(job_id)
        self._touch_running(job_id)
        self._note("fail", job_id, node)
        self._wait(
            msgspec.structs.replace(
                self._submitted[job_id],
                attempt=running.attempt + 1,
                last_nodes=tuple(dict.fromkeys(t.node for t in running.tasks)),
                is_repair=True,
            )
        )

    def forget(self) -> None:
        """Go on with a scheduler that remembers nothing, as after a restart."""
        self._memory = Memory()
        self._seen_revision = -1

    def set_policy(self, policy: Policy) -> None:
        """Put another policy in force."""
        self.policy = policy
        self._revision += 1

    def lose_task(self, job: str, task: int, *, is_repaired: bool = False) -> None:
        """One task of a running job is gone; the rest goes on, `is_repaired`: and wants it back."""
        running = self.running[JobId(job)]
        tasks = tuple(t for t in running.tasks if t.task != task)
        missing = running.missing
        if is_repaired:
            lost = next(t for t in running.tasks if t.task == task)
            missing = (*missing, MissingTask(member=lost.rank, group=lost.group))
        self.running[JobId(job)] = msgspec.structs.replace(
            running,
            tasks=tasks,
            missing=missing,
            next_task=max(running.next_task, *(t.task + 1 for t in running.tasks)),
        )
        self._touch_running(JobId(job))

    def cycle(self) -> Plan:
        """One scheduling cycle, checked and applied."""
        snapshot = self.snapshot()
        plan = schedule(snapshot, self.policy, self.now_s, self.seed, self._memory)
        for check in self.checks:
            check(self, snapshot, plan)
        self.plans.append(plan)
        self._seen_revision = snapshot.revision
        self._changed = ({}, {}, {})
        self._apply(plan)
        self._wake_s = plan.wake_at_s
        return plan

    def settle(self, most: int = 50) -> None:
        """Cycle until nothing happens; fail when that takes too long."""
        for _ in range(most):
            plan = self.cycle()
            self._due()
            if not (plan.starts or plan.evictions or plan.additions) and not self._is_due():
                return
        raise AssertionError(f"no fixpoint within {most} cycles at {self.now_s}")

    def run(self, until_s: float) -> None:
        """Let time pass, settling after every event."""
        self.settle()
        while True:
            times = [t for t in (self._next_s(), self._wake_s) if t is not None]
            following = min((t for t in times if t > self.now_s), default=None)
            if following is None or following > until_s:
                break
            self.now_s = following
            self._due()
            self.settle()
        self.now_s = max(self.now_s, until_s)
        self.settle()

    # What tests look at.

    def why(self, job: str) -> Decision:
        """The decision of a waiting job, looked up now."""
        return self.plans[-1].decisions[JobId(job)]

    def reason(self, job: str) -> str:
        """Reason code of a waiting job, `Running` when it runs."""
        if JobId(job) in self.running:
            return "Running"
        return str(self.why(job).reason)

    def where(self, job: str) -> list[str]:
        """Nodes of a running job, by task."""
        return [task.node for task in self.running[JobId(job)].tasks]

    def evicted(self) -> list[str]:
        """Jobs evicted so far, in order."""
        return [line.job for line in self.log if line.what == "evict"]

    def started_s(self, job: str) -> float | None:
        """When a job last started."""
        times = [line.at_s for line in self.log if line.what == "start" and line.job == job]
        return times[-1] if times else None

    def submitted(self) -> Iterable[WaitingJob]:
        """Every job there ever was, as it was submitted."""
        return self._submitted.values()

    def snapshot(self) -> Snapshot:
        """The cluster as the scheduler sees it."""
        changes = None
        if self._seen_revision >= 0:
            nodes, running, waiting = self._changed
            changes = Changes(
                since=self._seen_revision,
                nodes=tuple(nodes),
                running=tuple(running),
                waiting=tuple(waiting),
            )
        return Snapshot(
            revision=self._revision,
            nodes=self.nodes,
            running=self.running,
            waiting=self.waiting,
            promises=self.promises,
            decayed_use=self.decayed_use,
            decayed_at_s=self.now_s,
            spent=self.spent,
            reservations=tuple(self.reservations.values()),
            mix=self.mix,
            changes=changes,
        )

    def set_reservation(self, name: str, reservation: Reservation | None) -> None:
        """Add a reservation, or remove it with None."""
        self.reservations.pop(name, None)
        if reservation is not None:
            self.reservations[name] = reservation
        self._revision += 1
        self._seen_revision = -1

    # How things happen.

    def _wait(self, job: WaitingJob) -> None:
        self.waiting[job.job_id] = job
        self._touch_waiting(job.job_id)

    def _touch_waiting(self, job_id: JobId) -> None:
        self._changed[2][job_id] = None
        self._revision += 1

    def _touch_running(self, job_id: JobId) -> None:
        self._changed[1][job_id] = None
        self._revision += 1

    def _note(self, what: str, job_id: JobId, detail: str = "") -> None:
        self.log.append(Line(self.now_s, what, job_id, detail))

    def _apply(self, plan: Plan) -> None:
        self.promises = plan.promises
        for eviction in plan.evictions:
            job = self.running[eviction.job_id]
            dies_s = self._behaves(job.job_id).dies_s
            if eviction.tasks:
                self._shrink(job, eviction, dies_s)
                continue
            self.running[job.job_id] = msgspec.structs.replace(
                job,
                is_stopping=True,
                stops_by_s=None if dies_s is None else self.now_s + dies_s,
                evictions_s=(*job.evictions_s, self.now_s),
            )
            self._touch_running(job.job_id)
            self._note("evict", job.job_id, str(eviction.for_job or eviction.cause))
            if dies_s is not None:
                self._at(self.now_s + dies_s, "die", job.job_id, job.attempt)
        for addition in plan.additions:
            self._join(addition)
        for start in plan.starts:
            self._start(start.job_id, start.tasks, start.label)

    def _join(self, addition: Addition) -> None:
        job = self.running[addition.job_id]
        members = {task.member for task in addition.tasks}
        self.running[job.job_id] = msgspec.structs.replace(
            job,
            tasks=(*job.tasks, *addition.tasks),
            next_task=addition.tasks[-1].task + 1,
            missing=tuple(lost for lost in job.missing if lost.member not in members),
        )
        self._touch_running(job.job_id)
        what = "replace" if addition.is_repair else "grow"
        self._note(what, job.job_id, ",".join(task.node for task in addition.tasks))

    def _shrink(self, job: RunningJob, eviction: Eviction, dies_s: float | None) -> None:
        self.running[job.job_id] = msgspec.structs.replace(
            job,
            stopping_tasks=(*job.stopping_tasks, *eviction.tasks),
            stops_by_s=None if dies_s is None else self.now_s + dies_s,
        )
        self._touch_running(job.job_id)
        for task in eviction.tasks:
            self._note("evict", JobId(f"{job.job_id}/{task}"), str(eviction.for_job))
        if dies_s is not None:
            self._at(self.now_s + dies_s, "shrunk", job.job_id, job.attempt)

    def _start(self, job_id: JobId, tasks: tuple[object, ...], label: str) -> None:
        parent = job_id.partition(".")[0] if job_id not in self.waiting else job_id
        job = self.waiting[JobId(parent)]
        if job.pending is None:
            del self.waiting[job.job_id]
        else:
            self._take_element(job, int(job_id.partition(".")[2]))
        self._touch_waiting(job.job_id)
        limit_s = job.spec.time.limit_s
        runs_s = self._behaves(job.job_id).runs_s
        self.running[job_id] = RunningJob(
            job_id=job_id,
            spec=job.spec,
            queue=job.queue,
            user=job.user,
            tenant=job.tenant,
            priority=job.priority,
            is_preemptible=job.is_preemptible,
            sequence=job.sequence,
            attempt=job.attempt,
            tasks=tasks,  # type: ignore[arg-type]
            placed_s=self.now_s,
            started_s=self.now_s,
            ends_s=None if limit_s is None else self.now_s + limit_s,
            expected_end_s=(
                None if job.spec.time.expected_s is None
                else self.now_s + job.spec.time.expected_s
            ),
            evictions_s=job.evictions_s,
            had=job.had,
        )  # fmt: skip
        self._touch_running(job_id)
        nodes = ",".join(t.node for t in self.running[job_id].tasks)
        self._note("start", job_id, f"{label} {nodes}")
        ends = [s for s in (runs_s, limit_s) if s is not None]
        if ends:
            self._at(self.now_s + min(ends), "end", job_id, job.attempt)

    def _take_element(self, job: WaitingJob, index: int) -> None:
        left = [i for r in job.pending or () for i in range(r.start, r.stop, r.step) if i != index]
        if not left:
            del self.waiting[job.job_id]
            return
        self.waiting[job.job_id] = msgspec.structs.replace(
            job,
            pending=tuple(IndexRange(start=i, stop=i + 1) for i in left),
            active_elements=job.active_elements + 1,
        )

    def _behaves(self, job_id: JobId) -> Behaviour:
        return self.behaviour.get(job_id) or self.behaviour[JobId(job_id.partition(".")[0])]

    def _at(self, at_s: float, what: str, job_id: JobId, attempt: int) -> None:
        heapq.heappush(self._heap, (at_s, len(self.log), what, job_id, attempt))

    def _next_s(self) -> float | None:
        while self._heap:
            at_s, _, _, job_id, attempt = self._heap[0]
            job = self.running.get(job_id)
            if job is None or job.attempt != attempt:
                heapq.heappop(self._heap)
                continue
            return at_s
        return None

    def _is_due(self) -> bool:
        following = self._next_s()
        return following is not None and following <= self.now_s

    def _due(self) -> None:
        """Let everything happen whose time has come."""
        while self._is_due():
            _, _, what, job_id, _ = heapq.heappop(self._heap)
            self._end(job_id, what)

    def _end(self, job_id: JobId, what: str) -> None:
        if what == "shrunk":
            job = self.running[job_id]
            left = tuple(t for t in job.tasks if t.task not in job.stopping_tasks)
            spend(self.spent, job, (t for t in job.tasks if t not in left), self.now_s)
            self.running[job_id] = msgspec.structs.replace(job, tasks=left, stopping_tasks=())
            self._touch_running(job_id)
            return
        job = self.running.pop(job_id)
        spend(self.spent, job, job.tasks, self.now_s)
        self._touch_running(job_id)
        self._note(what, job_id)
        parent = self.waiting.get(JobId(job_id.partition(".")[0]))
        if parent is not None and parent.pending is not None and what == "end":
            self._wait(msgspec.structs.replace(parent, active_elements=parent.active_elements - 1))
        if job.is_stopping and self._behaves(job_id).comes_back:
            first = self._submitted[job_id]
            self._wait(again(first, job, self.now_s))
        for other in list(self.waiting.values()):
            if job_id in other.blocked_on:
                open_jobs = tuple(j for j in other.blocked_on if j != job_id)
                self._wait(msgspec.structs.replace(other, blocked_on=open_jobs))
