"""Position of waiting jobs in the total order of their pool."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from tercio.model.ids import JobId
from tercio.model.resources import Amounts
from tercio.sched.classes import JobClass, Rank
from tercio.sched.fairshare import QueueNode
from tercio.sched.memory import Memory
from tercio.sched.order import Key, sibling_key


class _Place(NamedTuple):
    """One waiting job with what its place depends on."""

    rank: Rank
    job_id: JobId
    amounts: Amounts
    pool: str


def positions(memory: Memory) -> dict[JobId, int]:
    """Return the place of every job that may start, from 1, counted in its first pool.

    Queues are compared as they stand now, each with its next job counted.
    """
    by_queue: dict[str, list[JobClass]] = {}
    for job_class in memory.classes.values():
        by_queue.setdefault(job_class.queue.path, []).append(job_class)
    counted: dict[str, int] = {}
    found: dict[JobId, int] = {}
    for place in _merge(memory.tree.root, by_queue):
        counted[place.pool] = counted.get(place.pool, 0) + 1
        found[place.job_id] = counted[place.pool]
    return found


def _merge(node: QueueNode, by_queue: dict[str, list[JobClass]]) -> Iterator[_Place]:
    classes = by_queue.get(node.path)
    if classes:
        places = [
            _Place(
                (-job_class.priority, member.submitted_s, member.sequence),
                member.job_id,
                job_class.amounts[0],
                job_class.pools()[0],
            )
            for job_class in classes
            for member in job_class.members
        ]
        yield from sorted(places, key=lambda place: place.rank)
    heap: list[tuple[Key, int, _Place, Iterator[_Place], QueueNode]] = []
    for child in node.children.values():
        _push(heap, child, _merge(child, by_queue))
    while heap:
        _, _, place, rest, child = heapq.heappop(heap)
        yield place
        _push(heap, child, rest)


def _push(
    heap: list[tuple[Key, int, _Place, Iterator[_Place], QueueNode]],
    child: QueueNode,
    places: Iterator[_Place],
) -> None:
    place = next(places, None)
    if place is not None:
        key = sibling_key(child, place.amounts, place.rank)
        heapq.heappush(heap, (key, child.order, place, places, child))
