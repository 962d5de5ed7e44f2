"""Jobs that wait for a time of their own: an earliest start, the end of a back-off, cheap power."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from tercio.model.ids import JobId
from tercio.model.reasons import Reason
from tercio.model.snapshot import WaitingJob

TIMED: Final = (Reason.BACK_OFF, Reason.NOT_BEFORE)
"""Reasons that end at a time of the job's own."""


def own_time_s(job: WaitingJob) -> float:
    """When a job may start by its own word, or after its back-off."""
    return max(job.not_before_s or 0.0, job.spec.time.earliest_s or 0.0)


def is_timed(job: WaitingJob, gate: Reason | None, at_s: float, *, gives_way: bool) -> bool:
    """Whether a job waits for just this time: to be let in, or to have its own turn again."""
    if gives_way:
        return job.cheaper is not None and job.cheaper.from_s == at_s
    return gate in TIMED and own_time_s(job) == at_s


class Timers:
    """Times that were set; what became of a job since is looked at when its time is asked for."""

    def __init__(self) -> None:
        self._times: list[tuple[float, JobId]] = []

    def set(self, job_id: JobId, at_s: float) -> None:
        """Ring for a job at a time."""
        heapq.heappush(self._times, (at_s, job_id))

    def expect(self, job: WaitingJob, now_s: float) -> None:
        """Ring for a flexible job when it no longer gives way to others."""
        at_s = job.rather_from_s(now_s)
        if at_s is not None:
            self.set(job.job_id, at_s)

    def rung(self, now_s: float) -> Iterator[JobId]:
        """Yield the jobs whose time has come, once."""
        while self._times and self._times[0][0] <= now_s:
            yield heapq.heappop(self._times)[1]

    def next_s(self, is_set: Callable[[JobId, float], bool]) -> float | None:
        """Return the next time that still counts for its job."""
        while self._times and not is_set(self._times[0][1], self._times[0][0]):
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None
