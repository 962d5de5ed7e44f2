"""The course of a job's work at one placement: when which part of it is done.

The gradient's noise grows while a model trains, and with it what a large batch is worth: a gang
of one size does not advance evenly. A course is a rising line of (part done, seconds), straight
between its points, so that a job that moves goes on with its new course at the part it is at.
"""

from __future__ import annotations

import bisect
from typing import Protocol

import msgspec

from tercio.model.ids import JobId

Site = tuple[tuple[str, int], ...]
"""Device type and number of devices on each node of a gang."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How long a whole job takes to reach each part of its work at one placement.

    Attributes:
        parts: done, rising from 0 to 1.
        times_s: when, from 0 to the run time.
    """

    parts: tuple[float, ...]
    times_s: tuple[float, ...]

    @property
    def run_s(self) -> float:
        """Run time of the whole work."""
        return self.times_s[-1]

    def at_s(self, part: float) -> float:
        """Return when a part is done."""
        return _along(self.parts, self.times_s, part)

    def part_at(self, at_s: float) -> float:
        """Return the part that is done at an instant."""
        return _along(self.times_s, self.parts, at_s)


class Pace(Protocol):
    """How fast jobs with a throughput profile advance."""

    def course(self, job_id: JobId, site: Site) -> Course | None:
        """Return the course of a job at a placement; None where nothing is known of it."""

    def restart_s(self, job_id: JobId) -> float | None:
        """Return what a start, move or change of size costs the job; None without a profile."""


def steady(run_s: float) -> Course:
    """Return the course of even progress."""
    return Course(parts=(0.0, 1.0), times_s=(0.0, run_s))


def _along(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    at = bisect.bisect_left(xs, x)
    if at <= 0:
        return ys[0]
    if at >= len(xs):
        return ys[-1]
    if xs[at] == x:
        return ys[at]
    part = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + part * (ys[at] - ys[at - 1])
