"""Finds jobs whose devices stay idle. What is done about them is decided in the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tercio.core.cluster import Cluster
from tercio.core.records import Job, is_preemptible
from tercio.health.goodput import IDLE_UTILIZATION_RATIO
from tercio.health.policy import HealthPolicy, Mode
from tercio.model.events import AnyEvent, JobIdled
from tercio.model.ids import JobId
from tercio.model.job import JobState
from tercio.model.readings import DeviceTelemetry


class IdleWatch:
    """Remembers since when each running attempt is idle."""

    def __init__(self, cluster: Callable[[], Cluster], deliver: Callable[[AnyEvent], None]) -> None:
        self._cluster = cluster
        self._deliver = deliver
        self._since_s: dict[tuple[JobId, int], float] = {}

    def forget(self, running: Sequence[tuple[JobId, int]]) -> None:
        """Drop attempts that have ended."""
        kept = dict.fromkeys(running)
        self._since_s = {key: since_s for key, since_s in self._since_s.items() if key in kept}

    def look(
        self,
        job: Job,
        devices: Sequence[DeviceTelemetry] | None,
        *,
        step_s: float,
        policy: HealthPolicy,
        now_s: float,
    ) -> None:
        """Judge one job, and tell what changed.

        Args:
            job: with live tasks.
            devices: all that it holds, None where fresh readings do not cover all of them:
                what is not known is not idle.
            step_s: when it last marked progress.
            policy: the limits.
            now_s: seconds since the epoch.
        """
        key = (job.id, job.attempt)
        is_idle = (
            bool(devices)
            and job.state is JobState.RUNNING
            and policy.idle_limit_s > 0
            and all(_is_idle(device) for device in devices or ())
        )
        if not is_idle:
            self._since_s.pop(key, None)
            if job.idle is not None and devices is not None:
                self._tell(job, now_s, since_s=now_s, is_over=True)
            return
        # A server that starts again goes on from what the job was warned with.
        known_s = job.idle.since_s if job.idle is not None else now_s
        since_s = max(self._since_s.setdefault(key, known_s), step_s)
        if now_s - since_s < policy.idle_limit_s:
            if job.idle is not None:
                self._tell(job, now_s, since_s=since_s, is_over=True)
            return
        stop_s = now_s + policy.idle_grace_s if self._may_stop(job, policy) else None
        idle = job.idle
        if idle is None or (idle.stop_s is None and stop_s is not None):
            self._tell(job, now_s, since_s=since_s, stop_s=stop_s)
        elif idle.stop_s is not None and stop_s is not None and now_s >= idle.stop_s:
            self._tell(job, now_s, since_s=since_s, stop_s=idle.stop_s, is_reclaimed=True)

    def _may_stop(self, job: Job, policy: HealthPolicy) -> bool:
        """Whether the job may be stopped: not in shadow mode, nor if nobody else may evict it."""
        cluster = self._cluster()
        if policy.mode is Mode.SHADOW or cluster.health.breaker_open_s is not None:
            return False
        return is_preemptible(cluster.policy, job.queue, job.spec)

    def _tell(
        self,
        job: Job,
        now_s: float,
        *,
        since_s: float,
        stop_s: float | None = None,
        is_reclaimed: bool = False,
        is_over: bool = False,
    ) -> None:
        self._deliver(
            JobIdled(
                at_s=now_s,
                job_id=job.id,
                attempt=job.attempt,
                since_s=since_s,
                stop_s=stop_s,
                is_reclaimed=is_reclaimed,
                is_over=is_over,
            )
        )


def _is_idle(device: DeviceTelemetry) -> bool:
    ratio = device.utilization_ratio
    return ratio is not None and ratio < IDLE_UTILIZATION_RATIO
