"""What a job is to the scheduler after an attempt of it was stopped."""

from __future__ import annotations

import msgspec

from tercio.model.snapshot import Had, RunningJob, WaitingJob


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
    before = job.had or Had(run_s=0.0, device_s=0.0, moves=0, until_s=now_s)
    run_s = now_s - job.placed_s
    devices = sum(len(task.devices) for task in job.tasks)
    return Had(
        run_s=before.run_s + run_s,
        device_s=before.device_s + run_s * devices,
        moves=before.moves + 1,
        until_s=now_s,
    )
