"""Device time of users and tenants in a simulation, and whether plans keep to their limits.

Counted from what jobs held, without the scheduler's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable

from tercio.core.ledger import split_by_day
from tercio.model.limits import DAY_S, Limits, OwnerKind, OwnerLimit, owner_key
from tercio.model.placement import TaskPlacement
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI, Amounts
from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.sched.plan import Plan
from tercio.twin.rules import must, waiting_of

Spent = dict[str, dict[int, int]]
"""Device-milliseconds by owner and day."""


def spend(spent: Spent, job: RunningJob, tasks: Iterable[TaskPlacement], end_s: float) -> None:
    """Count what tasks of a job held until an instant."""
    milli = sum(share.milli for task in tasks for share in task.devices)
    keys = (owner_key(OwnerKind.USER, job.user), owner_key(OwnerKind.TENANT, job.tenant))
    for day, ms in split_by_day(job.placed_s, end_s):
        for key in keys:
            days = spent.setdefault(key, {})
            days[day] = days.get(day, 0) + ms * milli // WHOLE_DEVICE_MILLI


def check_limits(
    limits: Limits, snapshot: Snapshot, plan: Plan, now_s: float, jobs: Iterable[WaitingJob]
) -> None:
    """Nothing starts or grows above a limit; owners all of whose jobs have limits keep to hours.

    `jobs` are all that there ever were.
    """
    held: dict[str, Amounts] = {}
    used = {key: dict(days) for key, days in snapshot.spent.items()}
    timeless: dict[str, tuple[OwnerKind, str]] = {}
    for job in jobs:
        if job.spec.time.limit_s is None:
            timeless |= _owners(job.user, job.tenant)
    for running in snapshot.running.values():
        _hold(held, running.user, running.tenant, running.tasks)
        spend(used, running, running.tasks, now_s)
    taking: dict[str, tuple[OwnerKind, str]] = {}
    for start in plan.starts:
        waiting = waiting_of(snapshot, start.job_id)
        _hold(held, waiting.user, waiting.tenant, start.tasks)
        taking |= _owners(waiting.user, waiting.tenant)
    for addition in plan.additions:
        grown = snapshot.running[addition.job_id]
        _hold(held, grown.user, grown.tenant, addition.tasks, jobs=0)
        taking |= _owners(grown.user, grown.tenant)
    for key, (kind, name) in taking.items():
        for resource, most in limits.of(kind, name).amounts.items():
            have = held[key].get(resource, 0)
            must(have <= most, f"{key} holds {have} of {most} {resource} at {now_s}")
    for key, days in used.items():
        word, _, name = key.partition(":")
        if key not in timeless:
            _check_time(limits.of(OwnerKind(word), name), key, days, now_s)


def _check_time(limit: OwnerLimit, key: str, days: dict[int, int], now_s: float) -> None:
    budget = limit.device_time
    if budget is None:
        return
    begin = int(now_s // DAY_S) - budget.days
    used = sum(ms for day, ms in days.items() if day > begin)
    must(used <= budget.amount_ms, f"{key} used {used} of {budget} at {now_s}")


def _owners(user: str, tenant: str) -> dict[str, tuple[OwnerKind, str]]:
    return {
        owner_key(OwnerKind.USER, user): (OwnerKind.USER, user),
        owner_key(OwnerKind.TENANT, tenant): (OwnerKind.TENANT, tenant),
    }


def _hold(
    held: dict[str, Amounts],
    user: str,
    tenant: str,
    tasks: Iterable[TaskPlacement],
    jobs: int = 1,
) -> None:
    for key in _owners(user, tenant):
        amounts = held.setdefault(key, {})
        found = {"running_jobs": jobs}
        for task in tasks:
            found[CPUS] = found.get(CPUS, 0) + task.cpus_milli
            found[MEMORY] = found.get(MEMORY, 0) + task.memory_bytes
            milli = sum(share.milli for share in task.devices)
            found[DEVICES] = found.get(DEVICES, 0) + milli
        for name, amount in found.items():
            amounts[name] = amounts.get(name, 0) + amount
