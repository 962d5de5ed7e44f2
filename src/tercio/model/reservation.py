"""Promises: capacity kept for one blocked job on named nodes, always with an end."""

from __future__ import annotations

import msgspec

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement


class Promise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Capacity promised to one job. Sticky: kept over cycles unless a better start appears.

    Attributes:
        job_id: the job that will start there.
        tasks: the planned placement.
        from_s: when it should start, or None for an undated hold on freed devices.
        expires_s: when the promise ends by itself.
        evicting: jobs that were stopped to make it true; they may not return before it starts.
    """

    job_id: JobId
    tasks: tuple[TaskPlacement, ...]
    from_s: float | None
    expires_s: float
    evicting: tuple[JobId, ...] = ()
