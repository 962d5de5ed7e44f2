"""Limits of users and tenants over all queues, and the device-hours they have in a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tercio.model.ids import JobId, QueuePath
from tercio.model.job import JobSpec
from tercio.model.limits import (
    DAY_S,
    DeviceTime,
    Limits,
    OwnerKind,
    OwnerLimit,
    first_day,
    owner_key,
    spent_ms,
)
from tercio.model.reasons import Reason
from tercio.model.resources import DEVICES, Amounts
from tercio.model.snapshot import RunningJob, WaitingJob

DEVICE_HOURS: Final = "device_hours"
"""Pseudo-resource of a budget, in device-milliseconds."""

OWNER_LIMITS: Final = ("per_user", "per_tenant")
"""Kinds of a `Blocked` that is about a user or a tenant in all queues."""

ROOT: Final = QueuePath("")


class Blocked(NamedTuple):
    """A limit that stands in the way.

    Attributes:
        reason: code.
        queue: path of the queue whose limit it is; the root's for a limit over all queues.
        kind: `limit`, `borrow_limit`, `lend_limit`, `user_limit`, `guarantee`, or one of
            `OWNER_LIMITS`.
        resource: name of the resource.
        use, wanted, limit: amounts in the resource's unit.
        user: whose limit it is, for limits of a user or a tenant.
        days: length of the window, for device-hours.
        ahead, from_s: for power: the job to which some of it is promised, and from when, where
            that is yet to come.
    """

    reason: Reason
    queue: QueuePath
    kind: str
    resource: str
    use: int
    wanted: int
    limit: int
    user: str = ""
    days: int = 0
    ahead: JobId | None = None
    from_s: float | None = None

    @property
    def is_for_ever(self) -> bool:
        """Whether even an idle queue would refuse."""
        kinds = ("limit", "user_limit", "borrow_limit", *OWNER_LIMITS)
        return self.wanted > self.limit and self.kind in kinds


class Owner(NamedTuple):
    """Whose job it is, and how long it may hold its devices; 0 when nothing says so."""

    user: str
    tenant: str
    length_s: float = 0.0

    def name(self, kind: OwnerKind) -> str:
        """Return its name as a user or as a tenant."""
        return self.user if kind is OwnerKind.USER else self.tenant

    @property
    def keys(self) -> tuple[str, str]:
        """The keys under which its use is counted."""
        return (owner_key(OwnerKind.USER, self.user), owner_key(OwnerKind.TENANT, self.tenant))


def owner_of(job: WaitingJob | RunningJob) -> Owner:
    """Return whose a job is."""
    return owner(job.user, job.tenant, job.spec)


def owner(user: str, tenant: str, spec: JobSpec) -> Owner:
    """Return the owner of a job of this description."""
    return Owner(user, tenant, spec.time.limit_s or spec.time.expected_s or 0.0)


class OwnerLimits:
    """What users and tenants hold and have used, against their limits.

    A budget counts what ended tasks used in the window, all that running jobs will have used by
    their time limits (or expected ends), and all that the job in question may use: so nobody is
    stopped for a budget, and jobs with time limits never pass one. A job that says nothing of its
    time counts for what it has used, and starts while something is left.

    Attributes:
        is_set: whether the policy has any such limit.
        has_budgets: whether it has one of device-hours.
        held: amounts held now by owner.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.is_set = limits != Limits()
        every = (limits.per_user, limits.per_tenant, *limits.users.values(),
                 *limits.tenants.values())  # fmt: skip
        self.has_budgets = any(limit.device_time is not None for limit in every)
        self.held: dict[str, Amounts] = {}
        self._jobs: dict[str, dict[JobId, RunningJob]] = {}
        self._open: dict[JobId, RunningJob] = {}  # that no limit ends
        self._spent: Mapping[str, Mapping[int, int]] = {}
        self._now_s = 0.0
        self._used_ms: dict[str, int] = {}

    # Following the cluster.

    def begin(self, spent: Mapping[str, Mapping[int, int]], now_s: float) -> None:
        """Begin a cycle: what ended tasks used by owner and day, and the time."""
        self._spent, self._now_s = spent, now_s
        self._used_ms.clear()

    def run(self, job: RunningJob, *, sign: int) -> None:
        """Count a running job in, or with sign -1 out."""
        if not self.has_budgets:
            return
        if sign > 0 and job.ends_s is None:
            self._open[job.job_id] = job
        elif sign < 0:
            self._open.pop(job.job_id, None)
        for kind, key in zip(OwnerKind, owner_of(job).keys, strict=True):
            jobs = self._jobs.setdefault(key, {})
            if sign > 0:
                jobs[job.job_id] = job
            else:
                jobs.pop(job.job_id, None)
            if key in self._used_ms:
                budget = self._budget(kind, owner_of(job))
                days = budget.days if budget is not None else 1
                self._used_ms[key] += sign * self._coming_ms(job, self._now_s, days)

    def pledge(self, owner: Owner, amounts: Amounts) -> None:
        """Count what a job will use for which devices are being freed, for this cycle."""
        for kind, key in zip(OwnerKind, owner.keys, strict=True):
            budget = self._budget(kind, owner)
            if budget is not None:
                self._used_ms[key] = self.used_ms(kind, owner.name(kind)) + _wanted_ms(
                    owner, amounts, budget
                )

    # Limits.

    def block(self, owner: Owner, amounts: Amounts) -> Blocked | None:
        """Return the limit of a user or a tenant that these amounts would pass, or None."""
        for kind, key in zip(OwnerKind, owner.keys, strict=True):
            limit = self._limits.of(kind, owner.name(kind))
            found = self._amounts_block(kind, key, owner, limit, amounts)
            if found is None and limit.device_time is not None and amounts.get(DEVICES):
                found = self._time_block(kind, owner, limit.device_time, amounts)
            if found is not None:
                return found
        return None

    def _amounts_block(
        self, kind: OwnerKind, key: str, owner: Owner, limit: OwnerLimit, amounts: Amounts
    ) -> Blocked | None:
        held = self.held.get(key, {})
        for name, most in limit.amounts.items():
            wanted, use = amounts.get(name, 0), held.get(name, 0)
            if wanted and use + wanted > most:
                return Blocked(
                    Reason.USER_LIMIT, ROOT, f"per_{kind.value}", name, use, wanted, most,
                    owner.name(kind),
                )  # fmt: skip
        return None

    def _time_block(
        self, kind: OwnerKind, owner: Owner, budget: DeviceTime, amounts: Amounts
    ) -> Blocked | None:
        used = self.used_ms(kind, owner.name(kind))
        wanted = _wanted_ms(owner, amounts, budget)
        if used + wanted <= budget.amount_ms and (wanted or used < budget.amount_ms):
            return None
        return Blocked(
            Reason.USER_LIMIT, ROOT, f"per_{kind.value}", DEVICE_HOURS, used, wanted,
            budget.amount_ms, owner.name(kind), budget.days,
        )  # fmt: skip

    def _budget(self, kind: OwnerKind, owner: Owner) -> DeviceTime | None:
        return self._limits.of(kind, owner.name(kind)).device_time

    # Device-hours.

    def used_ms(self, kind: OwnerKind, name: str) -> int:
        """Return what counts in the window now, running jobs to their ends included."""
        key = owner_key(kind, name)
        found = self._used_ms.get(key)
        if found is None:
            budget = self._limits.of(kind, name).device_time
            days = budget.days if budget is not None else 1
            found = self._used_ms[key] = self._at(key, self._now_s, days)
        return found

    def fits_from_s(self, limit: Blocked) -> float | None:
        """Return the first midnight at which a budget has room, if nothing else starts.

        None when that is further away than two windows, or the job alone passes the budget.
        """
        kind = OwnerKind(limit.kind.removeprefix("per_"))
        key = owner_key(kind, limit.user)
        for ahead in range(2 * limit.days):
            at_s = self.next_day_s() + ahead * DAY_S
            used = self._at(key, at_s, limit.days)
            if used + limit.wanted <= limit.limit and (limit.wanted or used < limit.limit):
                return at_s
        return None

    def next_room(self, kind: OwnerKind, name: str) -> tuple[float, int] | None:
        """Return when the window next loses use, if nothing else starts, and how much; or None."""
        budget = self._limits.of(kind, name).device_time
        used, key = self.used_ms(kind, name), owner_key(kind, name)
        for ahead in range(budget.days if budget is not None and used else 0):
            at_s = self.next_day_s() + ahead * DAY_S
            left = self._at(key, at_s, budget.days if budget is not None else 1)
            if left < used:
                return at_s, used - left
        return None

    def next_day_s(self) -> float:
        """Return the next midnight, when budgets may have room again."""
        return (self._now_s // DAY_S + 1) * DAY_S

    def is_moving(self, now_s: float) -> bool:
        """Whether time alone changes what counts: a job runs that is past its end, or has none."""
        return any(_end_s(job) <= now_s for job in self._open.values())

    def _at(self, key: str, at_s: float, days: int) -> int:
        jobs = self._jobs.get(key, {}).values()
        ended = spent_ms(self._spent.get(key, {}), at_s, days)
        return ended + sum(self._coming_ms(job, at_s, days) for job in jobs)

    def _coming_ms(self, job: RunningJob, at_s: float, days: int) -> int:
        """What a running job has in the window of an instant, to its planned end."""
        begin_s = max(job.placed_s, first_day(at_s, days) * DAY_S)
        length_s = min(max(_end_s(job), self._now_s) - begin_s, days * DAY_S)
        milli = sum(share.milli for task in job.tasks for share in task.devices)
        return int(milli * max(0.0, length_s))


def _wanted_ms(owner: Owner, amounts: Amounts, budget: DeviceTime) -> int:
    return int(amounts.get(DEVICES, 0) * min(owner.length_s, budget.days * DAY_S))


def _end_s(job: RunningJob) -> float:
    """When a running job is gone by plan; in the past when nothing says so."""
    if job.is_stopping:
        return job.stops_by_s or job.placed_s
    return job.ends_s or job.placed_s + owner_of(job).length_s
