"""Position of waiting jobs in the total order of their pool, and the shares of queues."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from tercio.model.ids import JobId, QueuePath
from tercio.sched.classes import JobClass, Rank
from tercio.sched.fairshare import QueueNode
from tercio.sched.memory import Memory
from tercio.sched.order import Key, sibling_key
from tercio.sched.pools import Pool


class _Place(NamedTuple):
    """One waiting job with what its place depends on."""

    rank: Rank
    job_id: JobId
    job_class: JobClass


_Standing = dict[tuple[str, int], Key]
"""Key of a queue among its siblings when its next job is of a class; the rank is the job's."""


def ordered(memory: Memory) -> Iterator[tuple[JobId, JobClass]]:
    """Yield every job that may start, with its class, in the total order as it stands now."""
    by_queue: dict[str, list[JobClass]] = {}
    for job_class in memory.classes.values():
        by_queue.setdefault(job_class.queue.path, []).append(job_class)
    for place in _merge(memory.tree.root, by_queue, {}):
        yield place.job_id, place.job_class


def positions(memory: Memory) -> dict[JobId, int]:
    """Return the place of every job that may start, from 1.

    It is that in the pool, of those the job competes in, where the fewest are before it.
    Queues are compared as they stand now, each with its next job counted.
    """
    by_queue: dict[str, list[JobClass]] = {}
    for job_class in memory.classes.values():
        by_queue.setdefault(job_class.queue.path, []).append(job_class)
    counted: dict[Pool, int] = {}
    found: dict[JobId, int] = {}
    pools_of = {c.number: memory.pools.of(c) for c in memory.classes.values()}
    for place in _merge(memory.tree.root, by_queue, {}):
        pools = pools_of[place.job_class.number]
        for pool in pools:
            counted[pool] = counted.get(pool, 0) + 1
        found[place.job_id] = min(counted[pool] for pool in pools)
    return found


def _merge(
    node: QueueNode, by_queue: dict[str, list[JobClass]], standing: _Standing
) -> Iterator[_Place]:
    classes = by_queue.get(node.path)
    if classes:
        places = [
            _Place(
                (
                    job_class.key.gives_way,
                    -job_class.priority,
                    member.submitted_s,
                    member.sequence,
                ),
                member.job_id,
                job_class,
            )
            for job_class in classes
            for member in job_class.members
        ]
        yield from sorted(places, key=lambda place: place.rank)
    heap: list[tuple[Key, int, _Place, Iterator[_Place], QueueNode]] = []
    for child in node.children.values():
        _push(heap, child, _merge(child, by_queue, standing), standing)
    while heap:
        _, _, place, rest, child = heapq.heappop(heap)
        yield place
        _push(heap, child, rest, standing)


def _push(
    heap: list[tuple[Key, int, _Place, Iterator[_Place], QueueNode]],
    child: QueueNode,
    places: Iterator[_Place],
    standing: _Standing,
) -> None:
    place = next(places, None)
    if place is not None:
        job_class = place.job_class
        name = (child.path, job_class.number)
        key = standing.get(name)
        if key is None:
            key = standing[name] = sibling_key(child, job_class.amounts[0], place.rank)
        key = (*key[:4], place.rank)
        heapq.heappush(heap, (key, child.order, place, places, child))


def shares(memory: Memory) -> dict[QueuePath, dict[str, Fraction]]:
    """Return every queue's share of every device type, in thousandths, as of the last cycle.

    A job whose devices are being freed wants them as much as one that waits.
    """
    pledged = [(queue, amounts) for queue, _, amounts, _ in memory.pledged.values()]
    for queue, amounts in pledged:
        queue.want(amounts, +1)
    found = memory.tree.shares(memory.capacity())
    for queue, amounts in pledged:
        queue.want(amounts, -1)
    return found
