"""Members of a running gang that come and go one by one.

A job with `repair: task` outlives the loss of a member: the others run on, and the scheduler
puts a new task in its place, near them, before it starts anything new. A gang for whose member
no room is found within `REPAIR_GRACE_S` is released whole. An elastic job that still has its
minimum misses nobody: it grows again when there is room.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

from tercio.core.records import Job, Missing, Task, backoff_s, may_retry
from tercio.errors import UserError
from tercio.model.job import FLEXIBLE_FRAMEWORKS, EndCause, JobSpec, JobState, Repair
from tercio.model.snapshot import MissingTask
from tercio.model.topology import ISLAND

REPAIR_GRACE_S: Final = 600.0
"""How long a gang stays incomplete before it is released whole."""
GROWTH_PAUSE_S: Final = 600.0
"""How long a job does not grow after a task could not join it."""

_REPLACEABLE: Final = (EndCause.NODE_FAILED, EndCause.FAILED, EndCause.LAUNCH_FAILED)
_GOES_ON: Final = (JobState.STARTING, JobState.RUNNING)


def check_profile(spec: JobSpec, *, is_elastic: bool) -> None:
    """Refuse a goodput profile that nothing would act on.

    Raises:
        UserError: the policy is not elastic, or the job cannot be resized.
    """
    if not spec.goodput:
        return
    field = f"speed.{spec.goodput[0].type}"
    why, hint = "", ""
    if not is_elastic:
        why, hint = "the policy does not size jobs", "put 'elastic: goodput' into the policy"
    elif spec.checkpoint.path is None:
        why, hint = "the job does not save its work", "write checkpoint.path"
    elif spec.array is not None or len(spec.groups) != 1 or spec.groups[0].subgroups:
        why, hint = "only one group of tasks can be resized", "write one group and no array"
    elif EndCause.PREEMPTED not in spec.retry.on:
        why, hint = "the job is not started again after a move", "add preempted to retry.on"
    if why:
        message = f"{field}: a goodput profile cannot be used: {why}"
        raise UserError(message, code="unsupported", hint=hint, field=field)


def check_repair(spec: JobSpec) -> None:
    """Refuse to replace members alone where the others would not notice, or could not be joined.

    Raises:
        UserError: `invalid`, on `repair`.
    """
    if spec.repair is not Repair.TASK:
        return
    if spec.framework not in FLEXIBLE_FRAMEWORKS:
        raise UserError(
            f"repair: task does not work with framework {spec.framework.value}: its tasks agree "
            "on their ranks once, and a new one cannot join",
            code="invalid",
            hint="write repair: gang, or framework: plain if the program finds its peers itself",
            field="repair",
        )
    topologies = [spec.topology, *(group.topology for group in spec.groups)]
    for topology in topologies:
        if topology is None:
            continue
        for word, is_used in (
            ("slice", topology.slice is not None),
            ("spread", topology.spread is not None),
            ("leader", topology.leader is not None),
            (f"same: {ISLAND}", topology.same == ISLAND),
        ):
            if is_used:
                raise UserError(
                    f"repair: task cannot be combined with topology {word}",
                    code="invalid",
                    hint="write repair: gang, so that the gang is placed anew as a whole",
                    field="repair",
                )
    if any(group.subgroups for group in spec.groups):
        raise UserError(
            "repair: task cannot be combined with subgroups",
            code="invalid",
            hint="write flat groups, or repair: gang",
            field="repair",
        )


def is_needed(job: Job, task: Task) -> bool:
    """Whether the job would be below its minimum, or its task group unknown, without the task."""
    group = task.placement.group
    if group >= len(job.spec.groups):
        return True
    others = [t for t in job.tasks if t is not task and t.placement.group == group and _stands(t)]
    return len(others) < job.spec.groups[group].tasks


def _stands(task: Task) -> bool:
    """Whether a task counts as a member: it runs, or did its part."""
    if task.is_live:
        return not task.is_surplus
    return task.exit_code == 0 and not task.is_lost


def lose(now_s: float, job: Job, task: Task, cause: EndCause, message: str) -> bool:
    """Note that a member is lost; False when the whole attempt has to end for it."""
    if (
        job.spec.repair is not Repair.TASK
        or job.stop_cause is not None
        or job.state not in _GOES_ON
        or cause not in _REPLACEABLE
        or not job.live_tasks
        or not may_retry(job.spec.retry, cause, job.retries)
    ):
        return False
    job.retries += 1
    task.is_replaced = True
    if not is_needed(job, task):
        job.grows_from_s = now_s + GROWTH_PAUSE_S if cause is not EndCause.NODE_FAILED else None
        return True
    # A node is to blame for itself; a program that failed may fail again at once.
    pause_s = 0.0 if cause is EndCause.NODE_FAILED else backoff_s(job.spec.retry, job.retries)
    lost = Missing(
        member=task.placement.rank,
        group=task.placement.group,
        lost_s=now_s,
        cause=cause,
        message=message,
        not_before_s=now_s + pause_s if pause_s else None,
    )
    job.missing = (*job.missing, lost)
    return True


def is_repair_due(job: Job, now_s: float) -> bool:
    """Whether the gang has been incomplete for too long. A pause holds the time up."""
    if job.state not in _GOES_ON or job.stop_cause is not None:
        return False
    return any(lost.lost_s + REPAIR_GRACE_S <= now_s for lost in job.missing)


def missing_view(job: Job) -> tuple[MissingTask, ...]:
    """The scheduler's view of the members to replace; none while the job is paused or stops."""
    if not job.missing or job.state not in _GOES_ON or job.stop_cause is not None:
        return ()
    return tuple(
        MissingTask(member=lost.member, group=lost.group, not_before_s=lost.not_before_s)
        for lost in job.missing
    )


def grows_from_s(job: Job) -> float | None:
    """When the job may grow; infinity when it may not: it is not whole, or some are done."""
    if (
        job.state is not JobState.RUNNING
        or job.missing
        or job.spec.framework not in FLEXIBLE_FRAMEWORKS
    ):
        return math.inf
    is_whole = all([task.is_live or task.is_surplus or task.is_replaced for task in job.tasks])
    return job.grows_from_s if is_whole else math.inf


def free_members(job: Job, count: int) -> list[int]:
    """Return the lowest member numbers that nobody has."""
    taken = {task.placement.rank for task in job.tasks if _stands(task) or task.is_live}
    taken |= {lost.member for lost in job.missing}
    return list(itertools.islice((n for n in itertools.count() if n not in taken), count))
