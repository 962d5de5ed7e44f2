"""Marks that a simulated task has made by an instant: a function of the task, nothing stored."""

from __future__ import annotations

import math
from typing import Final

from tercio.engines.sim.script import Steps
from tercio.engines.sim.state import SimTask

AT_ONCE: Final = 2000
"""Most marks of one answer; the next one goes on."""
_JITTER: Final = 0.012


def marked(task: SimTask | None, offset: int, now_s: float) -> tuple[str, int]:
    """Return the lines of a task from an offset on, and the offset after them.

    The offset is the number of marks: nobody but this engine reads it.
    """
    steps = task.behaviour.steps if task is not None else None
    if task is None or steps is None or task.started_s is None:
        return "", offset
    until_s = now_s if task.ends_s is None else min(now_s, task.ends_s)
    made = math.floor((until_s - task.started_s) / steps.every_s + 1e-9)
    last = min(made, offset + AT_ONCE)
    if last <= offset:
        return "", offset
    lines = (
        f"{task.started_s + number * steps.every_s:.3f} step {number} "
        f"own {_own_s(steps, task.task, number):.4f}\n"
        for number in range(offset + 1, last + 1)
    )
    return "".join(lines), last


def _own_s(steps: Steps, task: int, number: int) -> float:
    """The own time of a step: it varies by a percent, the same way in every run."""
    is_slow = task == steps.slow_task and number >= steps.slow_from_step
    # A low-discrepancy sequence (golden ratio): even, and needs no generator.
    wave = (number * 0.6180339887 + task * 0.7548776662) % 1.0 - 0.5
    return steps.own_s * (steps.slow_ratio if is_slow else 1.0) * (1 + _JITTER * wave)
