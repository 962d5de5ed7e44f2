"""The simulated site watches itself, as agents watch real ones: for the demo only."""

from __future__ import annotations

from collections.abc import Callable

from tercio.core.cluster import Cluster
from tercio.core.records import Job
from tercio.engines.sim.readings import Load, simulated_reading, slow_device
from tercio.model.ids import NodeName, SiteName
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.runtime.periodic import Periodic, every
from tercio.runtime.telemetry import Telemetry


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
        self._loop = Periodic("simulated readings", self.report, pause=every(poll_s))

    def start(self) -> None:
        """Begin to report."""
        self._loop.start()

    async def stop(self) -> None:
        """Report no more."""
        await self._loop.stop()

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
