"""Readers of the workloads that record work instead of run time: Sia, Pollux and Gavel.

Such a job trains a model for so many steps; how long that takes follows from its profile, at
the size that its user asked for and on a reference device type. A twin with progress models
replays the work, one without replays that run time.

Sources: Pollux (OSDI 2021) and Sia (SOSP 2023) job lists; Gavel (OSDI 2020) `.trace` files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tercio.errors import UserError, did_you_mean
from tercio.twin.progress.book import ProfileBook
from tercio.twin.trace import Trace, TraceJob
from tercio.twin.traces.reading import Reading, finish, split_gang
from tercio.twin.traces.source import Row, RowFault, Source, Tally, table_rows

SIA_COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
GAVEL_SHORT: Final = (
    "job_type", "command", "steps_argument", "needs_files", "total_steps", "arrival",
    "scale_factor",
)  # fmt: skip
GAVEL_LONG: Final = (
    "job_type", "command", "directory", "steps_argument", "needs_files", "total_steps",
    "scale_factor", "priority", "slo", "arrival",
)  # fmt: skip
SIA_REFERENCE: Final = "T4"
GAVEL_REFERENCE: Final = "V100"


def read_sia(sources: Sequence[Source], reading: Reading) -> Trace:
    """Read job lists of Sia or Pollux.

    Raises:
        UserError: naming file, line, column and value; or no profile of the model is at hand.
    """
    tally = Tally(is_lenient=reading.is_lenient)
    book = _book(reading, sources)
    jobs: list[TraceJob] = []
    for source in sources:
        for row in table_rows(source, tally, needed=SIA_COLUMNS):
            try:
                job = _read_sia(row, reading, book, tally)
            except RowFault as fault:
                tally.fault(fault)
                continue
            if job is not None:
                jobs.append(job)
    return finish(jobs, tally, sources, kind="sia")


def _read_sia(row: Row, reading: Reading, book: ProfileBook, tally: Tally) -> TraceJob | None:
    model = row.text("application")
    application = book.applications.get(model)
    if application is None:
        raise row.fault("application", _known(model, book.applications))
    replicas = row.whole("num_replicas", low=1)
    batch = row.whole("batch_size", low=1, high=100_000_000)
    submit_s = row.number("time")
    kind = reading.reference or SIA_REFERENCE
    tasks, each = split_gang(replicas, reading.devices_per_node)
    run_s = application.run_s(kind, (each,) * tasks, batch)
    if run_s is None:
        tally.drop(f"no steps of this size were measured on {kind}")
        return None
    tally.note(f"run time follows from the profile on {kind}")
    return TraceJob(
        id=row.text("name"),
        submit_s=submit_s,
        run_s=run_s,
        tasks=tasks,
        devices_per_task=each,
        columns=row.values,
        model=model,
        end="ok",
    )


def read_gavel(sources: Sequence[Source], reading: Reading) -> Trace:
    """Read `.trace` files, of the simulator (7 columns) or the physical cluster (10).

    Raises:
        UserError: naming file, line, column and value; or no profile of the model is at hand.
    """
    tally = Tally(is_lenient=reading.is_lenient)
    book = _book(reading, sources)
    jobs: list[TraceJob] = []
    for source in sources:
        for line, text in enumerate(source.text.splitlines(), 1):
            if not text.strip():
                continue
            try:
                job = _read_gavel(_gavel_row(source, line, text), reading, book, tally)
            except RowFault as fault:
                tally.fault(fault)
                continue
            if job is not None:
                jobs.append(job)
    return finish(jobs, tally, sources, kind="gavel")


def _gavel_row(source: Source, line: int, text: str) -> Row:
    values = text.split("\t")
    for names in (GAVEL_SHORT, GAVEL_LONG):
        if len(values) == len(names):
            return Row(source.name, line, dict(zip(names, values, strict=True)))
    row = Row(source.name, line, {"line": text})
    raise row.fault("line", "a row of 7 or 10 columns between tabs")


def _read_gavel(row: Row, reading: Reading, book: ProfileBook, tally: Tally) -> TraceJob | None:
    model = row.text("job_type")
    if model not in book.rates:
        raise row.fault("job_type", _known(model, book.rates))
    devices = row.whole("scale_factor", low=1)
    steps = row.number("total_steps")
    submit_s = row.number("arrival")
    kind = reading.reference or GAVEL_REFERENCE
    tasks, each = split_gang(devices, reading.devices_per_node)
    rate = book.units_per_s(model, kind, (each,) * tasks)
    if not rate:
        tally.drop(f"no rate at this size was measured on {kind}")
        return None
    tally.note(f"run time follows from the profile on {kind}")
    return TraceJob(
        id=f"{row.line}",
        submit_s=submit_s,
        run_s=steps / rate,
        work=steps,
        tasks=tasks,
        devices_per_task=each,
        columns=row.values,
        model=model,
        end="ok",
    )


def _known(model: str, known: Mapping[str, object]) -> str:
    names = list(known)
    near = did_you_mean(model, names)
    return f"a model with a profile ({near or ', '.join(names[:12])})"


def _book(reading: Reading, sources: Sequence[Source]) -> ProfileBook:
    if reading.profiles is None:
        raise UserError(
            f"{sources[0].name} records work, not run times: its throughput profiles are needed",
            field="profiles",
            hint="give --profiles DIR, the folder of the profiles that came with the trace",
        )
    return reading.profiles
