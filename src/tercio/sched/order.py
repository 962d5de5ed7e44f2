"""The one total order of waiting jobs: a tournament down the queue tree.

Two jobs are compared at the children of the lowest common ancestor of their queues: a side that
stays inside its guarantee with the job counted goes first; then the smaller dominant share with
the job counted, over entitlement; then the smaller decayed use by weight. Inside one queue:
priority, submit time, sequence. Flexible jobs for which power will be cheaper come after all
others, in the same order. Admission, victim choice and reports use this same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from tercio.sched.classes import JobClass, Rank
from tercio.sched.fairshare import QueueNode

Key = tuple[bool, bool, tuple[int, Fraction], float, Rank]


_ALONE: Final[Key] = (False, False, (0, Fraction(0)), 0.0, (False, 0.0, 0.0, 0))
"""Place of a queue without siblings."""


def sibling_key(node: QueueNode, amounts: Mapping[str, int], rank: Rank) -> Key:
    """Place of a queue among its siblings when its next job has these amounts."""
    weight = node.spec.weight
    past = node.decayed / weight if weight > 0 else float("inf") if node.decayed else 0.0
    return (rank[0], not node.is_inside_guarantee(amounts), node.ratio(amounts), past, rank)


class _Bracket:
    """One queue of the tournament: its own classes, or its children."""

    __slots__ = ("children", "classes", "node")

    def __init__(self, node: QueueNode) -> None:
        self.node = node
        self.classes: list[tuple[Rank, int, JobClass]] = []
        self.children: list[tuple[Key, int, _Bracket]] = []

    def top(self) -> JobClass | None:
        bracket = self
        while bracket.children:
            bracket = bracket.children[0][2]
        return bracket.classes[0][2] if bracket.classes else None


class Order:
    """Gives classes out one after another; each answer changes what comes next."""

    def __init__(self, root: QueueNode, classes: Iterable[JobClass]) -> None:
        self._root = _Bracket(root)
        brackets: dict[str, _Bracket] = {root.path: self._root}
        for job_class in classes:
            bracket = self._bracket(brackets, job_class.queue)
            bracket.classes.append(job_class.entry)
        if len(brackets) == 2:
            self._only(brackets)
            return
        # Children before parents, so that every key sees its final top.
        for path in sorted(brackets, key=lambda p: -_depth(p)):
            bracket = brackets[path]
            heapq.heapify(bracket.classes)
            heapq.heapify(bracket.children)
            if bracket is self._root:
                continue
            parent = brackets[bracket.node.parent.path if bracket.node.parent else ""]
            if bracket.top() is not None:
                parent.children.append((self._key(bracket), bracket.node.order, bracket))

    def _only(self, brackets: Mapping[str, _Bracket]) -> None:
        """Put the classes of one queue in order; a queue alone is compared with nobody."""
        (bracket,) = (each for each in brackets.values() if each is not self._root)
        heapq.heapify(bracket.classes)
        self._root.children.append((_ALONE, bracket.node.order, bracket))

    def _bracket(self, brackets: dict[str, _Bracket], node: QueueNode) -> _Bracket:
        found = brackets.get(node.path)
        if found is None:
            found = brackets[node.path] = _Bracket(node)
            if node.parent is not None:
                self._bracket(brackets, node.parent)
        return found

    @staticmethod
    def _key(bracket: _Bracket) -> Key:
        top = bracket.top()
        assert top is not None
        return sibling_key(bracket.node, top.amounts[0], top.rank)

    def first(self) -> JobClass | None:
        """The class whose head comes next, or None."""
        return self._root.top()

    def settle(self, *, is_done: bool) -> None:
        """Put the first class back with its new head, or drop it for this cycle when done."""
        path = [self._root]
        while path[-1].children:
            path.append(path[-1].children[0][2])
        leaf = path.pop()
        if is_done:
            heapq.heappop(leaf.classes)
        else:
            job_class = leaf.classes[0][2]
            heapq.heapreplace(leaf.classes, job_class.entry)
        child = leaf
        for parent in reversed(path):
            if child.top() is None:
                heapq.heappop(parent.children)
            elif len(parent.children) > 1:  # an only child needs no comparison
                key = self._key(child)
                heapq.heapreplace(parent.children, (key, child.node.order, child))
            child = parent


def _depth(path: str) -> int:
    return path.count("/") + 1 if path else 0
