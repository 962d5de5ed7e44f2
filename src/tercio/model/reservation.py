"""Capacity kept for later: promises to one blocked job, and reservations that people make."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.placement import TaskPlacement


class Promise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Capacity promised to one job. Sticky: kept over cycles unless a better start appears.

    Attributes:
        job_id: the job that will start there.
        tasks: the planned placement.
        from_s: when it should start, or None for an undated hold on freed devices.
        expires_s: when the promise ends by itself.
        evicting: jobs that were stopped to make it true; they may not return before it starts.
    """

    job_id: JobId
    tasks: tuple[TaskPlacement, ...]
    from_s: float | None
    expires_s: float
    evicting: tuple[JobId, ...] = ()


class Window(NamedTuple):
    """One time for which a reservation holds: `from_s <= t < until_s`."""

    from_s: float
    until_s: float


MAINTENANCE_OWNER = "maintenance"
"""Owner of the cordons of nodes in a maintenance window."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Capacity kept for a queue or a user, once or again and again.

    It names how much, not which nodes: those are chosen anew while the windows come nearer, so
    that a node that fails is replaced by another. One that names nodes is a maintenance window:
    nobody's jobs run there while it is open.

    Attributes:
        name: unique among the reservations.
        from_s: start of the first window.
        duration_s: length of each window.
        queue: holder, sub-queues included; or
        user: holder.
        type: device type, or None for any.
        devices: whole devices, wherever they are; or
        shape: whole domains by level (`{"node": 2}`), with all devices of the type in them.
        nodes: kept whole for work on them, for nobody's jobs; or empty.
        reason: of a maintenance window.
        every_s: from one start to the next, at least `duration_s`; None for one window.
        until_s: no window starts at or after this instant; None for no end.
    """

    name: str
    from_s: float
    duration_s: float
    queue: QueuePath | None = None
    user: str | None = None
    type: str | None = None
    devices: int = 0
    shape: dict[str, int] = {}
    nodes: tuple[NodeName, ...] = ()
    reason: str = ""
    every_s: float | None = None
    until_s: float | None = None

    def windows(self, now_s: float, count: int = 1) -> tuple[Window, ...]:
        """Return the window that is open now, if one is, and those after it; at most `count`.

        >>> Reservation(name="r", from_s=0, duration_s=10, every_s=100, user="ana").windows(20)
        (Window(from_s=100.0, until_s=110.0),)
        """
        number = 0
        if self.every_s is not None and now_s > self.from_s:
            number = math.floor((now_s - self.from_s) / self.every_s)
        found: list[Window] = []
        while len(found) < count:
            start_s = self.from_s + number * (self.every_s or 0.0)
            if self.until_s is not None and start_s >= self.until_s:
                break
            if start_s + self.duration_s > now_s:
                found.append(Window(float(start_s), float(start_s + self.duration_s)))
            if self.every_s is None:
                break
            number += 1
        return tuple(found)

    def is_held_by(self, queue: str, user: str) -> bool:
        """Whether jobs of this user in this queue are the holder's own."""
        if self.user is not None:
            return user == self.user
        return self.queue is not None and f"{queue}/".startswith(f"{self.queue}/")
