"""The steps of a job by rank, as they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from tercio.core.records import Job
from tercio.health.progress import JobProgress
from tercio.launch.gang import leaf_groups
from tercio.model.series_views import Amounts, JobSteps, StepGroup, StepRow

RANKS_MAX: Final = 512
"""Most ranks of a group that are told."""
RECENT_COLUMNS: Final = 20


def steps_of(job: Job, progress: JobProgress | None) -> JobSteps:
    """Return the steps of a job's newest attempt; no group without a mark."""
    groups: list[StepGroup] = []
    for role, grid in (progress.grids if progress is not None else {}).items():
        assert progress is not None
        if not grid.first:
            continue
        rows = _rows(job, progress, progress.ranks_of[role], grid.rows())
        # The slow ones and the furthest off are told in any case.
        told = sorted(rows, key=lambda row: (not row.is_slow, -(row.ratio or 0.0)))[:RANKS_MAX]
        groups.append(
            StepGroup(
                name=_group_name(job, int(role)),
                first=tuple(grid.first),
                per_column=grid.per_column,
                rows=tuple(sorted(told, key=lambda row: row.rank)),
                left_off=len(rows) - len(told),
            )
        )
    has_own = progress is not None and progress.has_own
    return JobSteps(job=job.id, attempt=job.attempt, has_own=has_own, groups=tuple(groups))


def _rows(
    job: Job, progress: JobProgress, ranks: Sequence[int], columns: Sequence[Amounts]
) -> list[StepRow]:
    tasks = {task.placement.rank: task.placement for task in job.tasks}
    recent = [_mean(own_s[-RECENT_COLUMNS:]) for own_s in columns]
    known = [mean for mean in recent if mean is not None]
    middle = median(known) if known else 0.0
    return [
        StepRow(
            rank=rank,
            task=tasks[rank].task,
            node=tasks[rank].node,
            own_s=own_s,
            ratio=round(mean / middle, 4) if mean is not None and middle else None,
            is_slow=rank in progress.slow,
        )
        for rank, own_s, mean in zip(ranks, columns, recent, strict=True)
        if rank in tasks
    ]


def _group_name(job: Job, group: int) -> str:
    groups = leaf_groups(job.spec)
    return str(groups[group].name or "") if group < len(groups) else ""


def _mean(values: Amounts) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
