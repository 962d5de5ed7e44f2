"""The sentence of a decision: the true blocker, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

import msgspec
import numpy as np

from tercio.model.limits import HOUR_MS
from tercio.model.node import Node, NodeState
from tercio.model.placement import TaskPlacement
from tercio.model.reasons import Reason
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI
from tercio.model.shape import PREFIX, whole_words
from tercio.model.snapshot import WaitingJob
from tercio.model.topology import SITE
from tercio.model.units import format_instant, format_memory, format_milli
from tercio.sched.blockers import WHOLE_NODES, Shortage
from tercio.sched.fairshare import RUNNING_JOBS
from tercio.sched.mig import is_fixed, profiles_of
from tercio.sched.need import ANY, Mode, Shape
from tercio.sched.owners import DEVICE_HOURS, OWNER_LIMITS, Blocked
from tercio.sched.scene import Scene
from tercio.sched.table import UNLIMITED, device_kind
from tercio.sched.verdict import too_narrow

_ONE_BY_ONE: Final = (Reason.FRAGMENTED, Reason.SHAPE, Reason.NODE_SLOTS)
"""Reasons with which every group of a job may fit by itself."""


def amount_words(resource: str, amount: int) -> str:
    """`8 H100`, `4 cores`, `64GiB of memory`, `2 running jobs`."""
    match resource:
        case name if name == CPUS:
            return f"{format_milli(amount)} core" + ("" if amount == 1000 else "s")
        case name if name == MEMORY:
            return f"{format_memory(amount)} of memory"
        case name if name == RUNNING_JOBS:
            return plural(amount, "running job")
        case name if name == DEVICE_HOURS:
            return f"{round(amount / HOUR_MS, 1):g} device-hours"
        case name if name == DEVICES:
            return f"{format_milli(amount)} devices"
        case name if name.startswith(PREFIX):
            return whole_words(name, amount)
        case name:
            return f"{format_milli(amount)} {name}"


def plural(count: int, word: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count} {word}" + ("" if count == 1 else "s")


def number(amount: float) -> str:
    """A plain number without a useless `.0`."""
    return f"{amount:g}"


def asks(scene: Scene) -> str:
    """What the leaf asks for: `4 H100 on one node`, `2 tasks of 8 H100`."""
    leaf, need = scene.leaf, scene.need
    name = f"group {leaf.name}: " if leaf.name and len(scene.job_class.shape.leaves) > 1 else ""
    if need.exclusive:
        return f"{name}{plural(leaf.tasks, 'whole node')} with {need.words}"
    if leaf.tasks == 1:
        where = "" if need.mode in (Mode.NONE, Mode.SHARE) else " on one node"
        return f"{name}{need.words}{where}"
    return f"{name}{leaf.tasks} tasks of {need.words}"


def slice_words(tasks: Sequence[TaskPlacement]) -> str:
    """Say which slices of which devices tasks get; empty when they get none.

    >>> slice_words(())
    ''
    """
    held = [(task.node, share) for task in tasks for share in task.devices if share.mig_profile]
    if not held:
        return ""
    if len(held) == 1:
        return f", on a {held[0][1].mig_profile} slice of device {held[0][1].index}"
    cards = len({(node, share.index) for node, share in held})
    names = ", ".join(dict.fromkeys(share.mig_profile or "" for _, share in held))
    return f", on {len(held)} slices ({names}) of {plural(cards, 'device')}"


def declined_words(shape: Shape, faster: int, slower: int, at_s: float) -> str:
    """Why devices that are free are not taken: a faster type is done earlier, wait included."""
    names = [
        ", ".join(dict.fromkeys(need.type or "none" for need in shape.needs(shape.combinations[c])))
        for c in (faster, slower)
    ]
    return f"; {names[1]} is free, but on {names[0]} from {format_instant(at_s)} it is done earlier"


def cheaper_words(job: WaitingJob) -> str:
    """Why a flexible job lets others go first, and until when."""
    cheaper = job.cheaper
    if cheaper is None:
        return ""
    at, latest = format_instant(cheaper.from_s), format_instant(cheaper.latest_s)
    what = "cleaner" if cheaper.unit.startswith("g") else "cheaper"
    rates = f"{cheaper.rate_at_once:.3g} → {cheaper.rate:.3g} {cheaper.unit}"
    slack = "" if cheaper.latest_s <= cheaper.from_s else f"; its slack ends {latest}"
    return f"; flexible: lets others go first until {at}, when power is {what} ({rates}){slack}"


def sentence(scene: Scene) -> str:
    """One sentence that names the true blocker."""
    reason = scene.verdict.reason
    limit = scene.verdict.limit
    if limit is not None and limit.kind == "power":
        return _power_words(scene, limit)
    if limit is not None:
        return limit_words(limit, can_never=scene.verdict.can_never) + _frees(scene, limit)
    together = _together(scene)
    if together:
        return together
    match reason:
        case Reason.NO_FREE_DEVICES:
            return _no_free(scene)
        case Reason.FRAGMENTED | Reason.SHAPE | Reason.NODE_SLOTS | Reason.TOPOLOGY:
            return _wrong_shape(scene)
        case Reason.RESERVED:
            return _reserved(scene)
        case Reason.ORDER:
            pool = ", ".join(scene.job_class.pools())
            return f"behind {scene.verdict.ahead}, which is first for {pool} and does not fit yet"
        case Reason.NEVER_FITS | Reason.CONSTRAINT | Reason.TYPE_UNAVAILABLE:
            return _never(scene)
        case Reason.SITE_UNAVAILABLE:
            names = ", ".join(scene.need.sites)
            return f"no node of site {names} is known" if names else "no node is known"
        case Reason.HEALTH:
            return _health(scene)
        case Reason.PREEMPTING:
            return f"its devices are being freed for it: {asks(scene)}"
        case Reason.POWER:
            return f"{asks(scene)} would pass the power budget"
        case Reason.SEARCH_BUDGET:
            return f"the search for {asks(scene)} ran out of its budget; it goes on next cycle"
        case Reason.READY:
            return "ready"
        case (
            Reason.HELD | Reason.DEPENDENCY | Reason.NOT_BEFORE | Reason.BACK_OFF
            | Reason.QUEUE_LIMIT | Reason.USER_LIMIT | Reason.WAITING_FOR_SHARE
        ):  # fmt: skip
            return f"waits: {asks(scene)}"
        case _:
            assert_never(reason)


def _together(scene: Scene) -> str:
    """Groups that each fit alone, and are short of something together; empty for all else."""
    leaves, short = scene.job_class.shape.leaves, scene.short
    if short is not None:
        return _short_words(scene, short)
    is_alone = len(leaves) == 1 or scene.alone is not None
    if is_alone or scene.verdict.reason not in _ONE_BY_ONE:
        return ""
    needs = scene.job_class.shape.needs(scene.combination)
    told = [
        f"{leaf.name or 'a group'}: {plural(leaf.tasks, 'task')} of {need.words}"
        for leaf, need in zip(leaves, needs, strict=True)
    ]
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    what = {Reason.NODE_SLOTS: "; task slots", Reason.SHAPE: "; cores or memory"}
    lack = what.get(scene.verdict.reason, "")
    fits = "enough of" if any(leaf.is_optional for leaf in leaves) else "each of"
    return f"{fits} its groups would fit, not together ({', '.join(told[:3])}{more})" + (
        f"{lack} are short" if lack else ""
    )


def _short_words(scene: Scene, short: Shortage) -> str:
    """What is wanted and what there is: of the empty cluster, of what is free, or of a domain."""
    can_never = scene.verdict.can_never
    if short.what == WHOLE_NODES:
        ask, there = plural(short.wanted, "whole node"), plural(short.there, "node")
        free = "empty"
    else:
        ask, there = (f"{format_milli(n)} {short.what}" for n in (short.wanted, short.there))
        up = int(np.isin(scene.fit.table.kind[scene.rows], scene.fit.kinds).sum())
        there = there if short.level or can_never else f"{format_milli(short.there)} of {up}"
        free = "free" if short.level else f"{short.what} free"
    ask = f"needs {ask} for all its groups"
    if short.level:
        which = f"{short.domain}, the largest," if can_never else f"the best, {short.domain},"
        where = f"{'on' if short.level == SITE else 'in'} one {short.level}"
        return f"{ask} {where}; {which} has {there}" + ("" if can_never else f" {free}")
    return f"{ask}; the cluster has {there}" if can_never else f"{ask}; {there} {free}"


def limit_words(limit: Blocked, *, can_never: bool) -> str:
    """A quota in the way."""
    wanted = amount_words(limit.resource, limit.wanted)
    use, most = (amount_words(limit.resource, n) for n in (limit.use, limit.limit))
    queue = limit.queue.removesuffix("/(own)")
    if limit.resource == RUNNING_JOBS:
        wanted = "one more job"
    match limit.kind:
        case "user_limit":
            who = f"user {limit.user} may hold {most} in queue {queue}"
        case kind if kind in OWNER_LIMITS:
            who = f"{kind.removeprefix('per_')} {limit.user} may hold {most} in all queues"
            if limit.resource == DEVICE_HOURS:
                return _budget_words(limit, can_never=can_never)
        case "borrow_limit":
            who = f"queue {queue} may hold {most}, its guarantee and what it may borrow"
        case "lend_limit":
            return f"needs {wanted}; what is left is kept for queue {queue}, which does not lend it"
        case "shape":
            _, _, level = limit.resource.partition(".")
            owed, broken = (n // WHOLE_DEVICE_MILLI for n in (limit.wanted, limit.use))
            return (
                f"it would break a {level} that may be asked back whole: {queue} is guaranteed "
                f"{owed} of the {most} there are, and {broken} "
                f"{'is' if broken == 1 else 'are'} as good as broken"
            )
        case "entitlement":
            return (
                f"needs {wanted}; queue {queue} holds {use} and its share now is {most}, the rest "
                "is held by others inside theirs"
            )
        case "guarantee":
            return (
                f"needs {wanted} that may not be evicted; queue {queue} is guaranteed {most} and "
                f"holds {use} of that kind"
            )
        case _:
            who = f"queue {queue} may hold {most}"
    if can_never:
        return f"needs {wanted} at once, but {who}"
    return f"{who} and holds {use}; this job wants {wanted}"


def _budget_words(limit: Blocked, *, can_never: bool) -> str:
    """Device-hours that a user or a tenant has used up, or would."""
    wanted, use, most = (
        amount_words(DEVICE_HOURS, n) for n in (limit.wanted, limit.use, limit.limit)
    )
    days = plural(limit.days, "day")
    who = f"{limit.kind.removeprefix('per_')} {limit.user} may use {most} in {days}"
    if can_never:
        return f"needs {wanted} at once, but {who}"
    asks = f"this job wants {wanted}" if limit.wanted else "this job names no time limit"
    return f"{who} and has {use}, running jobs to their ends included; {asks}"


def _power_words(scene: Scene, limit: Blocked) -> str:
    """What would be drawn now, or when a promise begins that the job would outlive."""
    draw = f"its devices would draw {limit.use / 1000:g}kW in {limit.queue}"
    most = f"the power budget is {limit.limit / 1000:g}kW"
    if limit.from_s is None:
        kept = "" if limit.ahead is None else f" and is promised to {limit.ahead}"
        return f"{draw} together with what runs{kept}; {most}"
    start = f"when {limit.ahead} is promised to start and {_outlives(scene)}"
    return f"{draw} at {format_instant(limit.from_s)}, {start}; {most}"


def _outlives(scene: Scene) -> str:
    """Why a promise binds the job."""
    return "this job " + (
        "has no time limit" if scene.job_class.limit_s is None else "would end later"
    )


def _frees(scene: Scene, limit: Blocked) -> str:
    """When days that leave the window of a budget make room; empty for other limits."""
    if limit.resource != DEVICE_HOURS or scene.verdict.can_never:
        return ""
    from_s = scene.memory.tree.owners.fits_from_s(limit)
    return "" if from_s is None else f"; there is room from {format_instant(from_s)}"


def _no_free(scene: Scene) -> str:
    total = sum(scene.wanted.values())
    kind = scene.type_name
    free = scene.free.get(kind, 0.0)
    up = int(np.isin(scene.fit.table.kind[scene.rows], scene.fit.kinds).sum())
    leaf = scene.leaf
    several = leaf.tasks > 1 or len(scene.job_class.shape.leaves) > 1
    ask = asks(scene)
    if several and len(scene.wanted) == 1 and scene.need.mode is Mode.WHOLE:
        detail = "" if len(scene.job_class.shape.leaves) > 1 else f" ({ask})"
        ask = f"{number(total)} {kind}{detail}"
    return f"needs {ask}; {number(free)} of {up} {kind} free"


def _wrong_shape(scene: Scene) -> str:
    reason, leaf = scene.verdict.reason, scene.leaf
    free = number(scene.free.get(scene.type_name, 0.0))
    room = f"room for {plural(scene.room_tasks, 'task')}"
    match reason:
        case Reason.FRAGMENTED if scene.need.exclusive:
            return f"needs {asks(scene)}; {plural(scene.room_tasks, 'node')} empty"
        case Reason.FRAGMENTED if scene.best_node is not None:
            name, best = scene.best_node
            head = f"needs {asks(scene)}; {free} free, best node {name} has {number(best)}"
            return head if leaf.tasks == 1 else f"{head}, {room}"
        case Reason.TOPOLOGY if scene.best_site is not None:
            name, most = scene.best_site
            return (
                f"needs {asks(scene)}; a gang stays on one site, and the best, {name}, has room "
                f"for {plural(most, 'task')}"
            )
        case Reason.TOPOLOGY if scene.best_domain is not None:
            name, best_room = scene.best_domain
            return (
                f"needs {asks(scene)} in one {scene.level}; {free} free, best {scene.level} "
                f"{name} has room for {best_room}"
            )
        case Reason.TOPOLOGY:
            return f"needs {asks(scene)} placed as asked; {free} free, but not together"
        case Reason.NODE_SLOTS:
            return _slots(scene)
        case Reason.SHAPE if scene.need.exclusive:
            return f"needs {asks(scene)}; {plural(scene.room_tasks, 'node')} empty"
        case Reason.SHAPE:
            return _host_short(scene)
        case _:
            return f"needs {asks(scene)}; {free} free, {room}"


def _slots(scene: Scene) -> str:
    table = scene.fit.table
    rows = scene.rows[np.argsort(-scene.free_by_row, kind="stable")]
    row = int(rows[0])
    slots = table.nodes[row].spec.slots
    wanted = plural(scene.leaf.tasks, "task slot")
    left = f"{max(0, table.slots_free.item(row))} of {slots} task slots"
    if not scene.need.device_milli and not scene.need.card_memory_bytes:
        return f"needs {wanted}; {table.names[row]} has {left} free"
    free = number(scene.free_by_row.max() / WHOLE_DEVICE_MILLI)
    return (
        f"needs {wanted} for {asks(scene)}; {table.names[row]} has {free} {scene.type_name} free "
        f"but {left}"
    )


def _host_short(scene: Scene) -> str:
    """Devices are free but cores or memory beside them are not."""
    table, fit = scene.fit.table, scene.fit
    if scene.need.mode is Mode.NONE:
        row = int(scene.rows[table.cpus_free[scene.rows].argmax()])
    else:
        row = int(scene.rows[scene.free_by_row.argmax()])
    cpus, memory = fit.host(row, scene.need.device_milli)
    cores_left, memory_left = table.cpus_free.item(row), table.memory_free.item(row)
    short = amount_words(CPUS, cpus) if cpus > cores_left else amount_words(MEMORY, memory)
    left = (
        amount_words(CPUS, cores_left) if cpus > cores_left else amount_words(MEMORY, memory_left)
    )
    tasks = "" if scene.leaf.tasks == 1 else f"{scene.leaf.tasks} tasks, each "
    devices = "" if scene.need.mode is Mode.NONE else f"{scene.need.words} and "
    return f"needs {tasks}{devices}{short} on one node; best node {table.names[row]} has {left}"


def _reserved(scene: Scene) -> str:
    ahead = scene.verdict.ahead
    promise = scene.memory.promise_of(ahead) if ahead is not None else None
    end = _outlives(scene)
    what = asks(scene)
    if scene.need.mode is Mode.NONE and not scene.need.exclusive:
        tasks = scene.leaf.tasks
        what = f"{'a task' if tasks == 1 else f'{tasks} tasks'} without devices"
    hold = next((hold for hold in scene.bound if hold.job == ahead and hold.reservation), None)
    if hold is not None:
        if hold.from_s <= scene.now_s:
            until = format_instant(hold.until_s)
            return f"{what} would fit, but what is free is kept for {ahead} until {until}"
        at = format_instant(hold.from_s)
        return f"{what} would fit, but {ahead} begins at {at} and {end}"
    if promise is None or promise.from_s is None or promise.from_s <= scene.now_s:
        return f"{what} would fit, but what is free is kept for {ahead}"
    at = format_instant(promise.from_s)
    return f"{what} would fit, but is promised to {ahead} from {at} and {end}"


def _never(scene: Scene) -> str:
    table, need, fit = scene.fit.table, scene.need, scene.fit
    if scene.verdict.reason is Reason.TYPE_UNAVAILABLE:
        known = ", ".join(dict.fromkeys(kind.type for kind in table.kinds)) or "no devices"
        if need.mig_profile is not None:
            return _no_slices(scene, need.mig_profile)
        wanted = need.words.partition(" ")[2] or need.words
        return f"no node has {wanted}; the cluster has {known}"
    places = int(np.minimum(fit.possible, scene.leaf.tasks).sum())
    is_bare = need.runs_image and not any(node.spec.runs_images for node in table.nodes)
    if scene.verdict.reason is Reason.CONSTRAINT and is_bare:
        return (
            "has an image, and no node runs containers: install docker, podman or apptainer "
            "there, or leave image out"
        )
    if scene.verdict.reason is Reason.CONSTRAINT:
        rule = (
            need.nodes.match if need.nodes is not None and need.nodes.match else "its node filter"
        )
        allowed = int(fit.allowed.sum())
        return (
            f"needs {asks(scene)}; {rule} allows {allowed} of {plural(table.count, 'node')}, "
            f"which hold {plural(places, 'task')} when empty"
        )
    right = np.isin(table.kind, fit.kinds).sum(axis=1)
    if need.mode is Mode.WHOLE and right.max(initial=0) < need.count:
        return f"needs {asks(scene)}; the largest node has {right.max(initial=0)} {need.type}"
    if places == 0:
        cores = table.cpus_total.max(initial=0)
        size = format_milli(int(cores)) if cores < UNLIMITED else "any number of"
        memory = int(table.memory_total.max(initial=0))
        return (
            f"needs {asks(scene)}; no node is large enough "
            f"(largest: {size} cores, {format_memory(memory)})"
        )
    if places >= scene.leaf.tasks:
        shape = scene.job_class.shape
        pairs = list(zip(shape.leaves, shape.needs(scene.combination), strict=True))
        narrow = too_narrow(scene.job_class, pairs, scene.open_room)
        if narrow is not None:
            level, name, most = narrow
            if not name:
                return f"needs {asks(scene)} in one {level}; no node has a label {level}"
            return f"needs {asks(scene)} in one {level}; the largest, {name}, has room for {most}"
    return f"needs {asks(scene)}; the whole cluster, empty, has room for {places}"


def _no_slices(scene: Scene, wanted: str) -> str:
    """Why no card gives a slice of this profile: what the cards themselves say."""
    need, why, offered = scene.need, "", dict[str, None]()
    whole = msgspec.structs.replace(need, mode=Mode.WHOLE, mig_profile=None, count=1)
    name = "device" if need.type == ANY else need.type
    is_there = False
    for node in scene.fit.table.nodes:
        for device in node.spec.devices:
            fault = node.slice_fault(device.index)
            kind = device_kind(device, fault)
            if not whole.takes(kind._replace(can_be_whole=True)):
                continue
            is_there = True
            offered |= dict.fromkeys(profile.name for profile in profiles_of(device))
            if device.mig is not None and not why and is_fixed(device, fault):
                reason = fault.reason if fault is not None else device.mig.fixed
                why = f"{node.name} device {device.index}: {reason}"
    if not is_there:
        known = ", ".join(dict.fromkeys(k.type for k in scene.fit.table.kinds)) or "no devices"
        return f"no node has {name}; the cluster has {known}"
    if not offered:
        return f"no {name} of the cluster can be cut into MIG slices, as far as its engine says"
    if wanted not in offered:
        return f"no {name} can be cut into {wanted}; there is {', '.join(offered)}"
    return f"no {name} can be cut into {wanted} now" + (f" ({why})" if why else "")


def _state(node: Node) -> str:
    return node.state if node.state is not NodeState.READY else "cordoned"


def _health(scene: Scene) -> str:
    """Nodes that would do but are not available, by name."""
    fit, table = scene.fit, scene.fit.table
    out = [
        (table.names[row], table.nodes[row])
        for row in np.flatnonzero((fit.possible > 0) & ~fit.open).tolist()
    ]
    named = ", ".join(
        f"{name} ({node.trial if node.is_placeable else _state(node)})" for name, node in out[:3]
    )
    more = f" and {len(out) - 3} more" if len(out) > 3 else ""
    up = len(scene.rows)
    if not out:
        return f"needs {asks(scene)}; too many of its devices are unhealthy or in foreign use"
    return (
        f"needs {asks(scene)}; {up} of {plural(up + len(out), 'suitable node')} up: {named}{more}"
    )
