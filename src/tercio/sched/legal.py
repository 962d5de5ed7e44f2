"""Who may be stopped for whom: the legality of a whole set of victims.

Inside one queue, higher priority may stop lower, and surplus tasks yield to equals. Between
queues the comparison is made at the children of the lowest common ancestor, on use now, never on
decayed use. A winner that ends inside its guarantee may take from queues above theirs; under
`fair` a winner that ends inside its entitlement may take from queues above theirs. A loser must
stand above its line before its last victim leaves, so only one last, indivisible victim can carry
it under.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.queue import AcrossQueues, Policy, WithinQueue
from tercio.model.reasons import Reason
from tercio.model.resources import CPUS, DEVICES, MEMORY, Amounts
from tercio.model.snapshot import RunningJob
from tercio.sched.classes import JobClass
from tercio.sched.fairshare import RUNNING_JOBS, QueueNode, owed
from tercio.sched.memory import Memory
from tercio.sched.owners import Blocked

HOUR_S = 3600.0


class Victim(NamedTuple):
    """Something that can be stopped: a whole job, or one surplus task of an elastic job.

    Attributes:
        job: the running job.
        queue: where it counts.
        tasks: what it gives back, with rows.
        amounts: quota amounts it gives back.
        milli: thousandths of devices among them.
        lost_work_s: device-seconds of work since the last checkpoint.
        is_surplus: whether it is one task above the minimum of an elastic job.
    """

    job: RunningJob
    queue: QueueNode
    tasks: tuple[tuple[int, TaskPlacement], ...]
    amounts: Amounts
    milli: int
    lost_work_s: float
    is_surplus: bool = False

    @property
    def key(self) -> tuple[JobId, int]:
        """Identity: the job, and the task for a surplus task."""
        return (self.job.job_id, self.tasks[0][1].task if self.is_surplus else -1)

    @property
    def worth(self) -> tuple[int, int, int, float, float, int]:
        """Larger is dearer: devices, whole job, priority, lost work, age, sequence."""
        job = self.job
        return (
            self.milli, 0 if self.is_surplus else 1, job.priority, self.lost_work_s,
            -job.placed_s, -job.sequence,
        )  # fmt: skip


Cost = tuple[int, int, tuple[int, ...], float, tuple[float, ...], tuple[int, ...]]


def cost(victims: Sequence[Victim]) -> Cost:
    """What a set costs: devices, jobs, priorities, lost work, then youngest first."""
    return (
        sum(v.milli for v in victims),
        len(victims),
        tuple(sorted((v.job.priority for v in victims), reverse=True)),
        sum(v.lost_work_s for v in victims),
        tuple(sorted(-v.job.placed_s for v in victims)),
        tuple(sorted(-v.job.sequence for v in victims)),
    )


class Rules:
    """What one waiting job may take from others.

    Attributes:
        queue, priority, amounts: the winner and what it wants.
        resources: those that are compared.
    """

    def __init__(
        self,
        memory: Memory,
        policy: Policy,
        job_class: JobClass,
        combination: int = 0,
        *,
        is_fair_open: bool = True,
    ) -> None:
        self._policy = policy.preemption
        self._capacity = capacity = memory.capacity()
        self.queue = job_class.queue
        self.priority = job_class.priority
        self.amounts = amounts = job_class.amounts[combination]
        self.is_fair_open = is_fair_open and policy.preemption.across_queues is AcrossQueues.FAIR
        self._lineage = {node.path: node for node in self.queue.lineage()}
        types = [k for k in amounts if k not in (CPUS, MEMORY, DEVICES, RUNNING_JOBS)]
        kinds = [k for k in capacity if k not in (CPUS, MEMORY, DEVICES)]
        if not types:
            self.resources = [name for name in (CPUS, MEMORY) if amounts.get(name)]
        elif len(kinds) > 1 or any(name in memory.tree.guaranteed for name in types):
            self.resources = types
        else:
            self.resources = [DEVICES]

    def may_ever(self, loser: QueueNode) -> bool:
        """Whether some job of a queue could be a victim, whatever its priority."""
        if loser is self.queue:
            return self._policy.within_queue is not WithinQueue.OFF
        if self._policy.across_queues is AcrossQueues.OFF:
            return False
        winner, side = self._sides(loser)
        # Victims on the winner's own side can only lower its final use.
        own = {name: winner.net(name) for name in self.resources}
        line = self._line(winner, own)
        if line is None:
            return self._policy.across_queues is AcrossQueues.PRIORITY
        return self._is_above(side, {}, line)

    def may(self, victim: Victim) -> bool:
        """Whether a victim is legal by itself as far as its own state goes."""
        if victim.queue is self.queue:
            # What an elastic job has above its minimum is only lent: it yields to equals too.
            line = self.priority + victim.is_surplus
            return (
                self._policy.within_queue is WithinQueue.LOWER_PRIORITY
                and victim.job.priority < line
            )
        return self.may_ever(victim.queue)

    def allows(self, victims: Sequence[Victim]) -> bool:
        """Whether the whole set is legal: every test is made on the final set."""
        foreign = [v for v in victims if v.queue is not self.queue]
        if any(not self.may(v) for v in victims if v.queue is self.queue):
            return False
        if foreign and self._policy.across_queues is AcrossQueues.OFF:
            return False
        checked: dict[str, None] = {}
        for victim in foreign:
            winner, side = self._sides(victim.queue)
            freed = _sum(v for v in victims if winner in v.queue.lineage())
            line = self._line(winner, freed)
            if line is None:
                if self._policy.across_queues is not AcrossQueues.PRIORITY:
                    return False
                if victim.job.priority >= self.priority:
                    return False
                line = "guarantee"
            if victim.queue.path in checked:
                continue
            checked[victim.queue.path] = None
            if not self._loser_stands(victim.queue, side, victims, line):
                return False
        return True

    def _loser_stands(
        self, queue: QueueNode, side: QueueNode, victims: Sequence[Victim], line: str
    ) -> bool:
        """Every queue from the victim's up to the compared side stands above its line."""
        for node in queue.lineage():
            leaving = [v for v in victims if node in v.queue.lineage()]
            last = max(leaving, key=lambda v: v.milli)
            before = _sum(v for v in leaving if v is not last)
            if not self._is_above(node, before, line if node is side else "guarantee"):
                return False
            if not self._keeps_the_rest(node, leaving, before):
                return False
            if node is side:
                break
        return True

    def _keeps_the_rest(self, node: QueueNode, leaving: Sequence[Victim], before: Amounts) -> bool:
        """What is guaranteed but not compared is kept too: a want of cores costs no devices."""
        lost = _sum(leaving)
        return all(
            name in self.resources
            or not lost.get(name)
            or node.net(name) - before.get(name, 0) > self._guarantee(node, name)
            for name in node.spec.guarantee
        )

    def _sides(self, loser: QueueNode) -> tuple[QueueNode, QueueNode]:
        """Children of the lowest common ancestor: the winner's side and the loser's."""
        below = loser
        for node in loser.lineage():
            if node.path in self._lineage:
                break
            below = node
        top = below.parent
        winner = next(node for node in self._lineage.values() if node.parent is top)
        return winner, below

    def _line(self, winner: QueueNode, freed: Amounts) -> str | None:
        """The line that losers are held to, or None when the winner may not take at all."""

        def final(name: str) -> int:
            return winner.net(name) + self.amounts.get(name, 0) - freed.get(name, 0)

        if all(final(name) <= self._guarantee(winner, name) for name in self.resources):
            return "guarantee"
        if not self.is_fair_open:
            return None
        if all(
            name in winner.entitlement and final(name) <= winner.entitlement[name]
            for name in self.resources
        ):
            return "entitlement"
        return None

    def _guarantee(self, node: QueueNode, name: str) -> Fraction:
        return owed(node.spec.guarantee, name, self._capacity)

    def _is_above(self, node: QueueNode, gone: Amounts, line: str) -> bool:
        for name in self.resources:
            use = node.net(name) - gone.get(name, 0)
            if line == "guarantee":
                if use > self._guarantee(node, name):
                    return True
            elif name in node.entitlement and use > node.entitlement[name]:
                return True
        return False

    def could_reclaim(self, queue: QueueNode, amounts: Amounts) -> bool:
        """Whether a job that starts with these amounts could be reclaimed for the winner."""
        if queue is self.queue or self._policy.across_queues is AcrossQueues.OFF:
            return False
        winner, side = self._sides(queue)
        line = self._line(winner, {})
        return line is not None and self._is_above(
            side, {name: -amount for name, amount in amounts.items()}, line
        )

    def share_block(self) -> Blocked | None:
        """The entitlement that keeps the winner from taking back from others, if one does."""
        if self._policy.across_queues is not AcrossQueues.FAIR:
            return None
        for node in self.queue.lineage():
            for name in self.resources:
                if name not in node.entitlement:
                    continue
                use, wanted = node.net(name), self.amounts.get(name, 0)
                if use + wanted > node.entitlement[name]:
                    return Blocked(
                        Reason.WAITING_FOR_SHARE, node.path, "entitlement", name, use, wanted,
                        int(node.entitlement[name]),
                    )  # fmt: skip
        return None

    def budget(self, loser: QueueNode) -> int:
        """Most of the first compared resource that a queue may lose, last victim left out."""
        name = self.resources[0] if self.resources else DEVICES
        if loser is self.queue:
            return loser.net(name)
        winner, side = self._sides(loser)
        own = {n: winner.net(n) for n in self.resources}
        line = self._line(winner, own) or "guarantee"
        bound = (
            self._guarantee(side, name)
            if line == "guarantee"
            else side.entitlement.get(name, Fraction(1 << 60))
        )
        return max(0, -int(-(side.net(name) - bound) // 1))


def _sum(victims: Iterable[Victim]) -> Amounts:
    total: Amounts = {}
    for victim in victims:
        for name, amount in victim.amounts.items():
            total[name] = total.get(name, 0) + amount
    return total
