"""The sums of running tasks on disk, so that a restart of the server does not forget them.

The file is a convenience, no record: what a task measured enters the journal when it ends. A
file that is missing or damaged costs the sums since the start of the tasks, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from tercio.logs import facts
from tercio.runtime.telemetry import Telemetry

FILE: Final = "meters.msgpack"
SAVE_EVERY_S: Final = 60.0
log = logging.getLogger(__name__)


class MeterFile:
    """Loads the sums once, saves them every minute and at the end."""

    def __init__(self, directory: Path, telemetry: Telemetry) -> None:
        self._path = directory / FILE
        self._telemetry = telemetry
        self._task: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Take over what an earlier run saved. Blocks; before the engines report."""
        try:
            self._telemetry.load_meters(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as failure:
            log.warning("meters_not_read", extra=facts(error=str(failure)))

    def start(self) -> None:
        """Save from now on."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Save a last time."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            await self.save()

    async def save(self) -> None:
        """Write the sums; a full disk is no reason to stop."""
        image = self._telemetry.meters_image()
        try:
            await asyncio.to_thread(self._write, image)
        except OSError as failure:
            log.warning("meters_not_saved", extra=facts(error=str(failure)))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.save()

    def _write(self, image: bytes) -> None:
        part = self._path.with_name(self._path.name + ".new")
        part.write_bytes(image)
        os.replace(part, self._path)
