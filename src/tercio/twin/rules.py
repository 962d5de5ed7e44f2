"""The rules that never break, as checks of one cycle: snapshot in, plan out.

Written apart from the scheduler: nothing here reads its columns.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tercio.errors import InvariantViolation
from tercio.model.expression import compile_match
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import JobSpec, NodeFilter, TaskGroup
from tercio.model.node import Node, NodeSpec
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy, walk_queues
from tercio.model.reasons import Outcome, Reason
from tercio.model.resources import DEVICES, WHOLE_DEVICE_MILLI
from tercio.model.snapshot import Snapshot, WaitingJob
from tercio.sched.classes import ClassKey, class_key
from tercio.sched.cycle import schedule
from tercio.sched.plan import Plan

Rule = Callable[[Snapshot, Plan], None]


class RuleBroken(InvariantViolation, AssertionError):
    """A plan breaks a rule."""


def must(is_kept: object, message: object) -> None:
    """Raise `RuleBroken` unless the rule is kept."""
    if not is_kept:
        raise RuleBroken(str(message))


def capacity(snapshot: Snapshot, plan: Plan) -> None:
    """Rule 1: no node and no device holds more than it has; new work only where it may go."""
    held: dict[NodeName, list[TaskPlacement]] = {}
    for job in snapshot.running.values():
        for task in job.tasks:
            held.setdefault(task.node, []).append(task)
    for start in plan.starts:
        for task in start.tasks:
            node = snapshot.nodes[task.node]
            must(node.is_placeable, f"{start.job_id} starts on {task.node}, which takes no work")
            for share in task.devices:
                must(node.spec.devices[share.index].healthy, f"sick device: {start}")
                must(share.index not in node.spec.foreign_devices, f"foreign device: {start}")
            held.setdefault(task.node, []).append(task)
    for addition in plan.additions:
        for task in addition.tasks:
            must(snapshot.nodes[task.node].is_placeable, addition)
            held.setdefault(task.node, []).append(task)
    for name, tasks in held.items():
        if name in snapshot.nodes:
            _check_node(snapshot.nodes[name], tasks)


def _check_node(node: Node, tasks: list[TaskPlacement]) -> None:
    spec = node.spec
    cpus, memory_bytes = sum(t.cpus_milli for t in tasks), sum(t.memory_bytes for t in tasks)
    must(not spec.cpus_milli or cpus <= spec.cpus_milli, f"{spec.name}: {cpus} cores")
    must(
        not spec.memory_bytes or memory_bytes <= spec.memory_bytes,
        f"{spec.name}: {memory_bytes} bytes",
    )
    must(spec.slots is None or len(tasks) <= spec.slots, f"{spec.name}: {len(tasks)} tasks")
    milli: dict[int, int] = {}
    memory: dict[int, int] = {}
    slices: dict[int, list[int]] = {}
    for task in tasks:
        for share in task.devices:
            milli[share.index] = milli.get(share.index, 0) + share.milli
            memory[share.index] = memory.get(share.index, 0) + share.memory_bytes
            slices.setdefault(share.index, []).append(share.slice_bits)
    for index, total in milli.items():
        must(total <= WHOLE_DEVICE_MILLI, f"{spec.name} device {index} holds {total} thousandths")
    for index, used in memory.items():
        must(used <= spec.devices[index].memory_bytes, f"{spec.name} device {index}: memory")
    for index, held in slices.items():
        must(all(held) or not any(held), f"{spec.name} device {index} is whole and cut")
        union = functools.reduce(operator.or_, held)
        must(sum(held) == union, f"{spec.name} device {index}: slices overlap")


def places(snapshot: Snapshot, plan: Plan) -> None:
    """No job goes where its file does not let it, over two sites, or as a gang on a trial node."""
    for job_id, tasks in _joining(plan):
        running = snapshot.running.get(job_id)
        job = running or waiting_of(snapshot, job_id)
        spec = job.spec
        names = [task.node for task in (*(running.tasks if running else ()), *tasks)]
        sites = {snapshot.nodes[name].spec.site for name in names if name in snapshot.nodes}
        must(len(sites) == 1, f"{job_id} is to run on the sites {sorted(sites)}")
        must(not spec.sites or sites <= set(spec.sites), f"{job_id} may not run on {sites}")
        allows = spec.nodes or NodeFilter()
        matcher = compile_match(allows.match) if allows.match else None
        for task in tasks:
            node, is_small = snapshot.nodes[task.node], size_bounds(spec) == (1, 1)
            is_let = (matcher is None or matcher.matches(node.spec)) and (
                task.node not in allows.exclude
            )
            must(is_let, f"{job_id} may not run on {task.node}: {allows}")
            must(
                spec.image is None or node.spec.runs_images,
                f"{job_id} has an image, and {task.node} runs none",
            )
            is_fit = not node.trial or (is_small and job.is_preemptible)
            must(is_fit, f"{job_id} is too much for {task.node}, which is on {node.trial}")


def gangs(snapshot: Snapshot, plan: Plan) -> None:
    """Rule 2: every start has all its tasks, group by group, numbered without gaps."""
    for start in plan.starts:
        job = waiting_of(snapshot, start.job_id)
        tasks = start.tasks
        must([t.task for t in tasks] == list(range(len(tasks))), start)
        counts: dict[int, int] = {}
        for task in tasks:
            counts[task.group] = counts.get(task.group, 0) + 1
        least, most = size_bounds(job.spec)
        must(least <= len(tasks) <= most, f"{start.job_id}: {len(tasks)} of {least}..{most}")
        place = iter(range(len(list(leaf_groups(job.spec)))))
        for group in job.spec.groups:
            must(_has_enough(group, counts, place), f"{start.job_id}: {group.name} is not whole")
        if not any(g.subgroups for g in job.spec.groups):
            for at, leaf in enumerate(leaf_groups(job.spec)):
                count = counts.get(at, 0)
                must(leaf.tasks <= count <= max(leaf.tasks, leaf.tasks_max or 0), start)


def _has_enough(group: TaskGroup, counts: Mapping[int, int], place: Iterator[int]) -> bool:
    """Whether a group has all its tasks, or enough whole subgroups and no part of another."""
    if not group.subgroups:
        return counts.get(next(place), 0) >= group.tasks
    whole = [_has_enough(sub, counts, place) for sub in group.subgroups]
    return sum(whole) >= (group.min_subgroups or len(whole))


def additions(snapshot: Snapshot, plan: Plan) -> None:
    """What joins a running job has a number of its own; no elastic job passes its maximum."""
    for addition in plan.additions:
        job = snapshot.running[addition.job_id]
        tasks = (*job.tasks, *addition.tasks)
        must(not job.is_stopping, addition)
        must(len({task.task for task in tasks}) == len(tasks), addition)
        for at, group in enumerate(job.spec.groups):
            most = max(group.tasks, group.tasks_max or 0)
            must(sum(task.group == at for task in tasks) <= most, addition)
        if addition.is_repair:
            missing = {lost.member for lost in job.missing}
            must({task.member for task in addition.tasks} <= missing, addition)


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


def evictions_enable(snapshot: Snapshot, plan: Plan) -> None:
    """Rule 4: an eviction for a job comes with that job's start or promise in the same plan."""
    served = {start.job_id for start in plan.starts}
    served |= {promise.job_id for promise in plan.promises}
    for eviction in plan.evictions:
        job = snapshot.running[eviction.job_id]
        must(not job.is_stopping, f"{eviction.job_id} is told to stop twice")
        if eviction.for_job is not None:
            must(eviction.for_job in served, f"{eviction} enables nothing")


def started_once(snapshot: Snapshot, plan: Plan) -> None:
    """No job is started twice in a plan, and none that runs."""
    seen: dict[JobId, None] = {}
    for start in plan.starts:
        must(start.job_id not in seen, f"{start.job_id} is started twice")
        must(start.job_id not in snapshot.running, f"{start.job_id} runs and is started")
        seen[start.job_id] = None


def in_turn(snapshot: Snapshot, plan: Plan) -> None:
    """Of jobs that no rule tells apart, the earlier submit starts first.

    Except by a promise of an earlier cycle, which may be older than the wait of the other, and by
    the elastic policy, which may find a place at one size and none at another.
    """
    started = {start.job_id: None for start in plan.starts}
    last: dict[tuple[ClassKey, float | None], tuple[float, int]] = {}
    for start in plan.starts:
        job = snapshot.waiting.get(start.job_id)
        if job is not None and not job.is_repair and start.label not in ("reserved", "elastic"):
            key = _kind(job)
            last[key] = max(last.get(key, (0.0, 0)), (job.submitted_s, job.sequence))
    if not last:
        return
    gated = {promise.job_id for promise in plan.promises}
    for job_id, job in snapshot.waiting.items():
        bar = last.get(_kind(job))
        if bar is None or job_id in started or job_id in gated or job.pending is not None:
            continue
        is_open = not (job.is_held or job.blocked_on or job.not_before_s is not None)
        is_passed = is_open and (job.submitted_s, job.sequence) < bar
        must(not is_passed, f"a later job like {job_id} started before it")


def _kind(job: WaitingJob) -> tuple[ClassKey, float | None]:
    """What makes jobs alike at all times: flexible ones also give way until the same hour."""
    return class_key(job, float("inf")), job.cheaper.from_s if job.cheaper else None


def explained(snapshot: Snapshot, plan: Plan) -> None:
    """Every job that waits has a decision with a reason of its own; starts are told as such."""
    started = {start.job_id: start for start in plan.starts}
    for job_id in started:
        outcome = plan.briefs[job_id].outcome
        must(outcome is Outcome.PLACED, f"{job_id} starts and is told to wait")
    for job_id, job in snapshot.waiting.items():
        if job_id in started or (job.pending is not None and job_id not in plan.briefs):
            continue
        decision = plan.briefs[job_id]
        must(decision.outcome is Outcome.WAITING, f"{job_id} waits and is told to start")
        must(decision.reason is not Reason.READY, f"{job_id} is ready and does not start")
        must(decision.message, f"{job_id} waits without a word")
        if decision.reason in (Reason.NO_FREE_DEVICES, Reason.FRAGMENTED):
            must(decision.wanted, decision)


def power(snapshot: Snapshot, plan: Plan, policy: Policy) -> None:
    """Nothing starts that draws more where the devices in use then draw more than a budget allows.

    A share of a device in use draws nothing more: a budget set below what runs does not bar it.
    """
    for budget in policy.budgets:
        inside = {
            name: node.spec
            for name, node in snapshot.nodes.items()
            if budget.domain in (name, node.spec.site, *node.spec.labels.values())
        }
        used = _devices_of((t for j in snapshot.running.values() for t in j.tasks), inside)
        new = _devices_of(_placed(plan), inside) - used
        if new:
            used |= new
            drawn_w = sum(snapshot.nodes[name].ceiling_w(index) for name, index in sorted(used))
            must(drawn_w <= budget.power_w, f"{budget.domain} may draw {drawn_w} W")


def limits(snapshot: Snapshot, plan: Plan, policy: Policy) -> None:
    """No start takes a queue beyond its limit."""
    starts = [(_queue_of(snapshot, job_id), tasks) for job_id, tasks in _joining(plan)]
    for path, queue in walk_queues(policy).items():
        if not queue.limit or not any(_is_below(at, path) for at, _ in starts):
            continue
        held = [job.tasks for job in snapshot.running.values() if _is_below(job.queue, path)]
        held += [tasks for at, tasks in starts if _is_below(at, path)]
        total = sum(
            share.milli for tasks in held for task in tasks for share in task.devices
            if task.node in snapshot.nodes
        )  # fmt: skip
        most = queue.limit.get(DEVICES, total)
        must(total <= most, f"queue {path} holds {total} of {most} thousandths")


def _joining(plan: Plan) -> Iterator[tuple[JobId, tuple[TaskPlacement, ...]]]:
    yield from ((start.job_id, start.tasks) for start in plan.starts)
    yield from ((addition.job_id, addition.tasks) for addition in plan.additions)


def _placed(plan: Plan) -> Iterator[TaskPlacement]:
    return (task for _, tasks in _joining(plan) for task in tasks)


def _devices_of(
    tasks: Iterable[TaskPlacement], nodes: Mapping[NodeName, NodeSpec]
) -> set[tuple[NodeName, int]]:
    return {(t.node, share.index) for t in tasks if t.node in nodes for share in t.devices}


def _queue_of(snapshot: Snapshot, job_id: JobId) -> QueuePath:
    job = snapshot.running.get(job_id)
    return waiting_of(snapshot, job_id).queue if job is None else job.queue


def _is_below(queue: QueuePath, path: QueuePath) -> bool:
    return f"{queue}/".startswith(f"{path}/")


UNDER_POLICY: Final[tuple[Callable[[Snapshot, Plan, Policy], None], ...]] = (power, limits)
ALWAYS: Final[tuple[Rule, ...]] = (
    capacity, places, gangs, additions, evictions_enable, started_once, in_turn, explained,
)  # fmt: skip


def same_without_memory(
    snapshot: Snapshot, plan: Plan, policy: Policy, now_s: float, seed: int
) -> None:
    """Rule 8: a scheduler that remembers nothing comes to the same plan."""
    again = schedule(snapshot, policy, now_s, seed, None)
    must(again.starts == plan.starts, (again.starts, plan.starts))
    must(again.evictions == plan.evictions, (again.evictions, plan.evictions))
    must(again.additions == plan.additions, (again.additions, plan.additions))
    must(again.promises == plan.promises, (again.promises, plan.promises))
    must(again.wake_at_s == plan.wake_at_s, (again.wake_at_s, plan.wake_at_s))
    for job_id in snapshot.waiting:
        if job_id in again.decisions:
            left, right = again.decisions[job_id], plan.decisions[job_id]
            must(left == right, f"{left}\n{right}")
