"""Preemptive schedulers by rank: at every event the best ranked jobs have the devices.

All jobs, running or not, stand in one order. From the front, each that fits into the whole
cluster beside those before it is to run; the rest is stopped when its devices are needed, and
waits. A job that runs and still belongs to the front keeps its place.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping

from tercio.model.ids import JobId
from tercio.model.job import EndCause
from tercio.model.queue import Policy
from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.sched.memory import Memory
from tercio.sched.plan import Eviction, Plan, Start
from tercio.twin.baselines.ranked import Free, devices_of, is_ready, told

Rank = tuple[float, ...]


class Attained:
    """Device time and run time that each job has had, followed from cycle to cycle."""

    def __init__(self) -> None:
        self._had: dict[JobId, float] = {}
        self._since: dict[JobId, tuple[int, float]] = {}

    def follow(self, snapshot: Snapshot, now_s: float) -> None:
        """Count what ran since the last cycle."""
        running = snapshot.running
        for job_id, (attempt, since_s) in list(self._since.items()):
            job = running.get(job_id)
            if job is None or job.attempt != attempt:
                self._had[job_id] = self._had.get(job_id, 0.0) + now_s - since_s
                del self._since[job_id]
        for job_id, job in running.items():
            if job_id not in self._since:
                self._since[job_id] = (job.attempt, job.placed_s)
        for job_id in list(self._had):
            if job_id not in running and job_id not in snapshot.waiting:
                del self._had[job_id]

    def run_s(self, job_id: JobId, now_s: float) -> float:
        """Run time of a job so far."""
        since = self._since.get(job_id)
        return self._had.get(job_id, 0.0) + (now_s - since[1] if since else 0.0)


class Preemptive(abc.ABC):
    """See the module's description. A rule says the rank; smaller comes first."""

    def __init__(self) -> None:
        self.attained = Attained()

    @abc.abstractmethod
    def rank(self, job: WaitingJob | RunningJob, now_s: float) -> Rank:
        """Place of a job among all."""

    def next_change_s(self, snapshot: Snapshot, now_s: float) -> float | None:
        """When a rank changes by time alone, or None."""
        del snapshot, now_s
        return None

    def __call__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now_s: float,
        seed: int,
        memory: Memory | None = None,
    ) -> Plan:
        """Plan one cycle."""
        del policy, seed, memory
        self.attained.follow(snapshot, now_s)
        waiting = {j: job for j, job in snapshot.waiting.items() if is_ready(job, now_s)}
        kept, wanted = self._front(snapshot, waiting, now_s)
        free = Free(snapshot)
        starts: list[Start] = []
        short: dict[JobId, None] = {}
        for job in wanted:
            tasks = free.place(job.spec)
            if tasks is None:
                short[job.job_id] = None
            else:
                starts.append(Start(job_id=job.job_id, tasks=tasks))
        evictions = self._evict(snapshot, kept, list(short), now_s)
        return Plan(
            revision=snapshot.revision,
            starts=tuple(starts),
            evictions=tuple(evictions),
            decisions=(decisions := told(snapshot, starts, short, now_s)),
            briefs=decisions,
            wake_at_s=self.next_change_s(snapshot, now_s),
        )

    def _front(
        self, snapshot: Snapshot, waiting: Mapping[JobId, WaitingJob], now_s: float
    ) -> tuple[dict[JobId, None], list[WaitingJob]]:
        """Running jobs that keep their place, and waiting jobs that are to run, in order."""
        stopping = {j: job for j, job in snapshot.running.items() if job.is_stopping}
        jobs: list[WaitingJob | RunningJob] = [*snapshot.running.values(), *waiting.values()]
        ranked = [
            (self.rank(job, now_s), job.sequence, job) for job in jobs if job.job_id not in stopping
        ]
        ranked.sort(key=lambda row: row[:2])
        room = Free(snapshot, without=snapshot.running)
        kept: dict[JobId, None] = {}
        wanted: list[WaitingJob] = []
        for _, _, job in ranked:
            if isinstance(job, RunningJob):
                if self._keeps(room, job):
                    kept[job.job_id] = None
            elif room.place(job.spec) is not None:
                wanted.append(job)
        return kept, wanted

    @staticmethod
    def _keeps(room: Free, job: RunningJob) -> bool:
        """Whether the job still fits; where it stands matters only by how much it holds."""
        return room.place(job.spec) is not None

    def _evict(
        self,
        snapshot: Snapshot,
        kept: Mapping[JobId, None],
        short: list[JobId],
        now_s: float,
    ) -> list[Eviction]:
        """Stop what does not belong to the front, while somebody of the front has no room."""
        if not short:
            return []
        losers = [
            job
            for job in snapshot.running.values()
            if job.job_id not in kept and not job.is_stopping
        ]
        leaving = sum(devices_of(j.spec) for j in snapshot.running.values() if j.is_stopping)
        losers.sort(key=lambda job: (self.rank(job, now_s), job.sequence), reverse=True)
        found: list[Eviction] = []
        for job_id in short:
            needs = devices_of(snapshot.waiting[job_id].spec)
            taken = min(needs, leaving)
            leaving -= taken
            needs -= taken
            while needs > 0 and losers:
                loser = losers.pop(0)
                needs -= devices_of(loser.spec)
                found.append(
                    Eviction(job_id=loser.job_id, cause=EndCause.PREEMPTED, for_job=job_id)
                )
            leaving += max(-needs, 0)
        return found
