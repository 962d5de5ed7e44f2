"""The machine: `Cluster.apply(event) -> effects`, the one door through which state changes.

Owns every job, node, token and promise, the policy, the ledger and the open effects. It must
not look at a clock, draw a number or reach anything outside; time and facts come in events.

>>> from tercio.model.events import ServerStarted
>>> Cluster().apply(ServerStarted(at_s=1.0, epoch=1, version="0.1.0"))
[]
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tercio.core import (
    attempts,
    capping,
    fleet,
    hangs,
    health,
    idling,
    joining,
    maintaining,
    outside,
    prices,
    requests,
    signals,
)
from tercio.core.fitting import Fitting
from tercio.core.image import decode_state, encode_state, hash_of
from tercio.core.ledger import Ledger
from tercio.core.members import is_repair_due
from tercio.core.records import Job
from tercio.core.state import (
    EFFECT_TIMER,
    FENCE_TIMER,
    LIMIT_TIMER,
    MAINTENANCE_TIMER,
    REPAIR_TIMER,
    SLICE_TIMER,
    State,
)
from tercio.core.told import StartRecord
from tercio.model.effects import AnyEffect, LaunchTask
from tercio.model.events import (
    AnyEvent,
    EffectTimedOut,
    FaultCleared,
    FaultFound,
    HealthBreakerMoved,
    HealthDecided,
    HealthPolicyChanged,
    JobCancelRequested,
    JobEvicted,
    JobHeld,
    JobHung,
    JobIdled,
    JobPlaced,
    JobReleased,
    JobRequeueRequested,
    JobResumeRequested,
    JobsForgotten,
    JobSubmitted,
    JobSuspendRequested,
    JobWaited,
    LimitMeasured,
    NodeCordoned,
    NodeDrainRequested,
    NodeFenced,
    NodeHealthChanged,
    NodeLost,
    NodeRemoved,
    NodeRepairEnded,
    NodeReported,
    NodeUncordoned,
    PolicyChanged,
    PowerCapped,
    PricesRead,
    RankPaceChanged,
    RepairTimedOut,
    ReservationAdded,
    ReservationRemoved,
    SlicePauseEnded,
    SpareActivated,
    TaskExited,
    TaskLaunchFailed,
    TasksAdded,
    TaskStarted,
    TimeLimitReached,
)
from tercio.model.health import HealthState
from tercio.model.identity import Token
from tercio.model.ids import EffectId, JobId, NodeName
from tercio.model.node import Node
from tercio.model.queue import Policy
from tercio.model.reservation import Promise, Reservation
from tercio.model.snapshot import Changes, Snapshot

_CHANGES_ALL: Final = frozenset({PolicyChanged, ReservationAdded, ReservationRemoved})


class Cluster:
    """See the module's description.

    Without `renders`, launch orders carry no command and no environment: for a world in which
    nobody reads them. Nothing else depends on it.

    Attributes:
        jobs: all jobs and started array elements, finished ones included until forgotten.
        nodes: all nodes.
        running, waiting: the scheduler's view of jobs.
    """

    __slots__ = (
        "_cycle_revision", "_fitting", "_fitting_of", "_is_all_changed", "_state", "jobs",
        "nodes", "running", "waiting",
    )  # fmt: skip

    def __init__(self, state: State | None = None, *, renders: bool = True) -> None:
        self._state = state or State()
        self._state.renders = renders
        self._is_all_changed = True
        self._cycle_revision = 0
        self._fitting: Fitting | None = None
        self._fitting_of = (-1, -1)
        self.jobs: Final[Mapping[JobId, Job]] = MappingProxyType(self._state.jobs)
        self.nodes: Final[Mapping[NodeName, Node]] = MappingProxyType(self._state.nodes)
        self.running: Final = MappingProxyType(self._state.running)
        self.waiting: Final = MappingProxyType(self._state.waiting)

    # Reading. The mappings are live: read them, never change them.

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._state.policy

    @property
    def policy_version(self) -> int:
        """Its version, 0 before the first was set."""
        return self._state.policy_version

    @property
    def prices(self) -> prices.Prices:
        """What power costs over time."""
        return self._state.prices

    @property
    def promises(self) -> tuple[Promise, ...]:
        """Standing promises."""
        return self._state.promises

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """Reservations by name, in order of addition."""
        return MappingProxyType(self._state.reservations)

    @property
    def fitting(self) -> Fitting:
        """What the present nodes and policy could ever hold; kept until either changes."""
        state = self._state
        key = (state.facts_version, state.policy_version)
        if self._fitting is None or self._fitting_of != key:
            self._fitting = Fitting(state.nodes.values(), state.policy)
            self._fitting_of = key
        return self._fitting

    @property
    def health(self) -> HealthState:
        """Faults, where nodes stand, and the health policy; only read."""
        return self._state.health

    def repairs_waiting(self) -> tuple[JobId, ...]:
        """Return the jobs that wait to start again since they lost a node; O(waiting jobs)."""
        return tuple(each.job_id for each in self._state.waiting.values() if each.is_repair)

    @property
    def starts(self) -> StartRecord:
        """What waiting jobs were told about their start, and how it came out; only read."""
        return self._state.starts

    @property
    def tokens(self) -> Mapping[str, Token]:
        """Accepted tokens by public name."""
        return MappingProxyType(self._state.tokens)

    @property
    def ledger(self) -> Ledger:
        """What is held and what was used."""
        return self._state.ledger

    @property
    def open_effects(self) -> Mapping[EffectId, AnyEffect]:
        """Effects that no event has answered yet."""
        return MappingProxyType(self._state.open_effects)

    @property
    def held_launches(self) -> Mapping[EffectId, LaunchTask]:
        """Launches that wait for their devices to be cut into slices, or made whole."""
        return MappingProxyType(self._state.held_launches)

    @property
    def epoch(self) -> int:
        """Number of the current server run."""
        return self._state.epoch

    @property
    def now_s(self) -> float:
        """Time of the newest event."""
        return self._state.now_s

    @property
    def jobs_submitted(self) -> int:
        """Jobs ever submitted; the next one's sequence is one more."""
        return self._state.jobs_submitted

    @property
    def revision(self) -> int:
        """Grows with every change that a scheduler can see."""
        return self._state.revision

    @property
    def waiting_count(self) -> int:
        """Jobs that wait, held ones and arrays with waiting elements counted."""
        return len(self._state.waiting)

    @property
    def is_content(self) -> bool:
        """Whether no plan could want anything: nothing waits, is promised or may change size."""
        state = self._state
        return not (
            state.waiting
            or state.promises
            or state.reservations
            or state.changeable
            or state.policy.placement.defragment
            or state.policy.elastic is not None
        )

    def is_waiting(self, job_id: JobId) -> bool:
        """Whether the scheduler sees a job among those that wait."""
        return job_id in self._state.waiting

    def is_holding(self, job_id: JobId) -> bool:
        """Whether a job holds an allocation."""
        return job_id in self._state.running

    def job_by_submit_key(self, tenant: str, user: str, submit_key: str) -> JobId | None:
        """Return the job that this user submitted under this key, or None."""
        return self._state.submit_keys.get((tenant, user, submit_key))

    def jobs_on(self, node: NodeName) -> tuple[JobId, ...]:
        """Return the jobs with live tasks on a node."""
        return self._state.jobs_on(node)

    def jobs_holding(self, node: NodeName, device: int) -> tuple[JobId, ...]:
        """Return the jobs that hold a device of a node, or a part of it."""
        return tuple(
            job_id
            for job_id in self.jobs_on(node)
            if any(
                task.placement.node == node and share.index == device
                for task in self._state.jobs[job_id].live_tasks
                for share in task.placement.devices
            )
        )

    def elements_of(self, job: Job) -> list[Job]:
        """Return the started elements of an array, in order of index."""
        return requests.elements_of(self._state, job)

    def story_of(self, subject: str) -> list[str]:
        """Return the recent moves of one object, for a bug report."""
        return self._state.story_of(subject)

    # The door.

    def apply(self, event: AnyEvent) -> list[AnyEffect]:
        """Take one event in and return the effects it orders.

        Raises:
            IllegalTransition, InvariantViolation: a bug; the journal holds how it came about.
        """
        state = self._state
        state.now_s = max(state.now_s, event.at_s)
        state.effects = []
        _dispatch(state, event)
        if type(event) in _CHANGES_ALL:
            self._is_all_changed = True
        while state.emptied_nodes:
            fleet.settle_drained(state, state.emptied_nodes.pop())
        return state.effects

    # What the driver needs.

    def snapshot(self, *, is_cycle: bool = False) -> Snapshot:
        """Return the scheduler's view. With `is_cycle`, the changes start anew from here."""
        state = self._state
        changes = None
        if not self._is_all_changed:
            changes = Changes(
                since=self._cycle_revision,
                nodes=tuple(state.changed_nodes),
                running=tuple(state.changed_running),
                waiting=tuple(state.changed_waiting),
            )
        if is_cycle:
            state.changed_nodes, state.changed_running, state.changed_waiting = {}, {}, {}
            self._is_all_changed, self._cycle_revision = False, state.revision
        return Snapshot(
            revision=state.revision,
            nodes=self.nodes,
            running=self.running,
            waiting=self.waiting,
            promises=state.promises,
            decayed_use=MappingProxyType(state.ledger.decayed),
            decayed_at_s=state.ledger.decayed_at_s,
            spent=MappingProxyType(state.ledger.spent_ms),
            mix=state.mix.published,
            run_ratios=state.run_times.published,
            start_ratios=state.starts.published,
            reservations=tuple(state.reservations.values()),
            changes=changes,
        )

    def due(self, now_s: float) -> list[AnyEvent]:
        """Return the events that time alone has made true; applying them makes them undue."""
        state = self._state
        found: list[AnyEvent] = []
        while state.timers and state.timers[0][0] <= now_s:
            at_s, _, kind, name = heapq.heappop(state.timers)
            if kind == EFFECT_TIMER:
                effect = state.open_effects.get(EffectId(name))
                if effect is not None and effect.deadline_s <= now_s:
                    found.append(EffectTimedOut(at_s=now_s, effect_id=EffectId(name)))
            elif kind == LIMIT_TIMER:
                job = state.jobs.get(JobId(name))
                if job is not None and job.ends_s == at_s and attempts.is_limit_due(job):
                    found.append(TimeLimitReached(at_s=now_s, job_id=job.id, attempt=job.attempt))
            elif kind == REPAIR_TIMER:
                job = state.jobs.get(JobId(name))
                if job is not None and is_repair_due(job, now_s):
                    found.append(RepairTimedOut(at_s=now_s, job_id=job.id, attempt=job.attempt))
            elif kind == MAINTENANCE_TIMER:
                found += maintaining.due(state.reservations, state.nodes, name, now_s)
            elif kind == SLICE_TIMER:
                found += self._pauses_over(name, at_s)
            elif kind == FENCE_TIMER:
                node = state.nodes.get(NodeName(name))
                lost_s = node.lost_s if node is not None else None
                # A timer of an earlier loss must not fence a node that was lost again since.
                if node is not None and lost_s is not None and self._is_fence_due(lost_s, now_s):
                    reason = f"not heard from for {now_s - lost_s:.0f}s: {node.reason}"
                    found.append(NodeFenced(at_s=now_s, node=node.name, reason=reason))
        return found

    def _pauses_over(self, name: str, at_s: float) -> list[AnyEvent]:
        node_name, _, index = name.rpartition("/")
        node = self._state.nodes.get(NodeName(node_name))
        fault = node.slice_fault(int(index)) if node is not None else None
        if node is None or fault is None or fault.until_s != at_s:
            return []
        return [SlicePauseEnded(at_s=at_s, node=node.name, index=fault.index)]

    def _is_fence_due(self, lost_s: float, now_s: float) -> bool:
        return lost_s + self._state.policy.fence_after_s <= now_s

    def next_timer_s(self) -> float | None:
        """Return when something may next be due, or None."""
        timers, open_effects = self._state.timers, self._state.open_effects
        # Most effects are answered long before their deadlines.
        while timers and timers[0][2] == EFFECT_TIMER and timers[0][3] not in open_effects:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    # The checkpoint.

    def image(self) -> bytes:
        """Return the whole state, canonically encoded."""
        return encode_state(self._state)

    @classmethod
    def from_image(cls, image: bytes) -> Cluster:
        """Return a machine in exactly the state of the image."""
        return cls(decode_state(image))

    def state_hash(self) -> str:
        """Return a digest of the whole state; equal states have equal digests."""
        return hash_of(self.image())


def _dispatch(state: State, event: AnyEvent) -> None:
    match event:
        case TaskStarted():
            attempts.started(state, event)
        case TaskExited():
            attempts.exited(state, event)
        case JobSubmitted():
            requests.submitted(state, event)
        case JobPlaced():
            attempts.place(state, event)
        case JobHeld():
            requests.held(state, event)
        case JobReleased():
            requests.released(state, event)
        case JobCancelRequested():
            requests.cancelled(state, event)
        case JobRequeueRequested():
            requests.requeued(state, event)
        case JobSuspendRequested():
            signals.suspend(state, event)
        case JobResumeRequested():
            signals.resume(state, event)
        case JobWaited():
            requests.waited(state, event)
        case JobsForgotten():
            requests.forgotten(state, event)
        case TasksAdded():
            joining.added(state, event)
        case RepairTimedOut():
            joining.repair_timed_out(state, event)
        case JobEvicted():
            attempts.evict(state, event)
        case TaskLaunchFailed():
            attempts.launch_failed(state, event)
        case JobHung():
            hangs.hung(state, event)
        case JobIdled():
            idling.idled(state, event)
        case RankPaceChanged():
            hangs.pace_changed(state, event)
        case TimeLimitReached():
            attempts.limit_reached(state, event)
        case _:
            _dispatch_node(state, event)


def _dispatch_node(state: State, event: AnyEvent) -> None:
    match event:
        case NodeReported():
            fleet.reported(state, event)
        case NodeLost():
            fleet.lost(state, event)
        case NodeFenced():
            fleet.fenced(state, event)
        case NodeRemoved():
            fleet.removed(state, event)
        case NodeCordoned():
            fleet.cordoned(state, event)
        case NodeUncordoned():
            fleet.uncordoned(state, event)
        case NodeDrainRequested():
            fleet.drain(state, event)
        case PowerCapped():
            capping.take(state, event)
        case LimitMeasured():
            capping.measured(state, event)
        case PricesRead():
            prices.take(state, event)
        case (
            FaultFound()
            | FaultCleared()
            | NodeHealthChanged()
            | HealthDecided()
            | SpareActivated()
            | NodeRepairEnded()
            | HealthPolicyChanged()
            | HealthBreakerMoved()
        ):
            health.take(state, event)
        case _:
            outside.take(state, event)
