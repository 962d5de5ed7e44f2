"""Queues as people are shown them: what each may use, uses, lends, borrows and waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver
from tercio.core.promises import installed_domains
from tercio.core.records import Task
from tercio.core.views import (
    held_devices,
    is_at,
    is_waiting,
    plain_amounts,
    plain_devices,
    wanted_devices,
)
from tercio.model.ids import QueuePath
from tercio.model.job import ACTIVE_JOB_STATES, TERMINAL_JOB_STATES
from tercio.model.queue import QueueSpec, parent_queue, walk_queues
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI
from tercio.model.shape import with_shape
from tercio.model.views import QueueView

_HOST: Final = (CPUS, MEMORY)


class _Count:
    """What the jobs of one queue and its sub-queues come to. Amounts are thousandths."""

    __slots__ = ("elsewhere", "running", "used", "waiting", "wanted")

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.used: dict[str, int] = {}
        self.elsewhere: dict[str, int] = {}
        self.wanted: dict[str, int] = {}


def queue_views(driver: Driver, now_s: float, *, site: str | None = None) -> list[QueueView]:
    """Return all queues, parents before children; a parent's numbers include its children's.

    `site` counts what runs there and what may start there; shares are those of all sites.
    """
    policy = driver.cluster.policy
    declared = walk_queues(policy)
    domains = installed_domains(driver.cluster, policy)
    queues = {
        path: msgspec.structs.replace(queue, guarantee=with_shape(queue, domains))
        for path, queue in declared.items()
    }
    counts = _count(driver, queues)
    free = _free(driver)
    past = _past_use(driver, queues, now_s)
    entitled = driver.entitlements()
    lent = {path: _lent(path, queues, counts, free) for path in queues}
    here = counts if site is None else _count(driver, queues, site=site)
    return [
        QueueView(
            path=path,
            guarantee=plain_amounts(declared[path].guarantee),
            guarantee_shape=queue.guarantee_shape,
            limit=plain_amounts(queue.limit),
            weight=queue.weight,
            used=plain_devices(here[path].used),
            used_elsewhere=plain_devices(here[path].elsewhere),
            entitled={
                name: float(share) / WHOLE_DEVICE_MILLI
                for name, share in entitled.get(path, {}).items()
            },
            borrowed=plain_devices(_borrowed(queue, counts[path].used)),
            lent=lent[path],
            wanted=plain_devices(here[path].wanted),
            decayed_use=past[path],
            running=here[path].running,
            waiting=here[path].waiting,
            preemptible=queue.preemptible,
            order=queue.order.value,
        )
        for path, queue in queues.items()
    ]


def _count(
    driver: Driver, queues: Mapping[QueuePath, QueueSpec], *, site: str | None = None
) -> dict[QueuePath, _Count]:
    cluster = driver.cluster
    counts = {path: _Count() for path in queues}
    for job in cluster.jobs.values():
        if job.state in TERMINAL_JOB_STATES:
            continue
        tasks, others = _by_place(cluster, job.live_tasks, site)
        held, elsewhere = held_devices(driver, tasks), held_devices(driver, others)
        is_here = site is None or is_at(cluster, job, site)
        wanted = wanted_devices(job.spec) if is_here and is_waiting(job) else {}
        for path in _lineage(job.queue):
            count = counts.get(path)
            if count is None:
                continue
            if is_here:
                count.running += int(job.state in ACTIVE_JOB_STATES and job.array is None)
                count.waiting += int(is_waiting(job))
            for sums, amounts in (
                (count.used, held), (count.elsewhere, elsewhere), (count.wanted, wanted)
            ):  # fmt: skip
                for kind, amount in amounts.items():
                    milli = round(amount * WHOLE_DEVICE_MILLI)
                    sums[kind] = sums.get(kind, 0) + milli
    return counts


def _by_place(
    cluster: Cluster, tasks: Sequence[Task], site: str | None
) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return the tasks at a site, all where none is meant, and those elsewhere."""
    if site is None:
        return tasks, ()
    here: list[Task] = []
    others: list[Task] = []
    for task in tasks:
        node = cluster.nodes.get(task.placement.node)
        (here if node is not None and node.spec.site == site else others).append(task)
    return here, others


def _lineage(path: QueuePath) -> list[QueuePath]:
    found, at = [path], parent_queue(path)
    while at is not None:
        found.append(at)
        at = parent_queue(at)
    return found


def _free(driver: Driver) -> dict[str, int]:
    """Thousandths that nobody holds on nodes that take work, by type."""
    free: dict[str, int] = {}
    ledger = driver.cluster.ledger.nodes
    for node in driver.cluster.nodes.values():
        if not node.is_placeable:
            continue
        use = ledger.get(node.name)
        held = use.device_milli if use is not None else []
        for device in node.spec.devices:
            if not device.healthy or device.index in node.spec.foreign_devices:
                continue
            taken = held[device.index] if device.index < len(held) else 0
            free[device.type] = free.get(device.type, 0) + WHOLE_DEVICE_MILLI - taken
    return free


def _named(guarantee: Mapping[str, int], used: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Guaranteed and used amounts by the resource that the guarantee names."""
    found: dict[str, tuple[int, int]] = {}
    for name, amount in guarantee.items():
        if name in _HOST:
            continue
        use = sum(used.values()) if name == DEVICES else used.get(name, 0)
        found[name] = (amount, use)
    return found


def _borrowed(queue: QueueSpec, used: Mapping[str, int]) -> dict[str, int]:
    """What the queue uses above its guarantee, by type; by `devices` where that is guaranteed."""
    named = _named(queue.guarantee, used)
    if DEVICES in named:
        amount, use = named[DEVICES]
        return {DEVICES: use - amount} if use > amount else {}
    found = {kind: use - queue.guarantee.get(kind, 0) for kind, use in used.items()}
    return {kind: over for kind, over in found.items() if over > 0}


def _lent(
    path: QueuePath,
    queues: Mapping[QueuePath, QueueSpec],
    counts: Mapping[QueuePath, _Count],
    free: Mapping[str, int],
) -> dict[str, float]:
    """What the queue is guaranteed and does not use, and others hold.

    Of all that the queue and its siblings leave idle, what is still free is lent to nobody; the
    rest is, by each in proportion to what it leaves idle.
    """
    parent = parent_queue(path)
    siblings = [other for other in queues if parent_queue(other) == parent]
    found: dict[str, float] = {}
    for name, (amount, use) in _named(queues[path].guarantee, counts[path].used).items():
        idle = max(0, amount - use)
        every = 0
        for other in siblings:
            named = _named(queues[other].guarantee, counts[other].used)
            theirs, used = named.get(name, (0, 0))
            every += max(0, theirs - used)
        unheld = sum(free.values()) if name == DEVICES else free.get(name, 0)
        out = max(0, every - unheld)
        if idle and out:
            found[name] = round(idle * out / every) / WHOLE_DEVICE_MILLI
    return found


def _past_use(
    driver: Driver, queues: Mapping[QueuePath, QueueSpec], now_s: float
) -> dict[QueuePath, float]:
    """Past use in device-seconds, decayed to now, sub-queues included."""
    ledger = driver.cluster.ledger
    half_life_s = driver.cluster.policy.half_life_s
    left = 0.0
    if half_life_s > 0:
        left = 2.0 ** (-max(0.0, now_s - ledger.decayed_at_s) / half_life_s)
    past = dict.fromkeys(queues, 0.0)
    for path, use in ledger.decayed.items():
        for each in _lineage(path):
            if each in past:
                past[each] += use * left
    return past
