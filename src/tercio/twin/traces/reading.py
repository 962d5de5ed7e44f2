"""What all readers of traces share: how to read, how to split gangs, how to end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tercio.errors import UserError
from tercio.twin.progress.book import ProfileBook
from tercio.twin.trace import Trace, TraceJob
from tercio.twin.traces.source import Source, Tally


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How a trace is read.

    Attributes:
        devices_per_node: size of a node, to split gangs of which only the total is known.
        is_lenient: unreadable rows are counted and left out instead of refused.
        profiles: throughput profiles, for traces that record work instead of run time.
        reference: device type whose profile turns work into a run time.
    """

    devices_per_node: int = 8
    is_lenient: bool = False
    profiles: ProfileBook | None = None
    reference: str | None = None


def split_gang(devices: int, devices_per_node: int) -> tuple[int, int]:
    """Return (tasks, devices of each) of a gang of which only the total is known.

    As few equal tasks as possible, each of at most one node.

    >>> split_gang(4, 8), split_gang(16, 8), split_gang(12, 8)
    ((1, 4), (2, 8), (2, 6))
    """
    if devices <= devices_per_node:
        return 1, devices
    tasks = -(-devices // devices_per_node)
    while devices % tasks:
        tasks += 1
    return tasks, devices // tasks


def finish(jobs: list[TraceJob], tally: Tally, sources: Sequence[Source], *, kind: str) -> Trace:
    """Return the trace in order of submission; equal instants keep the order of the file.

    Raises:
        UserError: no job is left.
    """
    name = (
        sources[0].name if len(sources) == 1 else f"{sources[0].name} and {len(sources) - 1} more"
    )
    warnings = tally.warnings()
    if not jobs:
        raise UserError(
            f"{name} holds no job that can be replayed",
            field="trace",
            hint="; ".join(warnings) or "the file has no rows below its header",
        )
    jobs.sort(key=lambda job: job.submit_s)
    return Trace(jobs=tuple(jobs), source=name, kind=kind, warnings=warnings)
