"""Reads a Slurm accounting dump: `sacct --parsable2` with a header line.

Needed columns are `JobID`, `Submit`, `State`, one of `AllocTRES` and `ReqTRES`, and `ElapsedRaw`
or both `Start` and `End`. Used where present: `Timelimit` or `TimelimitRaw`, `User`, `Account`,
`Partition`, `NNodes`. Steps are skipped, attempts of one job become its
last one, components of a heterogeneous job one gang where they are alike.

Source: the sacct manual page of SchedMD, "JOB STATE CODES" and "Job Accounting Fields".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tercio.errors import UserError
from tercio.twin.trace import JobEnd, Trace, TraceJob
from tercio.twin.traces.reading import Reading, finish
from tercio.twin.traces.source import Row, RowFault, Source, Tally, table_rows
from tercio.twin.traces.tres import (
    NO_TIME,
    JobNumber,
    Tres,
    parse_job_number,
    parse_limit_s,
    parse_time_s,
    parse_tres,
)

NEEDED: Final = ("JobID", "Submit", "State")
_ENDS: Final[dict[str, JobEnd]] = {
    "COMPLETED": "ok",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "OUT_OF_MEMORY": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "DEADLINE": "failed",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
    "RUNNING": "unknown",
    "SUSPENDED": "unknown",
    "REQUEUED": "unknown",
    "REQUEUE_HOLD": "unknown",
    "REQUEUE_FED": "unknown",
    "SPECIAL_EXIT": "failed",
    "RESIZING": "unknown",
    "COMPLETING": "unknown",
    "CONFIGURING": "unknown",
    "STOPPED": "unknown",
    "SIGNALING": "unknown",
    "STAGE_OUT": "ok",
    "RESV_DEL_HOLD": "unknown",
    "PENDING": "unknown",
}
_FOLLOWED: Final = frozenset(
    {"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"}
)
"""States after which the same job may come again as a later row."""
_STILL: Final = frozenset({"RUNNING", "SUSPENDED", "RESIZING", "COMPLETING", "STOPPED"})


class _Record(NamedTuple):
    """One row that can be replayed, before attempts and components are joined."""

    number: JobNumber
    job: TraceJob
    state: str


def read_sacct(sources: Sequence[Source], reading: Reading) -> Trace:
    """Read one or more dumps as one log.

    Raises:
        UserError: naming file, line, field and value.
    """
    tally = Tally(is_lenient=reading.is_lenient)
    records: dict[str, _Record] = {}
    for source in sources:
        _check_header(source)
        for row in table_rows(source, tally, needed=NEEDED, delimiter="|"):
            try:
                record = _read(row, tally)
            except RowFault as fault:
                tally.fault(fault)
                continue
            if record is not None:
                _join_attempts(records, record, tally)
    return finish(_join_components(records, tally), tally, sources, kind="sacct")


def _check_header(source: Source) -> None:
    header = source.text.partition("\n")[0].strip().split("|")
    if "JobID" not in header:
        return
    if not {"AllocTRES", "ReqTRES"} & set(header):
        raise UserError(
            f"{source.name}:1: no column AllocTRES or ReqTRES: how many devices a job held is not"
            " recorded",
            field="AllocTRES",
            hint="add AllocTRES,ReqTRES to sacct --format",
        )
    if "ElapsedRaw" not in header and not {"Start", "End"} <= set(header):
        raise UserError(
            f"{source.name}:1: no column ElapsedRaw, and not both Start and End",
            field="ElapsedRaw",
            hint="add ElapsedRaw to sacct --format",
        )


def _read(row: Row, tally: Tally) -> _Record | None:
    number = parse_job_number(row, "JobID")
    if number.step is not None:
        tally.drop("a step; its job has a row of its own")
        return None
    words = row.text("State").split()
    state = words[0].rstrip("+") if words else ""
    if state not in _ENDS:
        raise row.fault("State", "a job state such as COMPLETED or CANCELLED by 1000")
    if number.element is not None and number.element.startswith("["):
        tally.drop("array elements that had not started")
        return None
    submit_s = parse_time_s(row, "Submit")
    if submit_s is None:
        raise row.fault("Submit", "a time such as 2026-11-30T08:00:00")
    run_s = _run_s(row)
    if run_s is None or (run_s <= 0 and state in {"CANCELLED", "PENDING", "REVOKED", "DEADLINE"}):
        tally.drop("ended or still waiting without having started")
        return None
    tres = parse_tres(row, "AllocTRES")
    if tres == Tres():
        tres = parse_tres(row, "ReqTRES")
    if tres == Tres():
        tally.drop("no TRES recorded, so what it held is not known")
        return None
    if state in _STILL:
        tally.note("still running when the log was taken: replayed for as long as it had run")
    return _Record(
        number, _job(row, number, tres, submit_s, run_s, state=state, tally=tally), state
    )


def _run_s(row: Row) -> float | None:
    """Return how long it ran, or None when it never started."""
    start_s = parse_time_s(row, "Start") if "Start" in row.values else None
    if "Start" in row.values and start_s is None:
        return None
    if row.text("ElapsedRaw") not in NO_TIME:
        return row.number("ElapsedRaw")
    end_s = parse_time_s(row, "End") if "End" in row.values else None
    if start_s is None or end_s is None:
        return None
    if end_s < start_s:
        raise row.fault("End", "after Start")
    return end_s - start_s


def _job(
    row: Row,
    number: JobNumber,
    tres: Tres,
    submit_s: float,
    run_s: float,
    *,
    state: str,
    tally: Tally,
) -> TraceJob:
    nodes = tres.nodes
    if nodes is None:
        nodes = max(row.whole("NNodes"), 1) if row.text("NNodes") else 1
    if tres.is_shared:
        tally.note("asked for shards or MPS shares, which are not replayed")
    tasks, each = nodes, 0
    if tres.devices:
        tasks, each = nodes, tres.devices // nodes
        if tres.devices % nodes:
            each = math.gcd(tres.devices, nodes)
            tasks = tres.devices // each
            tally.note("devices not spread evenly over its nodes: replayed as equal smaller tasks")
    limit_field = "TimelimitRaw" if row.text("TimelimitRaw") else "Timelimit"
    queue = "/".join(filter(None, (row.text("Partition"), row.text("Account"))))
    return TraceJob(
        id=_id(number),
        submit_s=submit_s,
        run_s=run_s,
        tasks=tasks,
        devices_per_task=each,
        device_type=tres.device_type,
        cpus_per_task=tres.cpus / tasks if tres.cpus is not None else None,
        memory_bytes_per_task=None if tres.memory_bytes is None else tres.memory_bytes // tasks,
        limit_s=parse_limit_s(row, limit_field),
        user=row.text("User"),
        queue=queue,
        # Slurm's priority ages and mixes sizes with shares: as a priority it would mislead.
        columns=row.values,
        end=_ENDS[state],
    )


def _id(number: JobNumber) -> str:
    element = "" if number.element is None else f"_{number.element}"
    part = "" if number.part is None else f"+{number.part}"
    return f"{number.base}{element}{part}"


def _join_attempts(records: dict[str, _Record], record: _Record, tally: Tally) -> None:
    """Fold a later attempt into the job; keep the first submission, the last run and end."""
    job = record.job
    earlier = records.get(job.id)
    if earlier is None:
        records[job.id] = record
        return
    if dict(earlier.job.columns) == dict(job.columns):
        tally.drop("a repeated row")
        return
    if earlier.state not in _FOLLOWED:
        # Slurm numbers start again after MaxJobId: another job of the same number.
        tally.note("a number that was used before")
        copy = 2
        while (name := f"{job.id}#{copy}") in records:
            copy += 1
        records[name] = record._replace(job=msgspec.structs.replace(job, id=name))
        return
    tally.drop("an earlier attempt of a job that was requeued; the last one is replayed")
    first_s = min(earlier.job.submit_s, job.submit_s)
    records[job.id] = record._replace(job=msgspec.structs.replace(job, submit_s=first_s))


def _join_components(records: dict[str, _Record], tally: Tally) -> list[TraceJob]:
    """Join the components of a heterogeneous job when their tasks are alike."""
    parts: dict[str, list[TraceJob]] = {}
    jobs = []
    for record in records.values():
        if record.number.part is None:
            jobs.append(record.job)
        else:
            parts.setdefault(record.number.base, []).append(record.job)
    for base, components in parts.items():
        shapes = {(job.devices_per_task, job.device_type) for job in components}
        if len(shapes) == 1:
            jobs.append(
                msgspec.structs.replace(
                    components[0],
                    id=base,
                    tasks=sum(job.tasks for job in components),
                    run_s=max(job.run_s for job in components),
                )
            )
        else:
            tally.note("components of a heterogeneous job, replayed one by one", len(components))
            jobs += components
    return jobs
