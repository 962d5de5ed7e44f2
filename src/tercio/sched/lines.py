"""The waiting classes of each queue in their order, kept from cycle to cycle."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator

from tercio.model.snapshot import WaitingJob
from tercio.sched.classes import Entry, JobClass
from tercio.sched.fairshare import QueueNode


class Lines:
    """Classes in order of their heads, by queue; a job that joins or leaves moves its class."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[QueueNode, list[Entry]]] = {}

    def join(self, job_class: JobClass, job: WaitingJob) -> None:
        """Let a job wait in its class."""
        line = self._line(job_class)
        if job_class.members:
            _remove(line, job_class)
        job_class.add(job)
        bisect.insort(line, job_class.entry)

    def leave(self, job_class: JobClass, job: WaitingJob) -> None:
        """Take a job out of its class."""
        line = self._line(job_class)
        _remove(line, job_class)
        job_class.remove(job)
        if job_class.members:
            bisect.insort(line, job_class.entry)

    def open(self, closed: Collection[int]) -> Iterator[tuple[QueueNode, list[Entry]]]:
        """Return a copy of each queue's line without the closed classes, by their numbers."""
        for node, line in self._lines.values():
            left = [entry for entry in line if entry[1] not in closed] if closed else line.copy()
            if left:
                yield node, left

    def _line(self, job_class: JobClass) -> list[Entry]:
        node = job_class.queue
        found = self._lines.get(node.path)
        if found is None:
            found = self._lines[node.path] = (node, [])
        return found[1]


def _remove(line: list[Entry], job_class: JobClass) -> None:
    del line[bisect.bisect_left(line, job_class.entry)]
