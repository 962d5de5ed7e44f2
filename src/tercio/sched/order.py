"""The one total order of waiting jobs: a tournament down the queue tree.

Two jobs are compared at the children of the lowest common ancestor of their queues: a side that
stays inside its guarantee with the job counted goes first; then the smaller dominant share with
the job counted, over entitlement; then the smaller decayed use by weight. Inside one queue:
priority, submit time, sequence. Flexible jobs for which power will be cheaper come after all
others, in the same order. Admission, victim choice and reports use this same order.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from tercio.sched.classes import Entry, JobClass, Rank
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
    """One queue of the tournament: its own classes from `at` on, or its children."""

    __slots__ = ("at", "children", "classes", "node")

    def __init__(self, node: QueueNode) -> None:
        self.node = node
        self.classes: list[Entry] = []
        self.at = 0
        self.children: list[tuple[Key, int, _Bracket]] = []

    def top(self) -> JobClass | None:
        bracket = self
        while bracket.children:
            bracket = bracket.children[0][2]
        return bracket.classes[bracket.at][2] if bracket.at < len(bracket.classes) else None


class Order:
    """Gives classes out one after another; each answer changes what comes next."""

    def __init__(self, root: QueueNode, lines: Iterable[tuple[QueueNode, list[Entry]]]) -> None:
        """Begin with the classes of each queue in order; the lists are used up."""
        self._root = _Bracket(root)
        brackets: dict[str, _Bracket] = {root.path: self._root}
        for node, line in lines:
            self._bracket(brackets, node).classes = line
        if len(brackets) == 2:
            # A queue alone is compared with nobody.
            (only,) = (each for each in brackets.values() if each is not self._root)
            self._root.children.append((_ALONE, only.node.order, only))
            return
        # Children before parents, so that every key sees its final top.
        for path in sorted(brackets, key=lambda p: -_depth(p)):
            bracket = brackets[path]
            heapq.heapify(bracket.children)
            if bracket is self._root:
                continue
            parent = brackets[bracket.node.parent.path if bracket.node.parent else ""]
            if bracket.top() is not None:
                parent.children.append((self._key(bracket), bracket.node.order, bracket))

    @classmethod
    def of(cls, root: QueueNode, classes: Iterable[JobClass]) -> Order:
        """Begin with classes of any queues, in any order."""
        lines: dict[str, tuple[QueueNode, list[Entry]]] = {}
        for job_class in classes:
            node = job_class.queue
            lines.setdefault(node.path, (node, []))[1].append(job_class.entry)
        for _, line in lines.values():
            line.sort()
        return cls(root, lines.values())

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
            leaf.at += 1
        else:
            job_class = leaf.classes[leaf.at][2]
            del leaf.classes[leaf.at]
            bisect.insort(leaf.classes, job_class.entry, lo=leaf.at)
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
