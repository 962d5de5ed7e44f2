"""What people are shown: the state turned into the bodies of `model.views`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tercio.core.cluster import Cluster
from tercio.core.device_views import device_view, held_words
from tercio.core.driver import Driver
from tercio.core.ledger import NodeUse, split_by_day
from tercio.core.records import Job, Task, taken_choice
from tercio.launch.fabric import fabric_lines
from tercio.launch.gang import leaf_groups
from tercio.model.ids import JobId
from tercio.model.job import TERMINAL_JOB_STATES, IndexRange, JobSpec, JobState, TaskGroup
from tercio.model.limits import DAY_S
from tercio.model.node import Node
from tercio.model.reasons import Decision, Reason
from tercio.model.resources import MEMORY, WHOLE_DEVICE_MILLI, Amounts, DeviceShare
from tercio.model.views import (
    ArrayView,
    DeviceView,
    JobView,
    NodeView,
    Prediction,
    TaskView,
    UsageRow,
)
from tercio.sched.mig import usual_milli


def job_sites(cluster: Cluster, job: Job) -> tuple[str, ...]:
    """Return where a job's tasks are, or were; before that where they may be, () for anywhere."""
    names = dict.fromkeys(task.placement.node for task in job.live_tasks or job.tasks)
    nodes = cluster.nodes
    known = dict.fromkeys(nodes[name].spec.site for name in names if name in nodes)
    return tuple(known) or job.spec.sites


def is_at(cluster: Cluster, job: Job, site: str) -> bool:
    """Whether a job runs or ran at a site, or may start there."""
    sites = job_sites(cluster, job)
    return not sites or site in sites


def job_view(driver: Driver, job: Job, *, is_full: bool = False) -> JobView:
    """Return how a job is shown; `is_full` adds its spec and tasks."""
    decision = driver.briefs.get(job.id) if is_waiting(job) else None
    reason, message = _why(job, decision)
    if job.state is JobState.STARTING and not message:
        message = held_words(driver.cluster, job)
    live = job.live_tasks
    # An ended job shows what it held, whichever alternative that was.
    held = live or (job.tasks if job.state in TERMINAL_JOB_STATES else [])
    return JobView(
        id=job.id,
        name=job.spec.name,
        queue=job.queue,
        user=job.user,
        tenant=job.tenant,
        state=job.state.value,
        reason=reason,
        message=message,
        priority=job.spec.priority,
        attempt=job.attempt,
        task_count=len({t.placement.rank for t in job.tasks}) if live else job.spec.task_count,
        devices=held_devices(driver, held) if held else wanted_devices(job.spec),
        nodes=tuple(dict.fromkeys(task.placement.node for task in live or job.tasks)),
        submitted_s=job.submitted_s,
        started_s=job.started_s,
        ended_s=job.ended_s,
        limit_s=job.spec.time.limit_s,
        exit_code=job.exit_code,
        start=decision.start if decision else None,
        predicted_run_s=job.predicted_s,
        array=_array_view(job),
        labels=job.spec.labels,
        sites=job_sites(driver.cluster, job),
        spec=job.spec if is_full else None,
        tasks=tuple(_task_view(job, task) for task in job.tasks) if is_full else (),
        predicted=_prediction(driver, job) if is_full else None,
        fabric=_fabric(driver, job) if is_full else (),
    )


def _fabric(driver: Driver, job: Job) -> tuple[str, ...]:
    names = dict.fromkeys(task.placement.node for task in job.live_tasks)
    nodes = driver.cluster.nodes
    return fabric_lines([nodes[name].spec for name in names if name in nodes], job.spec.env)


def _prediction(driver: Driver, job: Job) -> Prediction | None:
    sized = job.spec.sized
    if sized is None:
        return None
    row = taken_choice(job, driver.cluster.nodes) or sized.choices[0]
    actual_s = ratio = None
    if job.state is JobState.SUCCEEDED and job.ended_s is not None and job.started_s is not None:
        actual_s = job.ended_s - job.started_s
        ratio = actual_s / row.expected_s if row.expected_s else None
    return Prediction(
        devices=row.devices,
        tasks=row.tasks,
        why=row.why,
        expected_s=row.expected_s,
        low_s=row.low_s,
        high_s=row.high_s,
        cost_usd=row.cost_usd,
        actual_s=actual_s,
        ratio=ratio,
        tokens_per_s=row.tokens_per_s,
        layout=row.layout,
    )


def is_waiting(job: Job) -> bool:
    """Whether the job, or an element of the array, waits."""
    return job.state in (JobState.QUEUED, JobState.HELD) or bool(job.array and job.array.pending)


def _why(job: Job, decision: Decision | None) -> tuple[str, str]:
    if decision is not None:
        return decision.reason.value, decision.message
    if job.state is JobState.HELD:
        return Reason.HELD.value, "held; release it with `tercio release`"
    if job.state is JobState.QUEUED:
        return (job.waited.value, job.waited_message) if job.waited else ("", "")
    cause = job.stop_cause or job.cause
    return (cause.value if cause else ""), job.message


def _array_view(job: Job) -> ArrayView | None:
    array, spec = job.array, job.spec.array
    if array is None or spec is None:
        return None
    waiting = sum(len(range(r.start, r.stop, r.step)) for r in array.pending)
    return ArrayView(
        size=spec.size,
        waiting=waiting + array.requeued,
        active=array.active,
        succeeded=array.succeeded,
        failed=array.failed,
        cancelled=array.cancelled,
        pending=ranges_text(array.pending),
    )


def ranges_text(ranges: Iterable[IndexRange]) -> str:
    """Return indexes as Slurm writes them.

    >>> ranges_text([IndexRange(start=0, stop=4), IndexRange(start=6, stop=11, step=2)])
    '0-3,6-10:2'
    """
    found = []
    for row in ranges:
        indexes = range(row.start, row.stop, row.step)
        if len(indexes) < 2 or (len(indexes) == 2 and row.step > 1):
            found += [str(index) for index in indexes]
        else:
            step = f":{row.step}" if row.step > 1 else ""
            found.append(f"{indexes[0]}-{indexes[-1]}{step}")
    return ",".join(found)


def _task_view(job: Job, task: Task) -> TaskView:
    placement = task.placement
    groups = leaf_groups(job.spec)
    return TaskView(
        task=placement.task,
        group=groups[placement.group].name if placement.group < len(groups) else "",
        state=task.state.value,
        node=placement.node,
        devices=tuple(share.index for share in placement.devices),
        slices=tuple(
            f"{share.index}/{share.mig_profile}"
            for share in placement.devices
            if share.mig_profile is not None
        ),
        started_s=task.started_s,
        ended_s=task.ended_s,
        exit_code=task.exit_code,
        signal=task.signal,
        message=task.message,
    )


def held_devices(driver: Driver, tasks: Iterable[Task]) -> dict[str, float]:
    """Return the devices that tasks hold, by type."""
    milli: dict[str, int] = {}
    for task in tasks:
        node = driver.cluster.nodes.get(task.placement.node)
        for share in task.placement.devices:
            known = node is not None and share.index < len(node.spec.devices)
            kind = node.spec.devices[share.index].type if node and known else "unknown"
            milli[kind] = milli.get(kind, 0) + share.milli
    return plain_devices(milli)


def wanted_devices(spec: JobSpec) -> dict[str, float]:
    """Return the devices that a job asks for at its minimum, by type, as first preferred."""
    milli: dict[str, int] = {}

    def add(group: TaskGroup) -> None:
        for sub in group.subgroups:
            add(sub)
        if group.subgroups:
            return
        first = group.per_task.devices[0]
        if first.is_none:
            return
        share = first.count * WHOLE_DEVICE_MILLI or first.share_milli or WHOLE_DEVICE_MILLI
        if first.mig_profile is not None:
            share = first.count * usual_milli(first.mig_profile)
        kind = first.type or "any"
        milli[kind] = milli.get(kind, 0) + share * group.tasks

    for group in spec.groups:
        add(group)
    return plain_devices(milli)


def plain_devices(milli: Mapping[str, int]) -> dict[str, float]:
    """Return thousandths of devices as plain numbers."""
    return {kind: amount / WHOLE_DEVICE_MILLI for kind, amount in milli.items()}


def node_view(driver: Driver, node: Node, *, is_full: bool = False) -> NodeView:
    """Return how a node is shown; `is_full` adds its devices and labels."""
    spec = node.spec
    use = driver.cluster.ledger.nodes.get(node.name, NodeUse())
    total: dict[str, int] = {}
    free: dict[str, int] = {}
    for device in spec.devices:
        taken = use.device_milli[device.index] if device.index < len(use.device_milli) else 0
        if device.index in spec.foreign_devices:
            taken = WHOLE_DEVICE_MILLI
        total[device.type] = total.get(device.type, 0) + WHOLE_DEVICE_MILLI
        left = WHOLE_DEVICE_MILLI - taken if device.healthy else 0
        free[device.type] = free.get(device.type, 0) + left
    return NodeView(
        name=node.name,
        site=spec.site,
        state=node.state.value,
        reason=node.reason,
        cordons=node.cordons,
        pool=spec.pool,
        total=plain_devices(total),
        free=plain_devices(free),
        cpus=spec.cpus_milli / 1000,
        cpus_free=(spec.cpus_milli - use.cpus_milli) / 1000,
        memory_bytes=spec.memory_bytes,
        memory_free_bytes=spec.memory_bytes - use.memory_bytes,
        labels=spec.labels if is_full else {},
        devices=_device_views(driver, node) if is_full else (),
        jobs=driver.cluster.jobs_on(node.name),
    )


def _device_views(driver: Driver, node: Node) -> tuple[DeviceView, ...]:
    shares: dict[int, list[tuple[JobId, DeviceShare]]] = {}
    for job_id in driver.cluster.jobs_on(node.name):
        for task in driver.cluster.jobs[job_id].live_tasks:
            if task.placement.node != node.name:
                continue
            for share in task.placement.devices:
                shares.setdefault(share.index, []).append((job_id, share))
    spec = node.spec
    # By seat: an engine tells when devices come free, not which of them.
    ends_s = dict(zip(spec.foreign_devices, spec.foreign_ends_s, strict=False))
    return tuple(
        device_view(
            device,
            shares.get(device.index, []),
            node.slice_fault(device.index),
            is_outside=device.index in spec.foreign_devices,
            outside_end_s=ends_s.get(device.index, 0.0),
        )
        for device in node.spec.devices
    )


def plain_amounts(amounts: Amounts) -> dict[str, float]:
    """Return quota amounts as people write them: devices and cores plain, memory in bytes."""
    is_whole = (MEMORY, "running_jobs")
    return {name: float(n) if name in is_whole else n / 1000 for name, n in amounts.items()}


def usage_rows(
    driver: Driver, *, by: str, now_s: float, since_s: float | None = None
) -> list[UsageRow]:
    """Return device time by `user` or `queue`, running attempts up to now included.

    `since_s` counts whole days (UTC) from the one it falls on.
    """
    first_day = int((since_s or 0.0) // DAY_S)
    rows: dict[str, dict[str, int]] = {}

    def add(user: str, queue: str, kind: str, ms: int) -> None:
        row = rows.setdefault(user if by == "user" else queue, {})
        row[kind] = row.get(kind, 0) + ms

    cluster = driver.cluster
    for day, users in cluster.ledger.usage_ms.items():
        if day < first_day:
            continue
        for user, queues in users.items():
            for queue, kinds in queues.items():
                for kind, ms in kinds.items():
                    add(user, queue, kind, ms)
    for job in cluster.jobs.values():
        for kind, ms in _running_ms(driver, job, first_day=first_day, now_s=now_s).items():
            add(job.user, job.queue, kind, ms)
    counts: dict[str, int] = {}
    for job in cluster.jobs.values():
        if job.attempt:
            key = job.user if by == "user" else job.queue
            counts[key] = counts.get(key, 0) + 1
    return [
        UsageRow(key=key, device_ms=dict(sorted(kinds.items())), jobs=counts.get(key, 0))
        for key, kinds in sorted(rows.items())
    ]


def _running_ms(driver: Driver, job: Job, *, first_day: int, now_s: float) -> dict[str, int]:
    if job.placed_s is None or not job.live_tasks:
        return {}
    found: dict[str, int] = {}
    for joined_s in dict.fromkeys(task.joined_s for task in job.live_tasks):
        since_s = job.placed_s if joined_s is None else joined_s
        window_ms = sum(ms for day, ms in split_by_day(since_s, now_s) if day >= first_day)
        together = [task for task in job.live_tasks if task.joined_s == joined_s]
        for kind, amount in held_devices(driver, together).items():
            found[kind] = found.get(kind, 0) + round(window_ms * amount)
    return found
