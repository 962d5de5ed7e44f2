"""Why a class did not fit: the first thing that is truly in the way, found by counting.

The counts go from the least to the most changeable: what the cluster could ever hold, what is
up, what is free at all, what is free in the right shape, what is promised, what stands together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tercio.model.ids import JobId
from tercio.model.reasons import Reason
from tercio.model.topology import ISLAND, NODE, SITE
from tercio.sched.blockers import WHOLE_NODES, Blocker, Stage, blocker, shortage
from tercio.sched.classes import JobClass, Verdict
from tercio.sched.feasible import Fit, View
from tercio.sched.gang import Room
from tercio.sched.need import Leaf, Mode, Need, Shape
from tercio.sched.table import Flags, Ints

# The reason shown is that of the alternative that is nearest to starting.
_NEARNESS: Final = (
    Reason.RESERVED,
    Reason.TOPOLOGY,
    Reason.NODE_SLOTS,
    Reason.SHAPE,
    Reason.FRAGMENTED,
    Reason.WAITING_FOR_SHARE,
    Reason.NO_FREE_DEVICES,
    Reason.POWER,
    Reason.ORDER,
    Reason.USER_LIMIT,
    Reason.QUEUE_LIMIT,
    Reason.SEARCH_BUDGET,
    Reason.HEALTH,
    Reason.CONSTRAINT,
    Reason.SITE_UNAVAILABLE,
    Reason.NEVER_FITS,
    Reason.TYPE_UNAVAILABLE,
)

CAPACITY_REASONS: Final = frozenset(
    {
        Reason.NO_FREE_DEVICES,
        Reason.FRAGMENTED,
        Reason.NODE_SLOTS,
        Reason.SHAPE,
        Reason.TOPOLOGY,
        Reason.RESERVED,
    }
)
"""Reasons that a change of load alone can lift."""


def is_short(verdict: Verdict) -> bool:
    """Whether only the present load keeps a combination from a start that it wants."""
    if verdict.reason is Reason.POWER:
        return not verdict.is_declined
    is_kept = verdict.limit is not None and verdict.reason is not Reason.SHAPE
    has_room = is_kept or verdict.is_declined
    return verdict.reason in CAPACITY_REASONS and not has_room


def nearest(verdicts: Sequence[Verdict]) -> int:
    """Index of the verdict that is nearest to a start; the first among equals."""
    return min(range(len(verdicts)), key=lambda at: (_NEARNESS.index(verdicts[at].reason), at))


def open_verdict(
    job_class: JobClass, combination: Sequence[int], open_room: Room
) -> Verdict | None:
    """Why a combination that limits allow cannot be placed whatever is promised, or None.

    `open_room` is what the class would see without promises to others.
    """
    shape, needs = job_class.shape, job_class.shape.needs(combination)
    pairs = list(zip(shape.leaves, needs, strict=True))
    alone = alone_in_the_way(shape, needs, open_room)
    if alone is not None and alone.stage is Stage.NEVER:
        return Verdict(alone.reason, can_never=True)
    is_narrow = too_narrow(job_class, pairs, open_room) is not None
    if is_narrow or shortage(job_class, combination, open_room, is_empty=True) is not None:
        return Verdict(Reason.NEVER_FITS, can_never=True)
    is_down = alone is not None and alone.stage is Stage.DOWN
    if is_down or too_narrow(job_class, pairs, open_room, is_up=True) is not None:
        return Verdict(Reason.HEALTH)
    if alone is not None:
        return Verdict(alone.reason)
    short = shortage(job_class, combination, open_room, is_empty=False)
    if short is not None and not short.level and short.what != WHOLE_NODES:
        return Verdict(Reason.NO_FREE_DEVICES)
    if best_site(pairs, open_room) is not None or (short is not None and short.level):
        return Verdict(Reason.TOPOLOGY)
    return None


def kept_verdict(
    job_class: JobClass,
    combination: Sequence[int],
    room: Room,
    open_room: Room,
    fits_openly: Callable[[], bool],
) -> Verdict:
    """Why a combination cannot be placed for which there is enough without promises to others.

    `room` is what the class sees, `fits_openly` tries whether the job would be placed in
    `open_room`.
    """
    shape, needs = job_class.shape, job_class.shape.needs(combination)
    pairs = list(zip(shape.leaves, needs, strict=True))
    short = shortage(job_class, combination, open_room, is_empty=False)
    has_topology = bool(job_class.spec.topology) or any(leaf.topology for leaf in shape.leaves)
    # One plain group fits by count; of others only a try says whether they do without promises.
    is_plain = len(pairs) == 1 and not has_topology
    if room.bound and short is None and (is_plain or fits_openly()):
        kept = blocker(shape, needs, lambda leaf, need: _kept(leaf, room.columns(need)[0]))
        largest = max(needs, key=lambda need: need.device_milli)
        need = largest if kept is None else kept.need
        return Verdict(Reason.RESERVED, ahead=_keeper(room, open_room, need))
    if short is None and has_topology:
        return Verdict(Reason.TOPOLOGY)
    return Verdict(_together(pairs, open_room))


def alone_in_the_way(shape: Shape, needs: Sequence[Need], room: Room) -> Blocker | None:
    """The group that decides because it does not fit by itself; None where enough of them do."""

    def test(leaf: Leaf, need: Need) -> tuple[Stage, Reason] | None:
        fit = room.fit(need).refresh()
        for stage, why in ((Stage.NEVER, _for_ever), (Stage.DOWN, _up), (Stage.SHORT, _free)):
            reason = why(leaf, fit)
            if reason is not None:
                return stage, reason
        return None

    return blocker(shape, needs, test)


def _kept(leaf: Leaf, fits: Ints) -> tuple[Stage, Reason] | None:
    is_short = int(np.minimum(fits, leaf.tasks).sum()) < leaf.tasks
    return (Stage.SHORT, Reason.RESERVED) if is_short else None


def _together(pairs: Sequence[tuple[Leaf, Need]], room: Room) -> Reason:
    """What is in the way of groups that each fit alone and have devices enough together."""
    must = [(leaf, need) for leaf, need in pairs if not leaf.is_optional]
    table = room.fit(pairs[0][1]).table
    rows: Flags = np.zeros(table.count, np.bool_)
    for _, need in pairs:
        fit = room.fit(need).refresh()
        rows |= (fit.possible > 0) & fit.open
    tasks = sum(leaf.tasks for leaf, _ in must)
    if int(np.clip(np.minimum(table.slots_free[rows], tasks), 0, None).sum()) < tasks:
        return Reason.NODE_SLOTS
    cpus = sum(leaf.tasks * (need.cpus_milli or 0) for leaf, need in must)
    memory = sum(leaf.tasks * (need.memory_bytes or 0) for leaf, need in must)
    is_host_short = cpus > _free_host(table.cpus_free[rows], cpus) or memory > _free_host(
        table.memory_free[rows], memory
    )
    has_devices = any(need.mode is not Mode.NONE for _, need in pairs)
    return Reason.FRAGMENTED if has_devices and not is_host_short else Reason.SHAPE


def _free_host(column: Ints, most: int) -> int:
    """What is left of cores or memory, each node's counted up to `most`."""
    return int(np.clip(column, 0, most).sum())


def too_narrow(
    job_class: JobClass, pairs: Sequence[tuple[Leaf, Need]], room: Room, *, is_up: bool = False
) -> tuple[str, str, int] | None:
    """A level no domain of which could ever hold what must stand together in it.

    `is_up`: with what is up and well alone. Returns the level, its largest domain and how many
    tasks of the first leaf that holds when empty. A gang never spans sites, so the site counts
    when there are several.
    """
    table = room.fit(pairs[0][1]).table
    spec = job_class.spec.topology
    levels: list[tuple[str, list[tuple[Leaf, Need]]]] = []
    if len(table.domain_names.get(SITE, [])) > 1:
        levels.append((SITE, list(pairs)))
    if spec is not None and spec.same is not None:
        levels.append((spec.same, list(pairs)))
    levels += [
        (leaf.topology.same, [(leaf, need)])
        for leaf, need in pairs
        if leaf.topology is not None and leaf.topology.same is not None
    ]
    for level, inside in levels:
        domain = table.domains.get(NODE if level == ISLAND else level)
        known = None if domain is None else domain >= 0
        if domain is None or known is None or not known.any():
            return (level, "", 0)
        enough = np.ones(int(domain.max()) + 1, np.bool_)
        rooms = []
        for leaf, need in inside:
            if leaf.is_optional:
                continue
            fit = room.fit(need).refresh()
            clipped = np.minimum(fit.up() if is_up else fit.possible, leaf.tasks)
            rooms.append(np.bincount(domain[known], clipped[known], len(enough)).astype(np.int64))
            enough &= rooms[-1] >= leaf.tasks
        if not enough.any():
            best = int(rooms[0].argmax())
            name = table.domain_names[NODE if level == ISLAND else level][best]
            return (level, name, int(rooms[0][best]))
    return None


def best_site(pairs: Sequence[tuple[Leaf, Need]], room: Room) -> tuple[str, int] | None:
    """The site with room now for the most tasks of a gang, and how many, if that is too few.

    None where there is one site only, or where one has room for all of them. What must start
    counts, and each group as if the others were not there.
    """
    table = room.fit(pairs[0][1]).table
    names = table.domain_names.get(SITE, [])
    if len(names) <= 1:
        return None
    total = np.zeros(len(names), np.int64)
    enough = np.ones(len(names), np.bool_)
    for leaf, need in pairs:
        if leaf.is_optional:
            continue
        fits, domain = np.minimum(room.columns(need)[0], leaf.tasks), table.domains[SITE]
        inside = np.bincount(domain[domain >= 0], fits[domain >= 0], len(names)).astype(np.int64)
        enough &= inside >= leaf.tasks
        total += np.minimum(inside, leaf.tasks)
    if enough.any():
        return None
    best = int(total.argmax())
    return (names[best], int(total[best]))


def _for_ever(leaf: Leaf, fit: Fit) -> Reason | None:
    table, need = fit.table, fit.need
    if not table.count:
        return Reason.SITE_UNAVAILABLE
    if fit.most_possible(leaf.tasks) >= leaf.tasks:
        return None
    if need.mode is not Mode.NONE and not fit.kinds:
        return Reason.TYPE_UNAVAILABLE
    if need.sites and not any(node.spec.site in need.sites for node in table.nodes):
        return Reason.SITE_UNAVAILABLE
    return Reason.NEVER_FITS if fit.allowed.all() else Reason.CONSTRAINT


def _up(leaf: Leaf, fit: Fit) -> Reason | None:
    """Whether what is up and well could hold it, if it were empty."""
    return Reason.HEALTH if fit.most_up(leaf.tasks) < leaf.tasks else None


def _free(leaf: Leaf, fit: Fit) -> Reason | None:
    """Whether enough is free for this leaf alone, and if not, what is short."""
    if fit.is_short_of_devices(leaf.tasks):
        return Reason.NO_FREE_DEVICES
    if fit.room_for(leaf.tasks) >= leaf.tasks:
        return None
    table, need = fit.table, fit.need
    rows = np.flatnonzero((fit.possible > 0) & fit.open)
    view = View(table, rows)
    if need.mode is Mode.NONE:
        return Reason.NODE_SLOTS if not _slots_left(view, leaf) else Reason.SHAPE
    if free_milli(fit, view) < leaf.tasks * max(fit.device_milli, 1):
        return Reason.NO_FREE_DEVICES
    if need.exclusive:
        return Reason.FRAGMENTED
    devices = _by_devices(fit, view)
    if int(np.minimum(devices, leaf.tasks).sum()) < leaf.tasks:
        return Reason.FRAGMENTED
    with_slots = np.minimum(devices, view.slots)
    if int(np.minimum(with_slots, leaf.tasks).sum()) < leaf.tasks:
        return Reason.NODE_SLOTS
    return Reason.SHAPE


def _slots_left(view: View, leaf: Leaf) -> bool:
    return int(np.minimum(view.slots, leaf.tasks).sum()) >= leaf.tasks


def _by_devices(fit: Fit, view: View) -> Ints:
    """Tasks per row by devices alone, whatever cores, memory and slots say."""
    if fit.need.mode is Mode.WHOLE:
        whole: Ints = view.untouched[list(fit.kinds)].sum(axis=0) // fit.need.count
        return whole
    return fit.count_devices(view)


def free_milli(fit: Fit, view: View) -> int:
    """Thousandths of devices of the right kind that are free on the rows of a view."""
    table = fit.table
    if fit.need.mode is Mode.WHOLE:
        return int(view.untouched[list(fit.kinds)].sum()) * 1000
    right = np.isin(table.kind[view.rows], fit.kinds) & view.usable
    return int(np.where(right, table.milli_free[view.rows], 0).sum())


def _keeper(room: Room, open_room: Room, need: Need) -> JobId | None:
    """Whose promise takes the most of what would fit."""
    before, _ = open_room.columns(need)
    worst: tuple[int, JobId] | None = None
    for hold in room.bound:
        lost = sum(before.item(row) for row in hold.host)
        if worst is None or lost > worst[0]:
            worst = (lost, hold.job)
    return None if worst is None else worst[1]
