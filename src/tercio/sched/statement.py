"""What-if inside a cycle: place, evict, charge; keep it or take all of it back exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.resources import Amounts
from tercio.sched.fairshare import QueueNode
from tercio.sched.owners import Owner
from tercio.sched.table import Table


class _Step(NamedTuple):
    """One change of a task's holding, with its sign."""

    row: int
    job: JobId
    placement: TaskPlacement
    sign: int


class _Charge(NamedTuple):
    """One change of a queue's use, with its sign."""

    queue: QueueNode
    owner: Owner
    amounts: Amounts
    is_firm: bool
    sign: int


class Statement:
    """An open transaction on the table and the queue tree.

    Rolling back applies the inverses in reverse order. All amounts are integers, so the state
    after a rollback equals the state at the mark bit by bit.
    """

    __slots__ = ("_log", "_table")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._log: list[_Step | _Charge] = []

    def mark(self) -> int:
        """Return a point to roll back to."""
        return len(self._log)

    def place(self, row: int, job: JobId, placement: TaskPlacement) -> None:
        """Take what one task holds."""
        self._table.apply(row, placement, +1)
        self._log.append(_Step(row, job, placement, +1))

    def evict(self, row: int, job: JobId, placement: TaskPlacement) -> None:
        """Give back what one running task holds."""
        self._table.apply(row, placement, -1)
        self._log.append(_Step(row, job, placement, -1))

    def evicted(self) -> frozenset[JobId]:
        """Jobs of which something was given back."""
        return frozenset(s.job for s in self._log if isinstance(s, _Step) and s.sign < 0)

    def changes(self) -> Iterator[tuple[int, JobId, TaskPlacement, int]]:
        """Tasks that were placed (+1) or evicted (-1): row, job, task and sign."""
        for step in self._log:
            if isinstance(step, _Step):
                yield step

    def charge(
        self, queue: QueueNode, owner: Owner, amounts: Amounts, *, is_firm: bool, sign: int = +1
    ) -> None:
        """Add to (or with sign -1 take from) the use of a queue, its ancestors and the owner."""
        queue.charge(owner, amounts, is_firm=is_firm, sign=sign)
        self._log.append(_Charge(queue, owner, amounts, is_firm, sign))

    def rollback(self, mark: int = 0) -> None:
        """Undo everything after the mark."""
        while len(self._log) > mark:
            match self._log.pop():
                case _Step(row=row, placement=placement, sign=sign):
                    self._table.apply(row, placement, -sign)
                case _Charge(queue=queue, owner=owner, amounts=amounts, is_firm=firm, sign=sign):
                    queue.charge(owner, amounts, is_firm=firm, sign=-sign)

    def commit(self) -> None:
        """Keep everything: placed tasks become running tasks of their rows, evicted ones leave."""
        for step in self._log:
            if isinstance(step, _Step):
                self._table.commit(*step)
        self._log.clear()
