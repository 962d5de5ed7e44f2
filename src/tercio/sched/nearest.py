"""The smallest change that would start a waiting job now, each one tried before it is named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from tercio.model.ids import JobId
from tercio.model.node import PROBATION
from tercio.model.reasons import Change, Reason
from tercio.model.resources import DEVICES, Amounts
from tercio.model.units import format_instant
from tercio.sched.feasible import View
from tercio.sched.gang import Gang, Room
from tercio.sched.ground import Tenant
from tercio.sched.need import Branch, Leaf, Mode, Need, Shape, task_amounts
from tercio.sched.owners import DEVICE_HOURS, OWNER_LIMITS, owner_of
from tercio.sched.scene import Scene
from tercio.sched.statement import Statement
from tercio.sched.words import amount_words

THEN = "then"
"""When a change starts the job only once it has happened."""
LATER = "later"
"""When a change lifts what holds the job back, and something else will still keep it waiting."""


def nearest_change(scene: Scene) -> Change | None:
    """Return the smallest change that starts the job, or None when none was found.

    Tried in order: fewer tasks, fewer devices per task, another type, looser topology, less
    host share, after another job ends, another limit, a node brought back.
    """
    steps: Sequence[Callable[[Scene], Change | None]]
    match scene.verdict.reason:
        case Reason.QUEUE_LIMIT | Reason.USER_LIMIT:
            steps = (_within_budget, _fewer_tasks, _after, _higher_limit)
        case Reason.NEVER_FITS if scene.verdict.limit is not None:
            steps = (_within_budget, _fewer_tasks, _higher_limit)
        case Reason.NEVER_FITS | Reason.CONSTRAINT | Reason.TYPE_UNAVAILABLE:
            steps = (_fewer_tasks, _fewer_devices, _other_type)
        case Reason.HEALTH:
            steps = (_fewer_tasks, _fewer_devices, _other_type, _bring_back)
        case Reason.TOPOLOGY:
            steps = (_fewer_tasks, _looser, _other_type, _after)
        case Reason.SHAPE if scene.verdict.limit is not None:
            steps = (_evictable,)
        case Reason.SHAPE:
            steps = (_less_host, _fewer_tasks, _other_type, _after)
        case Reason.ORDER | Reason.READY | Reason.PREEMPTING | Reason.SEARCH_BUDGET:
            steps = ()
        case Reason.RESERVED:
            steps = (_shorter, _fewer_tasks, _other_type)
        case Reason.POWER:
            steps = (_shorter, _fewer_tasks, _fewer_devices, _other_type, _after)
        case Reason.WAITING_FOR_SHARE if scene.verdict.limit is not None:
            steps = (_fewer_tasks, _after)
        case _:
            steps = (_fewer_tasks, _fewer_devices, _other_type, _after)
    for step in steps:
        found = step(scene)
        if found is not None:
            return found
    return None


def fits_now(
    scene: Scene,
    shape: Shape,
    needs: Sequence[Need],
    room: Room | None = None,
    *,
    tenant: Tenant | None = None,
    gone: Collection[JobId] = (),
    is_limited: bool = True,
) -> bool:
    """Whether a changed job would be placed now; leaves no trace.

    `tenant` is whose it would be, `gone` are jobs that a statement has taken away. Unless it is
    not `is_limited`, what is placed also counts against the limits of its queue and user.
    """
    memory = scene.memory
    fits = {need: memory.fit(need) for need in needs}
    room = room or Room(fits, memory.holds, scene.bound)
    statement = Statement(memory.table)
    gang = Gang(memory.table, room, statement, JobId("what-if"), needs)
    ground = memory.ground
    if ground is not None and gone:
        ground = ground.without(gone)
    placed, _ = scene.budgets.place(
        ground, tenant or scene.job_class.tenant(), gang, shape,
        most={leaf.index: leaf.tasks for leaf in shape.leaves},
    )  # fmt: skip
    statement.rollback()
    if placed is None or not is_limited:
        return placed is not None
    return _is_allowed(scene, memory.held_amounts(placed))


def _is_allowed(scene: Scene, amounts: Amounts) -> bool:
    memory, job_class = scene.memory, scene.job_class
    limit = memory.tree.blocked(job_class.queue, job_class.owner, amounts, memory.capacity())
    if limit is None and not job_class.is_preemptible and job_class.limit_s is None:
        limit = memory.tree.firm_block(job_class.queue, amounts, memory.capacity())
    return limit is None


def _may(scene: Scene, tasks: int, need: Need) -> bool:
    """Whether limits allow so many tasks of a need, for a job of one leaf."""
    each = task_amounts(need, scene.memory.policy)
    return _is_allowed(scene, {name: tasks * amount for name, amount in each.items()})


def _resized(shape: Shape, tasks: int) -> Shape:
    """The same job of one leaf with another number of tasks."""
    leaf = msgspec.structs.replace(shape.leaves[0], tasks=tasks, tasks_max=tasks)

    def swap(group: Branch | Leaf) -> Branch | Leaf:
        if isinstance(group, Leaf):
            return leaf
        children = tuple(swap(child) for child in group.children)
        return msgspec.structs.replace(group, children=children)

    root = swap(shape.root)
    assert isinstance(root, Branch)
    return msgspec.structs.replace(shape, root=root, leaves=(leaf,))


def _fewer_tasks(scene: Scene) -> Change | None:
    shape = scene.job_class.shape
    if len(shape.leaves) != 1 or scene.leaf.tasks <= 1:
        return None
    low, high = 0, scene.leaf.tasks - 1
    while low < high:  # most tasks that limits and space allow
        middle = (low + high + 1) // 2
        if _may(scene, middle, scene.need) and fits_now(
            scene, _resized(shape, middle), (scene.need,)
        ):
            low = middle
        else:
            high = middle - 1
    return Change(what="tasks", to=low) if low else None


def _fewer_devices(scene: Scene) -> Change | None:
    need, shape = scene.need, scene.job_class.shape
    if need.mode is not Mode.WHOLE or need.count <= 1 or len(shape.leaves) != 1:
        return None
    for count in range(need.count - 1, 0, -1):
        smaller = msgspec.structs.replace(need, count=count)
        if _may(scene, scene.leaf.tasks, smaller) and fits_now(scene, shape, (smaller,)):
            return Change(what="devices", to=count)
    return None


def _other_type(scene: Scene) -> Change | None:
    need, shape = scene.need, scene.job_class.shape
    if need.mode not in (Mode.WHOLE, Mode.SHARE) or len(shape.leaves) != 1:
        return None
    asked = {other.type for other in shape.leaves[0].needs}
    for name in scene.memory.table.types():
        if name in asked:
            continue
        other = msgspec.structs.replace(
            need, type=name, vendor=None, card_bytes=None, pools=(name,)
        )
        if scene.memory.pools.closed_by((other,), scene.job_class.queue) is not None:
            continue  # it would be behind somebody there
        if _may(scene, scene.leaf.tasks, other) and fits_now(scene, shape, (other,)):
            return Change(what="type", to=name)
    return None


def _looser(scene: Scene) -> Change | None:
    """The next larger level that holds it, or none at all."""
    shape = scene.job_class.shape
    level = scene.level
    levels = scene.memory.table.levels
    needs = shape.needs(scene.combination)
    larger = levels[levels.index(level) + 1 :] if level in levels else ()
    for wider in (*larger, None):
        if fits_now(scene, _at_level(shape, wider), needs):
            return Change(what="topology", to=wider or "none")
    return None


def _at_level(shape: Shape, level: str | None) -> Shape:
    def relax(group: Branch | Leaf) -> Branch | Leaf:
        topology = group.topology
        if topology is not None and topology.same is not None:
            topology = msgspec.structs.replace(topology, same=level, slice=None)
        elif topology is not None and level is None:
            topology = None
        if isinstance(group, Leaf):
            return msgspec.structs.replace(group, topology=topology)
        children = tuple(relax(child) for child in group.children)
        return msgspec.structs.replace(group, topology=topology, children=children)

    root = relax(shape.root)
    assert isinstance(root, Branch)
    return msgspec.structs.replace(shape, root=root)


def _less_host(scene: Scene) -> Change | None:
    """Fewer cores or less memory beside the same devices."""
    need, shape, table = scene.need, scene.job_class.shape, scene.fit.table
    if len(shape.leaves) != 1 or not len(scene.rows):
        return None
    view = View(table, scene.rows)
    for what, column in (("cpus", view.cpus), ("memory", view.memory)):
        asked = need.cpus_milli if what == "cpus" else need.memory_bytes
        if not asked:
            continue
        for amount in sorted({int(v) for v in column.tolist() if 0 < v < asked}, reverse=True):
            changed = (
                msgspec.structs.replace(need, cpus_milli=amount)
                if what == "cpus"
                else msgspec.structs.replace(need, memory_bytes=amount)
            )
            if fits_now(scene, shape, (changed,)):
                return Change(what=what, to=amount / 1000 if what == "cpus" else amount)
    return None


def _after(scene: Scene) -> Change | None:
    """The first holder whose end alone would let it start."""
    memory, shape = scene.memory, scene.job_class.shape
    needs = shape.needs(scene.combination)
    for job_id, _, ends_s in scene.holders:
        job = memory.running.get(job_id)
        if job is None:
            continue
        statement = Statement(memory.table)
        for task in job.tasks:
            row = memory.table.row_of.get(task.node)
            if row is not None:
                statement.evict(row, job_id, task)
        node = memory.tree.at(job.queue)
        held = memory.held[job_id]
        firm = not job.is_preemptible
        statement.charge(node, owner_of(job), held, is_firm=firm, sign=-1)
        amounts = scene.job_class.amounts[shape.combinations.index(scene.combination)]
        allowed = (
            memory.tree.blocked(
                scene.job_class.queue, scene.job_class.owner, amounts, memory.capacity()
            )
            is None
        )
        fits = allowed and fits_now(scene, shape, needs, gone=(job_id,))
        statement.rollback()
        if fits:
            return Change(
                what="after", to=job_id, starts=THEN if ends_s is None else format_instant(ends_s)
            )
    return None


def _higher_limit(scene: Scene) -> Change | None:
    limit = scene.verdict.limit
    if limit is None or limit.kind not in ("limit", "user_limit", *OWNER_LIMITS):
        return None
    total = limit.use + limit.wanted
    if scene.verdict.can_never:
        total = max(total, limit.wanted)
    starts = "now" if fits_now(
        scene, scene.job_class.shape, scene.job_class.shape.needs(scene.combination),
        is_limited=False,
    ) else LATER  # fmt: skip
    return Change(what="limit", to=amount_words(limit.resource, total), starts=starts)


def _within_budget(scene: Scene) -> Change | None:
    """A time limit, in whole minutes, with which the job stays inside what a budget has left."""
    limit = scene.verdict.limit
    if limit is None or limit.resource != DEVICE_HOURS:
        return None
    shape, job_class = scene.job_class.shape, scene.job_class
    milli = job_class.amounts[scene.verdict.alternative].get(DEVICES, 0)
    limit_s = (limit.limit - limit.use) // max(milli, 1) // 60 * 60
    if limit_s <= 0:
        return None
    is_free = fits_now(scene, shape, shape.needs(scene.combination), is_limited=False)
    return Change(what="time_limit_s", to=limit_s, starts="now" if is_free else LATER)


def _bring_back(scene: Scene) -> Change | None:
    """A node out of service that would make the difference."""
    table, fit = scene.fit.table, scene.fit
    out = np.flatnonzero((fit.possible > 0) & ~fit.open).tolist()
    short = scene.leaf.tasks - scene.room_tasks
    for row in out:
        if fit.possible.item(row) < short:
            continue
        if table.nodes[row].trial == PROBATION and table.placeable.item(row):
            return Change(what="return", to=table.names[row])
        if table.nodes[row].cordons:
            return Change(what="uncordon", to=table.names[row])
    return Change(what="repair", to=table.names[out[0]], starts=THEN) if out else None


def _evictable(scene: Scene) -> Change | None:
    """A job that may be evicted can stand on what others may ask back."""
    ground, job_class = scene.memory.ground, scene.job_class
    tenant = job_class.tenant()
    loose = tenant._replace(is_firm=False)
    if ground is None or not tenant.is_firm or ground.is_bound(loose):
        return None
    needs = job_class.shape.needs(scene.combination)
    if fits_now(scene, job_class.shape, needs, tenant=loose):
        return Change(what="preemptible", to="true")
    return None


def _shorter(scene: Scene) -> Change | None:
    """A time limit that ends before the promise in the way begins."""
    hold = next((hold for hold in scene.bound if hold.job == scene.verdict.ahead), None)
    if hold is None or hold.from_s <= scene.now_s:
        return None
    limit_s = int(hold.from_s - scene.now_s)
    bound = scene.memory.holds.binding(
        scene.now_s + limit_s, start_s=scene.now_s, asker=scene.job_class.asker()
    )
    needs = scene.job_class.shape.needs(scene.combination)
    room = Room({need: scene.memory.fit(need) for need in needs}, scene.memory.holds, bound)
    if limit_s > 0 and fits_now(scene, scene.job_class.shape, needs, room):
        return Change(what="time_limit_s", to=limit_s)
    return None
