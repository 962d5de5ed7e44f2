"""Checks a plan against the present state, part by part, and turns what holds into events.

The scheduler decides on a snapshot; only what passes here is journalled. Live, the plan is
checked in the same turn that made it, so a refused part is a bug of the scheduler; it is
refused all the same, and its job waits for the next cycle.
"""

from __future__ import annotations

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.members import free_members
from tercio.model.events import JobEvicted, JobPlaced, PromisesChanged, TasksAdded
from tercio.model.ids import JobId, NodeName, array_parent
from tercio.model.job import ACTIVE_JOB_STATES, JobState
from tercio.model.placement import TaskPlacement
from tercio.sched.plan import Addition, Eviction, Plan, Start


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a plan that does not hold."""

    job_id: JobId
    why: str


def check_start(cluster: Cluster, start: Start) -> str | None:
    """Return why a start does not hold now, or None when it does."""
    job = cluster.jobs.get(start.job_id)
    if job is None:
        parent_id = array_parent(start.job_id)
        parent = cluster.jobs.get(parent_id) if parent_id else None
        if parent is None or parent.array is None:
            return "no such job"
        index = int(start.job_id.rpartition(".")[2])
        if not any(index in range(r.start, r.stop, r.step) for r in parent.array.pending):
            return "the element does not wait"
    elif job.array is not None:
        return "an array is started by its elements"
    elif job.state is not JobState.QUEUED:
        return f"the job is {job.state.value}"
    return _obstacle(cluster, start.tasks)


def _obstacle(cluster: Cluster, placed: tuple[TaskPlacement, ...]) -> str | None:
    """Return why tasks cannot be where they are placed, or None when they can."""
    if len({task.task for task in placed}) != len(placed) or not placed:
        return "tasks are missing or named twice"
    by_node: dict[NodeName, list[TaskPlacement]] = {}
    for task in placed:
        by_node.setdefault(task.node, []).append(task)
    for name, tasks in by_node.items():
        node = cluster.nodes.get(name)
        if node is None or not node.is_placeable:
            return f"{name} takes no work"
        obstacle = cluster.ledger.obstacle(node.spec, tasks)
        if obstacle:
            return obstacle
    return None


def check_addition(cluster: Cluster, addition: Addition) -> str | None:
    """Return why tasks cannot join a job now, or None when they can."""
    job = cluster.jobs.get(addition.job_id)
    if job is None or job.state not in (JobState.STARTING, JobState.RUNNING):
        return "the job does not run"
    if {t.task for t in addition.tasks} & {t.placement.task for t in job.tasks}:
        return "a task of this number was there before"
    missing = {lost.member for lost in job.missing}
    if addition.is_repair and not missing.issuperset(t.rank for t in addition.tasks):
        return "the member is not missing"
    return _obstacle(cluster, addition.tasks)


def addition_event(cluster: Cluster, addition: Addition, at_s: float) -> TasksAdded:
    """Return the event that an addition makes. Members of a job that grows are numbered here."""
    job, tasks = cluster.jobs[addition.job_id], addition.tasks
    if not addition.is_repair:
        members = free_members(job, len(tasks))
        tasks = tuple(
            msgspec.structs.replace(task, member=member)
            for task, member in zip(tasks, members, strict=True)
        )
    return TasksAdded(
        at_s=at_s,
        job_id=job.id,
        attempt=job.attempt,
        tasks=tasks,
        is_repair=addition.is_repair,
    )


def check_eviction(cluster: Cluster, eviction: Eviction) -> str | None:
    """Return why an eviction does not hold now, or None when it does."""
    job = cluster.jobs.get(eviction.job_id)
    if job is None or job.state not in ACTIVE_JOB_STATES:
        return "the job does not run"
    if job.stop_cause is not None:
        return "the job is stopping already"
    live = {t.placement.task for t in job.live_tasks if not t.is_surplus}
    if not live.issuperset(eviction.tasks):
        return "a task is stopping already"
    return None


def start_event(cluster: Cluster, start: Start, at_s: float) -> JobPlaced:
    """Return the event that a start makes."""
    job = cluster.jobs.get(start.job_id)
    attempt = job.attempt + 1 if job else 1
    return JobPlaced(
        at_s=at_s, job_id=start.job_id, attempt=attempt, tasks=start.tasks, label=start.label
    )


def promises_event(cluster: Cluster, plan: Plan, at_s: float) -> PromisesChanged | None:
    """Return the event of a changed set of promises, or None when it stayed the same."""
    if plan.promises == cluster.promises:
        return None
    return PromisesChanged(at_s=at_s, promises=plan.promises)


def eviction_event(eviction: Eviction, at_s: float) -> JobEvicted:
    """Return the event that an eviction makes."""
    return JobEvicted(
        at_s=at_s,
        job_id=eviction.job_id,
        cause=eviction.cause,
        for_job=eviction.for_job,
        message=eviction.message,
        tasks=eviction.tasks,
    )
