"""Reads the Philly export: `timestamp,duration,num_gpus,gpu_time,cluster`, unsorted.

Source: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters (USENIX ATC 2019), as
exported by the authors of Pollux and Sia. Times are local and taken as UTC. Run times are
floored to whole seconds and at least one, as the simulators that others compare with do.
"""

from __future__ import annotations

import csv
import datetime
import io
from typing import Final

from tercio.errors import UserError
from tercio.twin.trace import Trace, TraceJob

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
DEVICES_PER_NODE: Final = 8


def read_philly(text: str, source: str) -> Trace:
    """Read the export; jobs above eight devices are gangs of whole nodes and a remainder.

    Raises:
        UserError: naming the line and the column.
    """
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise UserError(f"{source}: has no column {missing[0]!r}", field=missing[0])
    jobs = [_read(row, source, number) for number, row in enumerate(reader, 2)]
    jobs.sort(key=lambda job: (job.submit_s, job.run_s, job.devices))
    return Trace(jobs=tuple(jobs), source=source, kind="philly")


def _read(row: dict[str, str], source: str, line: int) -> TraceJob:
    where = f"{source}:{line}"
    try:
        at = datetime.datetime.fromisoformat(row["timestamp"])
        submit_s = at.replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        raise _wrong(where, "timestamp", row, "write it as 2017-10-09 07:01:55") from None
    try:
        run_s = max(float(int(float(row["duration"]))), 1.0)
    except (ValueError, OverflowError):
        raise _wrong(where, "duration", row, "a number of seconds") from None
    try:
        devices = int(row["num_gpus"])
    except ValueError:
        raise _wrong(where, "num_gpus", row, "a whole number") from None
    if devices < 0:
        raise _wrong(where, "num_gpus", row, "at least 0")
    tasks, each = (1, devices) if devices <= DEVICES_PER_NODE else _gang(devices)
    return TraceJob(
        id=str(line),
        submit_s=submit_s,
        run_s=run_s,
        tasks=tasks,
        devices_per_task=each,
        queue=row["cluster"],
        columns=row,
    )


def _gang(devices: int) -> tuple[int, int]:
    """Split into equal tasks of at most a node's devices, as few as possible."""
    tasks = -(-devices // DEVICES_PER_NODE)
    while devices % tasks:
        tasks += 1
    return tasks, devices // tasks


def _wrong(where: str, column: str, row: dict[str, str], hint: str) -> UserError:
    return UserError(f"{where}: {column} is {row[column]!r}", hint=hint, field=column)
