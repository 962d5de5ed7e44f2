"""What a job is to the scheduler after an attempt of it was stopped."""

from __future__ import annotations

import msgspec

from tercio.model.snapshot import NOTHING_YET, Had, RunningJob, WaitingJob


def again(first: WaitingJob, job: RunningJob, now_s: float) -> WaitingJob:
    """Return the job as it waits again: as first submitted, with what it has had since."""
    return msgspec.structs.replace(
        first,
        attempt=job.attempt + 1,
        last_nodes=tuple(dict.fromkeys(t.node for t in job.tasks)),
        evictions_s=job.evictions_s,
        had=_had(job, now_s) if job.spec.goodput else None,
    )


def _had(job: RunningJob, now_s: float) -> Had:
    devices = sum(len(task.devices) for task in job.tasks)
    before = job.had or NOTHING_YET
    return before.and_then(job.placed_s, now_s, (now_s - job.placed_s) * devices, moves=1)
