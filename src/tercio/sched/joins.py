"""Tasks that join running jobs: replacements of lost members, and growth of elastic jobs.

A replacement comes before anything new and stays where the topology of its job allows it, near
the others if it can. Growth comes last: only devices of a pool for which nobody waits, and none
that are promised.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy
from tercio.model.reasons import Reason
from tercio.model.snapshot import RunningJob
from tercio.model.topology import ISLAND, NODE, SITE, TopologyRequest
from tercio.sched.fairshare import RUNNING_JOBS
from tercio.sched.gang import Gang, Room
from tercio.sched.ground import place_on, tenant_of
from tercio.sched.memory import Memory
from tercio.sched.need import ANY, Branch, Leaf, Mode, Need, Shape, task_amounts
from tercio.sched.owners import owner_of
from tercio.sched.plan import Addition
from tercio.sched.power import Budgets
from tercio.sched.statement import Statement
from tercio.sched.table import Flags
from tercio.sched.verdict import CAPACITY_REASONS

_WAITS_FOR_DEVICES = CAPACITY_REASONS | {
    Reason.WAITING_FOR_SHARE,
    Reason.ORDER,
    Reason.POWER,
    Reason.HEALTH,
    Reason.SEARCH_BUDGET,
}
"""Reasons under which a waiting job could use what comes free."""


class Joins:
    """Finds places for tasks that join running jobs, and takes them in the memory.

    Attributes:
        wakes: instants at which another try makes sense.
    """

    def __init__(self, memory: Memory, policy: Policy, now_s: float) -> None:
        self.memory = memory
        self.policy = policy
        self.now_s = now_s
        self.wakes: list[float] = []
        self._is_divided = policy.elastic is not None
        self._budgets = Budgets(memory)

    def replace_missing(self) -> list[Addition]:
        """Put new tasks in the place of lost members, larger priorities and older jobs first."""
        memory = self.memory
        jobs = [memory.running[job_id] for job_id in memory.broken]
        jobs.sort(key=lambda job: (-job.priority, job.placed_s, job.sequence, job.job_id))
        found: list[Addition] = []
        for job in jobs:
            tasks: list[TaskPlacement] = []
            for lost in job.missing:
                if lost.not_before_s is not None and lost.not_before_s > self.now_s:
                    self.wakes.append(lost.not_before_s)
                    continue
                placed = self._place(memory.running[job.job_id], lost.group, 1)
                if not placed:
                    continue
                task = msgspec.structs.replace(placed[0], member=lost.member)
                memory.join(job.job_id, (task,))
                tasks.append(task)
            if tasks:
                found.append(Addition(job_id=job.job_id, tasks=tuple(tasks), is_repair=True))
        return found

    def grow(self) -> list[Addition]:
        """Let elastic jobs have devices that nobody waits for, older jobs first."""
        memory = self.memory
        if not memory.elastic:
            return []
        waited = self._pools_waited_for()
        jobs = [memory.running[job_id] for job_id in memory.elastic]
        jobs.sort(key=lambda job: (-job.priority, job.placed_s, job.sequence, job.job_id))
        found: list[Addition] = []
        for job in jobs:
            if job.job_id in memory.started or job.started_s is None:
                continue
            if self._is_divided and job.spec.goodput:
                continue
            if job.grows_from_s is not None and job.grows_from_s > self.now_s:
                self.wakes.append(job.grows_from_s)
                continue
            tasks: list[TaskPlacement] = []
            for at, group in enumerate(job.spec.groups):
                now = memory.running[job.job_id]
                room = (group.tasks_max or 0) - sum(task.group == at for task in now.tasks)
                placed = self._place(now, at, room, waited) if room > 0 else ()
                if placed:
                    memory.join(job.job_id, placed)
                    tasks += placed
            if tasks:
                found.append(Addition(job_id=job.job_id, tasks=tuple(tasks)))
        return found

    def _pools_waited_for(self) -> frozenset[str]:
        found: dict[str, None] = {}
        for job_class in self.memory.classes.values():
            verdict = job_class.verdict
            if job_class.members and verdict and verdict.reason in _WAITS_FOR_DEVICES:
                found.update(dict.fromkeys(job_class.pools()))
        return frozenset(found)

    # One place.

    def _place(
        self, job: RunningJob, group: int, most: int, waited: frozenset[str] = frozenset()
    ) -> tuple[TaskPlacement, ...]:
        """Places for up to `most` more tasks of a group, numbered; none when there is no room.

        Nothing is taken.
        """
        memory = self.memory
        shape = memory.shape_of(job)
        leaf = next(each for each in shape.leaves if each.index == group)
        for need in self._needs(job, leaf):
            if any(pool in waited for pool in need.pools):
                continue
            count = self._allowed(job, need, most)
            for within in self._domains(job, leaf) if count else ():
                tasks = self._try(job, leaf, need, most=count, within=within)
                if tasks:
                    return tasks
        return ()

    def _needs(self, job: RunningJob, leaf: Leaf) -> list[Need]:
        """The alternative that the rest of the group runs with; all of them when none is left."""
        for task in job.tasks:
            row = self.memory.table.row_of.get(task.node)
            if task.group != leaf.index or row is None:
                continue
            types = {self.memory.table.type_of(row, share) for share in task.devices}
            return [need for need in leaf.needs if _is_like(need, task, types)]
        return list(leaf.needs)

    def _allowed(self, job: RunningJob, need: Need, most: int) -> int:
        """How many more tasks the limits of queue and user allow."""
        tree = self.memory.tree
        queue, capacity = tree.at(job.queue), self.memory.capacity()
        each = task_amounts(need, self.policy)
        for count in range(1, most + 1):
            amounts = {name: amount * count for name, amount in each.items()}
            if tree.blocked(queue, owner_of(job), amounts, capacity) is not None:
                return count - 1
            is_firm = not job.is_preemptible and job.spec.time.limit_s is None
            if is_firm and tree.firm_block(queue, amounts, capacity) is not None:
                return count - 1
        return most

    def _within_limits(
        self, job: RunningJob, tasks: tuple[TaskPlacement, ...]
    ) -> tuple[TaskPlacement, ...]:
        """As many of these as limits allow: what is placed may be more than was estimated."""
        tree, capacity = self.memory.tree, self.memory.capacity()
        queue, is_firm = tree.at(job.queue), not job.is_preemptible and job.ends_s is None
        for count in range(len(tasks), 0, -1):
            amounts = self.memory.held_amounts(tasks[:count])
            amounts.pop(RUNNING_JOBS, None)  # the job runs and is counted
            limit = tree.blocked(queue, owner_of(job), amounts, capacity)
            if limit is None and is_firm:
                limit = tree.firm_block(queue, amounts, capacity)
            if limit is None:
                return tasks[:count]
        return ()

    def _domains(self, job: RunningJob, leaf: Leaf) -> Iterator[Flags]:
        """Rows to try: near the others first, then wherever the topology allows."""
        table = self.memory.table
        mates = [task for task in job.tasks if task.group == leaf.index]
        allowed: Flags = np.ones(table.count, np.bool_)
        preferred: list[tuple[str, list[TaskPlacement]]] = []
        self._narrow(allowed, SITE, list(job.tasks))
        wanted: tuple[tuple[TopologyRequest | None, list[TaskPlacement]], ...] = (
            (leaf.topology, mates),
            (job.spec.topology, list(job.tasks)),
        )
        for topology, others in wanted:
            if topology is not None and topology.same is not None:
                self._narrow(allowed, topology.same, others)
            if topology is not None and topology.prefer is not None:
                preferred.append((topology.prefer, others))
        preferred += [(level, list(job.tasks)) for level in table.node_levels()[:1]]
        for level, others in preferred:
            near = allowed.copy()
            self._narrow(near, level, others)
            if near.any() and not np.array_equal(near, allowed):
                yield near
        yield allowed

    def _narrow(self, rows: Flags, level: str, others: list[TaskPlacement]) -> None:
        """Keep the rows that stand in one domain of a level with the others."""
        table = self.memory.table
        domain = table.domains.get(NODE if level == ISLAND else level)
        held = [table.row_of[task.node] for task in others if task.node in table.row_of]
        if domain is not None and held:
            rows &= np.isin(domain, domain[held]) & (domain >= 0)

    def _try(
        self, job: RunningJob, leaf: Leaf, need: Need, *, most: int, within: Flags
    ) -> tuple[TaskPlacement, ...]:
        memory = self.memory
        end_s = float("inf") if job.ends_s is None else job.ends_s
        bound = memory.holds.binding(end_s, (job.job_id,), start_s=self.now_s)
        room = Room({need: memory.fit(need)}, memory.holds, bound)
        one = msgspec.structs.replace(
            leaf, index=0, tasks=1, tasks_max=most, needs=(need,), topology=None
        )
        alone = Shape(
            root=Branch(topology=None, children=(one,), minimum=1),
            leaves=(one,),
            combinations=((0,),),
            sites=job.spec.sites,
        )
        statement = Statement(memory.table)
        gang = Gang(memory.table, room, statement, job.job_id, (need,))
        tenant = tenant_of(memory.tree, job)
        placed, _ = place_on(memory.ground, tenant, gang, alone, most={0: most}, within=within)
        if placed is not None and self._budgets.is_over(
            job.job_id, placed, bound, statement=statement
        ):
            placed = None
        statement.rollback()
        if placed is None:
            return ()
        placed = self._within_limits(job, placed)
        first = max(job.next_task, max((task.task for task in job.tasks), default=-1) + 1)
        return tuple(
            msgspec.structs.replace(task, task=first + at, group=leaf.index)
            for at, task in enumerate(placed)
        )


def _is_like(need: Need, task: TaskPlacement, types: set[str]) -> bool:
    """Whether a task that runs could have been placed for this alternative."""
    if need.mode is Mode.NONE or not types:
        return need.mode is Mode.NONE and not types
    if need.type not in (ANY, *types):
        return False
    return need.mode is not Mode.WHOLE or need.exclusive or need.count == len(task.devices)
