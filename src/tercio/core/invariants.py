"""What must hold in every state. Checked after every step in tests and in the twin."""

from __future__ import annotations

from tercio.core.cluster import Cluster
from tercio.core.ledger import NodeUse
from tercio.core.records import Job
from tercio.errors import InvariantViolation
from tercio.model.effects import LaunchTask, ReconfigureDevice, StopTask
from tercio.model.ids import NodeName
from tercio.model.job import ACTIVE_JOB_STATES, TERMINAL_JOB_STATES, JobState
from tercio.model.resources import WHOLE_DEVICE_MILLI


def check(cluster: Cluster) -> None:
    """Check everything; O(jobs + nodes).

    Raises:
        InvariantViolation: naming the object, with its recent moves.
    """
    held: dict[NodeName, NodeUse] = {}
    for job in cluster.jobs.values():
        _check_job(cluster, job)
        _sum_holdings(cluster, job, held)
    _check_ledger(cluster, held)
    _check_effects(cluster)
    _check_held(cluster)


def _fail(cluster: Cluster, subject: str, message: str) -> None:
    raise InvariantViolation(f"{subject}: {message}", story=cluster.story_of(subject))


def _check_job(cluster: Cluster, job: Job) -> None:
    live = job.live_tasks
    if job.array is not None:
        if live:
            _fail(cluster, job.id, "an array holds tasks of its own")
        _check_array(cluster, job)
        return
    if job.state in ACTIVE_JOB_STATES and not live:
        _fail(cluster, job.id, f"is {job.state.value} without a live task")
    if job.state not in ACTIVE_JOB_STATES and live:
        _fail(cluster, job.id, f"is {job.state.value} and holds {len(live)} tasks")
    if (job.state is JobState.STOPPING) != (job.stop_cause is not None):
        _fail(cluster, job.id, f"is {job.state.value} with stop cause {job.stop_cause}")
    if job.state in TERMINAL_JOB_STATES and job.ended_s is None:
        _fail(cluster, job.id, "has ended without an end time")
    if job.state is JobState.HELD and not job.is_held:
        _fail(cluster, job.id, "is held by nobody")


def _check_array(cluster: Cluster, job: Job) -> None:
    array, spec = job.array, job.spec.array
    if array is None or spec is None:
        return
    pending = sum(len(range(r.start, r.stop, r.step)) for r in array.pending)
    parts = (array.active, array.requeued, array.succeeded, array.failed, array.cancelled)
    if pending + sum(parts) != spec.size or min(parts) < 0:
        _fail(cluster, job.id, f"counts {pending} + {parts} elements of {spec.size}")


def _sum_holdings(cluster: Cluster, job: Job, held: dict[NodeName, NodeUse]) -> None:
    for task in job.live_tasks:
        placement = task.placement
        use = held.setdefault(placement.node, NodeUse())
        for share in placement.devices:
            missing = share.index + 1 - len(use.device_milli)
            use.device_milli += [0] * missing
            use.device_memory_bytes += [0] * missing
            use.device_slices += [0] * missing
            if use.device_slices[share.index] & share.slice_bits:
                _fail(cluster, job.id, f"a slice of {placement.node}/{share.index} is held twice")
            if use.device_milli[share.index] and bool(use.device_slices[share.index]) != bool(
                share.slice_bits
            ):
                _fail(cluster, job.id, f"{placement.node}/{share.index} is held whole and cut")
            use.device_slices[share.index] |= share.slice_bits
            use.device_milli[share.index] += share.milli
            use.device_memory_bytes[share.index] += share.memory_bytes
            if use.device_milli[share.index] > WHOLE_DEVICE_MILLI:
                _fail(cluster, job.id, f"device {share.index} of {placement.node} is held twice")
        use.cpus_milli += placement.cpus_milli
        use.memory_bytes += placement.memory_bytes
        use.task_count += 1
        for port in task.ports:
            if port in use.ports:
                _fail(cluster, job.id, f"port {port} of {placement.node} is given twice")
            use.ports[port] = job.id


def _check_ledger(cluster: Cluster, held: dict[NodeName, NodeUse]) -> None:
    for name, use in cluster.ledger.nodes.items():
        want = held.get(name, NodeUse())
        have = (use.cpus_milli, use.memory_bytes, use.task_count, len(use.ports))
        if have != (want.cpus_milli, want.memory_bytes, want.task_count, len(want.ports)):
            _fail(cluster, name, "the ledger differs from what the tasks hold")
        for index, milli in enumerate(use.device_milli):
            if milli != (want.device_milli[index] if index < len(want.device_milli) else 0):
                _fail(cluster, name, f"the ledger of device {index} differs from its tasks")
        for index, bits in enumerate(use.device_slices):
            if bits != (want.device_slices[index] if index < len(want.device_slices) else 0):
                _fail(cluster, name, f"the ledger of device {index}'s slices differs")
    for name in held:
        if name not in cluster.ledger.nodes:
            _fail(cluster, name, "tasks hold what the ledger does not know")


def _check_held(cluster: Cluster) -> None:
    """Every held launch is of a live task, and something is under way that will free it."""
    shaping = {
        (effect.node, effect.index)
        for effect in cluster.open_effects.values()
        if isinstance(effect, ReconfigureDevice)
    }
    for order in cluster.held_launches.values():
        job, node = cluster.jobs.get(order.job_id), cluster.nodes.get(order.node)
        if job is None or job.attempt != order.attempt or not job.live_tasks:
            _fail(cluster, order.job_id, f"{order.effect_id} is held for an attempt that is over")
        for held in order.devices:
            fault = node.slice_fault(held.share.index) if node is not None else None
            is_paused = fault is not None and fault.until_s is not None
            if is_paused or (order.node, held.share.index) in shaping:
                break
        else:
            _fail(cluster, order.job_id, f"{order.effect_id} is held for nothing")


def _check_effects(cluster: Cluster) -> None:
    for effect in cluster.open_effects.values():
        if not isinstance(effect, (LaunchTask, StopTask)):
            continue
        job = cluster.jobs.get(effect.job_id)
        if job is None or job.attempt != effect.attempt or not job.live_tasks:
            _fail(cluster, effect.job_id, f"{effect.effect_id} is open for an attempt that is over")
