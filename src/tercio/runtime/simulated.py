"""The simulated site watches itself, as agents watch real ones: for the demo only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from tercio.core.cluster import Cluster
from tercio.core.records import Job
from tercio.engines.sim.readings import Load, simulated_reading, slow_device
from tercio.model.ids import NodeName, SiteName
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)


class SimulatedReadings:
    """Reports readings of every simulated node again and again."""

    def __init__(
        self,
        *,
        cluster: Callable[[], Cluster],
        telemetry: Telemetry,
        now: Callable[[], float],
        site: SiteName,
        poll_s: float,
    ) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._now = now
        self._site = site
        self._poll_s = poll_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to report."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Report no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            try:
                self.report()
            except Exception as failure:
                # A bug here must not take the server down, nor go unseen.
                log.error("simulated_readings_broke", exc_info=failure)
            await asyncio.sleep(self._poll_s)

    def report(self) -> None:
        """Report what every node of the site says now."""
        for node in list(self._cluster().nodes.values()):
            if node.spec.site == self._site:
                reading = simulated_reading(node.spec, self._loads(node.name), self._now())
                self._telemetry.take((node.name,), reading)

    def _loads(self, name: NodeName) -> dict[int, list[Load]]:
        cluster = self._cluster()
        found: dict[int, list[Load]] = {}
        for job_id in cluster.jobs_on(name):
            job = cluster.jobs[job_id]
            for index, load in self._loads_of(job, name):
                found.setdefault(index, []).append(load)
        return found

    def _loads_of(self, job: Job, name: NodeName) -> list[tuple[int, Load]]:
        found: list[tuple[int, Load]] = []
        for task in job.live_tasks:
            if task.placement.node != name or job.started_s is None:
                continue
            shares = task.placement.devices
            slow = slow_device(
                job.spec.env,
                task=task.placement.task,
                devices=[share.index for share in shares],
                since_s=job.started_s,
                now_s=self._now(),
            )
            found += [
                (
                    share.index,
                    Load(
                        job=job.id,
                        share=share.milli / WHOLE_DEVICE_MILLI,
                        is_slow=share.index == slow,
                    ),
                )
                for share in shares
            ]
        return found
