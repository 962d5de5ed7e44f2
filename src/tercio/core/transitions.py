"""The state machines, one table each. Docs, tests and the API's enum are made from these.

Only `Cluster` moves an object along them; an illegal pair raises `IllegalTransition` with
the object's story, so that the exception is the bug report.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tercio.model.job import JobState
from tercio.model.node import NodeState


class TaskState(StrEnum):
    """Where one task of the current attempt is."""

    LAUNCHING = "launching"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


LIVE_TASK_STATES: Final = frozenset({TaskState.LAUNCHING, TaskState.RUNNING, TaskState.STOPPING})

JOB_TRANSITIONS: Final[dict[tuple[JobState, JobState], str]] = {
    (JobState.HELD, JobState.QUEUED): "released",
    (JobState.HELD, JobState.CANCELLED): "cancelled while held",
    (JobState.QUEUED, JobState.HELD): "held",
    (JobState.QUEUED, JobState.STARTING): "placed",
    (JobState.QUEUED, JobState.RUNNING): "first element of the array placed",
    (JobState.QUEUED, JobState.CANCELLED): "cancelled while waiting",
    (JobState.STARTING, JobState.RUNNING): "all tasks run",
    (JobState.STARTING, JobState.STOPPING): "told to stop, or a task failed",
    (JobState.STARTING, JobState.QUEUED): "attempt ended, another follows",
    (JobState.STARTING, JobState.SUCCEEDED): "all tasks ended before the last start was reported",
    (JobState.STARTING, JobState.FAILED): "attempt ended badly for good",
    (JobState.RUNNING, JobState.SUSPENDED): "paused",
    (JobState.RUNNING, JobState.STOPPING): "told to stop, or a task failed",
    (JobState.RUNNING, JobState.QUEUED): "attempt ended, another follows",
    (JobState.RUNNING, JobState.SUCCEEDED): "all tasks ended well",
    (JobState.RUNNING, JobState.FAILED): "attempt ended badly for good",
    (JobState.RUNNING, JobState.CANCELLED): "array cancelled",
    (JobState.SUSPENDED, JobState.RUNNING): "resumed",
    (JobState.SUSPENDED, JobState.STOPPING): "told to stop, or a task failed",
    (JobState.SUSPENDED, JobState.QUEUED): "attempt ended, another follows",
    (JobState.SUSPENDED, JobState.SUCCEEDED): "all tasks ended well",
    (JobState.SUSPENDED, JobState.FAILED): "attempt ended badly for good",
    (JobState.STOPPING, JobState.QUEUED): "attempt ended, another follows",
    (JobState.STOPPING, JobState.HELD): "attempt ended, held since",
    (JobState.STOPPING, JobState.FAILED): "attempt ended badly for good",
    (JobState.STOPPING, JobState.CANCELLED): "cancelled",
    (JobState.SUCCEEDED, JobState.QUEUED): "requeued by a person",
    (JobState.FAILED, JobState.QUEUED): "requeued by a person",
    (JobState.CANCELLED, JobState.QUEUED): "requeued by a person",
}

TASK_TRANSITIONS: Final[dict[tuple[TaskState, TaskState], str]] = {
    (TaskState.LAUNCHING, TaskState.RUNNING): "started",
    (TaskState.LAUNCHING, TaskState.STOPPING): "told to stop before the start was reported",
    (TaskState.LAUNCHING, TaskState.ENDED): "launch failed, or ended before the report",
    (TaskState.RUNNING, TaskState.STOPPING): "told to stop",
    (TaskState.RUNNING, TaskState.ENDED): "exited",
    (TaskState.STOPPING, TaskState.ENDED): "stopped",
}

NODE_TRANSITIONS: Final[dict[tuple[NodeState, NodeState], str]] = {
    (NodeState.UNKNOWN, NodeState.READY): "reported",
    (NodeState.UNKNOWN, NodeState.CORDONED): "reported, cordon stands",
    (NodeState.UNKNOWN, NodeState.DRAINING): "reported, drain goes on",
    (NodeState.UNKNOWN, NodeState.DOWN): "lost",
    (NodeState.READY, NodeState.CORDONED): "cordoned",
    (NodeState.READY, NodeState.DRAINING): "drain asked for",
    (NodeState.READY, NodeState.DOWN): "lost",
    (NodeState.CORDONED, NodeState.READY): "last cordon lifted",
    (NodeState.CORDONED, NodeState.DRAINING): "drain asked for",
    (NodeState.CORDONED, NodeState.DOWN): "lost",
    (NodeState.DRAINING, NodeState.CORDONED): "empty",
    (NodeState.DRAINING, NodeState.READY): "drain called off",
    (NodeState.DRAINING, NodeState.DOWN): "lost",
    (NodeState.DOWN, NodeState.READY): "reported again",
    (NodeState.DOWN, NodeState.CORDONED): "reported again, cordon stands",
    (NodeState.DOWN, NodeState.DRAINING): "reported again, drain goes on",
}
