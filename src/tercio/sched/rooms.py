"""What a class sees of the cluster: the columns of its needs, what others are promised taken out.

Classes see the same where the same promises bind them. That is worked out once for all of them,
until somebody starts or is promised something.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tercio.model.ids import JobId
from tercio.model.queue import Policy
from tercio.sched.classes import JobClass
from tercio.sched.feasible import Fit
from tercio.sched.gang import Room
from tercio.sched.holds import Hold
from tercio.sched.legal import Rules
from tercio.sched.memory import Memory
from tercio.sched.need import Need

State = tuple[int, int]
"""Versions of what runs and of what is promised."""

Owners = tuple[JobId, ...]
"""To whom that is promised which a class may not use."""


class Bound(NamedTuple):
    """The promises that bind a class, and whose they are."""

    holds: tuple[Hold, ...]
    owners: Owners


_FREE: Final = Bound((), ())


class Rooms:
    """Rooms of one cycle."""

    def __init__(self, memory: Memory, policy: Policy, now_s: float) -> None:
        self._memory = memory
        self._policy = policy
        self._now_s = now_s
        self._state: State = (-1, -1)
        self._bound: dict[tuple[object, ...], Bound] = {}
        self._rooms: dict[tuple[int, Owners], Room] = {}

    def state(self) -> State:
        """Return what changes with every start, stop and promise, and with no trial."""
        return (self._memory.version, self._memory.holds.version)

    def of(self, job_class: JobClass, job_id: JobId, at_s: float | None = None) -> Room:
        """What a class sees at a time: promises that it would outlive are not there for it."""
        if at_s is not None:
            return self._make(job_class, self._binding(job_class, job_id, at_s))
        bound = self.bound(job_class, job_id)
        key = (job_class.shape.number, bound.owners)
        found = self._rooms.get(key)
        if found is None:
            found = self._rooms[key] = self._make(job_class, bound.holds)
        return found

    def bound(self, job_class: JobClass, job_id: JobId) -> Bound:
        """The promises that bind a class now; equal ones are one object until something changes."""
        self._follow()
        holds = self._memory.holds
        if holds.is_empty:
            return _FREE
        if holds.has(job_id):
            return self._binding_now(job_class, job_id)
        asker = job_class.asker() if holds.has_windows else None
        key = (job_class.likeness, job_class.limit_s, asker)
        found = self._bound.get(key)
        if found is None:
            found = self._bound[key] = self._binding_now(job_class, job_id)
        return found

    def fits(self, job_class: JobClass) -> dict[Need, Fit]:
        """The columns of all needs of a class."""
        fit = self._memory.fit
        return {need: fit(need) for need in job_class.needs}

    def _follow(self) -> None:
        state = self.state()
        if state != self._state:
            self._state = state
            self._bound.clear()
            self._rooms.clear()

    def _make(self, job_class: JobClass, bound: tuple[Hold, ...]) -> Room:
        return Room(self.fits(job_class), self._memory.holds, bound)

    def _binding(self, job_class: JobClass, job_id: JobId, from_s: float) -> tuple[Hold, ...]:
        end_s = float("inf") if job_class.limit_s is None else from_s + job_class.limit_s
        holds = self._memory.holds
        return holds.binding(end_s, (job_id,), start_s=from_s, asker=job_class.asker())

    def _binding_now(self, job_class: JobClass, job_id: JobId) -> Bound:
        bound = self._binding(job_class, job_id, self._now_s)
        if bound and job_class.is_preemptible:
            bound = tuple(hold for hold in bound if not self._is_reclaimable(job_class, hold.job))
        return Bound(bound, tuple([hold.job for hold in bound]))

    def _is_reclaimable(self, job_class: JobClass, owner: JobId) -> bool:
        """Whether the owner of a dated promise could take the devices back in time."""
        promise = self._memory.promises.get(owner)
        owner_class = self._memory.class_of.get(owner)
        if promise is None or promise.from_s is None or owner_class is None:
            return False
        if owner_class.queue is job_class.queue:
            return False
        rules = Rules(self._memory, self._policy, owner_class)
        return rules.could_reclaim(job_class.queue, job_class.amounts[0])
