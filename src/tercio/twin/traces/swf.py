"""Reads the Standard Workload Format: 18 numbers a line, comments after `;`.

Source: Chapin et al., Benchmarks and Standards for the Evaluation of Parallel Job Schedulers
(JSSPP 1999); version 2.2 of the Parallel Workloads Archive. A processor is read as a device: on
a GPU cluster that is what an SWF file counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tercio.twin.trace import JobEnd, Trace, TraceJob
from tercio.twin.traces.reading import Reading, finish, split_gang
from tercio.twin.traces.source import Row, RowFault, Source, Tally

FIELDS: Final = (
    "job", "submit", "wait", "run", "processors", "cpu_time", "memory", "requested_processors",
    "requested_time", "requested_memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding_job", "think_time",
)  # fmt: skip
_ENDS: Final[dict[int, JobEnd]] = {0: "failed", 1: "ok", 3: "ok", 4: "failed", 5: "cancelled"}
_PARTIAL: Final = 2
_START: Final = re.compile(r"^;\s*UnixStartTime:\s*(\d{1,12})")


def read_swf(sources: Sequence[Source], reading: Reading) -> Trace:
    """Read one or more SWF files.

    Raises:
        UserError: naming file, line, field and value.
    """
    tally = Tally(is_lenient=reading.is_lenient)
    jobs: list[TraceJob] = []
    for source in sources:
        start_s = 0.0
        for line, text in enumerate(source.text.splitlines(), 1):
            if match := _START.match(text):
                start_s = float(match.group(1))
            values = text.partition(";")[0].split()
            if not values:
                continue
            try:
                job = _read(_row(source, line, values), start_s, reading, tally)
            except RowFault as fault:
                tally.fault(fault)
                continue
            if job is not None:
                jobs.append(job)
    return finish(jobs, tally, sources, kind="swf")


def _row(source: Source, line: int, values: list[str]) -> Row:
    if len(values) != len(FIELDS):
        row = Row(source.name, line, {"line": " ".join(values)})
        raise row.fault("line", f"a row of {len(FIELDS)} numbers")
    return Row(source.name, line, dict(zip(FIELDS, values, strict=True)))


def _read(row: Row, start_s: float, reading: Reading, tally: Tally) -> TraceJob | None:
    status = row.whole("status", low=-1)
    run_s = row.number("run", low=-1)
    processors = max(row.whole("processors", low=-1), 0) or max(
        row.whole("requested_processors", low=-1), 0
    )
    if status == _PARTIAL:
        tally.drop("a part of a job that went on later")
        return None
    if run_s < 0:
        tally.drop("no run time recorded" if status != 5 else "cancelled before it started")
        return None
    if processors == 0:
        tally.drop("no processors recorded")
        return None
    tasks, each = split_gang(processors, reading.devices_per_node)
    limit_s = row.number("requested_time", low=-1)
    memory_kib = row.number("requested_memory", low=-1)
    queue, user = row.number("queue", low=-1), row.number("user", low=-1)
    return TraceJob(
        id=row.text("job"),
        submit_s=start_s + row.number("submit"),
        run_s=run_s,
        tasks=tasks,
        devices_per_task=each,
        memory_bytes_per_task=int(memory_kib * 1024 * each) if memory_kib > 0 else None,
        limit_s=limit_s if limit_s > 0 else None,
        user=f"user-{user:.0f}" if user >= 0 else "",
        queue=f"queue-{queue:.0f}" if queue >= 0 else "",
        columns=row.values,
        end=_ENDS.get(status, "unknown"),
    )


def is_swf(line: str) -> bool:
    """Whether a line is a row of this format."""
    values = line.partition(";")[0].split()
    return len(values) == len(FIELDS) and all(
        re.fullmatch(r"-?\d+(\.\d+)?", value) for value in values
    )
