"""The server watches its own machine, as the agent watches others: no agent is needed here."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from tercio.collect.fault_table import load_fault_table
from tercio.collect.job_files import JobFiles
from tercio.collect.kernel_log import KMSG, KernelLog
from tercio.collect.power_limits import PowerLimits
from tercio.collect.sampling import Sampler
from tercio.collect.watch import Watcher
from tercio.config import Config
from tercio.core.cluster import Cluster
from tercio.logs import facts
from tercio.model.ids import NodeName, SiteName
from tercio.runtime.controller import Controller
from tercio.runtime.periodic import Periodic, every
from tercio.runtime.telemetry import jobs_by_uuid

CURSOR: Final = "kernel-log.cursor"
LIMITS: Final = "power-limits.json"
log = logging.getLogger(__name__)


class Watching:
    """Polls this machine while the server runs.

    A machine without accelerators is left alone, unless a kernel log is named.
    """

    def __init__(self, config: Config, controller: Controller, *, site: SiteName) -> None:
        self._config = config.health
        self._controller = controller
        self._site = site
        self._cursor = config.state_path / CURSOR
        self._watcher: Watcher | None = None
        self._loop = Periodic("watching", self._poll, pause=every(config.health.poll_s))

    def start(self) -> None:
        """Begin, if there is something to watch."""
        if not self._config.watch or not nodes_of(self._controller.driver.cluster, self._site):
            return
        if self._config.kernel_log == KMSG and not self._has_accelerator():
            return
        self._watcher = Watcher(
            table=load_fault_table(self._config.overrides),
            sampler=Sampler(timeout_s=self._config.probe_timeout_s),
            log=KernelLog(self._config.kernel_log, cursor_file=self._cursor),
            limits=PowerLimits(self._cursor.with_name(LIMITS)),
            job_files=JobFiles(Path(self._config.job_files)) if self._config.job_files else None,
        )
        self._loop.start()

    async def stop(self) -> None:
        """End the polls and the child process."""
        await self._loop.stop()
        if self._watcher is not None:
            await asyncio.to_thread(self._watcher.close)

    async def _poll(self) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        try:
            reading = await asyncio.to_thread(watcher.poll)
            nodes = nodes_of(self._controller.driver.cluster, self._site)
            if nodes:
                self._controller.telemetry.take(nodes, reading)
                watcher.keep(self._controller.powering.orders(nodes))
                jobs = jobs_by_uuid(self._controller.driver.cluster, nodes)
                await asyncio.to_thread(watcher.tell_jobs, jobs)
            await asyncio.to_thread(watcher.delivered)
        except OSError as failure:
            log.warning("watching_failed", extra=facts(error=str(failure)))

    def _has_accelerator(self) -> bool:
        cluster = self._controller.driver.cluster
        return any(
            device.vendor != "cpu"
            for name in nodes_of(cluster, self._site)
            for device in cluster.nodes[name].spec.devices
        )


def nodes_of(cluster: Cluster, site: SiteName) -> tuple[NodeName, ...]:
    """Return the nodes of a site."""
    return tuple(node.name for node in cluster.nodes.values() if node.spec.site == site)
