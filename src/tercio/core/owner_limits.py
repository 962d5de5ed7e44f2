"""Limits of users and tenants as people are shown them: who has how much of which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tercio.core.cluster import Cluster
from tercio.model.ids import QueuePath
from tercio.model.limits import HOUR_MS, OwnerKind, OwnerLimit, owner_key
from tercio.model.queue import parent_queue, walk_queues
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI, Amounts
from tercio.model.sharing_views import OwnerLimitRow
from tercio.model.snapshot import RunningJob, WaitingJob
from tercio.sched.owners import DEVICE_HOURS, OwnerLimits


def owner_limit_rows(cluster: Cluster, now_s: float) -> list[OwnerLimitRow]:
    """Return a row for every limit of every owner who has or wants something, or is named.

    Limits over all queues first, users before tenants; then user limits of queues.
    """
    limits = cluster.policy.limits
    snapshot = cluster.snapshot()
    owners = OwnerLimits(limits)
    owners.begin(snapshot.spent, now_s)
    held: dict[tuple[str, str], Amounts] = {}
    seen: dict[OwnerKind, dict[str, None]] = {
        OwnerKind.USER: dict.fromkeys(limits.users),
        OwnerKind.TENANT: dict.fromkeys(limits.tenants),
    }
    jobs: list[RunningJob | WaitingJob] = [*snapshot.running.values(), *snapshot.waiting.values()]
    for job in jobs:
        seen[OwnerKind.USER][job.user] = None
        seen[OwnerKind.TENANT][job.tenant] = None
    for key in snapshot.spent:
        kind, _, name = key.partition(":")
        seen[OwnerKind(kind)][name] = None
    for running in snapshot.running.values():
        owners.run(running, sign=+1)
        amounts = _held(cluster, running)
        for place in ("", *_lineage(running.queue)):
            _add(held, place, owner_key(OwnerKind.USER, running.user), amounts)
        _add(held, "", owner_key(OwnerKind.TENANT, running.tenant), amounts)
    rows: list[OwnerLimitRow] = []
    for kind, names in seen.items():
        for name in sorted(names):
            limit = limits.of(kind, name)
            has = held.get(("", owner_key(kind, name)), {})
            rows += _at_once(kind, name, None, limit.amounts, has)
            rows += _hours(owners, kind, name, limit)
    for path, queue in walk_queues(cluster.policy).items():
        for name in sorted(seen[OwnerKind.USER]) if queue.user_limit else ():
            user_has = held.get((path, owner_key(OwnerKind.USER, name)))
            if user_has is not None:
                rows += _at_once(OwnerKind.USER, name, path, queue.user_limit, user_has)
    return rows


def _at_once(
    kind: OwnerKind,
    name: str,
    queue: QueuePath | None,
    limits: Mapping[str, int],
    held: Mapping[str, int],
) -> Iterator[OwnerLimitRow]:
    for resource, limit in limits.items():
        size = 1 if resource in ("running_jobs", MEMORY) else WHOLE_DEVICE_MILLI
        yield OwnerLimitRow(
            kind=kind.value, name=name, queue=queue, resource=resource,
            used=held.get(resource, 0) / size, limit=limit / size,
        )  # fmt: skip


def _hours(
    owners: OwnerLimits, kind: OwnerKind, name: str, limit: OwnerLimit
) -> Iterator[OwnerLimitRow]:
    budget = limit.device_time
    if budget is None:
        return
    used = owners.used_ms(kind, name)
    step = owners.next_room(kind, name)
    yield OwnerLimitRow(
        kind=kind.value, name=name, resource=DEVICE_HOURS, used=used / HOUR_MS,
        limit=budget.amount_ms / HOUR_MS, days=budget.days,
        frees_s=None if step is None else step[0],
        frees=0.0 if step is None else step[1] / HOUR_MS,
    )  # fmt: skip


def _held(cluster: Cluster, job: RunningJob) -> Amounts:
    """What a job holds by resource, as limits count it."""
    held: Amounts = {"running_jobs": 1}
    for task in job.tasks:
        found = {CPUS: task.cpus_milli, MEMORY: task.memory_bytes}
        node = cluster.nodes.get(task.node)
        for share in task.devices:
            found[DEVICES] = found.get(DEVICES, 0) + share.milli
            if node is not None and share.index < len(node.spec.devices):
                kind = node.spec.devices[share.index].type
                found[kind] = found.get(kind, 0) + share.milli
        for name, amount in found.items():
            held[name] = held.get(name, 0) + amount
    return held


def _lineage(path: QueuePath) -> list[QueuePath]:
    parent = parent_queue(path)
    return [path, *([] if parent is None else _lineage(parent))]


def _add(
    held: dict[tuple[str, str], Amounts], place: str, key: str, amounts: Mapping[str, int]
) -> None:
    total = held.setdefault((place, key), {})
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount
