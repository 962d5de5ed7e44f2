"""Marks of a job's own progress, appended to the file that TERCIO_MARKS names.

>>> import tercio
>>> for batch in range(3):
...     with tercio.checkpoint():
...         pass
...     tercio.step(batch)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def step(number: int | None = None, *, own_s: float | None = None) -> None:
    """Mark that a step ended. Does nothing outside of a job; never raises.

    Args:
        number: of the step; the same on all ranks. Counted where it is not given.
        own_s: seconds that this rank itself computed, without its wait for the others. With it
            a slow rank of a synchronous job is found; without it all look alike.
    """
    words = ["step"]
    if number is not None:
        words.append(str(number))
        if own_s is not None:
            words.append(f"own {own_s:.6f}")
    _write(" ".join(words))


@contextmanager
def checkpoint() -> Iterator[None]:
    """Mark a save: what is inside is checkpoint time, and can be resumed from once it ended."""
    _write("checkpoint begin")
    yield
    _write("checkpoint end")


def _write(text: str) -> None:
    path = os.environ.get("TERCIO_MARKS")
    if not path:
        return
    # One write of one short line: threads and processes of a task do not mix theirs.
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"{time.time():.6f} {text}\n".encode())
        finally:
            os.close(fd)
