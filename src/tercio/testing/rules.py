"""The rules that never break, as checks of one cycle.

Written apart from the scheduler: nothing here reads its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobSpec, TaskGroup
from tercio.model.node import Node
from tercio.model.placement import TaskPlacement
from tercio.model.reasons import Outcome, Reason
from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.sched.cycle import schedule
from tercio.sched.plan import Plan, Start
from tercio.testing.rounds import Rounds


def capacity(_: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 1: no node and no device holds more than it has; new work only where it may go."""
    held: dict[NodeName, list[TaskPlacement]] = {}
    for job in snapshot.running.values():
        for task in job.tasks:
            held.setdefault(task.node, []).append(task)
    for start in plan.starts:
        for task in start.tasks:
            node = snapshot.nodes[task.node]
            assert node.is_placeable, f"{start.job_id} starts on {task.node}, which takes no work"
            for share in task.devices:
                device = node.spec.devices[share.index]
                assert device.healthy, start
                assert share.index not in node.spec.foreign_devices, start
            held.setdefault(task.node, []).append(task)
    for addition in plan.additions:
        for task in addition.tasks:
            assert snapshot.nodes[task.node].is_placeable, addition
            held.setdefault(task.node, []).append(task)
    for name, tasks in held.items():
        if name in snapshot.nodes:
            _check_node(snapshot.nodes[name], tasks)


def _check_node(node: Node, tasks: Iterable[TaskPlacement]) -> None:
    tasks = list(tasks)
    spec = node.spec
    if spec.cpus_milli:
        assert sum(t.cpus_milli for t in tasks) <= spec.cpus_milli, spec.name
    if spec.memory_bytes:
        assert sum(t.memory_bytes for t in tasks) <= spec.memory_bytes, spec.name
    if spec.slots is not None:
        assert len(tasks) <= spec.slots, f"{spec.name}: {len(tasks)} tasks in {spec.slots} slots"
    milli: dict[int, int] = {}
    memory: dict[int, int] = {}
    slices: dict[int, list[tuple[str, int]]] = {}
    for task in tasks:
        for share in task.devices:
            milli[share.index] = milli.get(share.index, 0) + share.milli
            memory[share.index] = memory.get(share.index, 0) + share.memory_bytes
            if share.mig_profile is not None:
                assert share.mig_start is not None
                slices.setdefault(share.index, []).append((share.mig_profile, share.mig_start))
    for index, total in milli.items():
        assert total <= 1000, f"{spec.name} device {index} holds {total} thousandths"
    for index, used in memory.items():
        assert used <= spec.devices[index].memory_bytes, f"{spec.name} device {index} memory"
    for index, instances in slices.items():
        assert len(set(instances)) == len(instances), f"{spec.name} device {index} slice twice"


def gangs(_: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 2: every start has all its tasks, group by group, numbered without gaps."""
    for start in plan.starts:
        job = waiting_of(snapshot, start.job_id)
        tasks = start.tasks
        assert [t.task for t in tasks] == list(range(len(tasks))), start
        counts: dict[int, int] = {}
        for task in tasks:
            counts[task.group] = counts.get(task.group, 0) + 1
        least, most = size_bounds(job.spec)
        assert least <= len(tasks) <= most, f"{start.job_id}: {len(tasks)} of {least}..{most}"
        flat = list(leaf_groups(job.spec))
        place = iter(range(len(flat)))
        for group in job.spec.groups:
            assert _has_enough(group, counts, place), f"{start.job_id}: {group.name} is not whole"
        if not any(g.subgroups for g in job.spec.groups):
            for at, leaf in enumerate(flat):
                count = counts.get(at, 0)
                assert leaf.tasks <= count <= max(leaf.tasks, leaf.tasks_max or 0), start


def _has_enough(group: TaskGroup, counts: Mapping[int, int], place: Iterator[int]) -> bool:
    """Whether a group has all its tasks, or enough whole subgroups and no part of another."""
    if not group.subgroups:
        return counts.get(next(place), 0) >= group.tasks
    whole = [_has_enough(sub, counts, place) for sub in group.subgroups]
    return sum(whole) >= (group.min_subgroups or len(whole))


def additions(_: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """What joins a running job has a number of its own; no elastic job passes its maximum."""
    for addition in plan.additions:
        job = snapshot.running[addition.job_id]
        tasks = (*job.tasks, *addition.tasks)
        assert not job.is_stopping, addition
        assert len({task.task for task in tasks}) == len(tasks), addition
        for at, group in enumerate(job.spec.groups):
            most = max(group.tasks, group.tasks_max or 0)
            assert sum(task.group == at for task in tasks) <= most, addition
        if addition.is_repair:
            missing = {lost.member for lost in job.missing}
            assert {task.member for task in addition.tasks} <= missing, addition


def size_bounds(spec: JobSpec) -> tuple[int, int]:
    """Smallest and largest number of tasks that a start may have."""

    def bounds(group: TaskGroup) -> tuple[int, int]:
        if not group.subgroups:
            return group.tasks, max(group.tasks, group.tasks_max or 0)
        parts = [bounds(sub) for sub in group.subgroups]
        least = sorted(low for low, _ in parts)[: group.min_subgroups or len(parts)]
        return sum(least), sum(high for _, high in parts)

    parts = [bounds(group) for group in spec.groups]
    return sum(low for low, _ in parts), sum(high for _, high in parts)


def leaf_groups(spec: JobSpec) -> Iterable[TaskGroup]:
    """Leaf groups in depth-first order."""

    def visit(group: TaskGroup) -> Iterable[TaskGroup]:
        if not group.subgroups:
            yield group
        for sub in group.subgroups:
            yield from visit(sub)

    for group in spec.groups:
        yield from visit(group)


def waiting_of(snapshot: Snapshot, job_id: JobId) -> WaitingJob:
    """The waiting job that a start belongs to."""
    return snapshot.waiting.get(job_id) or snapshot.waiting[JobId(job_id.partition(".")[0])]


def evictions_enable(_: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 4: an eviction for a job comes with that job's start or promise in the same plan."""
    served = {start.job_id for start in plan.starts}
    for promise in plan.promises:
        served.add(promise.job_id)
    for eviction in plan.evictions:
        job = snapshot.running[eviction.job_id]
        assert not job.is_stopping, f"{eviction.job_id} is told to stop twice"
        if eviction.for_job is not None:
            assert eviction.for_job in served, f"{eviction} enables nothing"


def explained(_: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Every job that waits has a decision with a reason of its own; starts are told as such."""
    started: dict[JobId, Start] = {start.job_id: start for start in plan.starts}
    for job_id in started:
        assert plan.briefs[job_id].outcome is Outcome.PLACED
    for job_id, job in snapshot.waiting.items():
        if job_id in started or (job.pending is not None and job_id not in plan.briefs):
            continue
        decision = plan.briefs[job_id]
        assert decision.outcome is Outcome.WAITING
        assert decision.reason is not Reason.READY, f"{job_id} is ready and does not start"
        assert decision.message
        if decision.reason in (Reason.NO_FREE_DEVICES, Reason.FRAGMENTED):
            assert decision.wanted, decision


def same_without_memory(rounds: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 8: a scheduler that remembers nothing comes to the same plan."""
    again = schedule(snapshot, rounds.policy, rounds.now_s, rounds.seed, None)
    assert again.starts == plan.starts, (again.starts, plan.starts)
    assert again.evictions == plan.evictions, (again.evictions, plan.evictions)
    assert again.additions == plan.additions, (again.additions, plan.additions)
    assert again.promises == plan.promises, (again.promises, plan.promises)
    assert again.wake_at_s == plan.wake_at_s
    for job_id in snapshot.waiting:
        if job_id in again.decisions:
            left, right = again.decisions[job_id], plan.decisions[job_id]
            assert left == right, f"{left}\n{right}"


ALL = (capacity, gangs, additions, evictions_enable, explained, same_without_memory)


def use_of(running: Mapping[JobId, RunningJob], queue: str) -> int:
    """Thousandths of devices that a queue and its sub-queues hold, stopping jobs left out."""
    return sum(
        share.milli
        for job in running.values()
        if (job.queue == queue or job.queue.startswith(f"{queue}/")) and not job.is_stopping
        for task in job.tasks
        for share in task.devices
    )
