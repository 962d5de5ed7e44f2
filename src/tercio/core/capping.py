"""Power limits of nodes, as events change them. How they are planned: `core.powering`."""

from __future__ import annotations

import msgspec

from tercio.core import attempts
from tercio.core.state import State
from tercio.model.events import PowerCapped
from tercio.model.job import EndCause


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
