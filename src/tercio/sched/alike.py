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
from tercio.sched.admit import Admission, Cursor
from tercio.sched.classes import JobClass, Verdict
from tercio.sched.clearing import Clearing
from tercio.sched.heads import Heads
from tercio.sched.rooms import Owners, State

_PERSONAL: Final = (Reason.ORDER, Reason.USER_LIMIT, Reason.SEARCH_BUDGET)
"""Reasons that say nothing of other classes."""

_Key = tuple[tuple[object, ...], Owners]


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

    def verdict(self, job_class: JobClass, job: WaitingJob, cursor: Cursor) -> Verdict | None:
        """Return why a class waits, when an equal one was tried since anything changed."""
        if self._state != self._admission.rooms.state() or not _is_plain(job_class, job):
            return None
        found = self._known.get(self._key(job_class, cursor))
        if found is None or not self._admission.may_all(job_class):
            return None
        if found.is_asked:
            self._clearing.count_asked()
        return found.verdict

    def keep(
        self,
        job_class: JobClass,
        job: WaitingJob,
        cursor: Cursor,
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
        verdict = job_class.verdict
        assert verdict is not None
        is_asked = self._clearing.has_anyone_to_stop(job_class)
        self._known[self._key(job_class, cursor)] = _Outcome(verdict, is_asked)

    def _key(self, job_class: JobClass, cursor: Cursor) -> _Key:
        bound = self._admission.rooms.bound(job_class, cursor.job_id)
        return job_class.alike, bound.owners


def _is_plain(job_class: JobClass, job: WaitingJob) -> bool:
    return job_class.is_plain and not job.evictions_s
