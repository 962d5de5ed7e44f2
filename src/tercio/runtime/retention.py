"""What is forgotten, and when: finished jobs and their logs, old entries, old uploads.

The engine forgets a job's logs before the journal forgets the job: a crash in between leaves
a job whose logs are gone, which the next round finishes, and never logs that nobody owns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tercio.config import StoreConfig
from tercio.core.cluster import Cluster
from tercio.engines.base import Engine, TaskRef
from tercio.errors import TercioError
from tercio.logs import facts
from tercio.model.events import AnyEvent, JobPlaced, JobsForgotten, TasksAdded
from tercio.model.ids import JobId, NodeName, SiteName
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.runtime.clock import Clock
from tercio.store.journal import Journal
from tercio.store.workdirs import WorkdirStore

_EVERY_S: Final = 3600.0
_FIRST_S: Final = 60.0
_DAY_S: Final = 86_400.0
_JOBS_AT_ONCE: Final = 500
_ENGINE_TIMEOUT_S: Final = 60.0
ALWAYS_KEPT: Final = ("policy", "tokens")
log = logging.getLogger(__name__)


def is_forgettable(cluster: Cluster, job_id: JobId) -> bool:
    """Whether a job has ended and nothing that goes on refers to it."""
    job = cluster.jobs.get(job_id)
    if job is None or job.state not in TERMINAL_JOB_STATES:
        return False
    if job.array is not None and any(
        element.state not in TERMINAL_JOB_STATES for element in cluster.elements_of(job)
    ):
        return False
    return job.parent is None or is_forgettable(cluster, job.parent)


def forgettable(cluster: Cluster, *, ended_before_s: float) -> list[JobId]:
    """Return the jobs whose retention is over, each array with its elements. O(jobs)."""
    needed = {
        dependency.job
        for job in cluster.jobs.values()
        if job.state not in TERMINAL_JOB_STATES
        for dependency in job.spec.depends_on
    }
    found: list[JobId] = []
    for job in cluster.jobs.values():
        is_old = job.ended_s is not None and job.ended_s < ended_before_s
        if job.parent is not None or not is_old or job.id in needed:
            continue
        if is_forgettable(cluster, job.id):
            found.append(job.id)
            found.extend(element.id for element in cluster.elements_of(job))
    return found


class Retention:
    """Forgets what is old, once an hour."""

    def __init__(
        self,
        *,
        config: StoreConfig,
        journal: Journal,
        engines: Mapping[SiteName, Engine],
        workdirs: WorkdirStore,
        clock: Clock,
        cluster: Callable[[], Cluster],
        deliver: Callable[[AnyEvent], None],
    ) -> None:
        self._config = config
        self._journal = journal
        self._engines = engines
        self._workdirs = workdirs
        self._clock = clock
        self._cluster = cluster
        self._deliver = deliver

    async def run(self) -> None:
        """Go round for ever; what fails is tried again in the next round."""
        await self._clock.sleep_until(self._clock.now_s() + _FIRST_S)
        while True:
            try:
                await self.once()
            except (TercioError, TimeoutError) as failure:
                log.warning("retention_failed", extra=facts(error=str(failure)))
            await self._clock.sleep_until(self._clock.now_s() + _EVERY_S)

    async def once(self) -> None:
        """Go round once. What the writer is to forget is delivered to it, and done later.

        Raises:
            StoreError, EngineError, TimeoutError: something could not be forgotten now.
        """
        now_s = self._clock.now_s()
        await self._prune_journal(now_s)
        old = forgettable(self._cluster(), ended_before_s=now_s - self._config.job_days * _DAY_S)
        for start in range(0, len(old), _JOBS_AT_ONCE):
            await self._forget(old[start : start + _JOBS_AT_ONCE])
        used = {job.spec.workdir for job in self._cluster().jobs.values() if job.spec.workdir}
        stale = await asyncio.to_thread(
            self._workdirs.prune, used, older_than_s=now_s - self._config.workdir_days * _DAY_S
        )
        log.info("retention_done", extra=facts(jobs=len(old), workdirs=stale))

    async def _prune_journal(self, now_s: float) -> None:
        before_s = now_s - self._config.event_days * _DAY_S
        before = await asyncio.to_thread(self._journal.first_since, before_s)
        keep = [*ALWAYS_KEPT, *self._cluster().jobs]
        while await asyncio.to_thread(self._journal.prune, before, keep):
            log.debug("journal_pruned", extra=facts(first_seq=self._journal.first_seq))

    async def _forget(self, job_ids: Sequence[JobId]) -> None:
        sites = {name: node.spec.site for name, node in self._cluster().nodes.items()}
        refs = await asyncio.to_thread(self._tasks_of, job_ids)
        for site, engine in self._engines.items():
            here = [ref for ref in refs if sites.get(ref.node) == site]
            if here:
                async with asyncio.timeout(_ENGINE_TIMEOUT_S):
                    await engine.forget(here)
        self._deliver(JobsForgotten(at_s=self._clock.now_s(), job_ids=tuple(job_ids)))

    def _tasks_of(self, job_ids: Sequence[JobId]) -> list[TaskRef]:
        """Return every task that every attempt of the jobs had, from the journal."""
        found: list[TaskRef] = []
        for job_id in job_ids:
            since = 0
            while page := self._journal.read(since, subject=job_id):
                since = page[-1].seq
                for entry in page:
                    if (
                        isinstance(entry.event, JobPlaced | TasksAdded)
                        and entry.event.job_id == job_id
                    ):
                        found.extend(
                            TaskRef(
                                job_id=job_id,
                                attempt=entry.event.attempt,
                                task=placement.task,
                                node=NodeName(placement.node),
                            )
                            for placement in entry.event.tasks
                        )
        return found
