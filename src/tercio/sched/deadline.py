"""Deadlines: when a job must start to be done in time, and what is said when it cannot.

A deadline changes no order and stops nobody. A job that can still meet its own gets a promise
at its turn, however many blocked jobs stand before it, so that later ones cannot make it late.
"""

from __future__ import annotations

from tercio.model.snapshot import WaitingJob
from tercio.model.units import format_instant


def length_s(job: WaitingJob) -> float:
    """How long the job runs: expected, else its limit; 0 when it says nothing."""
    time = job.spec.time
    return time.expected_s or time.limit_s or 0.0


def meets_deadline(job: WaitingJob, start_s: float | None) -> bool:
    """Whether a start at this time is early enough. Without a time nothing is known: False."""
    deadline_s = job.spec.time.deadline_s
    if deadline_s is None:
        return True
    return start_s is not None and start_s + length_s(job) <= deadline_s


def deadline_words(job: WaitingJob, start_s: float | None, now_s: float) -> str:
    """What to add to the reason why a job waits; empty while its deadline can be met."""
    deadline_s = job.spec.time.deadline_s
    if deadline_s is None:
        return ""
    by = format_instant(deadline_s)
    if now_s >= deadline_s:
        return f"; its deadline {by} has passed"
    if not meets_deadline(job, now_s):
        return f"; it cannot meet its deadline {by} any more"
    if start_s is not None and not meets_deadline(job, start_s):
        done = format_instant(start_s + length_s(job))
        return f"; it would be done {done}, after its deadline {by}"
    return ""
