"""What came of a class in a cycle holds for every class that nothing can tell apart from it.

Users, expected run times and most time limits make thousands of classes of what is the same work
to nodes, promises and victims. Where one of them could not start and nobody could be stopped for
it, the next one cannot and nobody can either, until somebody starts, stops or is promised
something. Limits of its own owner come first, and are looked at for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tercio.model.reasons import Reason
from tercio.model.snapshot import WaitingJob
from tercio.sched.admit import Admission
from tercio.sched.classes import JobClass, Likeness, Verdict
from tercio.sched.clearing import Clearing
from tercio.sched.heads import Heads
from tercio.sched.order import Order
from tercio.sched.rooms import Owners, State

_PERSONAL: Final = (Reason.ORDER, Reason.USER_LIMIT, Reason.SEARCH_BUDGET)
"""Reasons that say nothing of other classes."""

_Key = tuple[Likeness, Owners]


class _Outcome(NamedTuple):
    """What a class is told, and whether somebody was looked for whom it may have stopped."""

    verdict: Verdict
    is_asked: bool


class Alike:
    """Outcomes of one cycle."""

    def __init__(self, admission: Admission, heads: Heads, clearing: Clearing) -> None:
        self._admission = admission
        self._heads = heads
        self._clearing = clearing
        self._is_personal = bool(admission.memory.sheltered) or clearing.may_move
        self._state: State = (-1, -1)
        self._known: dict[_Key, _Outcome] = {}
        self._nearest: dict[tuple[Likeness, float | None], _Outcome] = {}

    def pass_over(self, order: Order) -> JobClass | None:
        """Close the next classes of which equal ones were tried since anything changed.

        Returns the first of which nothing is known, or None at the end.
        """
        job_class = order.first()
        if job_class is None or self._state != self._admission.rooms.state():
            return job_class
        admission = self._admission
        waiting, closed, is_open = admission.memory.waiting, admission.closed, admission.is_open
        while job_class is not None:
            if not job_class.is_plain or waiting[job_class.head.job_id].evictions_s:
                return job_class
            found = self._of(job_class)
            if found is None or not (is_open or admission.may_all(job_class)):
                return job_class
            self._clearing.count_asked(found.is_asked)
            job_class.verdict = found.verdict
            closed.add(job_class.number)
            order.settle(is_done=True)
            job_class = order.first()
        return None

    def _of(self, job_class: JobClass) -> _Outcome | None:
        """What is known of classes that are equal in all but their time limit, or in all."""
        near = (job_class.likeness, job_class.limit_s)
        found = self._nearest.get(near)
        if found is None:
            found = self._known.get(self._key(job_class))
            if found is not None and not self._admission.memory.holds.has_windows:
                self._nearest[near] = found
        return found

    def keep(
        self,
        job_class: JobClass,
        job: WaitingJob,
        verdicts: Sequence[Verdict],
        *,
        before: State,
    ) -> None:
        """Remember what came of a class that was tried, unless it was a matter of its own.

        `verdicts` are those of its combinations, `before` is the state in which it was tried.
        """
        state = self._admission.rooms.state()
        if state != before or self._is_personal or not _is_plain(job_class, job):
            return
        if any(verdict.limit is not None or verdict.reason in _PERSONAL for verdict in verdicts):
            return
        if self._clearing.is_put_off or not self._heads.is_settled(job_class):
            return
        if state != self._state:
            self._state = state
            self._known.clear()
            self._nearest.clear()
        verdict = job_class.verdict
        assert verdict is not None
        is_asked = self._clearing.has_anyone_to_stop(job_class)
        self._known[self._key(job_class)] = _Outcome(verdict, is_asked)

    def _key(self, job_class: JobClass) -> _Key:
        bound = self._admission.rooms.bound(job_class, job_class.head.job_id)
        return job_class.likeness, bound.owners


def _is_plain(job_class: JobClass, job: WaitingJob) -> bool:
    return job_class.is_plain and not job.evictions_s
