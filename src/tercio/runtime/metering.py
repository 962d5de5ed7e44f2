"""What is kept in memory, on disk as well, so that a restart of the server does not forget it.

Such a file is a convenience, no record: what a task measured enters the journal when it ends. A
file that is missing or damaged costs the sums since the start of the tasks, or what queues were
like before, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from tercio.logs import facts
from tercio.runtime.periodic import Periodic, every

METERS: Final = "meters.msgpack"
QUEUES: Final = "queue-past.msgpack"
SAVE_EVERY_S: Final = 60.0
log = logging.getLogger(__name__)


class Keepable(Protocol):
    """What can be written down whole, and taken up again."""

    def image(self) -> bytes:
        """Return everything."""
        ...

    def load(self, image: bytes) -> None:
        """Go on from an image; raises ValueError for one that makes no sense."""
        ...


class KeptFiles:
    """The files of one directory, by their names."""

    def __init__(self, directory: Path, kept: Mapping[str, Keepable]) -> None:
        self._files = [KeptFile(directory / name, each) for name, each in kept.items()]

    def load(self) -> None:
        """Take over what an earlier run saved. Blocks; before the engines report."""
        for file in self._files:
            file.load()

    def start(self) -> None:
        """Save from now on."""
        for file in self._files:
            file.start()

    async def stop(self) -> None:
        """Save a last time."""
        for file in self._files:
            await file.stop()


class KeptFile:
    """Loads once, saves every minute and at the end."""

    def __init__(self, path: Path, kept: Keepable) -> None:
        self._path = path
        self._kept = kept
        self._loop = Periodic(
            f"keeping {path.name}", self.save, pause=every(SAVE_EVERY_S), pauses_first=True
        )

    def load(self) -> None:
        """Take over what an earlier run saved. Blocks; before the engines report."""
        try:
            self._kept.load(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as failure:
            log.warning("kept_not_read", extra=facts(file=self._path.name, error=str(failure)))

    def start(self) -> None:
        """Save from now on."""
        self._loop.start()

    async def stop(self) -> None:
        """Save a last time; what cannot be saved is logged, and keeps nobody from stopping."""
        if self._loop.is_started:
            await self._loop.stop()
            await self._loop.turn()

    async def save(self) -> None:
        """Write everything; a full disk is no reason to stop."""
        image = self._kept.image()
        try:
            await asyncio.to_thread(self._write, image)
        except OSError as failure:
            log.warning("kept_not_saved", extra=facts(file=self._path.name, error=str(failure)))

    def _write(self, image: bytes) -> None:
        part = self._path.with_name(self._path.name + ".new")
        # The state directory lets others pass, and what jobs measured is not theirs.
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(image)
        os.replace(part, self._path)
