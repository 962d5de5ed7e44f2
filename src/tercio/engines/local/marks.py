"""What a task writes down of its own progress, in the file that TERCIO_MARKS names.

One line a mark, with the time in seconds since the epoch; anything else is passed over:

    1767225600.250 step 12 tokens 4194304
    1767225600.900 checkpoint begin
    1767225603.100 checkpoint end bytes 16060522240

The tokens of a step and the bytes of a checkpoint may be left out.
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
_EARLY: Final = 64


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

    >>> parse_marks(["10.0 step 1 tokens 4096", "11.0 checkpoint begin", "11.5 checkpoint end"])
    Marks(step_count=1, first_step_s=10.0, last_step_s=10.0, gaps=(), checkpoints=((11.0, 11.5),),
          early_s=(10.0,), step_tokens=4096.0, checkpoint_bytes=None)
    """
    steps: list[float] = []
    count = 0
    last_s = begun_s = tokens = size = None
    gaps: list[tuple[float, float]] = []
    saved: list[tuple[float, float]] = []
    for line in lines:
        when, *words = line.split() or [""]
        at_s = _number(when)
        if at_s is None or not words:
            continue
        if words[0] == "step":
            if last_s is not None and at_s - last_s >= IDLE_MIN_S:
                gaps.append((last_s, at_s))
            last_s, count = at_s, count + 1
            steps += [at_s] if count <= _EARLY else []
            tokens = _said(words, "tokens") or tokens
        elif words[:2] == ["checkpoint", "begin"]:
            begun_s = at_s
        elif words[:2] == ["checkpoint", "end"] and begun_s is not None:
            saved.append((begun_s, max(begun_s, at_s)))
            begun_s, size = None, _said(words, "bytes") or size
    if not count and not saved:
        return None
    return Marks(
        step_count=count,
        first_step_s=steps[0] if steps else None,
        last_step_s=last_s,
        gaps=tuple(gaps[-_KEPT:]),
        checkpoints=tuple(saved[-_KEPT:]),
        early_s=tuple(steps),
        step_tokens=tokens,
        checkpoint_bytes=size,
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _said(words: list[str], name: str) -> float | None:
    """The positive number that a mark gives after a word, or None."""
    if name not in words[:-1]:
        return None
    value = _number(words[words.index(name) + 1])
    return value if value is not None and 0 < value < 1e30 else None
