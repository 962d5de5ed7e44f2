"""What differed between the live server and its shadow, counted as they go."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from tercio.core.records import Job
from tercio.model.ids import JobId
from tercio.model.shadow_views import ShadowDifference, ShadowQueue, ShadowWaits
from tercio.twin.result import percentile

SAME_S: Final = 5.0
"""Starts that lie no further apart are one decision: a live cycle may be put off so long."""
RECENT: Final = 50
NOW_MAX: Final = 20
TOTAL: Final = "all"


class _Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is told of; it may be forgotten by then."""

    job: str
    name: str
    queue: str
    user: str
    submitted_s: float

    def differs(self, what: str, live_s: float | None, shadow_s: float | None) -> ShadowDifference:
        return ShadowDifference(
            job=self.job, name=self.name, queue=self.queue, user=self.user, what=what,
            live_s=live_s, shadow_s=shadow_s,
        )  # fmt: skip


class _Queue:
    """Counts of one queue."""

    __slots__ = (
        "earlier", "earlier_s", "evictions", "later", "later_s", "refused", "spared", "struck",
        "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.earlier = self.later = self.refused = self.spared = self.struck = 0
        self.earlier_s = self.later_s = 0.0
        self.evictions = [0, 0]
        self.waits: tuple[list[float], list[float]] = ([], [])


class Tally:
    """See the module's description. Side 0 is live, side 1 the shadow."""

    def __init__(self) -> None:
        self.recent: deque[ShadowDifference] = deque(maxlen=RECENT)
        self._queues: dict[str, _Queue] = {}
        self._starts: tuple[dict[JobId, tuple[_Subject, float]], ...] = ({}, {})
        self._evictions: dict[JobId, tuple[int, _Subject]] = {}

    def started(self, side: int, job: Job, at_s: float) -> None:
        """Note the first start of a job on one side."""
        other = self._starts[1 - side].pop(job.id, None)
        if other is None:
            self._starts[side][job.id] = (_subject(job), at_s)
            return
        subject, other_s = other
        live_s, shadow_s = (at_s, other_s) if side == 0 else (other_s, at_s)
        queue = self._queue(subject.queue)
        for waits, start_s in zip(queue.waits, (live_s, shadow_s), strict=True):
            waits.append(max(start_s - subject.submitted_s, 0.0))
        if shadow_s < live_s - SAME_S:
            queue.earlier += 1
            queue.earlier_s += live_s - shadow_s
            self.recent.appendleft(subject.differs("earlier", live_s, shadow_s))
        elif shadow_s > live_s + SAME_S:
            queue.later += 1
            queue.later_s += shadow_s - live_s
            self.recent.appendleft(subject.differs("later", live_s, shadow_s))

    def ended_waiting(self, job: JobId) -> None:
        """Note that a job that started on one side only will never start on the other."""
        for starts in self._starts:
            starts.pop(job, None)

    def evicted(self, side: int, job: Job) -> None:
        """Note that an attempt was stopped for another job on one side."""
        self._queue(job.queue).evictions[side] += 1
        sign = 1 if side == 0 else -1
        surplus, subject = self._evictions.get(job.id, (0, _subject(job)))
        if surplus + sign == 0:
            self._evictions.pop(job.id, None)
        else:
            self._evictions[job.id] = (surplus + sign, subject)

    def is_over(self, job: JobId, at_s: float) -> None:
        """Note that a job ended on both sides: what was evicted once only stays so."""
        surplus, subject = self._evictions.pop(job, (0, None))
        if subject is None:
            return
        queue = self._queue(subject.queue)
        if surplus > 0:
            queue.spared += surplus
            self.recent.appendleft(subject.differs("spared", at_s, None))
        else:
            queue.struck -= surplus
            self.recent.appendleft(subject.differs("struck", None, at_s))

    def refused(self, job: Job) -> None:
        """Note that the shadow's policy has no queue for a job."""
        self._queue(job.queue).refused += 1
        self.recent.appendleft(_subject(job).differs("refused", None, None))

    def now(self, as_of_s: float) -> tuple[ShadowDifference, ...]:
        """Return jobs that started on one side only by an instant, longest ago first."""
        found = [
            subject.differs("waits here only", at_s, None)
            for subject, at_s in self._starts[0].values()
            if at_s <= as_of_s - SAME_S
        ]
        found += [
            subject.differs("runs here only", None, at_s)
            for subject, at_s in self._starts[1].values()
            if at_s <= as_of_s - SAME_S
        ]
        found.sort(key=lambda each: (each.live_s or each.shadow_s or 0.0, each.job))
        return tuple(found[:NOW_MAX])

    def queues(self, as_of_s: float) -> tuple[ShadowQueue, tuple[ShadowQueue, ...]]:
        """Return the counts of all queues together, and of each by name."""
        only = [self._only(side, as_of_s) for side in (0, 1)]
        open_evictions = self._open_evictions()
        names = sorted({*self._queues, *only[0], *only[1]})
        rows = [
            self._row(name, self._queues.get(name) or _Queue(), only, open_evictions)
            for name in names
        ]
        whole = _Queue()
        for queue in self._queues.values():
            _add(whole, queue)
        sums = [{TOTAL: sum(each.values())} for each in only]
        spared = sum(each[0] for each in open_evictions.values())
        struck = sum(each[1] for each in open_evictions.values())
        return self._row(TOTAL, whole, sums, {TOTAL: (spared, struck)}), tuple(rows)

    def _only(self, side: int, as_of_s: float) -> dict[str, int]:
        found: dict[str, int] = {}
        for subject, at_s in self._starts[side].values():
            if at_s <= as_of_s:
                found[subject.queue] = found.get(subject.queue, 0) + 1
        return found

    def _open_evictions(self) -> dict[str, tuple[int, int]]:
        """Evictions on one side only so far of jobs that have not ended, by queue."""
        found: dict[str, tuple[int, int]] = {}
        for surplus, subject in self._evictions.values():
            spared, struck = found.get(subject.queue, (0, 0))
            found[subject.queue] = (spared + max(surplus, 0), struck + max(-surplus, 0))
        return found

    def _row(
        self,
        name: str,
        queue: _Queue,
        only: list[dict[str, int]],
        open_evictions: Mapping[str, tuple[int, int]],
    ) -> ShadowQueue:
        spared, struck = open_evictions.get(name, (0, 0))
        return ShadowQueue(
            queue=name,
            jobs=len(queue.waits[0]),
            earlier=queue.earlier,
            later=queue.later,
            earlier_s=queue.earlier_s,
            later_s=queue.later_s,
            live_waits=_waits(queue.waits[0]),
            shadow_waits=_waits(queue.waits[1]),
            only_live=only[0].get(name, 0),
            only_shadow=only[1].get(name, 0),
            live_evictions=queue.evictions[0],
            shadow_evictions=queue.evictions[1],
            spared=queue.spared + spared,
            struck=queue.struck + struck,
            refused=queue.refused,
        )

    def _queue(self, name: str) -> _Queue:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = _Queue()
        return found


def _add(whole: _Queue, queue: _Queue) -> None:
    whole.earlier += queue.earlier
    whole.later += queue.later
    whole.earlier_s += queue.earlier_s
    whole.later_s += queue.later_s
    whole.refused += queue.refused
    whole.spared += queue.spared
    whole.struck += queue.struck
    for side in (0, 1):
        whole.evictions[side] += queue.evictions[side]
        whole.waits[side].extend(queue.waits[side])


def _waits(waits: list[float]) -> ShadowWaits | None:
    if not waits:
        return None
    values = np.asarray(waits, np.float64)
    return ShadowWaits(
        mean_s=float(values.mean()),
        p50_s=percentile(values, 50),
        p95_s=percentile(values, 95),
    )


def _subject(job: Job) -> _Subject:
    return _Subject(
        job=job.id, name=job.spec.name, queue=job.queue, user=job.user,
        submitted_s=job.submitted_s,
    )  # fmt: skip
