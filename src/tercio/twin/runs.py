"""How far jobs are: the work of each over all its attempts, and the attempt under way."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tercio.model.effects import LaunchTask
from tercio.model.ids import JobId, NodeName
from tercio.model.node import MigSpec
from tercio.twin.progress.course import Course, Pace
from tercio.twin.world import World

TaskId = tuple[JobId, int, int]
"""Job, attempt and number of a task."""


class Watch(Protocol):
    """Sees what is physically true."""

    def began(self, key: TaskId, order: LaunchTask) -> None:
        """A task's processes started."""

    def ended(self, key: TaskId) -> None:
        """A task's processes are gone."""

    def was_cut(self, node: NodeName, index: int, form: MigSpec) -> None:
        """A device has other slices now, or none."""


class Work(msgspec.Struct, kw_only=True, gc=False):
    """How far a job is, over all its attempts.

    Attributes:
        total_s: run time of the job on a device of speed 1.
        attempt: newest attempt.
        done_s: of it that is saved.
        lost_device_s: work done and lost again, times devices.
        overhead_device_s: time spent on restarts, times devices.
    """

    total_s: float
    attempt: int = 0
    done_s: float = 0.0
    lost_device_s: float = 0.0
    overhead_device_s: float = 0.0


class Run:
    """One attempt, as the engine sees it.

    Attributes:
        orders: of its tasks that have not ended.
        waiting: tasks ordered and not yet running.
        began_s: since when it gets on, or None while it stands still.
        version: grows when its end has to be worked out anew.
        overhead_s: of the restart that is still ahead.
        fails_at_s: work at which this attempt fails by itself, or None.
        course: how its work gets on where it stands now, or None for even progress.
        course_s: since when it does so.
    """

    __slots__ = (
        "attempt", "began_s", "course", "course_s", "fails_at_s", "is_paused", "job_id",
        "orders", "overhead_s",
        "stopping", "version", "waiting", "work",
    )  # fmt: skip

    def __init__(self, job_id: JobId, attempt: int, work: Work) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.work = work
        self.orders: dict[int, LaunchTask] = {}
        self.waiting: dict[int, None] = {}
        self.stopping: dict[int, None] = {}
        self.began_s: float | None = None
        self.version = 0
        self.overhead_s = 0.0
        self.fails_at_s: float | None = None
        self.is_paused = False
        self.course: Course | None = None
        self.course_s = 0.0

    @property
    def devices(self) -> float:
        """Devices that its living tasks hold."""
        return sum(d.share.milli for order in self.orders.values() for d in order.devices) / 1000

    def set_course(self, pace: Pace, now_s: float) -> None:
        """Find how the work gets on with the devices of now; a change of size is a restart.

        Tasks that come or go at the instant of a start or a change belong to it.
        """
        site: dict[NodeName, tuple[str, int]] = {}
        for order in self.orders.values():
            if order.devices and order.task not in self.stopping:
                kind, count = site.get(order.node, (order.devices[0].type, 0))
                site[order.node] = (kind, count + len(order.devices))
        course = pace.course(self.job_id, tuple(site.values()))
        if course == self.course:
            return
        if self.course is not None and now_s > self.course_s:
            self.overhead_s += pace.restart_s(self.job_id) or 0.0
        self.course, self.course_s = course, now_s

    def rest_s(self, target_s: float, speed: float) -> float:
        """Time until a target, which is in the time of the recorded run."""
        work = self.work
        if self.course is None:
            return (target_s - work.done_s) / speed
        if work.total_s <= 0:
            return 0.0
        began_s = self.course.at_s(work.done_s / work.total_s)
        return self.course.at_s(target_s / work.total_s) - began_s

    def done_after(self, elapsed_s: float, speed: float) -> float:
        """What is done when it has got on for so long, in the time of the recorded run."""
        work = self.work
        if self.course is None:
            return min(work.total_s, work.done_s + elapsed_s * speed)
        if work.total_s <= 0:
            return work.total_s
        began_s = self.course.at_s(work.done_s / work.total_s)
        return work.total_s * self.course.part_at(began_s + elapsed_s)

    def saved_s(self, world: World, done_s: float) -> float:
        """What of the work is in the last checkpoint, in the time of the recorded run."""
        if self.course is None or self.work.total_s <= 0:
            return world.saved_s(done_s)
        at_s = world.saved_s(self.course.at_s(done_s / self.work.total_s))
        return self.work.total_s * self.course.part_at(at_s)
