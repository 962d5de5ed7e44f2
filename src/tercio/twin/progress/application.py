"""One trained model with its measured steps by device type and its measured training runs.

Profiles come from Pollux (OSDI 2021) and Sia (SOSP 2023): step times by placement, and
gradient statistics by epoch at several batch sizes. Progress is counted in steps of the initial
batch; a step of a larger batch is worth `goodput.gain` of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tercio.twin.progress.course import Course
from tercio.twin.progress.goodput import Measured, gain, local_batches

Points = tuple[tuple[float, float, float], ...]
"""(local batch, step seconds, sync seconds), ascending by batch."""


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one epoch of a measured run: cumulative progress and steps, and the gradient."""

    progress: float
    steps: float
    metric: float
    grad_sqr: float
    grad_var: float


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Measured steps of one model on one device type.

    Attributes:
        by_placement: exact placements, `(4, 4)` being two nodes of four devices.
        by_shape: means over placements of (nodes, replicas).
    """

    by_placement: Mapping[tuple[int, ...], Points]
    by_shape: Mapping[tuple[int, int], Points]

    def times_s(self, placement: Sequence[int], local_batch: float) -> tuple[float, float] | None:
        """Return (step, sync) seconds, or None outside what was measured.

        A measured placement is interpolated over its batch; others over replicas at the same
        number of nodes, or between the nearest numbers of nodes.
        """
        exact = self.by_placement.get(normal_placement(placement))
        if exact is not None:
            return _between(exact, local_batch)
        nodes, replicas = len(placement), sum(placement)
        known = sorted({shape[0] for shape in self.by_shape})
        if not known:
            return None
        nodes = min(nodes, known[-1])
        at = bisect.bisect_left(known, nodes)
        if known[at] == nodes:
            return self._over_replicas(nodes, replicas, local_batch)
        low = self._over_replicas(known[at - 1], replicas, local_batch) if at else None
        high = self._over_replicas(known[at], replicas, local_batch)
        if low is None or high is None:
            return low or high
        part = (nodes - known[at - 1]) / (known[at] - known[at - 1])
        return low[0] + part * (high[0] - low[0]), low[1] + part * (high[1] - low[1])

    def local_batch_max(self, placement: Sequence[int]) -> float:
        """Return the largest measured batch of one device for this placement."""
        exact = self.by_placement.get(normal_placement(placement))
        if exact is not None:
            return exact[-1][0]
        return max(points[-1][0] for points in self.by_shape.values())

    def _over_replicas(
        self, nodes: int, replicas: int, local_batch: float
    ) -> tuple[float, float] | None:
        found = [
            (shape[1], times)
            for shape, points in sorted(self.by_shape.items())
            if shape[0] == nodes and (times := _between(points, local_batch)) is not None
        ]
        if not found:
            return None
        line = tuple((float(count), *times) for count, times in found)
        clamped = min(max(float(replicas), line[0][0]), line[-1][0])
        return _between(line, clamped)


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        name: such as `bert`.
        steps_by_type: measured steps by device type in our vocabulary.
        runs: measured training runs by batch size, ascending.
        epochs: epochs that the run takes.
        restart_s: checkpoint and restore when a running job is moved or resized.
        slowdown: run time in training over that of the measured steps alone, at least 1.
    """

    name: str
    steps_by_type: Mapping[str, Steps]
    runs: Mapping[int, tuple[Epoch, ...]]
    epochs: int
    restart_s: float
    slowdown: float = 1.0

    @property
    def initial_batch(self) -> int:
        """The smallest measured batch, in which progress is counted."""
        return min(self.runs)

    @property
    def batch_max(self) -> int:
        """The largest measured batch."""
        return max(self.runs)

    def work(self) -> float:
        """Return the whole progress of a run, in steps of the initial batch."""
        return self.progress_after(self.epochs)

    def progress_after(self, epochs: int) -> float:
        """Return the progress after so many epochs; the least of all measured runs."""
        if epochs <= 0:
            return 0.0
        return min(run[min(epochs, len(run)) - 1].progress for run in self.runs.values())

    def gradient(self, batch: float, epoch: int) -> tuple[float, float]:
        """Return (square, variance) of the gradient in an epoch, interpolated over the batch."""
        sizes = list(self.runs)
        batch = min(max(batch, sizes[0]), sizes[-1])
        at = bisect.bisect_left(sizes, batch)
        high = self.runs[sizes[at]]
        upper = high[min(epoch, len(high) - 1)]
        if sizes[at] == batch:
            return upper.grad_sqr, upper.grad_var
        low = self.runs[sizes[at - 1]]
        lower = low[min(epoch, len(low) - 1)]
        part = (batch - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return (
            lower.grad_sqr + part * (upper.grad_sqr - lower.grad_sqr),
            lower.grad_var + part * (upper.grad_var - lower.grad_var),
        )

    def gain_at(self, batch: float, epoch: int) -> float:
        """Return how many steps of the initial batch one step of `batch` is worth."""
        square, variance = self.gradient(batch, epoch)
        return gain(batch, initial_batch=self.initial_batch, grad_sqr=square, grad_var=variance)

    def step_s(self, device_type: str, placement: Sequence[int], batch: float) -> float | None:
        """Return the time of one update of `batch` samples, accumulating where it must."""
        steps = self.steps_by_type.get(device_type)
        replicas = sum(placement)
        if steps is None or replicas <= 0:
            return None
        local, accumulated = local_batches(
            batch, replicas, local_batch_max=steps.local_batch_max(placement)
        )
        times = steps.times_s(placement, local)
        if times is None:
            return None
        step_s, sync_s = times
        return step_s + accumulated * (step_s - sync_s)

    def progress_per_s(
        self, device_type: str, placement: Sequence[int], batch: float, epoch: int = 0
    ) -> float | None:
        """Return steps of the initial batch per second, or None where nothing is measured."""
        step_s = self.step_s(device_type, placement, batch)
        return None if not step_s else self.gain_at(batch, epoch) / step_s

    def best_progress_per_s(
        self, device_type: str, placement: Sequence[int], epoch: int = 0
    ) -> tuple[float, float] | None:
        """Return (progress per second, batch) of the best batch on this placement."""
        best: tuple[float, float] | None = None
        for batch in _batches(self.initial_batch, self.batch_max):
            rate = self.progress_per_s(device_type, placement, batch, epoch)
            if rate is not None and (best is None or rate > best[0]):
                best = rate, batch
        return best

    def mean_progress_per_s(
        self, device_type: str, placement: Sequence[int], batch: float | None = None
    ) -> float | None:
        """Return the progress per second over a whole run.

        The gradient's noise grows as training goes on, and with it what a large batch is worth;
        without a `batch` each epoch runs at its best one. Cost: O(epochs x batches).
        """
        if batch is not None:
            run_s = self.run_s(device_type, placement, batch)
            return None if not run_s else self.work() / run_s
        steps = self._step_times(device_type, placement)
        if not steps:
            return None
        total_s = 0.0
        for epoch in range(self.epochs):
            progress = self.progress_after(epoch + 1) - self.progress_after(epoch)
            total_s += progress / max(self.gain_at(size, epoch) / step_s for size, step_s in steps)
        return self.work() / total_s

    def course(self, device_type: str, placement: Sequence[int]) -> Course | None:
        """Return the course of a whole run, each epoch at its best batch; None if not measured.

        Cost: O(epochs x batches).
        """
        steps = self._step_times(device_type, placement)
        if not steps:
            return None
        work, done, time_s = self.work(), 0.0, 0.0
        parts, times_s = [0.0], [0.0]
        for epoch in range(self.epochs):
            before, done = done, self.progress_after(epoch + 1)
            if done <= before:
                continue  # a run that was cut short adds nothing
            rate = max(self.gain_at(size, epoch) / step_s for size, step_s in steps)
            time_s += self.slowdown * (done - before) / rate
            parts.append(done / work)
            times_s.append(time_s)
        return Course(parts=(*parts[:-1], 1.0), times_s=tuple(times_s))

    def _step_times(self, device_type: str, placement: Sequence[int]) -> list[tuple[float, float]]:
        """Batches that were measured on a placement, and their step times."""
        return [
            (size, step_s)
            for size in _batches(self.initial_batch, self.batch_max)
            if (step_s := self.step_s(device_type, placement, size)) is not None and step_s > 0
        ]

    def run_s(self, device_type: str, placement: Sequence[int], batch: float) -> float | None:
        """Return how long a whole run takes at a fixed placement and batch."""
        step_s = self.step_s(device_type, placement, batch)
        if step_s is None:
            return None
        return step_s * self.steps_to_finish(batch)

    def steps_to_finish(self, batch: float) -> float:
        """Return the updates of `batch` samples that a whole run takes."""
        return sum(
            (self.progress_after(epoch + 1) - self.progress_after(epoch))
            / self.gain_at(batch, epoch)
            for epoch in range(self.epochs)
        )


def normal_placement(placement: Sequence[int]) -> tuple[int, ...]:
    """Return the smallest rotation of a placement: nodes are interchangeable on a ring."""
    kept = tuple(count for count in placement if count)
    return min((kept[i:] + kept[:i] for i in range(len(kept))), default=())


_BATCH_STEPS: Final = 24


def _batches(low: float, high: float) -> list[float]:
    """Return batches from low to high in equal ratios."""
    if high <= low:
        return [float(low)]
    ratio = (high / low) ** (1 / (_BATCH_STEPS - 1))
    return [float(round(low * ratio**power)) for power in range(_BATCH_STEPS)]


def _between(points: Points, at: float) -> tuple[float, float] | None:
    """Interpolate linearly; None outside the measured range."""
    if not points or not points[0][0] <= at <= points[-1][0]:
        return None
    index = bisect.bisect_left(points, (at,))
    if points[index][0] == at:
        return points[index][1], points[index][2]
    low, high = points[index - 1], points[index]
    part = (at - low[0]) / (high[0] - low[0])
    return low[1] + part * (high[1] - low[1]), low[2] + part * (high[2] - low[2])


def measured_rows(steps: Steps) -> list[Measured]:
    """Return all measured steps, to fit a `StepModel` to them."""
    return [
        Measured(nodes=nodes, replicas=replicas, local_batch=batch, step_s=step_s, sync_s=sync_s)
        for (nodes, replicas), points in sorted(steps.by_shape.items())
        for batch, step_s, sync_s in points
    ]
