"""Answers to the launch of a task, and whom an order is about."""

from __future__ import annotations

from tercio.engines.base import TaskRef
from tercio.model.effects import LaunchTask, TaskEffect
from tercio.model.events import TaskLaunchFailed, TaskStarted


def started(order: LaunchTask, at_s: float, detail: str) -> TaskStarted:
    """The task runs since then."""
    return TaskStarted(
        at_s=at_s,
        job_id=order.job_id,
        attempt=order.attempt,
        task=order.task,
        effect_id=order.effect_id,
        detail=detail,
    )


def failed(order: LaunchTask, at_s: float, message: str, *, is_retryable: bool) -> TaskLaunchFailed:
    """Nothing of the task runs, and why."""
    return TaskLaunchFailed(
        at_s=at_s,
        job_id=order.job_id,
        attempt=order.attempt,
        task=order.task,
        effect_id=order.effect_id,
        message=message,
        is_retryable=is_retryable,
    )


def ref_of(order: TaskEffect) -> TaskRef:
    """The task that an order is about."""
    return TaskRef(job_id=order.job_id, attempt=order.attempt, task=order.task, node=order.node)
