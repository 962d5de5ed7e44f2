"""What the machine knows, and the few primitive moves that everything else is made of.

Sets are kept as dicts, so that every iteration has one fixed order.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

import msgspec

from tercio.core.ledger import Ledger
from tercio.core.members import grows_from_s, missing_view
from tercio.core.mix import Mix
from tercio.core.prices import Prices
from tercio.core.records import Job, Task, is_elastic, is_preemptible, kind_of
from tercio.core.run_times import RunTimes
from tercio.core.saving import Wear
from tercio.core.told import StartRecord
from tercio.core.transitions import (
    JOB_TRANSITIONS,
    NODE_TRANSITIONS,
    TASK_TRANSITIONS,
    TaskState,
)
from tercio.errors import IllegalTransition
from tercio.forecast.lengths import Lengths
from tercio.model.effects import AnyEffect, LaunchTask, ReconfigureDevice
from tercio.model.health import HealthState
from tercio.model.identity import Token
from tercio.model.ids import EffectId, JobId, NodeName
from tercio.model.job import ACTIVE_JOB_STATES, EndCause, IndexRange, JobState
from tercio.model.node import Node, NodeState
from tercio.model.queue import Policy, Predict
from tercio.model.reservation import Promise, Reservation
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.model.snapshot import Had, RunningJob, WaitingJob

_RECENT_MOVES: Final = 4096
LIMIT_TIMER: Final = "limit"
EFFECT_TIMER: Final = "effect"
FENCE_TIMER: Final = "fence"
REPAIR_TIMER: Final = "repair"
SLICE_TIMER: Final = "slices"
MAINTENANCE_TIMER: Final = "maintenance"
Timer = tuple[float, int, str, str]
"""When, tie-break, kind, and the name of the job, effect or node it concerns."""


class State:
    """See the module's description. Only code called by `Cluster.apply` may change it.

    Attributes:
        now_s: time of the newest event.
        jobs_submitted: sequence number of the newest job.
        held_launches: launches that wait for the form of their devices, see `core.slicing`.
        reconfigurations: open `ReconfigureDevice` by node and device.
        effect_tries: how often each open effect was issued again after a time-out.
        dependents: jobs that wait for the end of a job.
        jobs_by_node: jobs with live tasks on a node.
        waiting, running: the scheduler's view of jobs, replaced value by value.
        revision: grows with every change that a scheduler can see.
        facts_version: grows when a node comes, goes or reports other facts.
        changeable: running jobs that may grow, or miss a member.
        changed_nodes, changed_running, changed_waiting: since the last cycle.
        effects: issued by the event being applied.
        emptied_nodes: on which the last task ended in the event being applied.
        renders: whether launch orders carry commands and environments.
        moves: recent transitions, for the story in a bug report.
    """

    __slots__ = (
        "changeable",
        "changed_nodes",
        "changed_running",
        "changed_waiting",
        "dependents",
        "effect_tries",
        "effects",
        "emptied_nodes",
        "epoch",
        "facts_version",
        "health",
        "held_launches",
        "jobs",
        "jobs_by_node",
        "jobs_submitted",
        "ledger",
        "lengths",
        "mix",
        "moves",
        "nodes",
        "now_s",
        "open_effects",
        "policy",
        "policy_version",
        "prices",
        "promises",
        "reconfigurations",
        "renders",
        "reservations",
        "revision",
        "run_times",
        "running",
        "starts",
        "submit_keys",
        "timer_count",
        "timers",
        "tokens",
        "waiting",
        "wear",
    )

    def __init__(self) -> None:
        self.now_s = 0.0
        self.epoch = 0
        self.jobs_submitted = 0
        self.jobs: dict[JobId, Job] = {}
        self.nodes: dict[NodeName, Node] = {}
        self.policy = Policy()
        self.policy_version = 0
        self.prices = Prices()
        self.promises: tuple[Promise, ...] = ()
        self.reservations: dict[str, Reservation] = {}
        self.tokens: dict[str, Token] = {}
        self.ledger = Ledger()
        self.mix = Mix()
        self.run_times = RunTimes()
        self.lengths = Lengths()
        self.wear = Wear()
        self.starts = StartRecord()
        self.health = HealthState()
        self.open_effects: dict[EffectId, AnyEffect] = {}
        self.held_launches: dict[EffectId, LaunchTask] = {}
        self.effect_tries: dict[EffectId, int] = {}
        self.submit_keys: dict[tuple[str, str, str], JobId] = {}
        # Derived from the above, rebuilt by `core.image` after a restart.
        self.dependents: dict[JobId, dict[JobId, None]] = {}
        self.reconfigurations: dict[tuple[NodeName, int], EffectId] = {}
        self.jobs_by_node: dict[NodeName, dict[JobId, None]] = {}
        self.waiting: dict[JobId, WaitingJob] = {}
        self.running: dict[JobId, RunningJob] = {}
        self.revision = 0
        self.facts_version = 0
        self.changeable: dict[JobId, None] = {}
        self.changed_nodes: dict[NodeName, None] = {}
        self.changed_running: dict[JobId, None] = {}
        self.changed_waiting: dict[JobId, None] = {}
        self.effects: list[AnyEffect] = []
        self.emptied_nodes: list[NodeName] = []
        self.moves: deque[tuple[float, str, str, str]] = deque(maxlen=_RECENT_MOVES)
        self.timers: list[Timer] = []
        self.timer_count = 0
        self.renders = True

    def jobs_on(self, node: NodeName) -> tuple[JobId, ...]:
        """Jobs with live tasks on a node, by submit: in whatever order they came there."""
        found = self.jobs_by_node.get(node, {})
        return tuple(sorted(found, key=lambda job_id: (self.jobs[job_id].sequence, job_id)))

    def story_of(self, subject: str) -> list[str]:
        """Return the recent moves of one object, oldest first."""
        return [
            f"{at_s:.3f} {name}: {start} -> {finish}"
            for at_s, name, start, finish in self.moves
            if name == subject
        ]

    def move_job(self, job: Job, state: JobState) -> None:
        """Move a job along its table."""
        if job.state is state:
            return
        if (job.state, state) not in JOB_TRANSITIONS:
            raise IllegalTransition(job.id, job.state, state, story=self.story_of(job.id))
        self.moves.append((self.now_s, job.id, job.state, state))
        job.state = state

    def move_task(self, job: Job, task: Task, state: TaskState) -> None:
        """Move a task along its table."""
        if task.state is state:
            return
        if (task.state, state) not in TASK_TRANSITIONS:
            name = f"{job.id}/{job.attempt}/{task.placement.task}"
            raise IllegalTransition(name, task.state, state, story=self.story_of(job.id))
        task.state = state

    def put_node(self, node: Node) -> None:
        """Replace a node, moving it along its table."""
        before = self.nodes.get(node.name)
        start = before.state if before else NodeState.UNKNOWN
        if start is not node.state:
            if (start, node.state) not in NODE_TRANSITIONS:
                story = self.story_of(node.name)
                raise IllegalTransition(node.name, start, node.state, story=story)
            self.moves.append((self.now_s, node.name, start, node.state))
        if before is None or before.spec is not node.spec:
            self.facts_version += 1
        self.nodes[node.name] = node
        self.changed_nodes[node.name] = None
        self.revision += 1

    def issue(self, effect: AnyEffect) -> None:
        """Order something from the outside, until it is answered."""
        self.open_effects[effect.effect_id] = effect
        if isinstance(effect, ReconfigureDevice):
            self.reconfigurations[effect.node, effect.index] = effect.effect_id
        self.effects.append(effect)
        self.set_timer(effect.deadline_s, EFFECT_TIMER, effect.effect_id)

    @property
    def has_orders(self) -> bool:
        """Whether any effect is open or held."""
        return bool(self.open_effects or self.held_launches or self.effect_tries)

    def close_effect(self, effect_id: EffectId) -> AnyEffect | None:
        """Take an effect as answered; None when it was answered before."""
        self.effect_tries.pop(effect_id, None)
        self.held_launches.pop(effect_id, None)
        effect = self.open_effects.pop(effect_id, None)
        if effect is None:
            return None
        if isinstance(effect, ReconfigureDevice):
            self.reconfigurations.pop((effect.node, effect.index), None)
        return effect

    def set_timer(self, at_s: float, kind: str, name: str) -> None:
        """Note that something may be due; whether it is, is checked when the time comes."""
        self.timer_count += 1
        heapq.heappush(self.timers, (at_s, self.timer_count, kind, name))

    def predict(self, job: Job) -> None:
        """Say how long a job will probably run that does not say so itself."""
        if job.spec.time.expected_s is None and job.spec.time.limit_s is None:
            found = self.lengths.predict(kind_of(job))
            job.predicted_s = None if found is None else found.run_s

    def _speed(self, job: Job) -> float:
        """Relative speed of a running job: that of its slowest device; 1 when not given."""
        if not job.spec.speed:
            return 1.0
        types = [
            self.nodes[task.placement.node].spec.devices[share.index].type
            for task in job.live_tasks
            if task.placement.node in self.nodes
            for share in task.placement.devices
            if share.index < len(self.nodes[task.placement.node].spec.devices)
        ]
        return min((job.spec.speed.get(name, 1.0) for name in types), default=1.0)

    def refresh(self, job: Job) -> None:
        """Bring the scheduler's view of a job up to date."""
        self.revision += 1
        if job.state in ACTIVE_JOB_STATES and job.array is None:
            self.running[job.id] = _running_view(self.policy, job, self._speed(job))
            self.changed_running[job.id] = None
            if job.missing or is_elastic(job.spec):
                self.changeable[job.id] = None
            else:
                self.changeable.pop(job.id, None)
        elif self.running.pop(job.id, None):
            self.changed_running[job.id] = None
            self.changeable.pop(job.id, None)
        if job.state in (JobState.QUEUED, JobState.HELD) or (job.array and job.array.pending):
            parent = self.jobs.get(job.parent) if job.parent is not None else None
            # An element that waits again is held with its array.
            is_held = job.is_held or (parent is not None and parent.is_held)
            self.waiting[job.id] = _waiting_view(self, job, is_held=is_held)
            self.changed_waiting[job.id] = None
        elif self.waiting.pop(job.id, None):
            self.changed_waiting[job.id] = None


def _waiting_view(state: State, job: Job, *, is_held: bool) -> WaitingJob:
    policy, array = state.policy, job.array
    earliest_s = job.spec.time.earliest_s
    not_before_s = job.not_before_s
    if earliest_s is not None and (not_before_s is None or earliest_s > not_before_s):
        not_before_s = earliest_s
    is_repair = job.cause in (EndCause.NODE_FAILED, EndCause.QUARANTINED, EndCause.HUNG)
    predicted_s = None if policy.predict is Predict.OFF else job.predicted_s
    cheaper = None
    if job.spec.time.flexible_s is not None and not is_repair:
        cheaper = state.prices.cheaper(
            policy, job.spec, submitted_s=job.submitted_s, predicted_s=predicted_s
        )
    return WaitingJob(
        job_id=job.id,
        spec=job.spec,
        queue=job.queue,
        user=job.user,
        tenant=job.tenant,
        priority=job.spec.priority,
        is_preemptible=is_preemptible(policy, job.queue, job.spec),
        submitted_s=job.submitted_s,
        sequence=job.sequence,
        attempt=job.attempt + 1,
        not_before_s=not_before_s,
        is_backing_off=job.is_backing_off,
        is_held=is_held,
        blocked_on=job.blocked_on,
        pending=array.pending if array else None,
        active_elements=array.active + array.requeued if array else 0,
        last_nodes=job.last_nodes,
        evictions_s=job.evictions_s,
        is_repair=is_repair,
        predicted_s=predicted_s,
        had=_had(job),
        cheaper=cheaper,
    )


def _running_view(policy: Policy, job: Job, speed: float) -> RunningJob:
    expected_s = job.spec.time.expected_s
    predicted_s = None if policy.predict is Predict.OFF else job.predicted_s
    if expected_s is not None:
        expected_s /= speed
    elif policy.predict is Predict.PROMISES and job.spec.time.limit_s is None:
        expected_s = predicted_s
    return RunningJob(
        job_id=job.id,
        spec=job.spec,
        queue=job.queue,
        user=job.user,
        tenant=job.tenant,
        priority=job.spec.priority,
        is_preemptible=is_preemptible(policy, job.queue, job.spec),
        sequence=job.sequence,
        attempt=job.attempt,
        tasks=tuple([task.placement for task in job.tasks if task.is_live]),
        placed_s=job.placed_s or 0.0,
        started_s=job.started_s,
        ends_s=job.ends_s,
        expected_end_s=None
        if expected_s is None or job.placed_s is None
        else (job.started_s or job.placed_s) + expected_s,
        is_stopping=job.stop_cause is not None,
        stopping_tasks=tuple(
            [task.placement.task for task in job.tasks if task.is_surplus and task.is_live]
        ),
        stops_by_s=job.stops_by_s,
        evictions_s=job.evictions_s,
        missing=missing_view(job),
        next_task=max([task.placement.task for task in job.tasks], default=-1) + 1,
        grows_from_s=grows_from_s(job),
        predicted_s=predicted_s,
        had=_had(job),
    )


def _had(job: Job) -> Had | None:
    """Return what an elastic policy wants to know of the attempts that have ended."""
    held = [attempt.held for attempt in job.past if attempt.held]
    if not held or not job.spec.goodput:
        return None
    ends = [max(span.stop_s for span in spans) for spans in held]
    begins = [min(span.start_s for span in spans) for spans in held]
    device_s = [(s.stop_s - s.start_s) * s.milli for spans in held for s in spans]
    return Had(
        run_s=sum(ends) - sum(begins),
        device_s=sum(device_s) / WHOLE_DEVICE_MILLI,
        moves=sum(attempt.cause is EndCause.PREEMPTED for attempt in job.past),
        until_s=ends[-1],
    )


def without_index(pending: tuple[IndexRange, ...], index: int) -> tuple[IndexRange, ...]:
    """Return the ranges without one index; O(ranges).

    >>> without_index((IndexRange(start=0, stop=4),), 0)
    (IndexRange(start=1, stop=4, step=1),)
    """
    left: list[IndexRange] = []
    for part in pending:
        indexes = range(part.start, part.stop, part.step)
        if index not in indexes:
            left.append(part)
            continue
        position = indexes.index(index)
        before, after = indexes[:position], indexes[position + 1 :]
        for rest in (before, after):
            if rest:
                left.append(msgspec.structs.replace(part, start=rest.start, stop=rest.stop))
    return tuple(left)
