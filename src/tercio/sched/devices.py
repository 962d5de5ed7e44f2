"""Which devices of a node one task gets."""

from __future__ import annotations

from collections.abc import Collection

from tercio.model.ids import NodeName
from tercio.model.node import MigProfile
from tercio.model.placement import TaskPlacement
from tercio.model.resources import WHOLE_DEVICE_MILLI, DeviceShare
from tercio.sched.feasible import Fit
from tercio.sched.mig import best_start, slice_memory_bytes, slice_milli
from tercio.sched.need import Mode
from tercio.sched.table import UNLIMITED, Table


def task_on(
    fit: Fit,
    row: int,
    *,
    task: int,
    group: int,
    kept: Collection[int] = (),
    one_island: bool = False,
) -> TaskPlacement | None:
    """Return what one task of this need would hold on a row, or None when it does not fit.

    `kept` are devices promised to others. `one_island` demands devices of one link domain.
    """
    table, need = fit.table, fit.need
    name = table.names[row]
    if need.exclusive:
        return _whole_node(table, row, name, task, group)
    shares: tuple[DeviceShare, ...] | None
    match need.mode:
        case Mode.NONE:
            shares = ()
        case Mode.WHOLE:
            shares = _whole_devices(fit, row, kept, one_island=one_island)
        case Mode.SHARE:
            shares = _share(fit, row, kept)
        case Mode.MIG:
            shares = _slices(fit, row, kept)
    if shares is None:
        return None
    cpus, memory = fit.host(row, sum([share.milli for share in shares]))
    return TaskPlacement(
        task=task, node=name, group=group, devices=shares, cpus_milli=cpus, memory_bytes=memory
    )


def _whole_node(
    table: Table, row: int, name: NodeName, task: int, group: int
) -> TaskPlacement | None:
    count = table.device_count.item(row)
    cpus, memory = table.cpus_total.item(row), table.memory_total.item(row)
    return TaskPlacement(
        task=task,
        node=name,
        group=group,
        devices=tuple(table.whole(row, at) for at in range(count)),
        cpus_milli=cpus if cpus < UNLIMITED else 0,
        memory_bytes=memory if memory < UNLIMITED << 20 else 0,
    )


def _right(fit: Fit, row: int, kept: Collection[int]) -> list[int]:
    """Usable devices of the right kind on a row, in index order."""
    table, kinds = fit.table, fit.kinds
    usable, kind = table.usable[row].tolist(), table.kind[row].tolist()
    return [at for at, k in enumerate(kind) if k in kinds and usable[at] and at not in kept]


def _untouched(fit: Fit, row: int, kept: Collection[int]) -> list[int]:
    """Those of the right devices that nobody holds."""
    table, kinds = fit.table, fit.kinds
    holders = table.holders[row].tolist()
    usable, kind = table.usable[row].tolist(), table.kind[row].tolist()
    return [
        at
        for at, held in enumerate(holders)
        if not held and usable[at] and kind[at] in kinds and at not in kept
    ]


def _whole_devices(
    fit: Fit, row: int, kept: Collection[int], *, one_island: bool
) -> tuple[DeviceShare, ...] | None:
    table, count = fit.table, fit.need.count
    free = _untouched(fit, row, kept)
    if len(free) < count:
        return None
    if len(free) > count and not one_island:
        devices = table.nodes[row].spec.devices
        uncut = [at for at in free if (mig := devices[at].mig) is None or not mig.is_on]
        if len(uncut) >= count:
            free = uncut  # the others would have to leave MIG mode first
    if len(free) > count or one_island:
        chosen = _linked(table.island[row].tolist(), free, count, one_island=one_island)
        if chosen is None:
            return None
        free = chosen
    return tuple([table.whole(row, at) for at in free])


def _is_cut(fit: Fit, row: int, at: int) -> bool:
    mig = fit.table.nodes[row].spec.devices[at].mig
    return mig is not None and mig.is_on


def _linked(
    island: list[int], free: list[int], count: int, *, one_island: bool
) -> list[int] | None:
    """Choose devices that share links: the tightest island that holds all, else the largest."""
    first = island[free[0]]
    if all([island[at] == first for at in free]):
        return free[:count]
    groups: dict[int, list[int]] = {}
    for at in free:
        groups.setdefault(island[at], []).append(at)
    fitting = [group for group in groups.values() if len(group) >= count]
    if fitting:
        return min(fitting, key=len)[:count]
    if one_island:
        return None
    chosen: list[int] = []
    for group in sorted(groups.values(), key=lambda g: -len(g)):
        chosen += group[: count - len(chosen)]
    return sorted(chosen)


def _share(fit: Fit, row: int, kept: Collection[int]) -> tuple[DeviceShare, ...] | None:
    """The tightest device that takes the share, so that whole devices stay whole."""
    table, need = fit.table, fit.need
    found: dict[int, tuple[int, DeviceShare]] = {}
    for at in _right(fit, row, kept):
        total, left = table.card_total.item(row, at), table.milli_free.item(row, at)
        if table.mig_used.item(row, at):
            continue
        if need.card_memory_bytes:
            memory = need.card_memory_bytes
            # Rounded down, so that 23 shares of 2,000 MiB stand on a card of 46,068 MiB.
            milli = max(memory * WHOLE_DEVICE_MILLI // max(total, 1), 1)
        else:
            milli, memory = need.milli, total * need.milli // WHOLE_DEVICE_MILLI
        if milli <= left and memory <= table.card_free.item(row, at):
            found[at] = (left, DeviceShare(index=at, milli=milli, memory_bytes=memory))
    if not found:
        return None
    if fit.fragmentation is not None and need.milli:
        return (found[fit.fragmentation.device(fit, row, list(found))][1],)
    return (found[min(found, key=lambda at: (_is_cut(fit, row, at), found[at][0]))][1],)


def _slices(fit: Fit, row: int, kept: Collection[int]) -> tuple[DeviceShare, ...] | None:
    """MIG slices, on cards that are cut already where there is room; each where it costs least.

    What a slice costs is what the card can no longer become, see `mig.best_start`.
    """
    table, need = fit.table, fit.need
    held = {
        at: table.mig_used.item(row, at)
        for at in _right(fit, row, kept)
        if table.mig_used.item(row, at) or not table.holders.item(row, at)
    }
    shares: list[DeviceShare] = []
    while len(shares) < need.count:
        found = [place for at in held if (place := _slice_place(fit, row, at, held[at]))]
        if not found:
            return None
        *_, at, start = min(found)
        profile = _profile(fit, row, at)
        shares.append(
            DeviceShare(
                index=at,
                milli=slice_milli(profile),
                memory_bytes=slice_memory_bytes(profile, table.card_total.item(row, at)),
                mig_profile=profile.name,
                mig_start=start,
                mig_size=profile.size,
            )
        )
        held[at] |= shares[-1].slice_bits
    return tuple(sorted(shares, key=lambda share: (share.index, share.mig_start)))


def _slice_place(
    fit: Fit, row: int, at: int, used: int
) -> tuple[bool, bool, int, bool, int, int] | None:
    """Return the best start on one device, before it what it costs; None without room.

    A card in use before an idle one, one in MIG mode before a whole one, then by cost.
    """
    table, profile = fit.table, _profile(fit, row, at)
    mig = table.nodes[row].spec.devices[at].mig
    idle = mig.slices if mig is not None else ()
    there = [part.start for part in idle if part.profile == profile.name and not part.bits & used]
    profiles = table.kinds[table.kind.item(row, at)].profiles
    found = best_start(profiles, profile, used, there)
    if found is None:
        return None
    cost, start = found
    return not used, mig is None or not mig.is_on, cost, start not in there, at, start


def _profile(fit: Fit, row: int, at: int) -> MigProfile:
    profile = fit.table.kinds[fit.table.kind.item(row, at)].profile(fit.need.mig_profile)
    assert profile is not None, "only devices that take the need are asked"
    return profile
