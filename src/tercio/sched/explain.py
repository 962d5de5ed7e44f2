"""Decisions: one true reason with numbers for every waiting job, computed when it is looked at.

What is the same for all members of a class is worked out once per class; a look-up only puts in
the job's name, its position and its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tercio.errors import InvariantViolation
from tercio.model.ids import JobId
from tercio.model.job import TaskGroup
from tercio.model.reasons import (
    Best,
    Change,
    Decision,
    Excluded,
    Holder,
    Outcome,
    Reason,
    StartEstimate,
)
from tercio.model.reservation import Promise
from tercio.model.snapshot import WaitingJob
from tercio.model.units import format_instant
from tercio.sched.classes import JobClass, Verdict
from tercio.sched.deadline import deadline_words
from tercio.sched.futures import start_estimates
from tercio.sched.memory import Memory
from tercio.sched.nearest import nearest_change
from tercio.sched.plan import Start
from tercio.sched.queues import positions
from tercio.sched.scene import Scene
from tercio.sched.words import cheaper_words, sentence, slice_words

_NEVER: Final = (Reason.NEVER_FITS, Reason.CONSTRAINT, Reason.TYPE_UNAVAILABLE)


class Briefs(Mapping[JobId, Decision]):
    """Decision, without position, of every waiting job and of every start of one cycle.

    A look-up costs the same however many jobs wait. Valid until the memory it reads begins the
    next cycle; what was looked up stays.
    """

    def __init__(self, memory: Memory, starts: Sequence[Start], now_s: float) -> None:
        self._memory = memory
        self._starts = {start.job_id: start for start in starts}
        self._now_s = now_s
        self._known: dict[JobId, Decision] = {}
        self._by_class: dict[int, Decision] = {}
        self._cycle = memory.cycle

    def __len__(self) -> int:
        return len(self._starts) + len(self._memory.waiting)

    def __iter__(self) -> Iterator[JobId]:
        yield from self._starts
        yield from self._memory.waiting

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._starts or job_id in self._memory.waiting

    def __getitem__(self, job_id: JobId) -> Decision:
        found = self._known.get(job_id)
        if found is None:
            if self._cycle != self._memory.cycle:
                raise InvariantViolation(f"decision of {job_id} looked up after the next cycle")
            start = self._starts.get(job_id)
            found = self._placed(start) if start else self._waiting(job_id)
            self._known[job_id] = found
        return found

    def _placed(self, start: Start) -> Decision:
        nodes = tuple(dict.fromkeys(task.node for task in start.tasks))
        where = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        return Decision(
            job=start.job_id,
            outcome=Outcome.PLACED,
            reason=Reason.READY,
            message=f"starts on {where}{self._how_many(start)}{slice_words(start.tasks)}",
            start=StartEstimate(
                at_s=self._now_s, low_s=self._now_s, high_s=self._now_s, label=start.label
            ),
            nodes=nodes,
        )

    def _how_many(self, start: Start) -> str:
        """How many devices an elastic request got; empty for an exact one."""
        job = self._memory.running.get(start.job_id)
        if job is None or not is_elastic(job.spec.groups):
            return ""
        counts = sorted({len(task.devices) for task in start.tasks})
        return f" with {' or '.join(map(str, counts))} devices per task"

    def _waiting(self, job_id: JobId) -> Decision:
        memory = self._memory
        job = memory.waiting[job_id]
        gate = memory.gates.get(job_id)
        if gate is Reason.PREEMPTING:
            return self._preempting(job)
        if gate is not None:
            return self._timed(job, gated(job, gate))
        job_class = memory.class_of[job_id]
        shared = self._by_class.get(job_class.number)
        if shared is None:
            shared = self._by_class[job_class.number] = decide(memory, job_class, self._now_s)
        start = estimate(memory.promise_of(job_id), self._now_s)
        note = memory.declined.get(job_class.number) if job_id == job_class.head.job_id else None
        if job_class.key.gives_way and shared.reason not in _NEVER:
            note = (note or "") + cheaper_words(job)
        found = msgspec.structs.replace(
            shared, job=job_id, start=start, message=shared.message + (note or "")
        )
        return self._timed(job, found)

    def _timed(self, job: WaitingJob, decision: Decision) -> Decision:
        """Add to the message that the deadline will be missed, where that is known."""
        start_s = self._memory.late.get(job.job_id)
        if decision.start is not None:
            start_s = decision.start.at_s
        words = deadline_words(job, start_s, self._now_s)
        if not words:
            return decision
        return msgspec.structs.replace(decision, message=decision.message + words)

    def _preempting(self, job: WaitingJob) -> Decision:
        """A job whose devices are being freed for it."""
        memory = self._memory
        promise = next(
            p for j, p in memory.promises.items() if memory.waiting_of(j) is job and p.evicting
        )
        leaving = [memory.running[j] for j in promise.evicting if j in memory.running]
        names = ", ".join(other.job_id for other in leaving[:3])
        more = f" and {len(leaving) - 3} more" if len(leaving) > 3 else ""
        nodes = ", ".join(list(dict.fromkeys(t.node for t in promise.tasks))[:3])
        message = f"waits for {names}{more} to stop; {nodes} is kept for it"
        outside = [
            t.node
            for t in promise.tasks
            if t.node in memory.table.row_of
            and {s.index for s in t.devices}
            & set(memory.table.nodes[memory.table.row_of[t.node]].spec.foreign_devices)
        ]
        if outside:
            message = f"devices freed for it on {outside[0]} were taken by outside work"
        gone_s = max((other.stops_by_s or self._now_s for other in leaving), default=self._now_s)
        return Decision(
            job=job.job_id,
            outcome=Outcome.WAITING,
            reason=Reason.PREEMPTING,
            message=message,
            start=StartEstimate(
                at_s=gone_s, low_s=self._now_s, high_s=promise.expires_s, label="reserved"
            ),
        )


def is_elastic(groups: Sequence[TaskGroup]) -> bool:
    """Whether the number of devices per task is the scheduler's choice in some group."""
    return any(
        is_elastic(group.subgroups) or any(each.count_max for each in group.per_task.devices)
        for group in groups
    )


class Decisions(Mapping[JobId, Decision]):
    """The briefs with positions and start estimates. As long valid.

    The first look-up of a waiting job costs O(waiting and running jobs), up to a budget.
    """

    def __init__(self, memory: Memory, briefs: Briefs, now_s: float, seed: int) -> None:
        self._memory = memory
        self._briefs = briefs
        self._known: dict[JobId, Decision] = {}
        self._now_s, self._seed = now_s, seed
        self._positions: dict[JobId, int] | None = None
        self._estimates: dict[JobId, StartEstimate] = {}
        self._cycle = memory.cycle

    def __len__(self) -> int:
        return len(self._briefs)

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._briefs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._briefs

    def __getitem__(self, job_id: JobId) -> Decision:
        found = self._known.get(job_id)
        if found is None:
            if self._cycle != self._memory.cycle:
                raise InvariantViolation(f"decision of {job_id} looked up after the next cycle")
            found = self._briefs[job_id]
            if job_id in self._memory.class_of:
                if self._positions is None:
                    self._positions = positions(self._memory)
                    self._estimates = start_estimates(self._memory, self._now_s, self._seed)
                found = msgspec.structs.replace(
                    found,
                    position=self._positions.get(job_id),
                    start=self._estimates.get(job_id, found.start),
                )
            self._known[job_id] = found
        return found


# Part of the remaining wait after which most jobs have ended: few use their whole time limit.
_EARLY_RATIO = 0.3


def estimate(promise: Promise | None, now_s: float) -> StartEstimate | None:
    """When a promised job starts: at its promise at the latest, earlier when others end early."""
    if promise is None or promise.from_s is None:
        return None
    at_s = promise.from_s
    return StartEstimate(
        at_s=at_s, low_s=now_s + _EARLY_RATIO * max(0.0, at_s - now_s), high_s=at_s,
        label="reserved",
    )  # fmt: skip


def gated(job: WaitingJob, gate: Reason) -> Decision:
    """Decision of a job that something of its own holds back."""
    change: Change | None = None
    at_s = max(job.not_before_s or 0.0, job.spec.time.earliest_s or 0.0)
    match gate:
        case Reason.HELD:
            message = "held; it starts only after a release"
            change = Change(what="release", to=job.job_id, starts="then")
        case Reason.DEPENDENCY:
            first = ", ".join(job.blocked_on[:3])
            more = f" and {len(job.blocked_on) - 3} more" if len(job.blocked_on) > 3 else ""
            message = f"waits for {first}{more} to end"
            change = Change(what="after", to=job.blocked_on[0], starts="then")
        case Reason.BACK_OFF:
            message = f"attempt {job.attempt} starts no earlier than {format_instant(at_s)}"
        case Reason.NOT_BEFORE:
            message = f"may not start before {format_instant(at_s)}"
        case _:
            most = (job.spec.array.concurrency if job.spec.array else None) or 0
            # Those that start in this very cycle count: they are why no more do.
            message = f"its array runs at most {most} at once; {max(most, job.active_elements)} run"
            change = Change(what="concurrency", to=most + 1)
    start = None
    if gate in (Reason.BACK_OFF, Reason.NOT_BEFORE):
        start = StartEstimate(at_s=at_s, low_s=at_s, high_s=at_s, label="immediate")
    return Decision(
        job=job.job_id, outcome=Outcome.WAITING, reason=gate, message=message, change=change,
        start=start,
    )  # fmt: skip


def decide(memory: Memory, job_class: JobClass, now_s: float) -> Decision:
    """Decision of a class, named after its head."""
    verdict = job_class.verdict or Verdict(Reason.READY)
    scene = Scene(memory, job_class, verdict, now_s)
    return Decision(
        job=job_class.head.job_id,
        outcome=Outcome.WAITING,
        reason=verdict.reason,
        message=sentence(scene),
        wanted=scene.wanted,
        free=scene.free,
        best=_best(scene),
        holders=_holders(scene),
        excluded=tuple(Excluded(by=by, nodes=count) for by, count in scene.excluded.items()),
        change=nearest_change(scene),
    )


def _best(scene: Scene) -> Best | None:
    if scene.verdict.limit is not None:
        return None
    if scene.verdict.reason is Reason.TOPOLOGY and scene.best_domain is not None:
        name, room = scene.best_domain
        return Best(domain=name, free={"tasks": float(room)})
    if scene.best_node is None:
        return None
    name, free = scene.best_node
    return Best(node=name, free={scene.type_name: free})


def _holders(scene: Scene) -> tuple[Holder, ...]:
    return tuple(
        Holder(job=job, devices={scene.type_name: milli / 1000}, ends_s=ends_s)
        for job, milli, ends_s in scene.holders
    )
