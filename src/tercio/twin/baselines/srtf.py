"""Shortest remaining time first, with perfect run times; preemptive."""

from __future__ import annotations

from tercio.model.snapshot import RunningJob, WaitingJob
from tercio.twin.baselines.preemptive import Preemptive, Rank
from tercio.twin.baselines.ranked import run_time_s


class Srtf(Preemptive):
    """The job with the least left to run comes first; the earlier submit among equals."""

    def rank(self, job: WaitingJob | RunningJob, now_s: float) -> Rank:
        """Time left."""
        return (run_time_s(job) - self.attained.run_s(job.job_id, now_s),)
