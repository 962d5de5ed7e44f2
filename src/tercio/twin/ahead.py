"""What happens next: a saved state of the live server, played forward from now.

The state is that of the server: its queue, its running jobs, its reservations, promises and past
use. Driver and scheduler are those that run live. What is not known is how long jobs run: each
seed draws it, for a job that says how long it expects to run or how long it may, by what recent
jobs made of theirs; of a running job, given that it has run so long already. No new jobs come, no
node fails or returns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings, Step
from tercio.core.image import StateImage
from tercio.core.records import Job
from tercio.core.transitions import TaskState
from tercio.model.commands import DrainNode, SetPolicy
from tercio.model.effects import DeviceOrder, LaunchTask
from tercio.model.events import AnyEvent, JobPlaced, NodeReported, TaskExited
from tercio.model.identity import Principal, Role
from tercio.model.ids import EffectId, JobId, NodeName, SiteName, array_parent
from tercio.model.job import (
    ACTIVE_JOB_STATES,
    TERMINAL_JOB_STATES,
    JobSpec,
    JobState,
    TaskGroup,
    TimeSpec,
)
from tercio.model.node import Node, NodeSpec
from tercio.model.queue import Policy
from tercio.model.snapshot import RunRatios
from tercio.sched.futures import DEFAULT_RATIOS
from tercio.twin.engine import Engine
from tercio.twin.loop import Loop
from tercio.twin.rng import Stream
from tercio.twin.runs import Work
from tercio.twin.world import World

_ROOT: Final = Principal(user="twin", role=Role.ADMIN)
_FOREVER_S: Final = 10 * 365 * 86_400.0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator thinks of changing now.

    Attributes:
        policy: in the place of the one in force, or None.
        added: nodes that come.
        drained: names of nodes that are emptied.
    """

    policy: Policy | None = None
    added: tuple[NodeSpec, ...] = ()
    drained: tuple[str, ...] = ()


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """One way that things may go.

    Attributes:
        starts_s, ends_s: first start and end by job that waited at first; absent when it did not
            come to it. Of an array, the start of its first element and the end of its last.
        utilization_ratio: devices held over devices of ready nodes, over the time looked at.
    """

    starts_s: dict[JobId, float]
    ends_s: dict[JobId, float]
    utilization_ratio: float


def play(
    image: StateImage,
    *,
    now_s: float,
    until_s: float,
    seed: int,
    change: Change | None = None,
    unknown_s: float | None = None,
) -> Course:
    """Play a state forward once.

    Args:
        image: of the server.
        now_s: when it was taken.
        until_s: how far to play, seconds since the epoch.
        seed: names the draws of run times.
        change: made at once.
        unknown_s: run time of jobs that say nothing about it; None: they do not end.
    """
    return _Ahead(image, now_s=now_s, seed=seed, unknown_s=unknown_s).play(
        until_s, change or Change()
    )


class _Ahead:
    """One run; see `play`."""

    def __init__(
        self, image: StateImage, *, now_s: float, seed: int, unknown_s: float | None
    ) -> None:
        cluster = Cluster.from_image(msgspec.msgpack.encode(image))
        settings = DriverSettings(tells_waiting=False)
        driver = Driver(cluster, settings=settings, seed=seed)
        self.seed, self.unknown_s, self.now_s = seed, unknown_s, now_s
        self.ratios = cluster.snapshot().run_ratios
        grows = any(_may_grow(job.spec) for job in cluster.jobs.values())
        self.loop = Loop(driver, now_s, observers=(self,), defers_starts=not grows)
        self.engine = Engine(self.loop, World(), seed=seed)
        self.engine.epoch = cluster.epoch
        self.engine.work_of = lambda order: self._run_s(order.job_id, 0.0)
        self.engine.least_of = lambda name: cluster.jobs[name].spec.least_task_count
        self.loop.perform = self.engine.perform
        self.loop.settled = self._note_use
        self.waiting = [job.id for job in cluster.jobs.values() if is_waiting(job)]
        self.starts_s: dict[JobId, float] = {}
        self.ends_s: dict[JobId, float] = {}
        self._used_s = self._there_s = 0.0
        self._seen = (now_s, 0, 0)
        self._adopt(cluster)

    def play(self, until_s: float, change: Change) -> Course:
        """Do it."""
        loop, cluster = self.loop, self.loop.driver.cluster
        for effect in loop.driver.reissue():
            self.engine.perform(effect)
        loop.pending += [NodeReported(at_s=self.now_s, spec=spec) for spec in change.added]
        if change.policy is not None:
            command = SetPolicy(policy=change.policy)
            loop.pending += to_events(cluster, command, _ROOT, self.now_s)
        for name in change.drained:
            loop.pending += to_events(cluster, DrainNode(node=NodeName(name)), _ROOT, self.now_s)
        loop.settle()
        loop.run(until_s)
        self._note_use()
        return Course(
            starts_s={name: self.starts_s[name] for name in self.waiting if name in self.starts_s},
            ends_s={name: self.ends_s[name] for name in self.waiting if name in self.ends_s},
            utilization_ratio=self._used_s / self._there_s if self._there_s else 0.0,
        )

    # Run times.

    def _run_s(self, name: JobId, done_s: float) -> float:
        """How long a job runs in all, drawn once per job and seed."""
        time = self.loop.driver.cluster.jobs[name].spec.time
        draw = Stream(self.seed, f"run/{name}").unit()
        return draw_run_s(time, self.ratios, done_s, draw, unknown_s=self.unknown_s)

    def _adopt(self, cluster: Cluster) -> None:
        """Let the tasks that run go on where they are."""
        for job in cluster.jobs.values():
            if job.state not in ACTIVE_JOB_STATES or job.array is not None:
                continue
            running = [task for task in job.live_tasks if task.state is not TaskState.LAUNCHING]
            if not running:
                continue
            known = (job.started_s, job.placed_s, self.now_s)
            began_s = next(at_s for at_s in known if at_s is not None)
            paused_s = 0.0 if job.suspended_s is None else self.now_s - job.suspended_s
            done_s = max(self.now_s - began_s - job.limit_extension_s - paused_s, 0.0)
            self.engine.works[job.id] = Work(
                total_s=max(self._run_s(job.id, done_s), done_s),
                attempt=job.attempt,
                done_s=done_s,
            )
            orders = [running_order(job, task.placement.task, cluster.nodes) for task in running]
            self.engine.adopt(
                orders,
                is_whole=len(running) == len(job.live_tasks),
                is_paused=job.state is JobState.SUSPENDED,
            )

    # What happened.

    def stepped(self, loop: Loop, _: Sequence[AnyEvent], step: Step) -> None:
        """Note starts and ends."""
        for entry in step.entries:
            event = entry.event
            if type(event) is JobPlaced:
                for name in _names(event.job_id):
                    self.starts_s.setdefault(name, event.at_s)
            elif type(event) is TaskExited:
                for name in _names(event.job_id):
                    job = loop.driver.cluster.jobs.get(name)
                    if job is not None and job.state in TERMINAL_JOB_STATES:
                        self.ends_s[name] = event.at_s

    def _note_use(self) -> None:
        at_s, held, there = self._seen
        span_s = self.loop.now_s - at_s
        self._used_s += held * span_s
        self._there_s += there * span_s
        if span_s or not there:
            nodes = self.loop.driver.cluster.nodes.values()
            there = 1000 * sum(len(node.spec.devices) for node in nodes if node.is_placeable)
        self._seen = (self.loop.now_s, self.engine.held_milli, there)


def draw_run_s(
    time: TimeSpec, ratios: RunRatios, done_s: float, draw: float, *, unknown_s: float | None
) -> float:
    """Return how long a job runs in all, given that it has run for some time.

    Args:
        time: what it says of itself.
        ratios: run time over planned time of recent jobs, rising; a packaged guess when empty.
        done_s: how long it has run.
        draw: in [0, 1).
        unknown_s: for a job that says nothing.
    """
    planned_s = time.expected_s or time.limit_s
    if planned_s is None:
        known_s = _FOREVER_S if unknown_s is None else unknown_s
        return known_s if done_s < known_s else done_s * (1.0 + draw)
    recent = ratios.expected if time.expected_s else ratios.limit
    usual = DEFAULT_RATIOS.expected if time.expected_s else DEFAULT_RATIOS.limit
    among = recent or usual
    first = bisect_right(among, done_s / planned_s) if done_s > 0 else 0
    if first >= len(among):
        run_s = done_s * (1.0 + draw)  # it has outlived them all: as long again, at most
    else:
        run_s = planned_s * among[first + int(draw * (len(among) - first))]
    return run_s if time.limit_s is None else min(run_s, max(time.limit_s, done_s))


def _may_grow(spec: JobSpec) -> bool:
    """Whether a job may get more tasks once it runs: then its start changes what is due."""
    return bool(spec.goodput) or any(_is_elastic(group) for group in spec.groups)


def _is_elastic(group: TaskGroup) -> bool:
    return (
        group.tasks_max is not None
        or group.min_subgroups is not None
        or any(_is_elastic(sub) for sub in group.subgroups)
    )


def is_waiting(job: Job) -> bool:
    """Whether a job, or an element of an array, has yet to start."""
    if job.array is not None:
        return bool(job.array.pending)
    return job.parent is None and job.state in (JobState.QUEUED, JobState.HELD)


def _names(job_id: JobId) -> list[JobId]:
    parent = array_parent(job_id)
    return [job_id] if parent is None else [job_id, parent]


def running_order(job: Job, number: int, nodes: Mapping[NodeName, Node]) -> LaunchTask:
    """Return the order that a running task must have come from, as far as the twin sees it."""
    place = next(t.placement for t in job.live_tasks if t.placement.task == number)
    node = nodes.get(place.node)
    devices = node.spec.devices if node is not None else ()
    return LaunchTask(
        effect_id=EffectId(f"launch:{job.id}/{job.attempt}/{number}"),
        epoch=0,
        deadline_s=0.0,
        site=node.spec.site if node is not None else SiteName(""),
        node=place.node,
        job_id=job.id,
        attempt=job.attempt,
        task=number,
        user=job.user,
        command="",
        grace_s=job.spec.checkpoint.grace_s or 0.0,
        devices=tuple(
            DeviceOrder(share=share, type=devices[share.index].type, vendor="")
            for share in place.devices
            if share.index < len(devices)
        ),
    )
