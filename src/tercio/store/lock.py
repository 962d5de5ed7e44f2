"""The lock of a state directory: one server at a time, held by the kernel, freed by any death."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tercio.errors import StoreError
from tercio.store.failures import mapped


class FileLock:
    """An exclusive lock on a file beside the journal, with the holder's pid in it.

    `flock` belongs to the open file: it ends with the process, however that ends, and is not
    inherited by children (the descriptor closes on exec).
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path) -> None:
        """Take the lock at once or raise `StoreError` that names the holder."""
        self.path = path
        with mapped("lock", path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
                os.close(self._descriptor)
                raise StoreError(
                    f"another server (pid {holder or 'unknown'}) uses {path.parent}: "
                    "stop it with `tercio down`, or give this one its own --state-dir"
                ) from None
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Free the lock; again is no error. The file stays: removing it would race."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
