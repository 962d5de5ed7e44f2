"""Small grammars of the job file: array indexes, signals, job ids."""

from __future__ import annotations

import itertools
import re
from typing import Final

from tercio.errors import UserError, did_you_mean
from tercio.model.job import ArraySpec, IndexRange

MAX_INDEX: Final = 10_000_000
MAX_ELEMENTS: Final = 1_000_000
ARRAY_FORM: Final = 'write indexes such as "0-99", "0-99%8" (8 at once), "0-98:2" or "1,3,7-9"'
ARRAY_PATTERN: Final = (
    r"^[0-9]{1,8}(-[0-9]{1,8}(:[0-9]{1,8})?)?(,[0-9]{1,8}(-[0-9]{1,8}(:[0-9]{1,8})?)?)*"
    r"(%[1-9][0-9]{0,7})?$"
)
SIGNALS: Final = (
    "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH",
)  # fmt: skip
JOB_ID: Final = r"^job-[0-9a-hjkmnp-tv-z]{1,13}(\.[0-9]{1,8})?$"

_RANGE: Final = re.compile(r"(\d{1,8})(?:-(\d{1,8})(?::(\d{1,8}))?)?", re.ASCII)


def parse_array(text: str) -> ArraySpec:
    """Read the indexes of an array job, in order and without overlap.

    >>> parse_array("0-9%2").size
    10
    """
    indexes, percent, limit = text.replace(" ", "").partition("%")
    if percent and not re.fullmatch(r"[1-9]\d{0,7}", limit, re.ASCII):
        raise UserError(f"'{limit}' is not a number of elements at once", hint=ARRAY_FORM)
    ranges: list[IndexRange] = []
    size = 0
    for piece in indexes.split(","):
        found = _RANGE.fullmatch(piece)
        if not found:
            raise UserError(f"'{piece[:40]}' is not an index or a range", hint=ARRAY_FORM)
        first, last = int(found.group(1)), int(found.group(2) or found.group(1))
        step = int(found.group(3) or 1)
        if last < first:
            raise UserError(f"'{piece}' runs backwards", hint=f"write {last}-{first}")
        if step == 0:
            raise UserError(f"'{piece}' has step 0", hint="write a step of 1 or more")
        if last > MAX_INDEX:
            raise UserError(f"'{piece}' is too large", hint=f"write indexes up to {MAX_INDEX}")
        ranges.append(IndexRange(start=first, stop=last + 1, step=step))
        size += len(range(first, last + 1, step))
    if size > MAX_ELEMENTS:
        fix = f"write at most {MAX_ELEMENTS} elements, or several arrays"
        raise UserError(f"{size} elements are too many", hint=fix)
    _refuse_overlap(ranges)
    return ArraySpec(ranges=tuple(ranges), concurrency=int(limit) if percent else None)


def _refuse_overlap(ranges: list[IndexRange]) -> None:
    """Refuse an index that two ranges hold; ranges are compared by pairs of neighbours."""
    plain = sorted((r.start, r.stop) for r in ranges)
    if all(left[1] <= right[0] for left, right in itertools.pairwise(plain)):
        return
    seen: set[int] = set()
    for r in ranges:
        for index in range(r.start, r.stop, r.step):
            if index in seen:
                raise UserError(f"index {index} stands twice", hint="let the ranges not overlap")
            seen.add(index)


def parse_signal(text: str) -> str:
    """Read a signal a program can catch: `SIGUSR1`, or `USR1`."""
    word = text.strip().upper()
    name = word if word.startswith("SIG") else f"SIG{word}"
    if name in SIGNALS:
        return name
    listed = f"write one of: {', '.join(SIGNALS)}"
    if name in ("SIGKILL", "SIGSTOP"):
        raise UserError(f"'{text}' cannot be caught", hint=listed)
    near = did_you_mean(name, SIGNALS)
    hint = f"{near} ({listed})" if near else listed
    raise UserError(f"'{text}' is not a signal that a job may ask for", hint=hint)
