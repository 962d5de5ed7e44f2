"""Who held which devices of which node, and when: for charts, fragmentation and shares.

`SpanKeeper` watches a run; what it keeps is what the Gantt chart and the topology chart draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from tercio.core.driver import Driver, Step
from tercio.model.events import (
    AnyEvent,
    JobEvicted,
    JobPlaced,
    JobsForgotten,
    JobSubmitted,
    JobWaited,
    PromisesChanged,
    TasksAdded,
)
from tercio.model.ids import JobId, job_sequence
from tercio.model.placement import TaskPlacement

# Decisions after which everything is still held; they come often, and the look is over all jobs.
_FREES_NOTHING: Final = (JobEvicted, JobSubmitted, JobWaited, JobsForgotten, PromisesChanged)


class Moment(Protocol):
    """What a loop shows of one instant."""

    now_s: float
    driver: Driver


class Span(msgspec.Struct, kw_only=True, gc=False):
    """One job on one node for a time.

    Attributes:
        job: its number in the order of submit, from 0.
        node: number of the node, in the order of the cluster.
        devices: held, a share counting as its part.
        start_s, end_s: from placement until what it held was free again.
    """

    job: int
    node: int
    devices: float
    start_s: float
    end_s: float


class SpanKeeper:
    """An observer of a run. `finish` closes what is still open."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.spans: list[Span] = []
        self._nodes = {name: number for number, name in enumerate(nodes)}
        self._open: dict[JobId, list[Span]] = {}

    def stepped(self, loop: Moment, events: Sequence[AnyEvent], step: Step) -> None:
        """Look at one step."""
        cluster = loop.driver.cluster
        if events:
            for job in [job for job in self._touched(events) if not cluster.is_holding(job)]:
                self._close(job, loop.now_s)
        for entry in step.entries[len(events) :]:
            event = entry.event
            if isinstance(event, (JobPlaced, TasksAdded)):
                self._begin(event.job_id, event.tasks, event.at_s)
            elif not isinstance(event, _FREES_NOTHING):
                for job in [job for job in self._open if not cluster.is_holding(job)]:
                    self._close(job, loop.now_s)

    def finish(self, now_s: float) -> tuple[Span, ...]:
        """Return all spans, by start."""
        for job in list(self._open):
            self._close(job, now_s)
        self.spans.sort(key=lambda span: (span.start_s, span.node, span.job))
        return tuple(self.spans)

    def _touched(self, events: Sequence[AnyEvent]) -> list[JobId]:
        touched = dict.fromkeys(
            job for event in events if (job := getattr(event, "job_id", None)) in self._open
        )
        return [job for job in touched if job is not None]

    def _begin(self, job: JobId, tasks: Sequence[TaskPlacement], at_s: float) -> None:
        held: dict[int, float] = {}
        for task in tasks:
            node = self._nodes.get(task.node, -1)
            held[node] = held.get(node, 0.0) + sum(share.milli for share in task.devices) / 1000
        number = job_sequence(job) - 1
        self._open.setdefault(job, []).extend(
            Span(job=number, node=node, devices=devices, start_s=at_s, end_s=at_s)
            for node, devices in held.items()
        )

    def _close(self, job: JobId, now_s: float) -> None:
        for span in self._open.pop(job, ()):
            span.end_s = now_s
            self.spans.append(span)
