"""A recorded workload: what every reader of `twin.traces` returns, in one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tercio.model.topology import TopologyRequest

JobEnd = Literal["ok", "failed", "cancelled", "unknown"]


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a trace.

    Attributes:
        id: as the trace names it, or its line number.
        submit_s: seconds since the epoch.
        run_s: how long it ran once started, in seconds.
        tasks: tasks of the gang, each on one node.
        devices_per_task: whole devices of each task; 0 for a job without devices.
        share_milli: thousandths of one device that each task has instead (then
            `devices_per_task` is 0), or 0.
        share_memory_bytes: memory of one device that each task asks for instead of a share, or 0;
            `share_milli` then says what that came to.
        device_type: wanted type in our vocabulary, or None for any.
        cpus_per_task, memory_bytes_per_task: of each task, or None where the trace is silent.
        limit_s: declared time limit, or None.
        user, queue: who submitted it and where it waited; empty where the trace is silent.
        priority: larger first.
        columns: the raw columns by name, for filters.
        model: name of a throughput profile, or None.
        work: what it does in units of that profile, or None where the profile says it.
        end: how it ended.
        topology: how its tasks stand to each other, or None.
    """

    id: str
    submit_s: float
    run_s: float
    tasks: int = 1
    devices_per_task: int = 1
    share_milli: int = 0
    share_memory_bytes: int = 0
    device_type: str | None = None
    cpus_per_task: float | None = None
    memory_bytes_per_task: int | None = None
    limit_s: float | None = None
    user: str = ""
    queue: str = ""
    priority: int = 0
    columns: Mapping[str, str] = {}
    model: str | None = None
    work: float | None = None
    end: JobEnd = "unknown"
    topology: TopologyRequest | None = None

    @property
    def devices(self) -> float:
        """Devices of the whole gang, a share counting as its part."""
        if self.share_milli:
            return self.tasks * self.share_milli / 1000
        return self.tasks * self.devices_per_task


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A whole trace.

    Attributes:
        jobs: in order of submission.
        source: name of the file or folder.
        kind: name of the format.
        warnings: what was left out or guessed, one sentence each.
    """

    jobs: tuple[TraceJob, ...]
    source: str
    kind: str
    warnings: tuple[str, ...] = ()
