"""Who carries a failure: facts of jobs and nodes to blame, from which lemons are known.

A job that fails names nobody by itself: its code may be at fault. It does when a device finding
names the node, when the node was lost, when all waited for a rank on it, or when the same job
then succeeds elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tercio.core.records import Job
from tercio.core.state import State
from tercio.health.finding import Severity
from tercio.health.lemon import LemonRule, share_blame
from tercio.model.health import BlameFact
from tercio.model.ids import NodeName
from tercio.model.job import EndCause

BLAMES_KEPT: Final = 5000
_KEEP_S: Final = LemonRule().history_s
_BAD: Final = frozenset({EndCause.FAILED, EndCause.QUARANTINED})


def note_end(state: State, job: Job, cause: EndCause) -> None:
    """Take the end of an attempt: a finding names its culprit, a success elsewhere its suspects."""
    if cause in _BAD:
        culprit = _culprit(state, job)
        if culprit is not None:
            _note(state, (culprit,), cause=f"{job.id}/{job.attempt}")
    elif cause is EndCause.SUCCEEDED:
        here = {task.placement.node for task in job.tasks}
        for span in job.past:
            if not span.nodes:
                continue
            suspects = [node for node in span.nodes if node not in here]
            weight = 1.0 / max(len(span.nodes), 1)
            _note(state, suspects, cause=f"{job.id}/{span.number}", weight=weight)


def note_hang(state: State, job: Job, tasks: Sequence[int]) -> None:
    """Take a hang: the nodes of those that the others waited for, or a part on every node."""
    placements = [task.placement for task in job.tasks]
    named = [each.node for each in placements if each.task in tasks]
    nodes = tuple(dict.fromkeys(named or [each.node for each in placements]))
    _note(state, nodes, cause=f"{job.id}/{job.attempt}")


def note_loss(state: State, name: NodeName) -> None:
    """Take the loss of a node under its jobs; one that people work on is no failure of its own."""
    node = state.nodes.get(name)
    if node is None or node.cordons or not state.jobs_by_node.get(name):
        return
    _note(state, (name,), cause=f"lost/{name}/{int(state.now_s)}")


def _culprit(state: State, job: Job) -> NodeName | None:
    """Return the node of the attempt with a device finding that struck this job."""
    since_s = job.placed_s or 0.0
    for name in dict.fromkeys(task.placement.node for task in job.tasks):
        for fault in state.health.faults.get(name, ()):
            is_bad = Severity(fault.severity).rank >= Severity.ERROR.rank
            if fault.job == job.id and fault.at_s >= since_s and is_bad:
                return name
    return None


def _note(
    state: State, nodes: Sequence[NodeName], *, cause: str, weight: float | None = None
) -> None:
    if not nodes:
        return
    shares = share_blame(nodes, at_s=state.now_s, cause=cause, culprit=None, is_user_code=False)
    fresh = [
        BlameFact(
            node=NodeName(share.node),
            at_s=share.at_s,
            weight=share.weight if weight is None else weight,
            cause=cause,
        )
        for share in shares
    ]
    kept = [each for each in state.health.blames if state.now_s - each.at_s <= _KEEP_S]
    state.health.blames = [*kept, *fresh][-BLAMES_KEPT:]
    state.health.revision += 1
