"""Reads the Philly export: `timestamp,duration,num_gpus,gpu_time,cluster`, unsorted.

Source: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters (USENIX ATC 2019), as
exported by the authors of Pollux and Sia. Times are local and taken as UTC. Run times are
floored to whole seconds and at least one, as the simulators that others compare with do.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

from tercio.twin.trace import Trace, TraceJob
from tercio.twin.traces.reading import Reading, finish, split_gang
from tercio.twin.traces.source import Row, RowFault, Source, Tally, table_rows

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")


def read_philly(text: str, source: str) -> Trace:
    """Read one export; jobs above eight devices are gangs of equal tasks.

    Raises:
        UserError: naming the line and the column.
    """
    return read_philly_files([Source(name=source, text=text)], Reading())


def read_philly_files(sources: Sequence[Source], reading: Reading) -> Trace:
    """Read one or more exports.

    Raises:
        UserError: naming file, line, column and value.
    """
    tally = Tally(is_lenient=reading.is_lenient)
    jobs: list[TraceJob] = []
    for source in sources:
        for row in table_rows(source, tally, needed=COLUMNS):
            try:
                jobs.append(_read(row, reading))
            except RowFault as fault:
                tally.fault(fault)
    # The published first-come orders break ties of one second by run time, then by size.
    jobs.sort(key=lambda job: (job.run_s, job.devices))
    return finish(jobs, tally, sources, kind="philly")


def _read(row: Row, reading: Reading) -> TraceJob:
    try:
        at = datetime.datetime.fromisoformat(row.text("timestamp"))
        submit_s = at.replace(tzinfo=datetime.UTC).timestamp()
    except (ValueError, OverflowError):
        raise row.fault("timestamp", "a time such as 2017-10-09 07:01:55") from None
    tasks, each = split_gang(row.whole("num_gpus"), reading.devices_per_node)
    return TraceJob(
        id=str(row.line),
        submit_s=submit_s,
        run_s=max(float(int(row.number("duration"))), 1.0),
        tasks=tasks,
        devices_per_task=each,
        queue=row.text("cluster"),
        columns=row.values,
    )
