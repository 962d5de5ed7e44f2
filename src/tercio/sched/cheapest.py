"""Cheapest nodes to free for many equal tasks, when there are too many victims to try each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

import numpy as np

from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.sched.classes import JobClass
from tercio.sched.gang import Room
from tercio.sched.legal import Rules, Victim
from tercio.sched.need import Mode, Need
from tercio.sched.table import Table

Kept = Callable[[int], frozenset[int]]
"""Devices of a row that are promised to others."""

Price = tuple[int, int, int, float, float]
"""Devices, jobs, priority, lost work, age: what freeing one task's place costs."""


def by_node(
    table: Table,
    room: Room,
    *,
    job_class: JobClass,
    need: Need,
    victims: Sequence[Victim],
    rules: Rules,
) -> list[Victim] | None:
    """Choose victims node by node, cheapest domain first; None when rules do not allow enough.

    Each node is priced by the cheapest of its victims that make room for one task, the one that
    frees least over; a gang that was chosen for one node frees its other nodes too.
    """
    leaf = job_class.shape.leaves[0]
    fits, _ = room.columns(need)
    on_row: dict[int, list[Victim]] = {}
    for victim in victims:
        for row in dict.fromkeys(row for row, _ in victim.tasks):
            on_row.setdefault(row, []).append(victim)
    level = _level(job_class)
    if level is None or level not in table.domains:
        missing = leaf.tasks - int(np.minimum(fits, leaf.tasks).sum())
        return _fill(
            table,
            need,
            kept=room.kept,
            missing=missing,
            on_row=on_row,
            rules=rules,
            most_milli=None,
        )
    domain = table.domains[level]
    best: tuple[tuple[int, int], list[Victim]] | None = None
    for number in range(len(table.domain_names[level])):
        inside = domain == number
        missing = leaf.tasks - int(np.minimum(fits[inside], leaf.tasks).sum())
        here = {row: found for row, found in on_row.items() if inside[row]}
        most = best[0][0] if best else None
        chosen = _fill(
            table, need, kept=room.kept, missing=missing, on_row=here, rules=rules, most_milli=most
        )
        if chosen is not None:
            price = (sum(v.milli for v in chosen), len(chosen))
            if best is None or price < best[0]:
                best = (price, chosen)
    return None if best is None else best[1]


def _level(job_class: JobClass) -> str | None:
    for topology in (job_class.shape.leaves[0].topology, job_class.shape.root.topology):
        if topology is not None and topology.same is not None:
            return topology.same
    return None


def _fill(
    table: Table,
    need: Need,
    *,
    kept: Kept,
    missing: int,
    on_row: dict[int, list[Victim]],
    rules: Rules,
    most_milli: int | None,
) -> list[Victim] | None:
    """Victims for so many more tasks on these rows, unless they cost more than `most_milli`."""
    chosen: list[Victim] = []
    seen: dict[tuple[object, int], None] = {}
    milli = 0
    budgets: dict[str, int] = {}
    heap: list[tuple[Price, int, int]] = []
    for row, candidates in on_row.items():
        price = _price(table, need, row, candidates, seen, kept=kept(row))
        if price is not None:
            heapq.heappush(heap, (price[0], row, 0))
    while missing > 0 and heap:
        _, row, tries = heapq.heappop(heap)
        priced = _price(table, need, row, on_row[row], seen, kept=kept(row))
        if priced is None:
            continue
        if heap and priced[0] > heap[0][0] and tries < 3:
            heapq.heappush(heap, (priced[0], row, tries + 1))
            continue
        if not _afford(priced[1], rules, budgets):
            continue
        chosen += priced[1]
        seen.update(dict.fromkeys(v.key for v in priced[1]))
        milli += sum(v.milli for v in priced[1])
        if most_milli is not None and milli > most_milli:
            return None
        missing -= 1
        again = _price(table, need, row, on_row[row], seen, kept=kept(row), extra=1)
        if again is not None:
            heapq.heappush(heap, (again[0], row, 0))
    return chosen if missing <= 0 else None


def _afford(victims: Sequence[Victim], rules: Rules, budgets: dict[str, int]) -> bool:
    """Whether every losing queue still stands above its line before these leave it."""
    left = dict(budgets)
    for victim in victims:
        path = victim.queue.path
        if path not in left:
            left[path] = rules.budget(victim.queue)
        if left[path] <= 0 and victim.milli and victim.queue is not rules.queue:
            return False
        left[path] -= victim.milli
    budgets.update(left)
    return True


def _price(
    table: Table,
    need: Need,
    row: int,
    candidates: Sequence[Victim],
    seen: dict[tuple[object, int], None],
    *,
    kept: frozenset[int],
    extra: int = 0,
) -> tuple[Price, list[Victim]] | None:
    """The cheapest victims that make room for one more task on a row."""
    wanted = need.count if need.mode is Mode.WHOLE else 1
    free = int(table.untouched[:, row].sum())
    # What is promised to others is not there for this job, free or not.
    free -= sum(table.is_untouched(row, device) for device in kept)
    gone = [v for v in candidates if v.key in seen]
    free += sum(devices_on(v, row, kept) for v in gone) - extra * wanted
    left = [v for v in candidates if v.key not in seen]
    deficit = wanted - (free % wanted if free >= wanted else max(free, 0))
    if deficit <= 0 or not left:
        return None
    chosen = cover(left, deficit, row, kept)
    if chosen is None:
        return None
    price = (
        sum(v.milli for v in chosen),
        len(chosen),
        sum(v.job.priority for v in chosen),
        sum(v.lost_work_s for v in chosen),
        sum(-v.job.placed_s for v in chosen),
    )
    return price, chosen


def devices_on(victim: Victim, row: int, kept: Collection[int] = ()) -> int:
    """Whole devices that a victim frees on a row, without those that are kept for others."""
    return sum(
        share.milli == WHOLE_DEVICE_MILLI and share.index not in kept
        for at, task in victim.tasks
        if at == row
        for share in task.devices
    )


def cover(
    left: Sequence[Victim], deficit: int, row: int, kept: Collection[int] = ()
) -> list[Victim] | None:
    """Fewest devices, then fewest jobs, then least worth, that cover a deficit on one row."""
    best: dict[int, tuple[tuple[int, int, int, float], list[Victim]]] = {0: ((0, 0, 0, 0.0), [])}
    for victim in sorted(left, key=lambda v: v.worth):
        gain = devices_on(victim, row, kept)
        if not gain:
            continue
        for covered, (price, chosen) in sorted(best.items(), reverse=True):
            if covered >= deficit:
                continue
            total = (
                price[0] + victim.milli,
                price[1] + 1,
                price[2] + victim.job.priority,
                price[3] + victim.lost_work_s,
            )
            reach = covered + gain
            if reach not in best or total < best[reach][0]:
                best[reach] = (total, [*chosen, victim])
    enough = [found for covered, found in best.items() if covered >= deficit]
    return min(enough, key=lambda found: found[0])[1] if enough else None
