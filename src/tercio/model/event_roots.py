"""Roots of the events, see `model.events`."""

from __future__ import annotations

import msgspec

from tercio.model.ids import JobId, NodeName


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False):
    """Root of the events; never built itself."""

    at_s: float


class JobEvent(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the events of one job."""

    job_id: JobId


class TaskEvent(JobEvent, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the events of one task of one attempt."""

    attempt: int
    task: int


class NodeEvent(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the events of one node."""

    node: NodeName
