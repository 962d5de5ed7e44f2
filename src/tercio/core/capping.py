"""Power limits of nodes and what they cost, as events say; `core.powering` plans them."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.core import attempts
from tercio.core.state import State
from tercio.model.events import LimitMeasured, PowerCapped
from tercio.model.job import EndCause
from tercio.model.power import CapCurvePoint

POINTS_KEPT: Final = 32
CLASSES_KEPT: Final = 1000


def take(state: State, event: PowerCapped) -> None:
    """Keep the limits of a node, and stop what not even the lowest limits leave room for."""
    node = state.nodes.get(event.node)
    if node is None:
        return
    if node.caps != event.caps:
        state.put_node(msgspec.structs.replace(node, caps=event.caps))
    for job_id in event.stop:
        job = state.jobs.get(job_id)
        if job is not None and job.live_tasks and job.stop_cause is None:
            attempts.stop(state, job, EndCause.REQUEUED, event.reason)


def measured(state: State, event: LimitMeasured) -> None:
    """Keep what a job class needed at a limit, in the place of an earlier measurement."""
    curves = state.health.curves
    known = curves.pop(event.job_class, ())
    others = [point for point in known if point.limit_w != event.point.limit_w]
    points: tuple[CapCurvePoint, ...] = (*others, event.point)
    curves[event.job_class] = points[-POINTS_KEPT:]
    while len(curves) > CLASSES_KEPT:
        del curves[next(iter(curves))]
