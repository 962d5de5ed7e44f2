"""The writer's hand on the disk: turns, checkpoints and recovery, in one thread of its own.

One thread, so that no other blocking work of the server delays a write, and so that writes
keep their order by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from tercio.core.driver import Driver, DriverSettings
from tercio.errors import StoreError
from tercio.logs import facts
from tercio.model.events import JobsForgotten
from tercio.model.ids import JobId
from tercio.runtime.faults import FaultPoints, Point
from tercio.runtime.metrics import Metrics
from tercio.runtime.recovery import digest, recover
from tercio.runtime.turn import Turn
from tercio.store.journal import Journal
from tercio.store.secrets import SecretStore

T = TypeVar("T")
log = logging.getLogger(__name__)


class Recorder:
    """Writes what one server decides, and reads it back.

    Attributes:
        checkpoint_seq: last entry that the newest checkpoint holds.
    """

    def __init__(
        self, journal: Journal, secrets: SecretStore, faults: FaultPoints, metrics: Metrics
    ) -> None:
        self.checkpoint_seq = 0
        self._journal = journal
        self._secrets = secrets
        self._faults = faults
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def write(self, turn: Turn) -> None:
        """Make a turn durable.

        Raises:
            StoreError: nothing of its entries was kept.
        """
        if turn.entries:
            await self._run(lambda: self._write(turn))

    async def checkpoint(self, driver: Driver) -> None:
        """Write the driver's state; a failure is logged only, the journal is whole without it.

        The driver must not be stepped before this returns.
        """
        seq = driver.seq
        if seq == self.checkpoint_seq:
            return
        try:
            await self._run(lambda: self._checkpoint(driver))
        except StoreError as failure:
            log.warning("checkpoint_failed", extra=facts(error=str(failure)))
            return
        self.checkpoint_seq = seq

    async def recover(self, *, settings: DriverSettings | None, seed: int) -> Driver:
        """Return a driver in the state of the last durable entry.

        Raises:
            StoreError: the journal cannot be read.
        """
        driver = await self._run(lambda: recover(self._journal, settings=settings, seed=seed))
        newest = await self._run(self._journal.latest_checkpoint)
        self.checkpoint_seq = 0 if newest is None else newest.seq
        return driver

    async def probe(self) -> None:
        """Prove that the journal takes writes.

        Raises:
            StoreError: it does not.
        """
        await self._run(self._journal.probe)

    async def drop_secrets(self, turn: Turn) -> None:
        """Delete the values of jobs whose submit was refused."""
        await self._run(lambda: self._drop([job_id for job_id, _ in turn.secrets]))

    def close(self) -> None:
        """End the thread after what it does now."""
        self._thread.shutdown(wait=True)

    def _write(self, turn: Turn) -> None:
        for job_id, values in turn.secrets:
            self._secrets.put(job_id, values)
        self._faults.reach(Point.BEFORE_WRITE)
        with self._metrics.write_s.time():
            self._journal.append(turn.entries)
        self._faults.reach(Point.AFTER_WRITE)
        for entry in turn.entries:
            if isinstance(entry.event, JobsForgotten):
                self._drop(entry.event.job_ids)

    def _drop(self, job_ids: Sequence[JobId]) -> None:
        for job_id in job_ids:
            with suppress(StoreError):  # the next start finds what is left
                self._secrets.delete(job_id)

    def _checkpoint(self, driver: Driver) -> None:
        image = driver.cluster.image()
        self._faults.reach(Point.BEFORE_CHECKPOINT)
        self._journal.save_checkpoint(driver.seq, image, digest(image))
        self._faults.reach(Point.AFTER_CHECKPOINT)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
