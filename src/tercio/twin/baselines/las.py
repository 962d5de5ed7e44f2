"""Two-dimensional least attained service, the discretised rule of Tiresias (NSDI 2019).

Attained service is devices times run time. Jobs stand in queues by it; those with less service
come first, and inside a queue the earlier submit. Limits are those of the published simulator.
"""

from __future__ import annotations

from typing import Final

from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.twin.baselines.preemptive import Preemptive, Rank
from tercio.twin.baselines.ranked import devices_of

LIMITS_DEVICE_S: Final = (3250.0, 7200.0, 18_000.0)


class Las(Preemptive):
    """See the module's description."""

    def rank(self, job: WaitingJob | RunningJob, now_s: float) -> Rank:
        """Queue by attained service."""
        had = devices_of(job.spec) * self.attained.run_s(job.job_id, now_s)
        return (float(sum(had >= limit - 1e-6 for limit in LIMITS_DEVICE_S)),)

    def next_change_s(self, snapshot: Snapshot, now_s: float) -> float | None:
        """When a running job falls to the next queue; nobody looks while nobody waits."""
        if not snapshot.waiting:
            return None
        times = []
        for job in snapshot.running.values():
            size = max(devices_of(job.spec), 1)
            had = size * self.attained.run_s(job.job_id, now_s)
            times += [
                now_s + (limit - had) / size for limit in LIMITS_DEVICE_S if limit - 1e-6 > had
            ][:1]
        return min((t for t in times if t > now_s), default=None)
