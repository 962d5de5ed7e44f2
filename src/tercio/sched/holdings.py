"""What running jobs hold: columns, queues and indexes, changed job by job."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import Final

import msgspec

from tercio.model.ids import JobId, QueuePath
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI, Amounts
from tercio.model.snapshot import RunningJob
from tercio.sched.fairshare import RUNNING_JOBS, QueueTree
from tercio.sched.owners import owner_of
from tercio.sched.table import UNLIMITED, Table

_MANY_ENDS: Final = 256
"""From so many new ends on, all are sorted again."""


def is_below_most(job: RunningJob) -> bool:
    """Whether an elastic job runs with fewer tasks than it may have, and nothing else is up."""
    groups = job.spec.groups
    if len(groups) == 1 and groups[0].tasks_max is None:
        return False
    if job.is_stopping or job.stopping_tasks or job.missing:
        return False
    if job.grows_from_s == math.inf or all(group.tasks_max is None for group in groups):
        return False
    if any(group.subgroups for group in groups):
        return False
    counts = [0] * len(groups)
    for task in job.tasks:
        counts[task.group] += 1
    return any(count < (g.tasks_max or 0) for count, g in zip(counts, groups, strict=True))


def surplus_tasks(job: RunningJob) -> frozenset[int]:
    """Tasks of an elastic job above its minimum: the last ones of each elastic group."""
    spec = job.spec
    if all(g.tasks_max is None for g in spec.groups) or any(g.subgroups for g in spec.groups):
        return frozenset()
    found: list[int] = []
    for at, group in enumerate(spec.groups):
        tasks = [t.task for t in job.tasks if t.group == at and t.task not in job.stopping_tasks]
        found += tasks[group.tasks :]
    return frozenset(found)


class Holdings:
    """The running side of a memory.

    Attributes:
        policy: in force.
        table, tree: columns and queues, with the starts of the cycle in them.
        running: jobs by id; `by_queue` the same by queue, `stopping` those told to stop,
            `broken` those that miss members, `elastic` those that may grow.
        held: quota amounts of each running job.
        planned: jobs that the cycle did something to; the next snapshot decides about them.
        version: grows with every change.
        roster: grows when a running job ends or becomes another, and not with starts.
        entitlement_stale: whether shares must be computed again.
    """

    now_s: float

    def _reset_holdings(self, policy: Policy) -> None:
        share = policy.default_share
        self.policy = policy
        self.table = Table(
            policy.topology, share.cpus_milli_per_device, share.memory_bytes_per_device
        )
        self.tree = QueueTree(policy)
        self.running: dict[JobId, RunningJob] = {}
        self.held: dict[JobId, Amounts] = {}
        self.by_queue: dict[QueuePath, dict[JobId, RunningJob]] = {}
        self.stopping: dict[JobId, None] = {}
        self.broken: dict[JobId, None] = {}
        self.elastic: dict[JobId, None] = {}
        self._ends: list[tuple[float, JobId]] = []
        self._end_of: dict[JobId, float] = {}
        self._late_ends: dict[JobId, None] = {}
        self.planned: list[JobId] = []
        self.entitlement_stale = True
        self.version = 0
        self.roster = 0
        self._priorities: dict[QueuePath, dict[int, int]] = {}
        self._capacity_version = -1
        self._capacity: Amounts = {}

    def add_running(
        self, job: RunningJob, amounts: Amounts | None = None, *, wanted: Amounts | None = None
    ) -> None:
        """Take what a job holds: `amounts`, when a statement has taken and charged it already.

        `wanted` is what it still counts as wanting since it waited.
        """
        is_placed = amounts is not None
        if amounts is None:
            amounts = self.held_amounts(job.tasks)
        self.running[job.job_id] = job
        self.held[job.job_id] = amounts
        self._late_ends[job.job_id] = None
        node = self.tree.at(job.queue)
        if not is_placed:
            for task in job.tasks:
                row = self.table.row_of.get(task.node)
                if row is not None:
                    self.table.hold(row, job.job_id, task)
            node.charge(owner_of(job), amounts, is_firm=not job.is_preemptible, sign=+1)
        self.tree.owners.run(job, sign=+1)
        if wanted is not None and wanted != amounts:
            node.want(wanted, -1)
        if wanted is None or wanted != amounts:
            node.want(amounts, +1)
        self.by_queue.setdefault(job.queue, {})[job.job_id] = job
        self._count_priority(job, +1)
        if job.is_stopping or job.stopping_tasks:
            node.leave(self._leaving_amounts(job), +1)
            self.stopping[job.job_id] = None
        if job.missing:
            self.broken[job.job_id] = None
        if is_below_most(job):
            self.elastic[job.job_id] = None
        self.version += 1
        self.entitlement_stale = True

    def renew_running(self, old: RunningJob, job: RunningJob) -> bool:
        """Take another view of a running job that holds and may do the same; else False."""
        is_same = (
            old.tasks == job.tasks
            and old.spec is job.spec
            and (old.queue, old.user, old.tenant, old.priority, old.is_preemptible)
            == (job.queue, job.user, job.tenant, job.priority, job.is_preemptible)
            and not (old.is_stopping or old.stopping_tasks or old.missing)
            and not (job.is_stopping or job.stopping_tasks or job.missing)
            and old.grows_from_s == job.grows_from_s
        )
        if is_same:
            self.running[job.job_id] = self.by_queue[job.queue][job.job_id] = job
            self._late_ends[job.job_id] = None
            self.tree.owners.run(old, sign=-1)
            self.tree.owners.run(job, sign=+1)
            self.version += 1
            self.roster += 1
        return is_same

    def remove_running(self, job: RunningJob) -> None:
        """Give back everything a job holds."""
        leaves = bool(job.is_stopping or job.stopping_tasks)
        leaving = self._leaving_amounts(job) if leaves else {}
        amounts = self.held.pop(job.job_id)
        del self.running[job.job_id]
        self._drop_end(job.job_id)
        for task in job.tasks:
            row = self.table.row_of.get(task.node)
            if row is not None:
                self.table.release(row, job.job_id, task)
        node = self.tree.at(job.queue)
        node.charge(owner_of(job), amounts, is_firm=not job.is_preemptible, sign=-1)
        self.tree.owners.run(job, sign=-1)
        node.want(amounts, -1)
        del self.by_queue[job.queue][job.job_id]
        self._count_priority(job, -1)
        if leaves:
            node.leave(leaving, -1)
            del self.stopping[job.job_id]
        self.broken.pop(job.job_id, None)
        self.elastic.pop(job.job_id, None)
        self.version += 1
        self.roster += 1
        self.entitlement_stale = True

    def held_amounts(self, tasks: Iterable[TaskPlacement]) -> Amounts:
        """Exact quota amounts of placed tasks."""
        amounts: Amounts = {RUNNING_JOBS: 1}
        cpus = memory = milli = 0
        table = self.table
        for task in tasks:
            cpus += task.cpus_milli
            memory += task.memory_bytes
            row = table.row_of.get(task.node)
            devices = () if row is None else table.nodes[row].spec.devices
            for share in task.devices:
                name = devices[share.index].type if share.index < len(devices) else "unknown"
                amounts[name] = amounts.get(name, 0) + share.milli
                milli += share.milli
            amounts[CPUS], amounts[MEMORY] = cpus, memory
        if milli:
            amounts[DEVICES] = milli
        return amounts

    def end_of(self, job_id: JobId) -> float:
        """Instant by which what the job holds is free, infinity when nothing says so."""
        job = self.running.get(job_id)
        if job is None:
            return float("inf")
        if job.is_stopping and job.stops_by_s is not None:
            return job.stops_by_s
        if job.expected_end_s is not None and job.expected_end_s > self.now_s:
            return job.expected_end_s
        return job.ends_s if job.ends_s is not None else float("inf")

    def ends(self) -> list[tuple[float, JobId]]:
        """Known ends of running jobs in order; costs what changed since the last look."""
        for end_s, job_id in self._ends:
            if end_s > self.now_s:
                break
            self._late_ends[job_id] = None  # an expected end that has passed is none
        changed = list(self._late_ends)
        for job_id in changed:
            self._drop_end(job_id)
        self._late_ends.clear()
        fresh = [(self.end_of(job_id), job_id) for job_id in changed if job_id in self.running]
        fresh = [pair for pair in fresh if math.isfinite(pair[0])]
        self._end_of.update((job_id, end_s) for end_s, job_id in fresh)
        if len(fresh) > _MANY_ENDS:
            self._ends = sorted(self._ends + fresh)
        else:
            for pair in fresh:
                bisect.insort(self._ends, pair)
        return self._ends

    def _drop_end(self, job_id: JobId) -> None:
        self._late_ends.pop(job_id, None)
        end_s = self._end_of.pop(job_id, None)
        if end_s is not None:
            del self._ends[bisect.bisect_left(self._ends, (end_s, job_id))]

    def _leaving_amounts(self, job: RunningJob) -> Amounts:
        if job.is_stopping:
            return self.held[job.job_id]
        amounts = self.held_amounts(t for t in job.tasks if t.task in job.stopping_tasks)
        del amounts[RUNNING_JOBS]
        return amounts

    def order_to_stop(self, job_id: JobId, by_s: float, tasks: tuple[int, ...] = ()) -> None:
        """Count a job, or some tasks of it, as leaving: they were told to stop in this cycle."""
        job = self.running[job_id]
        self.remove_running(job)
        changed = (
            msgspec.structs.replace(
                job, stopping_tasks=(*job.stopping_tasks, *tasks), stops_by_s=by_s
            )
            if tasks
            else msgspec.structs.replace(job, is_stopping=True, stops_by_s=by_s)
        )
        self.add_running(changed)
        self.planned.append(job_id)

    def join(self, job_id: JobId, tasks: tuple[TaskPlacement, ...]) -> None:
        """Take what tasks hold that join a running job in this cycle."""
        job = self.running[job_id]
        self.remove_running(job)
        members = {task.member for task in tasks}
        self.add_running(
            msgspec.structs.replace(
                job,
                tasks=(*job.tasks, *tasks),
                missing=tuple(lost for lost in job.missing if lost.member not in members),
                next_task=tasks[-1].task + 1,
            )
        )
        self.planned.append(job_id)

    def lowest_priority(self, queue: QueuePath) -> int:
        """Lowest priority that a job of the queue must exceed to stop something in it.

        That of a preemptible running job; one less where it has surplus tasks, which yield to
        equals.
        """
        return min(self._priorities.get(queue, {}), default=1 << 30)

    def _count_priority(self, job: RunningJob, sign: int) -> None:
        if job.is_preemptible:
            counts = self._priorities.setdefault(job.queue, {})
            groups = job.spec.groups
            is_plain = len(groups) == 1 and groups[0].tasks_max is None
            bar = job.priority if is_plain else job.priority - bool(surplus_tasks(job))
            counts[bar] = counts.get(bar, 0) + sign
            if not counts[bar]:
                del counts[bar]

    def capacity(self) -> Amounts:
        """Quota amounts of all nodes that take work, by resource."""
        table = self.table
        if self._capacity_version == table.facts_version:
            return self._capacity
        total: Amounts = {CPUS: 0, MEMORY: 0, DEVICES: 0}
        for node in table.nodes:
            if not node.is_placeable:
                continue
            spec = node.spec
            total[CPUS] += spec.cpus_milli or UNLIMITED
            total[MEMORY] += spec.memory_bytes or UNLIMITED << 20
            for device in spec.devices:
                if device.healthy and device.index not in spec.foreign_devices:
                    total[device.type] = total.get(device.type, 0) + WHOLE_DEVICE_MILLI
                    total[DEVICES] += WHOLE_DEVICE_MILLI
        self._capacity, self._capacity_version = total, table.facts_version
        return total

    def entitle(self) -> None:
        """Recompute entitlements if use, demand or capacity changed."""
        if self.entitlement_stale:
            self.tree.entitle(self.capacity())
            self.entitlement_stale = False
