"""Slurm's multifactor priority with EASY backfill, as its manual describes them.

Priority = 1000 age + 10000 fair share + 100 size: age is the wait over seven days, at most 1;
fair share is 2^-(use / share) with use decayed by a half-life of seven days and equal shares of
all users seen; size is devices over the cluster's. Weights are common at GPU sites. Jobs start
in order of priority; behind the first that does not fit, a job starts if it ends before the
first one could start, or leaves it enough devices. Not preemptive.
"""

from __future__ import annotations

import math
from typing import Final

from tercio.model.ids import JobId
from tercio.model.queue import Policy
from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.sched.memory import Memory
from tercio.sched.plan import Plan, Start
from tercio.twin.baselines.ranked import Free, devices_of, is_ready, run_time_s, told

AGE_S: Final = 7 * 86_400.0
HALF_LIFE_S: Final = 7 * 86_400.0
WEIGHT_AGE: Final = 1000.0
WEIGHT_SHARE: Final = 10_000.0
WEIGHT_SIZE: Final = 100.0


class Multifactor:
    """See the module's description."""

    def __init__(self) -> None:
        self._use: dict[str, float] = {}
        self._at_s = 0.0
        self._seen: dict[JobId, float] = {}

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
        self._decay(snapshot, now_s)
        total = sum(len(node.spec.devices) for node in snapshot.nodes.values()) or 1
        ready = [job for job in snapshot.waiting.values() if is_ready(job, now_s)]
        for job in ready:
            self._use.setdefault(job.user, 0.0)
        whole = sum(self._use.values()) or 1.0
        ready.sort(key=lambda job: (-self._priority(job, now_s, total, whole), job.sequence))
        free = Free(snapshot)
        starts: list[Start] = []
        head: WaitingJob | None = None
        for job in ready:
            if head is not None and not self._may_pass(snapshot, starts, head, job, now_s):
                continue
            tasks = free.place(job.spec)
            if tasks is not None:
                starts.append(Start(job_id=job.job_id, tasks=tasks))
            elif head is None:
                head = job
        decisions = told(snapshot, starts, {}, now_s)
        return Plan(
            revision=snapshot.revision, starts=tuple(starts), decisions=decisions, briefs=decisions
        )

    def _priority(self, job: WaitingJob, now_s: float, total: int, whole: float) -> float:
        age = min((now_s - job.submitted_s) / AGE_S, 1.0)
        share = 1.0 / len(self._use)
        fair = math.exp2(-self._use[job.user] / whole / share)
        size = devices_of(job.spec) / total
        return WEIGHT_AGE * age + WEIGHT_SHARE * fair + WEIGHT_SIZE * size

    def _decay(self, snapshot: Snapshot, now_s: float) -> None:
        """Let past use fade, and add what ran since the last cycle."""
        factor = 2.0 ** (-(now_s - self._at_s) / HALF_LIFE_S) if self._at_s else 1.0
        self._use = {user: use * factor for user, use in self._use.items()}
        for job in snapshot.running.values():
            since_s = max(self._seen.get(job.job_id, job.placed_s), job.placed_s)
            used = (now_s - since_s) * devices_of(job.spec)
            self._use[job.user] = self._use.get(job.user, 0.0) + used
        self._seen = dict.fromkeys(snapshot.running, now_s)
        self._at_s = now_s

    def _may_pass(
        self,
        snapshot: Snapshot,
        starts: list[Start],
        head: WaitingJob,
        job: WaitingJob,
        now_s: float,
    ) -> bool:
        """Whether a job behind the head delays it by nothing that is known."""
        shadow_s, spare = self._shadow(snapshot, starts, head, now_s)
        return now_s + run_time_s(job) <= shadow_s or devices_of(job.spec) <= spare

    @staticmethod
    def _shadow(
        snapshot: Snapshot, starts: list[Start], head: WaitingJob, now_s: float
    ) -> tuple[float, int]:
        """When enough devices come free for the head, and how many it then leaves."""
        free = sum(len(n.spec.devices) for n in snapshot.nodes.values() if n.is_placeable)
        ends: list[tuple[float, int, int]] = []
        for job in snapshot.running.values():
            size = devices_of(job.spec)
            free -= size
            ends.append((_end_s(job), job.sequence, size))
        for start in starts:
            waiting = snapshot.waiting[start.job_id]
            size = devices_of(waiting.spec)
            free -= size
            ends.append((now_s + run_time_s(waiting), waiting.sequence, size))
        wanted = devices_of(head.spec)
        for end_s, _, size in sorted(ends):
            free += size
            if free >= wanted:
                return end_s, free - wanted
        return float("inf"), 0


def _end_s(job: RunningJob) -> float:
    return job.placed_s + run_time_s(job)
