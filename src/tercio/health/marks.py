"""One line that a training job writes of its own progress.

    1767225600.250 step 12
    1767225600.250 step 12 own 0.41 tokens 4194304
    1767225600.900 checkpoint begin
    1767225603.100 checkpoint end bytes 16060522240
    1767225603.200 eval begin

`own` is the time that the task itself computed in the step, without its wait for the others.
"""

from __future__ import annotations

import math

import msgspec

from tercio.health.hang import Phase

_PHASES = {"checkpoint": Phase.CHECKPOINT, "eval": Phase.EVAL}
_MOST = 1e30


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One mark.

    Attributes:
        at_s: seconds since the epoch, by the task's clock.
        phase: what it is about.
        is_begin: the phase begins here; False for its end, and for a step, which just ended.
        step: number of the step, None where it has none.
        own_s: own compute time of the step in seconds, None where the task does not say.
        tokens: tokens of the step, of all tasks together, or None.
        size_bytes: size of the checkpoint that ends, or None.
    """

    at_s: float
    phase: Phase
    is_begin: bool = False
    step: int | None = None
    own_s: float | None = None
    tokens: float | None = None
    size_bytes: float | None = None


def parse_mark(line: str) -> Mark | None:
    """Return what a line says, None for one that is no mark. Never raises.

    >>> parse_mark("10.5 step 3 own 0.25").own_s
    0.25
    """
    words = line.split(maxsplit=16)
    if len(words) < 2:
        return None
    at_s = _number(words[0])
    if at_s is None:
        return None
    match words[1:]:
        case ["step", *rest]:
            number = rest[0] if rest else ""
            step = int(number) if number.isascii() and number.isdigit() else None
            own_s, tokens = _said(rest, "own"), _said(rest, "tokens") or None
            return Mark(at_s=at_s, phase=Phase.STEP, step=step, own_s=own_s, tokens=tokens)
        case ["checkpoint" | "eval" as name, "begin" | "end" as end, *rest]:
            size = _said(rest, "bytes") or None
            return Mark(at_s=at_s, phase=_PHASES[name], is_begin=end == "begin", size_bytes=size)
        case _:
            return None


def _said(words: list[str], name: str) -> float | None:
    """The number that a mark gives after a word, or None."""
    if name not in words[:-1]:
        return None
    value = _number(words[words.index(name) + 1])
    return value if value is not None and value < _MOST else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
