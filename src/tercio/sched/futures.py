"""When waiting jobs will start: the queue played forward through several possible futures.

In each future every job runs for its planned time times a ratio drawn from what recent jobs made
of theirs, and jobs start in today's order as the scheduler would let them: the first that does
not fit gets a reservation, and later ones may pass that end before it or use what it leaves.
Windows of reservations keep their devices from whoever would run in them. Devices are counted by
node; links, racks and jobs that are yet to come are left out, so that the median of the futures
and their middle part are not yet the estimate and its band: both are corrected by what earlier
estimates came to (`Snapshot.start_ratios`).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tercio.model.ids import JobId
from tercio.model.job import TimeSpec
from tercio.model.queue import Predict
from tercio.model.reasons import StartEstimate
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.model.snapshot import RunRatios, StartRatios
from tercio.sched.classes import JobClass
from tercio.sched.holds import Hold
from tercio.sched.memory import Memory
from tercio.sched.queues import ordered
from tercio.sched.table import Flags, Ints, Table
from tercio.sched.verdict import CAPACITY_REASONS

Starts = npt.NDArray[np.float64]
"""Instants of start by place in the order; by future first where there are several."""

MOST_FUTURES: Final = 15
_LEAST_FUTURES: Final = 5
_TRIES: Final = 60_000
"""Jobs looked at in all futures together; what stands further back gets no estimate."""

LEAST_S: Final = 2.0
"""The band is at least so much wider than its middle on each side: stops and launches take time."""
LOW_QUANTILE: Final = 0.1
HIGH_QUANTILE: Final = 0.9

DEFAULT_RATIOS: Final = RunRatios(
    expected=(0.3, 0.55, 0.75, 0.9, 1.0, 1.1, 1.3, 1.7, 2.5),
    limit=(0.02, 0.06, 0.12, 0.2, 0.3, 0.42, 0.56, 0.75, 1.0),
    predicted=(0.05, 0.2, 0.5, 0.8, 1.0, 1.3, 2.0, 4.0, 10.0),
)
"""Used until enough jobs have ended."""


class _Line(NamedTuple):
    """Waiting jobs of one shape, in order: place in the whole order, id and class of each."""

    rows: list[Flags]
    tasks: list[tuple[int, int]]
    jobs: list[tuple[int, JobId, JobClass]]


class _Held(NamedTuple):
    """Devices that a running job holds, in thousandths by row, and its planned end.

    Attributes:
        inside: those that a window keeps: its place in the list of windows, row and thousandths.
    """

    planned_s: float
    rows: tuple[tuple[int, int], ...]
    inside: tuple[tuple[int, int, int], ...] = ()


def start_estimates(memory: Memory, now_s: float, seed: int) -> dict[JobId, StartEstimate]:
    """Return an estimate with an 80 % band for every waiting job whose start can be computed.

    A job that a limit holds back, or that waits for one of unknown length, has none.
    """
    lines, order = _lines(memory)
    if not order:
        return {}
    count = max(_LEAST_FUTURES, min(MOST_FUTURES, _TRIES // (len(order) + len(memory.running))))
    draws = np.random.Generator(np.random.PCG64(seed))
    starts = np.full((count, len(order)), np.inf)
    for at in range(count):
        _Future(memory, lines, now_s, draws).play(starts[at])
    return _summed_up(memory, order, np.sort(starts, axis=0), now_s)


def _lines(memory: Memory) -> tuple[list[_Line], list[JobId]]:
    """The waiting jobs that only want capacity, by shape, and their ids in order."""
    found: dict[int, _Line] = {}
    order: list[JobId] = []
    for job_id, job_class in ordered(memory):
        verdict = job_class.verdict
        if job_class.key.gives_way:
            break  # they come last, and where they stand changes with the hour
        if verdict is not None and (
            verdict.can_never or verdict.limit is not None
            or (verdict.reason not in CAPACITY_REASONS and verdict.ahead is None)
        ):  # fmt: skip
            continue
        line = found.get(job_class.shape.number)
        if line is None:
            line = found[job_class.shape.number] = _line_of(memory, job_class)
        line.jobs.append((len(order), job_id, job_class))
        order.append(job_id)
        if len(order) * _LEAST_FUTURES >= _TRIES:
            break
    return list(found.values()), order


def _line_of(memory: Memory, job_class: JobClass) -> _Line:
    shape = job_class.shape
    at = 0 if job_class.verdict is None else job_class.verdict.alternative
    rows, tasks = [], []
    for leaf, need in zip(shape.leaves, shape.needs(shape.combinations[at]), strict=True):
        if not leaf.is_optional and need.device_milli:
            fit = memory.fit(need).refresh()
            rows.append((fit.possible > 0) & fit.open)
            tasks.append((leaf.tasks, need.device_milli))
    return _Line(rows, tasks, [])


class _Future:
    """One way that things may go."""

    def __init__(
        self, memory: Memory, lines: list[_Line], now_s: float, draws: np.random.Generator
    ) -> None:
        self._ratios = memory.run_ratios
        self._lines = lines
        self._waiting = memory.waiting
        self._has_predicted_ends = memory.policy.predict is Predict.PROMISES
        self._now_s = now_s
        count = len(memory.running) + sum(len(line.jobs) for line in lines)
        self._draws = iter(draws.random(count).tolist())
        table = memory.table
        self._free: Ints = np.where(table.usable, table.milli_free, 0).sum(axis=1)
        self._left = int(self._free.sum())
        self._ends: list[tuple[float, int, _Held]] = []
        self._windows = [(hold, _kept(hold, table)) for hold in memory.holds.windows()]
        for hold, _ in self._windows:
            # Whoever is kept back by it may start then, although nothing comes free.
            self._add(hold.until_s, _Held(hold.until_s, ()))
        # By id: a memory that lasted and a new one hold running jobs in different orders.
        for job_id in sorted(memory.running):
            job = memory.running[job_id]
            rows: dict[int, int] = {}
            inside: list[tuple[int, int, int]] = []
            for task in job.tasks:
                row = table.row_of.get(task.node)
                if row is not None:
                    milli = sum(share.milli for share in task.devices)
                    rows[row] = rows.get(row, 0) + milli
                    inside += [
                        (place, row, share.milli)
                        for place, (hold, _) in enumerate(self._windows)
                        for share in task.devices
                        if share.index in hold.devices.get(row, ())
                    ]
            began_s = job.started_s or job.placed_s
            time = job.spec.time
            run_s = self._run_s(time, job.predicted_s, now_s - began_s)
            end_s = max(began_s + run_s, now_s)
            if job.is_stopping and job.stops_by_s is not None:
                end_s = job.stops_by_s
            if math.isfinite(end_s):
                planned_s = max(memory.end_of(job_id), now_s)
                self._add(end_s, _Held(planned_s, tuple(rows.items()), tuple(inside)))
        self._shadow: tuple[int, float, int] | None = None

    def _add(self, end_s: float, held: _Held) -> None:
        heapq.heappush(self._ends, (end_s, len(self._ends), held))

    def _run_s(self, time: TimeSpec, predicted_s: float | None, done_s: float) -> float:
        """How long a job runs in all, given that it has run for some time already."""
        limit_s = time.limit_s
        planned_s = time.expected_s or limit_s or predicted_s
        if planned_s is None:
            return math.inf
        if time.expected_s:
            ratios = self._ratios.expected or DEFAULT_RATIOS.expected
        elif limit_s:
            ratios = self._ratios.of_limit(limit_s) or DEFAULT_RATIOS.limit
        else:
            ratios = self._ratios.predicted or DEFAULT_RATIOS.predicted
        first = bisect_right(ratios, done_s / planned_s) if done_s > 0 else 0
        draw: float = next(self._draws)
        if first >= len(ratios):
            return done_s * (1.0 + draw)  # it has outlived them all: as long again, at most
        run_s = planned_s * ratios[first + int(draw * (len(ratios) - first))]
        return run_s if limit_s is None else min(run_s, max(limit_s, done_s))

    def play(self, starts: Starts) -> None:
        """Fill in when each waiting job starts, infinity when it never does."""
        at = [0] * len(self._lines)
        now_s, left = self._now_s, len(starts)
        while left:
            left -= self._start(at, now_s, starts)
            if not self._ends:
                return
            now_s = self._ends[0][0]
            while self._ends and self._ends[0][0] <= now_s:
                held = heapq.heappop(self._ends)[2]
                for row, milli in held.rows:
                    self._free[row] += milli
                    self._left += milli
                for place, row, milli in held.inside:
                    self._windows[place][1][row] += milli

    def _start(self, at: list[int], now_s: float, starts: Starts) -> int:
        """Start what fits now, in order; return how many."""
        heads = [
            (line.jobs[at[k]][0], k) for k, line in enumerate(self._lines) if at[k] < len(line.jobs)
        ]
        heapq.heapify(heads)
        started, head = 0, None
        while heads:
            place, k = heapq.heappop(heads)
            line = self._lines[k]
            _, job_id, job_class = line.jobs[at[k]]
            time = job_class.spec.time
            planned_s = time.limit_s or time.expected_s or math.inf
            devices = sum(tasks * milli for tasks, milli in line.tasks)
            if head is not None and not self._may_pass(now_s + planned_s, devices):
                continue
            # Most that do not fit are more than all that is free: no node need be looked at.
            rows = None
            if devices <= self._left:
                rows = self._place(line, self._kept_from(job_class, now_s, now_s + planned_s))
            if rows is None:
                if head is None:
                    head = place
                    self._reserve(place, devices, now_s)
                continue
            predicted_s = self._waiting[job_id].predicted_s
            run_s = self._run_s(time, predicted_s, 0.0)
            if math.isfinite(run_s):
                end_s = now_s + (time.expected_s or self._promised(planned_s, predicted_s))
                self._add(now_s + run_s, _Held(end_s, rows))
            self._left -= devices
            starts[place] = now_s
            started += 1
            at[k] += 1
            if at[k] < len(line.jobs):
                heapq.heappush(heads, (line.jobs[at[k]][0], k))
        return started

    def _promised(self, planned_s: float, predicted_s: float | None) -> float:
        """How long promises count on a job to run."""
        if math.isfinite(planned_s) or not self._has_predicted_ends:
            return planned_s
        return predicted_s or planned_s

    def _reserve(self, place: int, devices: int, now_s: float) -> None:
        """When the blocked head would fit by planned ends, and what it leaves free then."""
        if self._shadow is not None and self._shadow[0] == place and self._shadow[1] > now_s:
            return
        free = self._left
        for held in sorted(held for _, _, held in self._ends):
            free += sum(milli for _, milli in held.rows)
            if free >= devices:
                self._shadow = (place, max(held.planned_s, now_s), free - devices)
                return
        self._shadow = (place, math.inf, 0)

    def _may_pass(self, end_s: float, devices: int) -> bool:
        """Whether a job behind the head delays it by nothing."""
        if self._shadow is None or end_s <= self._shadow[1]:
            return True
        place, at_s, spare = self._shadow
        if devices > spare:
            return False
        self._shadow = (place, at_s, spare - devices)
        return True

    def _kept_from(self, job_class: JobClass, now_s: float, end_s: float) -> dict[int, int]:
        """What windows keep from a job that runs in them, in thousandths by row.

        The windows of one reservation keep the same devices again and again.
        """
        asker = job_class.asker()
        kept: dict[tuple[int, str], int] = {}
        for hold, rows in self._windows:
            assert hold.reservation is not None
            if hold.from_s < end_s and hold.until_s > now_s and not hold.is_for(asker):
                for row, milli in rows.items():
                    key = (row, hold.reservation.name)
                    kept[key] = max(kept.get(key, 0), milli)
        found: dict[int, int] = {}
        for (row, _), milli in kept.items():
            found[row] = found.get(row, 0) + milli
        return found

    def _place(self, line: _Line, kept: Mapping[int, int]) -> tuple[tuple[int, int], ...] | None:
        """Take the fewest, fullest nodes, or nothing; what is kept from the job stays free."""
        taken: list[tuple[int, int]] = []
        for allowed, (tasks, milli) in zip(line.rows, line.tasks, strict=True):
            free = self._free
            if kept:
                free = free.copy()
                for row, amount in kept.items():
                    free[row] = max(0, free.item(row) - amount)
            room = np.where(allowed, free // milli, 0)
            fitting = np.flatnonzero(room)
            if int(np.minimum(room[fitting], tasks).sum()) < tasks:
                for row, amount in taken:
                    self._free[row] += amount
                return None
            wanted = np.minimum(room[fitting], tasks)
            left = tasks
            for row in fitting[np.lexsort((self._free[fitting], -wanted))].tolist():
                amount = min(left, room.item(row)) * milli
                self._free[row] -= amount
                taken.append((row, amount))
                left -= amount // milli
                if not left:
                    break
        return tuple(taken)


def _kept(hold: Hold, table: Table) -> dict[int, int]:
    """What a window keeps that nobody holds, in thousandths by row."""
    return {
        row: WHOLE_DEVICE_MILLI * sum(not table.holders.item(row, device) for device in devices)
        for row, devices in hold.devices.items()
    }


def _summed_up(
    memory: Memory,
    order: list[JobId],
    starts: Starts,
    now_s: float,
) -> dict[JobId, StartEstimate]:
    """Median and band over the futures, sorted along the first axis."""
    last = len(starts) - 1
    low_s, at_s, high_s = (
        starts[round(last * part)].tolist() for part in (LOW_QUANTILE, 0.5, HIGH_QUANTILE)
    )
    found: dict[JobId, StartEstimate] = {}
    ratios = memory.run_ratios
    has_history = bool(ratios.expected or ratios.limit or ratios.predicted)
    latest_s = now_s
    for place, job_id in enumerate(order):
        if not math.isfinite(at_s[place]):
            continue
        is_passing = at_s[place] < latest_s
        latest_s = max(latest_s, at_s[place])
        promise = memory.promise_of(job_id)
        is_promised = promise is not None and promise.from_s is not None
        if is_promised and not has_history:
            continue  # the promise itself is the better word
        label = "reserved" if is_promised else "backfill" if is_passing else "immediate"
        raw_s = (low_s[place], at_s[place], _finite(high_s[place], starts[:, place]))
        start = _corrected(raw_s, memory.start_ratios, label, now_s)
        if not has_history:
            # What comes of it says nothing about estimates that are made with one.
            start = msgspec.structs.replace(start, raw_s=None)
        found[job_id] = start
    return found


def _finite(high_s: float, starts: Starts) -> float:
    """The high end, or the latest start there is when the job does not start in that future."""
    return high_s if math.isfinite(high_s) else starts[np.isfinite(starts)].max().item()


def _corrected(
    raw_s: tuple[float, float, float], ratios: StartRatios, label: str, now_s: float
) -> StartEstimate:
    low_s, at_s, high_s = (
        now_s + max((each_s - now_s + ratios.slack_s) * ratio - ratios.slack_s, 0.0)
        for each_s, ratio in zip(raw_s, (ratios.low, ratios.at, ratios.high), strict=True)
    )
    return StartEstimate(
        at_s=at_s,
        low_s=max(min(low_s, at_s - LEAST_S), now_s),
        high_s=max(high_s, at_s + LEAST_S),
        label=label,
        raw_s=raw_s,
    )
