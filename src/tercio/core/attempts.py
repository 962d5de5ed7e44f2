"""One attempt of a job: placement, launch, stop, and the end of its tasks.

What follows the end of an attempt is in `core.endings`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from tercio.core import endings, members, slicing
from tercio.core.records import Job, Task
from tercio.core.saving import with_interval
from tercio.core.state import LIMIT_TIMER, REPAIR_TIMER, State, without_index
from tercio.core.transitions import TaskState
from tercio.errors import InvariantViolation
from tercio.launch.gang import leaf_groups
from tercio.launch.recipes import TaskLaunch, render
from tercio.model.effects import DeviceOrder, LaunchTask, StopTask
from tercio.model.events import (
    JobEvicted,
    JobPlaced,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
    TimeLimitReached,
)
from tercio.model.ids import EffectId, JobId, NodeName, array_parent, task_key
from tercio.model.job import EndCause, JobState
from tercio.model.node import NodeSpec
from tercio.model.resources import WHOLE_DEVICE_MILLI, DeviceShare

STOP_MARGIN_S: Final = 60.0
HUNG_GRACE_S: Final = 10.0
"""What hangs will hardly save; what it holds is needed."""
_EVICTIONS_KEPT_S: Final = 3600.0
_NOTHING: Final = TaskLaunch(task=0, command="")
"""What a task starts where orders are not carried out, see `Cluster`."""
_TOLD_CAUSES: Final = (
    EndCause.QUARANTINED,
    EndCause.DRAINED,
    EndCause.PREEMPTED,
    EndCause.HUNG,
    EndCause.IDLE,
)
"""Stops that a user did not ask for: the task's own log says why."""


def place(state: State, event: JobPlaced) -> None:
    """Hold what the placement names and order the launch of every task."""
    job = state.jobs.get(event.job_id)
    if job is None:
        job = _start_element(state, event.job_id)
    elif job.parent is not None:
        endings.count_element(state, job, requeued=-1, active=1)
    if event.attempt != job.attempt + 1:
        raise InvariantViolation(
            f"{job.id}: attempt {event.attempt} placed after {job.attempt}",
            story=state.story_of(job.id),
        )
    state.move_job(job, JobState.STARTING)
    job.attempt = event.attempt
    job.placed_s, job.started_s, job.ended_s = event.at_s, None, None
    job.stop_cause, job.cause, job.exit_code, job.message = None, None, None, ""
    job.stops_by_s, job.suspended_s, job.limit_extension_s = None, None, 0.0
    job.missing, job.grows_from_s, job.stop_ordered_s = (), None, None
    job.hang, job.idle, job.slow = None, None, ()
    job.not_before_s, job.is_backing_off = None, False
    job.tasks = []
    for placement in event.tasks:
        state.ledger.hold(state.nodes[placement.node].spec, placement)
        key = task_key(job.id, job.attempt, placement.task)
        ports = state.ledger.take_ports(placement.node, key)
        job.tasks.append(Task(placement=placement, ports=ports))
        state.jobs_by_node.setdefault(placement.node, {})[job.id] = None
        state.changed_nodes[placement.node] = None
    _charge_in_advance(state, job)
    state.starts.settle(job, event.at_s)
    state.predict(job)
    specs = {t.placement.node: state.nodes[t.placement.node].spec for t in job.tasks}
    launches: Iterable[TaskLaunch] = itertools.repeat(_NOTHING, len(job.tasks))
    if state.renders:
        launches = render(
            with_interval(job.spec, node_count=len(specs), wear=state.wear, at_s=event.at_s),
            job_id=job.id,
            attempt=job.attempt,
            tasks=event.tasks,
            nodes=specs,
            ports={task.placement.task: task.ports for task in job.tasks},
        )
    for task, launch in zip(job.tasks, launches, strict=True):
        slicing.launch(state, launch_order(state, job, task, launch, specs[task.placement.node]))
    state.refresh(job)


def _start_element(state: State, job_id: JobId) -> Job:
    """Take one waiting element out of its array, to be started."""
    job = take_element(state, job_id)
    parent = state.jobs[job.parent] if job.parent is not None else None
    if parent is None or parent.array is None:
        raise InvariantViolation(f"{job_id} was placed but is not known")
    parent.array.active += 1
    if parent.state is JobState.QUEUED:
        state.move_job(parent, JobState.RUNNING)
        parent.started_s = state.now_s
    state.refresh(parent)
    return job


def take_element(state: State, job_id: JobId) -> Job:
    """Give an element that never started a record of its own; its array counts it no more."""
    parent_id = array_parent(job_id)
    parent = state.jobs.get(parent_id) if parent_id else None
    if parent is None or parent.array is None:
        raise InvariantViolation(f"{job_id} was placed but is not known")
    index = int(job_id.rpartition(".")[2])
    parent.array.pending = without_index(parent.array.pending, index)
    job = Job(
        id=job_id,
        spec=parent.array.element,
        queue=parent.queue,
        user=parent.user,
        tenant=parent.tenant,
        submitted_s=parent.submitted_s,
        sequence=parent.sequence,
    )
    state.jobs[job_id] = job
    return job


def launch_order(
    state: State, job: Job, task: Task, launch: TaskLaunch, node: NodeSpec
) -> LaunchTask:
    """The order to start one task."""
    placement, spec = task.placement, job.spec
    return LaunchTask(
        effect_id=EffectId(f"launch:{task_key(job.id, job.attempt, placement.task)}"),
        epoch=state.epoch,
        deadline_s=state.now_s + slicing.LAUNCH_TIMEOUT_S,
        site=node.site,
        node=placement.node,
        job_id=job.id,
        attempt=job.attempt,
        task=placement.task,
        user=job.user,
        command=launch.command,
        setup=launch.setup,
        env=launch.env,
        files=launch.files,
        secrets=spec.secrets,
        workdir=spec.workdir,
        outputs=spec.outputs,
        image=spec.image,
        mounts=spec.mounts,
        devices=tuple([_device_order(node, share) for share in placement.devices]),
        cpus_milli=placement.cpus_milli,
        memory_bytes=placement.memory_bytes,
        shm_bytes=_group_shm_bytes(job, placement.group),
        ports=task.ports,
        grace_s=spec.checkpoint.grace_s,
        limit_s=spec.time.limit_s,
        duration_s=spec.time.expected_s,
    )


def _device_order(node: NodeSpec, share: DeviceShare) -> DeviceOrder:
    device = node.devices[share.index]
    return DeviceOrder(share=share, type=device.type, vendor=device.vendor, uuid=device.uuid)


def _group_shm_bytes(job: Job, group: int) -> int | None:
    groups = job.spec.groups
    if len(groups) > 1 or groups[0].subgroups:
        groups = leaf_groups(job.spec)
    return groups[group].per_task.shm_bytes if group < len(groups) else None


def _charge_in_advance(state: State, job: Job) -> None:
    """Charge the queue for the whole expected run now; `release` corrects it at the end."""
    time = job.spec.time
    job.charge_s = time.expected_s or time.limit_s or 0.0
    if not job.charge_s or state.policy.half_life_s <= 0:
        return
    state.ledger.charge(
        job.queue,
        job.charge_s * sum(_devices(task) for task in job.tasks),
        at_s=state.now_s,
        half_life_s=state.policy.half_life_s,
    )


def _devices(task: Task) -> float:
    return sum(share.milli for share in task.placement.devices) / WHOLE_DEVICE_MILLI


def started(state: State, event: TaskStarted) -> None:
    """A task runs; the job runs when all its tasks do."""
    state.close_effect(event.effect_id)
    job, task = find(state, event.job_id, event.attempt, event.task)
    if job is None or task is None or task.state is not TaskState.LAUNCHING:
        return
    state.move_task(job, task, TaskState.RUNNING)
    task.started_s = event.at_s
    _run_if_started(state, job, event.at_s)
    state.refresh(job)


def _run_if_started(state: State, job: Job, at_s: float) -> None:
    if job.state is JobState.STARTING and all(
        [t.state is TaskState.RUNNING or t.is_surplus or t.is_replaced for t in job.tasks]
    ):
        state.move_job(job, JobState.RUNNING)
        job.started_s = at_s
        if job.ends_s is not None:
            state.set_timer(job.ends_s, LIMIT_TIMER, job.id)
        endings.notify(state, job, "started")


def launch_failed(state: State, event: TaskLaunchFailed) -> None:
    """Nothing of this task runs: the attempt fails."""
    state.close_effect(event.effect_id)
    job, task = find(state, event.job_id, event.attempt, event.task)
    if job is None or task is None or not task.is_live:
        return
    cause = EndCause.NODE_FAILED if event.is_retryable else EndCause.LAUNCH_FAILED
    message = f"task {event.task} could not start on {task.placement.node}: {event.message}"
    _end_task(state, job, task, event.at_s, message=event.message)
    if task.joined_s is not None and not members.is_needed(job, task):
        # It was only to make the job larger: the others never knew of it.
        task.is_surplus = True
        job.grows_from_s = event.at_s + members.GROWTH_PAUSE_S
        _after_end(state, job, None, "")
        return
    _after_loss(state, job, task, cause, message)


def exited(state: State, event: TaskExited) -> None:
    """A task's processes are gone. A repeated or late report changes nothing."""
    job, task = find(state, event.job_id, event.attempt, event.task)
    if job is None or task is None or not task.is_live:
        return
    task.exit_code, task.signal, task.is_lost = event.exit_code, event.signal, event.is_lost
    task.marks, task.measured = event.marks, event.measured
    _end_task(state, job, task, event.at_s, message=event.message)
    is_well = event.exit_code == 0 and not event.is_lost
    if is_well or task.is_surplus:
        _after_end(state, job, None, "")
        return
    if job.exit_code is None:
        job.exit_code = event.exit_code
    cause = EndCause.NODE_FAILED if event.is_lost else EndCause.FAILED
    _after_loss(state, job, task, cause, _exit_message(event, task))


def _exit_message(event: TaskExited, task: Task) -> str:
    where = f"task {event.task} on {task.placement.node}"
    if event.is_lost:
        return f"{where} was lost" + (f": {event.message}" if event.message else "")
    how = (
        f"exited with code {event.exit_code}"
        if event.exit_code is not None
        else f"was ended by signal {event.signal}"
    )
    return f"{where} {how}" + (f": {event.message}" if event.message else "")


def _end_task(state: State, job: Job, task: Task, at_s: float, *, message: str) -> None:
    state.move_task(job, task, TaskState.ENDED)
    task.ended_s, task.message = at_s, message
    placement = task.placement
    if state.has_orders:
        key = task_key(job.id, job.attempt, placement.task)
        for kind in ("launch", "stop"):
            state.close_effect(EffectId(f"{kind}:{key}"))
    state.ledger.release(placement, task.ports)
    task.ports = ()
    placed_s = job.placed_s if job.placed_s is not None else at_s
    charge_s = job.charge_s
    if task.joined_s is not None:
        placed_s, charge_s = task.joined_s, 0.0
    node = state.nodes.get(placement.node)
    for share in placement.devices:
        known = node is not None and share.index < len(node.spec.devices)
        state.ledger.add_usage(
            user=job.user,
            tenant=job.tenant,
            queue=job.queue,
            type=node.spec.devices[share.index].type if node and known else "unknown",
            milli=share.milli,
            start_s=placed_s,
            stop_s=at_s,
        )
    if state.policy.half_life_s > 0:
        state.ledger.charge(
            job.queue,
            (at_s - placed_s - charge_s) * _devices(task),
            at_s=at_s,
            half_life_s=state.policy.half_life_s,
        )
    if len(job.tasks) == 1 or not any(
        t.is_live and t.placement.node == placement.node for t in job.tasks
    ):
        state.jobs_by_node[placement.node].pop(job.id, None)
        state.emptied_nodes.append(placement.node)
    state.changed_nodes[placement.node] = None


def _after_loss(state: State, job: Job, task: Task, cause: EndCause, message: str) -> None:
    """A member was lost: replace it alone where the job is repaired so, else stop the others."""
    if members.lose(state.now_s, job, task, cause, message):
        job.message = message
        if any(lost.member == task.placement.rank for lost in job.missing):
            state.set_timer(state.now_s + members.REPAIR_GRACE_S, REPAIR_TIMER, job.id)
        _run_if_started(state, job, state.now_s)
        state.refresh(job)
        return
    _after_end(state, job, cause, message)


def _after_end(state: State, job: Job, cause: EndCause | None, message: str) -> None:
    """A task ended, badly if there is a cause: stop the others, or end the attempt."""
    if cause is not None and job.stop_cause is None:
        stop(state, job, cause, message)
    elif not job.live_tasks:
        if job.missing and job.stop_cause is None:
            # The others are done and one never came back: the attempt is not whole.
            job.stop_cause, job.message = job.missing[0].cause, job.missing[0].message
        endings.end_attempt(state, job)
    else:
        state.refresh(job)


def stop(state: State, job: Job, cause: EndCause, message: str) -> None:
    """Stop the current attempt with grace. A cancel outranks any other cause; else the first."""
    if job.stop_cause is None or cause is EndCause.CANCELLED:
        job.stop_cause, job.message = cause, message
    if job.stop_ordered_s is None:
        job.stop_ordered_s = state.now_s
    grace_s = job.spec.checkpoint.grace_s
    if cause is EndCause.PREEMPTED:
        grace_s = min(grace_s, state.policy.preemption.grace_s)
    elif cause is EndCause.HUNG:
        grace_s = min(grace_s, HUNG_GRACE_S)
    signal = job.spec.checkpoint.signal or "SIGTERM"
    for task in job.live_tasks:
        if task.state is not TaskState.STOPPING:
            _order_stop(
                state, job, task, grace_s, "SIGTERM" if cause is EndCause.CANCELLED else signal
            )
    if job.live_tasks:
        state.move_job(job, JobState.STOPPING)
        state.refresh(job)
    else:
        endings.end_attempt(state, job)


def _order_stop(state: State, job: Job, task: Task, grace_s: float, signal: str) -> None:
    state.move_task(job, task, TaskState.STOPPING)
    placement = task.placement
    job.stops_by_s = state.now_s + grace_s
    state.issue(
        StopTask(
            effect_id=EffectId(f"stop:{task_key(job.id, job.attempt, placement.task)}"),
            epoch=state.epoch,
            deadline_s=state.now_s + grace_s + STOP_MARGIN_S,
            site=state.nodes[placement.node].spec.site,
            node=placement.node,
            job_id=job.id,
            attempt=job.attempt,
            task=placement.task,
            grace_s=grace_s,
            signal=signal,
            note=job.message if job.stop_cause in _TOLD_CAUSES else "",
        )
    )


def evict(state: State, event: JobEvicted) -> None:
    """Stop a job to free what it holds."""
    job = state.jobs[event.job_id]
    recent = tuple(at for at in job.evictions_s if at > event.at_s - _EVICTIONS_KEPT_S)
    if event.tasks:
        _give_up(state, job, event)
        return
    job.evictions_s = (*recent, event.at_s)
    stop(state, job, event.cause, event.message)


def _give_up(state: State, job: Job, event: JobEvicted) -> None:
    """Stop surplus tasks of an elastic job; the rest goes on as if they had never been."""
    grace_s = min(job.spec.checkpoint.grace_s, state.policy.preemption.grace_s)
    for task in job.live_tasks:
        if task.placement.task in event.tasks and task.state is not TaskState.STOPPING:
            task.is_surplus = True
            _order_stop(state, job, task, grace_s, "SIGTERM")
    state.refresh(job)


def is_limit_due(job: Job) -> bool:
    """Whether the time limit still stops the attempt: it runs, and nothing stops it already."""
    return job.suspended_s is None and job.stop_cause is None and bool(job.live_tasks)


def limit_reached(state: State, event: TimeLimitReached) -> None:
    """Stop an attempt that used up its time."""
    job = state.jobs[event.job_id]
    if job.attempt == event.attempt and job.live_tasks and job.stop_cause is None:
        stop(state, job, EndCause.TIME_LIMIT, "time limit reached")


def lose_tasks(state: State, node: NodeName, at_s: float, reason: str) -> None:
    """Take every live task on a fenced or removed node as ended by the node's fault."""
    for job_id in state.jobs_on(node):
        job = state.jobs[job_id]
        for task in job.live_tasks:
            if task.placement.node == node:
                exited(
                    state,
                    TaskExited(
                        at_s=at_s,
                        job_id=job.id,
                        attempt=job.attempt,
                        task=task.placement.task,
                        is_lost=True,
                        message=reason,
                    ),
                )


def find(state: State, job_id: JobId, attempt: int, task: int) -> tuple[Job | None, Task | None]:
    """Return the job and task that a report is about, or None for one that is over."""
    job = state.jobs.get(job_id)
    if job is None or job.attempt != attempt:
        return job, None
    for candidate in job.tasks:
        if candidate.placement.task == task:
            return job, candidate
    return job, None
