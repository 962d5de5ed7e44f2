"""Tasks that join a running attempt, and the end of the patience with a gang that is not whole."""

from __future__ import annotations

import msgspec

from tercio.core import slicing
from tercio.core.attempts import launch_order, stop
from tercio.core.records import Task
from tercio.core.saving import with_interval
from tercio.core.state import State
from tercio.errors import InvariantViolation
from tercio.launch.recipes import render
from tercio.model.events import RepairTimedOut, TasksAdded
from tercio.model.ids import task_key


def added(state: State, event: TasksAdded) -> None:
    """Hold what the new tasks name and order their launch; the others are left alone."""
    job = state.jobs[event.job_id]
    if event.attempt != job.attempt:
        raise InvariantViolation(
            f"{job.id}: tasks joined attempt {event.attempt} during {job.attempt}",
            story=state.story_of(job.id),
        )
    joined: list[Task] = []
    for placement in event.tasks:
        state.ledger.hold(state.nodes[placement.node].spec, placement)
        key = task_key(job.id, job.attempt, placement.task)
        ports = state.ledger.take_ports(placement.node, key)
        joined.append(Task(placement=placement, ports=ports, joined_s=event.at_s))
        state.jobs_by_node.setdefault(placement.node, {})[job.id] = None
        state.changed_nodes[placement.node] = None
    job.tasks.extend(joined)
    replaced = {placement.rank for placement in event.tasks}
    job.missing = tuple(lost for lost in job.missing if lost.member not in replaced)
    # To the program a task is the member that it stands for.
    gang = sorted(job.live_tasks, key=lambda task: task.placement.rank)
    specs = {t.placement.node: state.nodes[t.placement.node].spec for t in gang}
    launches = render(
        with_interval(job.spec, node_count=len(specs), wear=state.wear, at_s=event.at_s),
        job_id=job.id,
        attempt=job.attempt,
        tasks=tuple(msgspec.structs.replace(t.placement, task=t.placement.rank) for t in gang),
        nodes=specs,
        ports={task.placement.rank: task.ports for task in gang},
    )
    by_member = {launch.task: launch for launch in launches}
    for task in joined:
        launch = by_member[task.placement.rank]
        slicing.launch(state, launch_order(state, job, task, launch, specs[task.placement.node]))
    state.refresh(job)


def repair_timed_out(state: State, event: RepairTimedOut) -> None:
    """Release the gang whole; it waits again as a repair, and may take back what it is owed."""
    job = state.jobs[event.job_id]
    if job.attempt != event.attempt or not job.missing or job.stop_cause is not None:
        return
    lost = job.missing[0]
    # The end of the attempt counts the loss of its members once more.
    job.retries = max(0, job.retries - len(job.missing))
    stop(state, job, lost.cause, f"no room for a new task in its place: {lost.message}")
