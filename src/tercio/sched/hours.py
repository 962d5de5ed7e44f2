"""Budgets of device-hours in a cycle: when to look again."""

from __future__ import annotations

from tercio.sched.memory import Memory
from tercio.sched.owners import DEVICE_HOURS


def look_again_s(memory: Memory) -> float | None:
    """Return when a budget that holds somebody back may have room again, or None."""
    owners = memory.tree.owners
    if not owners.has_budgets:
        return None
    verdicts = (job_class.verdict for job_class in memory.classes.values())
    limits = (verdict.limit for verdict in verdicts if verdict is not None)
    is_short = any(limit is not None and limit.resource == DEVICE_HOURS for limit in limits)
    return owners.next_day_s() if is_short else None


def is_moving(memory: Memory) -> bool:
    """Whether time alone may change what waiting jobs are told."""
    return bool(memory.classes) and memory.tree.owners.is_moving(memory.now_s)
