"""Throughput profiles for a replay: how fast each job of a trace advances where it stands."""

from __future__ import annotations

from collections.abc import Iterable

from tercio.model.ids import JobId
from tercio.model.job import Goodput
from tercio.model.node import NodeSpec
from tercio.twin.progress.book import ProfileBook
from tercio.twin.progress.course import Course, Site
from tercio.twin.trace import TraceJob


class ProfilePace:
    """See `progress.course.Pace`. Jobs without a profile get on as the trace recorded them.

    Attributes:
        jobs: those that run or wait, by our id.
    """

    def __init__(self, book: ProfileBook, nodes: Iterable[NodeSpec]) -> None:
        self.jobs: dict[JobId, TraceJob] = {}
        self._book = book
        self._sizes: dict[str, tuple[int, int]] = {}
        for node in nodes:
            for kind in dict.fromkeys(device.type for device in node.devices):
                here = sum(device.type == kind for device in node.devices)
                most, total = self._sizes.get(kind, (0, 0))
                self._sizes[kind] = (max(most, here), total + here)
        self._courses: dict[tuple[str, Site, float | None], Course | None] = {}
        self._profiles: dict[tuple[str, int], tuple[Goodput, ...]] = {}

    def course(self, job_id: JobId, site: Site) -> Course | None:
        """A gang on several types goes as slowly as all of it on the slowest would."""
        job = self.jobs.get(job_id)
        if job is None or job.model is None or not site:
            return None
        key = (job.model, tuple(sorted(site)), job.work)
        if key not in self._courses:
            counts = [count for _, count in site]
            found = [
                self._book.course(job.model, kind, counts, job.work)
                for kind in dict.fromkeys(kind for kind, _ in site)
            ]
            known = [course for course in found if course is not None]
            is_whole = len(known) == len(found)
            slowest = max(known, key=lambda course: course.run_s) if is_whole else None
            self._courses[key] = slowest
        return self._courses[key]

    def restart_s(self, job_id: JobId) -> float | None:
        """What a start from a checkpoint costs; the first start costs as much."""
        job = self.jobs.get(job_id)
        return None if job is None or job.model is None else self._book.restart_s(job.model)

    def profile(self, job: TraceJob, tasks: int | None = None) -> tuple[Goodput, ...]:
        """Return what the scheduler is told of a job: mean progress by type and gang size.

        Sizes are the powers of two inside a node and whole nodes beyond; or `tasks` alone, for
        a job whose size is fixed.
        """
        if job.model is None:
            return ()
        key = (job.model, tasks or 0)
        if key not in self._profiles:
            found = (self._of_type(job.model, kind, tasks) for kind in self._sizes)
            self._profiles[key] = tuple(profile for profile in found if profile.tasks)
        return self._profiles[key]

    def _of_type(self, model: str, kind: str, tasks: int | None) -> Goodput:
        node, total = self._sizes[kind]
        inside = [1 << power for power in range(node.bit_length()) if 1 << power < node]
        sizes = [*inside, *range(node, total + 1, node)] if tasks is None else [tasks]
        rows = []
        for size in sizes:
            placement = [node] * (size // node) + ([size % node] if size % node else [])
            rate = self._book.units_per_s(model, kind, placement) if size <= total else None
            if rate:
                rows.append((size, rate))
        return Goodput(
            type=kind,
            tasks=tuple(size for size, _ in rows),
            units_per_s=tuple(rate for _, rate in rows),
        )
