"""What a task writes down of its own progress, in the file that TERCIO_MARKS names.

One line a mark, with the time in seconds since the epoch; anything else is passed over:

    1767225600.250 step 12
    1767225600.900 checkpoint begin
    1767225603.100 checkpoint end
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tercio.health.goodput import IDLE_MIN_S
from tercio.model.readings import Marks

MARKS: Final = "marks"
_BYTES_MAX: Final = 16 * 1024**2
_KEPT: Final = 500


def read_marks(task_dir: Path) -> Marks | None:
    """Return what a task marked, None for nothing. Blocks on the disk; never raises.

    The file is the user's: no link is followed, and only its last megabytes are read.
    """
    try:
        fd = os.open(task_dir / MARKS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            file.seek(max(0, status.st_size - _BYTES_MAX))
            text = file.read(_BYTES_MAX).decode(errors="replace")
        except OSError:
            return None
    return parse_marks(text.splitlines())


def parse_marks(lines: Iterable[str]) -> Marks | None:
    """Return what lines say, None where no line is a mark.

    >>> parse_marks(["10.0 step 1", "11.0 checkpoint begin", "11.5 checkpoint end"])
    Marks(step_count=1, first_step_s=10.0, last_step_s=10.0, gaps=(), checkpoints=((11.0, 11.5),))
    """
    steps = 0
    first_s = last_s = begun_s = None
    gaps: list[tuple[float, float]] = []
    saved: list[tuple[float, float]] = []
    for line in lines:
        when, _, what = line.strip().partition(" ")
        try:
            at_s = float(when)
        except ValueError:
            continue
        kind, _, detail = what.partition(" ")
        if kind == "step":
            if last_s is not None and at_s - last_s >= IDLE_MIN_S:
                gaps.append((last_s, at_s))
            first_s = at_s if first_s is None else first_s
            last_s, steps = at_s, steps + 1
        elif kind == "checkpoint" and detail == "begin":
            begun_s = at_s
        elif kind == "checkpoint" and detail == "end" and begun_s is not None:
            saved.append((begun_s, max(begun_s, at_s)))
            begun_s = None
    if not steps and not saved:
        return None
    return Marks(
        step_count=steps,
        first_step_s=first_s,
        last_step_s=last_s,
        gaps=tuple(gaps[-_KEPT:]),
        checkpoints=tuple(saved[-_KEPT:]),
    )
