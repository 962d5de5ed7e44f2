"""One step of the control plane: events in, journal entries and effects out.

Both shells, the live `runtime` and the twin, are loops around `Driver.step`. Retry, back-off,
deadlines, fencing and cadence are decided here and in `Cluster`, so a shell holds no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from tercio.core import applier
from tercio.core.cluster import Cluster
from tercio.core.healing import Healing
from tercio.core.invariants import check
from tercio.model.effects import AnyEffect
from tercio.model.events import AnyEvent, Entry, JobWaited
from tercio.model.ids import JobId, QueuePath
from tercio.model.queue import Policy
from tercio.model.reasons import Decision, Outcome, StartEstimate
from tercio.model.snapshot import Snapshot
from tercio.sched.cycle import schedule
from tercio.sched.memory import Memory
from tercio.sched.plan import Plan
from tercio.sched.queues import shares

TOLD_EVERY_S: Final = 10.0
STARTS_PER_S: Final = 200.0
"""After start estimates were made to be told, none are for a second per so many jobs: they cost
O(waiting and running jobs). Of those that begin to wait meanwhile, nothing is recorded."""
HEALTH_ROUNDS: Final = 4
"""Decisions on health in one step: quarantine, repair, what the repair asks for, and rest."""

Scheduler: TypeAlias = Callable[[Snapshot, Policy, float, int, Memory | None], Plan]
"""What `sched.cycle.schedule` is, and what may stand in its place for a comparison."""


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the driver runs.

    Attributes:
        is_validating: check every invariant after every step; on in tests and in the twin.
        tells_waiting: journal why jobs wait, for their stories.
        skips_empty: leave out cycles that can come to nothing; not for a scheduler that counts
            its calls or the time between them.
        heals: decide on health; a shadow takes those decisions from the live server.
    """

    is_validating: bool = False
    tells_waiting: bool = True
    skips_empty: bool = True
    heals: bool = True


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did.

    Attributes:
        entries: to be written to the journal before anything else happens.
        effects: to be performed after that.
        refused: parts of the plan that did not hold; a bug of the scheduler.
        wake_at_s: when to step again even without events, or None.
    """

    entries: tuple[Entry, ...]
    effects: tuple[AnyEffect, ...]
    refused: tuple[applier.Refused, ...] = ()
    wake_at_s: float | None = None


class Driver:
    """Drives one `Cluster`.

    Attributes:
        seq: of the last journal entry.
        decisions: of the last cycle, by job; the first look-up costs O(waiting jobs).
        briefs: the same without positions, cheap to look up.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        seq: int = 0,
        settings: DriverSettings | None = None,
        seed: int = 0,
        scheduler: Scheduler = schedule,
    ) -> None:
        self.cluster = cluster
        self._schedule = scheduler
        self.seq = seq
        self.settings = settings or DriverSettings()
        self.seed = seed
        self.decisions: Mapping[JobId, Decision] = {}
        self.briefs: Mapping[JobId, Decision] = {}
        self._memory = Memory()
        self._healing = Healing()
        self._planned_revision = -1
        self._plan_wake_s: float | None = None
        self._is_behind = False
        self._tells_starts_from_s = 0.0
        self._entries: list[Entry] = []
        self._effects: list[AnyEffect] = []

    def step(self, events: Sequence[AnyEvent], now_s: float, *, is_scheduling: bool = True) -> Step:
        """Take events in, then what is due, then decide on health, then schedule if need be.

        Time never runs backwards inside: an event or a clock behind the newest event is
        moved up to it.
        """
        self._entries, self._effects = [], []
        for event in events:
            self._take(event)
        cluster = self.cluster
        now_s = max(now_s, cluster.now_s)
        for event in cluster.due(now_s):
            self._take(event)
        refused: tuple[applier.Refused, ...] = ()
        if is_scheduling and self._heals(now_s):
            self._heal(now_s)
        if is_scheduling and self.is_cycle_due(now_s):
            if self.settings.skips_empty and cluster.is_content:
                self._skip()
            else:
                refused = self._cycle(now_s)
        if self.settings.is_validating:
            check(self.cluster)
        return Step(
            entries=tuple(self._entries),
            effects=tuple(self._effects),
            refused=refused,
            wake_at_s=self._wake_at_s(is_scheduling=is_scheduling, now_s=now_s),
        )

    def is_cycle_due(self, now_s: float) -> bool:
        """Whether a scheduling cycle could come to another plan than the last one."""
        if self.cluster.revision != self._planned_revision:
            return True
        if self._heals(now_s):
            return True
        return self._plan_wake_s is not None and self._plan_wake_s <= now_s

    def reissue(self) -> tuple[AnyEffect, ...]:
        """Return the open effects, to be performed again after a restart."""
        return tuple(self.cluster.open_effects.values())

    def replay(self, entries: Sequence[Entry]) -> None:
        """Take journalled entries in again, without deciding anything."""
        for entry in entries:
            self.cluster.apply(entry.event)
            self.seq = entry.seq

    def dry_run(self, snapshot: Snapshot, now_s: float, *, policy: Policy | None = None) -> Plan:
        """Return the plan that a cycle would make of a snapshot now. Changes nothing.

        `policy` stands in the place of the one in force.
        """
        now_s = max(now_s, self.cluster.now_s)
        trial = msgspec.structs.replace(snapshot, changes=None)
        return self._schedule(trial, policy or self.cluster.policy, now_s, self.seed, None)

    def entitlements(
        self, snapshot: Snapshot | None = None, *, policy: Policy | None = None
    ) -> Mapping[QueuePath, Mapping[str, Fraction]]:
        """Return every queue's share of every device type, in thousandths.

        Without a snapshot, as of the last cycle.
        """
        memory = self._memory
        if self._is_behind:
            known = self.cluster.snapshot(is_cycle=True)
            memory.follow(known, self.cluster.policy, self.cluster.now_s)
            self._is_behind = False
        if snapshot is not None or memory.is_empty or memory.policy != self.cluster.policy:
            memory = Memory()
            known = msgspec.structs.replace(snapshot or self.cluster.snapshot(), changes=None)
            memory.follow(known, policy or self.cluster.policy, self.cluster.now_s)
        return shares(memory)

    def last_memory(self) -> Memory | None:
        """Return what the last cycle remembers, to be read; None when there was nothing to plan."""
        return None if self._is_behind or self._memory.is_empty else self._memory

    def _take(self, event: AnyEvent) -> None:
        if event.at_s < self.cluster.now_s:
            event = msgspec.structs.replace(event, at_s=self.cluster.now_s)
        self._effects.extend(self.cluster.apply(event))
        self.seq += 1
        self._entries.append(Entry(seq=self.seq, event=event))

    def _heals(self, now_s: float) -> bool:
        return self.settings.heals and self._healing.is_due(self.cluster, now_s)

    def _heal(self, now_s: float) -> None:
        """Decide on health until nothing follows: an empty node is repaired at once."""
        for _ in range(HEALTH_ROUNDS):
            events = self._healing.decide(self.cluster, now_s)
            for event in events:
                self._take(event)
            if not events:
                break
        self._healing.settle(self.cluster, now_s)

    def _cycle(self, now_s: float) -> tuple[applier.Refused, ...]:
        cluster = self.cluster
        snapshot = cluster.snapshot(is_cycle=True)
        self._is_behind = False
        plan = self._schedule(snapshot, cluster.policy, now_s, self.seed, self._memory)
        refused = self._apply_plan(plan, now_s)
        self.decisions, self.briefs = plan.decisions, plan.briefs
        if self.settings.tells_waiting:
            self._tell(plan, snapshot, now_s)
        self._plan_wake_s = plan.wake_at_s
        # A refused part leaves the plan unfinished: the next step plans again.
        self._planned_revision = -1 if refused else cluster.revision
        return refused

    def _skip(self) -> None:
        """Leave out a cycle that can come to nothing: the plan of an empty queue is empty."""
        self._planned_revision, self._plan_wake_s = self.cluster.revision, None
        self.decisions, self.briefs = {}, {}
        self._is_behind = True

    def _apply_plan(self, plan: Plan, now_s: float) -> tuple[applier.Refused, ...]:
        refused: list[applier.Refused] = []
        for eviction in plan.evictions:
            why = applier.check_eviction(self.cluster, eviction)
            if why is None:
                self._take(applier.eviction_event(eviction, now_s))
            else:
                refused.append(applier.Refused(job_id=eviction.job_id, why=why))
        for addition in plan.additions:
            why = applier.check_addition(self.cluster, addition)
            if why is None:
                self._take(applier.addition_event(self.cluster, addition, now_s))
            else:
                refused.append(applier.Refused(job_id=addition.job_id, why=why))
        for start in plan.starts:
            why = applier.check_start(self.cluster, start)
            if why is None:
                self._take(applier.start_event(self.cluster, start, now_s))
            else:
                refused.append(applier.Refused(job_id=start.job_id, why=why))
        promises = applier.promises_event(self.cluster, plan, now_s)
        if promises is not None:
            self._take(promises)
        return tuple(refused)

    def _tell(self, plan: Plan, snapshot: Snapshot, now_s: float) -> None:
        """Journal changed reasons, each job's at most once in `TOLD_EVERY_S`, with first starts."""
        tells_starts = now_s >= self._tells_starts_from_s
        for job_id in plan.reason_changes:
            job = self.cluster.jobs.get(job_id)
            if job is None or job_id not in snapshot.waiting:
                continue
            decision = plan.briefs[job_id]
            if decision.outcome is not Outcome.WAITING or decision.reason is job.waited:
                continue
            if job.waited is not None and now_s < job.waited_s + TOLD_EVERY_S:
                continue
            start = None
            if tells_starts and job.told is None and job.array is None:
                start = _start_of(plan.decisions[job_id])
                size = len(snapshot.waiting) + len(snapshot.running)
                self._tells_starts_from_s = now_s + size / STARTS_PER_S
            told = JobWaited(
                at_s=now_s, job_id=job_id, reason=decision.reason, message=decision.message,
                start=start,
            )  # fmt: skip
            self._take(told)

    def later_s(self, now_s: float) -> float | None:
        """When to step again even without events, were no cycle due by now; or None."""
        first_s, healing_s = self.cluster.next_timer_s(), self._healing.next_s
        if healing_s is not None and (first_s is None or healing_s < first_s):
            first_s = healing_s
        plan_s = self._plan_wake_s
        if plan_s is not None and plan_s > now_s and (first_s is None or plan_s < first_s):
            first_s = plan_s
        return first_s

    def _wake_at_s(self, *, is_scheduling: bool, now_s: float) -> float | None:
        first_s = self.later_s(now_s)
        if not is_scheduling and self.is_cycle_due(now_s):
            first_s = now_s if first_s is None else min(first_s, now_s)
        return first_s


def _start_of(decision: Decision) -> StartEstimate | None:
    """When a job should start that waits for its turn, not for something of its own."""
    return None if decision.position is None else decision.start
