"""The output of a scheduling cycle: a plan, and one decision for every job considered."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tercio.model.ids import JobId
from tercio.model.job import EndCause
from tercio.model.placement import TaskPlacement
from tercio.model.reasons import Decision
from tercio.model.reservation import Promise


class Start(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Start this job now, on these nodes and devices.

    `job_id` is the element's id for an array. `label` is `immediate`, `backfill`,
    `reserved`, or `elastic` for a place by gain.
    """

    job_id: JobId
    tasks: tuple[TaskPlacement, ...]
    label: str = "immediate"


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """Stop this job so that `for_job` can start (None when the cause stands for itself).

    `tasks` names the surplus tasks of an elastic job that stop; empty means the whole job.
    """

    job_id: JobId
    cause: EndCause
    for_job: JobId | None = None
    message: str = ""
    tasks: tuple[int, ...] = ()


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that join a running job: `is_repair` in the place of lost members, else it grows."""

    job_id: JobId
    tasks: tuple[TaskPlacement, ...]
    is_repair: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one cycle wants done.

    Attributes:
        revision: of the snapshot it was made from.
        starts: in order of decision.
        evictions: each with the start it enables or its own cause.
        additions: tasks that join running jobs, in order of decision.
        promises: the whole new set.
        decisions: by job, one for every waiting job of the snapshot and every start (an
            array's element started in this cycle has its own). May be computed on look-up.
        briefs: the same without positions, for those who look at many.
        reason_changes: waiting jobs whose reason code differs from the previous cycle's, in
            order; all of them when nothing was remembered.
        wake_at_s: when time alone will change the outcome, or None.
    """

    revision: int
    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    additions: tuple[Addition, ...] = ()
    promises: tuple[Promise, ...] = ()
    decisions: Mapping[JobId, Decision] = {}
    briefs: Mapping[JobId, Decision] = {}
    reason_changes: tuple[JobId, ...] = ()
    wake_at_s: float | None = None
