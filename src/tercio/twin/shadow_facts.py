"""What the live server's journal says of jobs: how long each run took and how it ended.

The live state is kept beside, entry by entry. A run is what a job holds its devices for, from
placement until all its tasks are gone, less what it was suspended. It ends a stretch of work when
it ended by itself, by its user or by its time limit. One that was stopped for another job or lost
its node leaves the stretch open: the next run goes on with it when the job saves its work, else
begins it anew. Work is counted in seconds on a device of the job's speed 1; jobs that name no
speeds are equally fast everywhere.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.records import Job
from tercio.model.events import (
    AnyEvent,
    EffectTimedOut,
    Entry,
    JobCancelRequested,
    JobEvent,
    JobPlaced,
    JobsForgotten,
    NodeEvent,
)
from tercio.model.ids import JobId
from tercio.model.job import TERMINAL_JOB_STATES, EndCause

OWN_CAUSES: Final = frozenset(
    {EndCause.SUCCEEDED, EndCause.FAILED, EndCause.CANCELLED, EndCause.TIME_LIMIT}
)
"""Ends of a stretch of work."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of work that is over.

    Attributes:
        work_s: how long its job would have held devices of speed 1 for it; infinity when its time
            limit ended it, which will end it here too.
        exit_code: None when somebody cancelled it.
    """

    work_s: float
    exit_code: int | None


class _Life:
    """What is known of one job."""

    __slots__ = ("began_s", "endings", "is_over", "least_s", "saved_s", "speed")

    def __init__(self) -> None:
        self.endings: list[Ending] = []
        self.began_s: float | None = None
        self.saved_s = 0.0
        self.least_s = 0.0
        self.is_over = False
        self.speed = 1.0


class Facts:
    """See the module's description.

    Attributes:
        cluster: the live state after the last entry.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._lives: dict[JobId, _Life] = {}
        self._holding: dict[JobId, None] = {}
        for job in cluster.jobs.values():
            if cluster.is_holding(job.id):
                self._begin(job.id, cluster.now_s if job.placed_s is None else job.placed_s)

    def take(self, entry: Entry) -> list[JobId]:
        """Take one entry of the live journal in; return the jobs of which more is known now."""
        event = entry.event
        self.cluster.apply(event)
        changed = [job for job in self._perhaps_over(event) if self._settle(job, event.at_s)]
        match event:
            case JobPlaced(job_id=job):
                self._begin(job, event.at_s)
            case JobCancelRequested(job_id=job) if not self.cluster.is_holding(job):
                self._life(job).is_over = True
                changed.append(job)
            case JobsForgotten(job_ids=jobs):
                for job in jobs:
                    self._lives.pop(job, None)
            case _:
                pass
        return changed

    def ending(self, job: JobId, number: int) -> Ending | None:
        """Return how a job's stretch of work with this number, from 0, ended; None if not known.

        A job that has ended for good works no other way than it did last.
        """
        life = self._lives.get(job)
        if life is None or not life.endings:
            return None
        if number < len(life.endings):
            return life.endings[number]
        return life.endings[-1] if life.is_over else None

    def least_s(self, job: JobId, number: int, now_s: float) -> float:
        """Return how much work a stretch that is not over has at least, as of an instant."""
        life = self._lives.get(job)
        if life is None or number != len(life.endings):
            return 0.0
        if life.began_s is None:
            return life.least_s
        run_s = now_s - life.began_s - paused_s(self.cluster.jobs[job], now_s)
        return max(life.least_s, life.saved_s + run_s * life.speed)

    def is_over(self, job: JobId) -> bool:
        """Whether a job has ended, so that nothing more will be known of it."""
        known = self.cluster.jobs.get(job)
        return known is None or known.state in TERMINAL_JOB_STATES

    def _perhaps_over(self, event: AnyEvent) -> list[JobId]:
        """Jobs of which a run may be over by this event."""
        if isinstance(event, JobPlaced):
            return []
        if isinstance(event, JobEvent):
            return [event.job_id] if event.job_id in self._holding else []
        if isinstance(event, NodeEvent | EffectTimedOut):
            return list(self._holding)
        return []

    def _settle(self, job: JobId, at_s: float) -> bool:
        if self.cluster.is_holding(job):
            return False
        self._end(job, at_s)
        return True

    def _begin(self, job: JobId, at_s: float) -> None:
        self._holding[job] = None
        life = self._life(job)
        life.began_s, life.is_over = at_s, False
        life.speed = speed_of(self.cluster, self.cluster.jobs[job])

    def _end(self, job_id: JobId, at_s: float) -> None:
        del self._holding[job_id]
        job, life = self.cluster.jobs[job_id], self._life(job_id)
        assert life.began_s is not None
        if job.cause is EndCause.NODE_FAILED:
            # It held what it had until the fence, and did nothing since its node was lost.
            lost = (self.cluster.nodes.get(name) for name in job.last_nodes)
            at_s = min([at_s, *(n.lost_s for n in lost if n is not None and n.lost_s is not None)])
        work_s = life.saved_s + (at_s - life.began_s - job.limit_extension_s) * life.speed
        life.began_s = None
        if job.cause not in OWN_CAUSES:
            life.saved_s = work_s if job.spec.checkpoint.path is not None else 0.0
            life.least_s = max(life.least_s, work_s)
            return
        life.saved_s = life.least_s = 0.0
        code: int | None = job.exit_code or 1
        if job.cause is EndCause.SUCCEEDED:
            code = 0
        elif job.cause is EndCause.CANCELLED:
            code = None
        elif job.cause is EndCause.TIME_LIMIT:
            work_s = math.inf
        life.endings.append(Ending(work_s=work_s, exit_code=code))
        life.is_over = job.state in TERMINAL_JOB_STATES

    def _life(self, job: JobId) -> _Life:
        found = self._lives.get(job)
        if found is None:
            found = self._lives[job] = _Life()
        return found


def speed_of(cluster: Cluster, job: Job) -> float:
    """Return the speed of a job that holds devices: that of the slowest; 1 when it names none."""
    speeds, nodes = job.spec.speed, cluster.nodes
    if not speeds:
        return 1.0
    types = (
        nodes[task.placement.node].spec.devices[share.index].type
        for task in job.live_tasks
        if task.placement.node in nodes
        for share in task.placement.devices
        if share.index < len(nodes[task.placement.node].spec.devices)
    )
    return min((speeds.get(kind, 1.0) for kind in types), default=1.0)


def paused_s(job: Job, now_s: float) -> float:
    """Return how long the attempt under way was suspended so far."""
    since_s = 0.0 if job.suspended_s is None else now_s - job.suspended_s
    return job.limit_extension_s + since_s
