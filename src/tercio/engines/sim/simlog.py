"""Lines that a simulated task has printed by an instant: a function of the task, nothing stored."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tercio.engines.base import LogLine
from tercio.engines.sim.state import SimTask


def line_at(task: SimTask, index: int) -> LogLine | None:
    """Return the line with this index, from 0, or None when the task never prints it."""
    if task.started_s is None:
        return None
    behaviour = task.behaviour
    if index < len(behaviour.lines):
        return LogLine(at_s=task.started_s, stream="out", text=behaviour.lines[index])
    if behaviour.line_every_s <= 0:
        return None
    step = index - len(behaviour.lines)
    # A power law that falls from 11, as training losses do.
    loss = 1.7 + 9.3 / (1 + step) ** 0.35
    return LogLine(
        at_s=task.started_s + step * behaviour.line_every_s,
        stream="out",
        text=f"step {step} loss {loss:.3f}",
    )


def line_count(task: SimTask, now_s: float) -> int:
    """Return how many lines the task has printed."""
    if task.started_s is None:
        return 0
    behaviour = task.behaviour
    until_s = now_s if task.ends_s is None else min(now_s, task.ends_s)
    count = len(behaviour.lines)
    if behaviour.line_every_s > 0:
        count += math.floor((until_s - task.started_s) / behaviour.line_every_s + 1e-9) + 1
    return count


def printed(task: SimTask, start: int, stop: int) -> Iterator[LogLine]:
    """Yield the lines `start <= index < stop`."""
    for index in range(start, stop):
        line = line_at(task, index)
        if line is not None:
            yield line
