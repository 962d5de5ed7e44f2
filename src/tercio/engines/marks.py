"""What a task writes down of its own progress, in the file that TERCIO_MARKS names.

One line a mark (see `health.marks`), with the time in seconds since the epoch; anything else is
passed over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tercio.health.goodput import IDLE_MIN_S
from tercio.health.hang import Phase
from tercio.health.marks import parse_mark
from tercio.model.readings import Marks

MARKS: Final = "marks"
BYTES_MAX: Final = 16 * 1024**2
"""Most that is read of one task's marks at once: the last of them."""
_KEPT: Final = 500
_EARLY: Final = 64


def read_marks(task_dir: Path) -> Marks | None:
    """Return what a task marked, None for nothing. Blocks on the disk; never raises.

    The file is the user's: no link is followed, and only its last megabytes are read.
    """
    text, _ = _read(task_dir, 0)
    return parse_marks(text.splitlines())


def read_new_marks(wanted: Iterable[tuple[Path, int]]) -> list[tuple[str, int]]:
    """Return the whole lines that tasks wrote from an offset on, and the next offset of each.

    Blocks on the disk; never raises. A file that became shorter is read from its beginning.
    """
    return [whole_lines(*_read(task_dir, offset)) for task_dir, offset in wanted]


def whole_lines(text: str, end: int) -> tuple[str, int]:
    r"""Return the whole lines of a text that ends at an offset, and the offset after them.

    >>> whole_lines("1.0 step 1\n2.0 st", 17)
    ('1.0 step 1\n', 11)
    """
    whole, newline, part = text.rpartition("\n")
    return whole + newline, end - len(part.encode(errors="surrogateescape"))


def _read(task_dir: Path, offset: int) -> tuple[str, int]:
    """Return the text from an offset on, at most the last megabytes, and where it ends."""
    try:
        fd = os.open(task_dir / MARKS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "", 0
    with os.fdopen(fd, "rb") as file:
        try:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return "", 0
            start = offset if offset <= status.st_size else 0
            start = max(start, status.st_size - BYTES_MAX)
            file.seek(start)
            raw = file.read(BYTES_MAX)
        except OSError:
            return "", 0
    return raw.decode(errors="surrogateescape"), start + len(raw)


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
        mark = parse_mark(line)
        if mark is None:
            continue
        at_s = mark.at_s
        if mark.phase is Phase.STEP:
            if last_s is not None and at_s - last_s >= IDLE_MIN_S:
                gaps.append((last_s, at_s))
            last_s, count = at_s, count + 1
            steps += [at_s] if count <= _EARLY else []
            tokens = mark.tokens or tokens
        elif mark.phase is Phase.CHECKPOINT and mark.is_begin:
            begun_s = at_s
        elif mark.phase is Phase.CHECKPOINT and begun_s is not None:
            saved.append((begun_s, max(begun_s, at_s)))
            begun_s, size = None, mark.size_bytes or size
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
