"""The frozen input of a scheduling cycle.

A snapshot is a read-only view of `core.cluster`: building one copies nothing. Its mappings
hold frozen values in a fixed order, and are replaced, never changed, from cycle to cycle.
`changes` says what differs from revision `since`, so that a scheduler that remembers that
revision updates its columns by the change instead of rebuilding them; one that remembers
nothing must come to the same plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

import msgspec

from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import IndexRange, JobSpec
from tercio.model.node import Node
from tercio.model.placement import TaskPlacement
from tercio.model.reservation import Promise, Reservation
from tercio.model.resources import Request


class Cheaper(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The hour at which a flexible job rather starts, with what power costs then.

    Attributes:
        from_s: start of that hour.
        latest_s: end of the job's slack.
        rate: mean over its run if it starts at that hour, in USD or grams of CO2 per kWh.
        rate_at_once: the same if it had started when it came.
        unit: of both.
    """

    from_s: float
    latest_s: float
    rate: float
    rate_at_once: float
    unit: str


class Had(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the earlier attempts of a job had, kept of jobs that name their throughput.

    Attributes:
        run_s: how long they held devices.
        device_s: the same times their devices.
        moves: those that were stopped for another place, or for another job.
        until_s: when the last of them ended.
    """

    run_s: float
    device_s: float
    moves: int
    until_s: float


class WaitingJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that could be started. Held jobs and jobs with open dependencies are listed too.

    Attributes:
        job_id: the job, or the array (then `pending` is not None).
        spec: what it asks for.
        queue: where it waits.
        user, tenant: whose it is.
        priority: larger first, inside its queue.
        is_preemptible: with the queue's default applied.
        submitted_s: for age.
        sequence: journal sequence of its submit, the last tie-break.
        attempt: number that its next attempt will have.
        not_before_s: earliest start (declared, or end of a back-off), or None.
        is_backing_off: whether `not_before_s` comes from a back-off.
        is_held: whether a person holds it.
        blocked_on: jobs it depends on that have not ended.
        pending: waiting elements of an array, or None.
        active_elements: elements of the array that hold devices.
        last_nodes: nodes of its previous attempt, for repair in place.
        evictions_s: instants of its recent evictions.
        predicted_s: how long it will probably run, by its like; None where it says so itself, where
            nothing is known, and where the policy does not want it.
        is_repair: whether its last attempt lost a node and this one replaces it; comes before
            any new work, on the nodes that are left.
        had: what it had before, see `Had`; None before its first end.
        cheaper: when power will be cheaper, for a flexible job; None where it is not worth a wait.
    """

    job_id: JobId
    spec: JobSpec
    queue: QueuePath
    user: str
    tenant: str
    priority: int
    is_preemptible: bool
    submitted_s: float
    sequence: int
    attempt: int = 1
    not_before_s: float | None = None
    is_backing_off: bool = False
    is_held: bool = False
    blocked_on: tuple[JobId, ...] = ()
    pending: tuple[IndexRange, ...] | None = None
    active_elements: int = 0
    last_nodes: tuple[NodeName, ...] = ()
    evictions_s: tuple[float, ...] = ()
    is_repair: bool = False
    predicted_s: float | None = None
    had: Had | None = None
    cheaper: Cheaper | None = None

    def rather_from_s(self, now_s: float) -> float | None:
        """Return until when it goes behind others, or None when it has its own turn."""
        cheaper = self.cheaper
        return None if cheaper is None or cheaper.from_s <= now_s else cheaper.from_s


class MissingTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member of a running gang that was lost and is to be replaced alone.

    `not_before_s` is the end of its back-off, or None.
    """

    member: int
    group: int
    not_before_s: float | None = None


class RunningJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that holds an allocation.

    Attributes:
        tasks: what it holds; tasks that have ended are gone from here.
        placed_s: when it got its devices.
        started_s: when all its tasks ran, or None while starting.
        ends_s: when its time limit stops it, or None.
        expected_end_s: when it will probably end, from `time.expected` or, where the policy wants
            promises by it, from what its like ran; or None.
        predicted_s: as of a waiting job.
        is_stopping: whether it was told to stop; what it holds will come free.
        stops_by_s: latest instant at which a stopping job is gone, or None.
        stopping_tasks: surplus tasks of an elastic job that were told to stop, while the rest
            of the job goes on.
        missing: lost members that are to be replaced while the others run on.
        next_task: number that the next task of the attempt gets.
        grows_from_s: when an elastic job may grow next: None is at once, infinity never.
        had: what it had before this attempt, see `Had`; None in its first.
    """

    job_id: JobId
    spec: JobSpec
    queue: QueuePath
    user: str
    tenant: str
    priority: int
    is_preemptible: bool
    sequence: int
    attempt: int
    tasks: tuple[TaskPlacement, ...]
    placed_s: float
    started_s: float | None = None
    ends_s: float | None = None
    expected_end_s: float | None = None
    is_stopping: bool = False
    stops_by_s: float | None = None
    stopping_tasks: tuple[int, ...] = ()
    missing: tuple[MissingTask, ...] = ()
    next_task: int = 0
    grows_from_s: float | None = None
    evictions_s: tuple[float, ...] = ()
    predicted_s: float | None = None
    had: Had | None = None


class Changes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What differs from revision `since`: names to look up again (gone means removed)."""

    since: int
    nodes: tuple[NodeName, ...] = ()
    running: tuple[JobId, ...] = ()
    waiting: tuple[JobId, ...] = ()


class MixEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of recent work: what a task of it asks for, and its weight.

    `types` are the device types it may use, when they are not the one its request names.
    """

    request: Request
    weight: float
    types: tuple[str, ...] = ()


class RunRatios(msgspec.Struct, frozen=True, kw_only=True):
    """What recent jobs made of their planned run time: run time over it, in rising order.

    Attributes:
        expected: of jobs that said how long they would probably run.
        limit: of jobs that named a time limit only.
        limit_by: the same by the length of the limit, see `limit_class`: short jobs use a small
            part of theirs, since limits are round. A class with few jobs is empty.
        predicted: of jobs that named neither, over what was predicted.
    """

    expected: tuple[float, ...] = ()
    limit: tuple[float, ...] = ()
    limit_by: tuple[tuple[float, ...], ...] = ()
    predicted: tuple[float, ...] = ()

    def of_limit(self, limit_s: float) -> tuple[float, ...]:
        """Return the ratios of limits like this one: of its class, or of the nearest below."""
        for found in reversed(self.limit_by[: limit_class(limit_s) + 1]):
            if found:
                return found
        return self.limit


LIMIT_CLASSES_S: Final = (3_600.0, 8 * 3_600.0, 48 * 3_600.0)
"""Upper bounds of the classes of limits; the last class has none."""


def limit_class(limit_s: float) -> int:
    """Return the number of the class of a limit.

    >>> limit_class(3600.0), limit_class(3601.0), limit_class(1e9)
    (0, 1, 3)
    """
    return bisect_left(LIMIT_CLASSES_S, limit_s)


class StartRatios(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier start estimates came to, to correct the next ones by.

    A wait that was played forward is multiplied, after `slack_s` is added to it, which is then
    taken off again: so a wait of nothing can be corrected too.

    Attributes:
        low, at, high: factors of the low end, the middle and the high end.
        slack_s: what is added.
    """

    low: float = 0.5
    at: float = 1.0
    high: float = 1.5
    slack_s: float = 60.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The frozen input of one cycle.

    Attributes:
        revision: grows with every change of the cluster.
        nodes: by name, in order of first report.
        running: jobs that hold an allocation, in order of placement.
        waiting: jobs that wait; order them by `sequence`.
        promises: sticky promises of the previous cycle.
        decayed_use: past use by queue in device-seconds, decayed to `decayed_at_s` with the
            policy's half-life; a queue without history is absent.
        decayed_at_s: instant to which `decayed_use` refers.
        spent: device-milliseconds of ended tasks by owner (`user:ana`, `tenant:acme`) and day since
            the epoch.
        reservations: of people, in order of addition.
        mix: recent kinds of work, for packing by fragmentation; changes seldom. Empty when there
            is no history: then the work at hand is taken.
        run_ratios: how long recent jobs ran, for start estimates; changes seldom.
        start_ratios: what earlier start estimates came to; changes seldom.
        changes: difference from an earlier revision, or None when everything may differ.
    """

    revision: int
    nodes: Mapping[NodeName, Node]
    running: Mapping[JobId, RunningJob]
    waiting: Mapping[JobId, WaitingJob]
    promises: tuple[Promise, ...] = ()
    decayed_use: Mapping[QueuePath, float] = {}
    decayed_at_s: float = 0.0
    spent: Mapping[str, Mapping[int, int]] = {}
    reservations: tuple[Reservation, ...] = ()
    mix: tuple[MixEntry, ...] = ()
    run_ratios: RunRatios = RunRatios()
    start_ratios: StartRatios = StartRatios()
    changes: Changes | None = None
