"""Readers of two public logs of clouds: Alibaba "openb" (2023) and Microsoft ITP (2021).

Sources: Weng et al., Beware of Fragmentation (USENIX ATC 2023), alibaba/clusterdata
cluster-trace-gpu-v2023; Gu et al., ElasticFlow (ASPLOS 2023), microsoft/elasticflow-traces.
Times of both are seconds from the beginning of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tercio.errors import UserError
from tercio.formats.cards import canonical_type
from tercio.twin.trace import JobEnd, Trace, TraceJob
from tercio.twin.traces.reading import Reading, finish, split_gang
from tercio.twin.traces.source import Row, RowFault, Source, Tally, table_rows

OPENB_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
OPENB_TIMES: Final = ("creation_time", "deletion_time", "scheduled_time")
ITP_COLUMNS: Final = ("job_id", "submission_time", "duration", "num_gpu")
_OPENB_ENDS: Final[dict[str, JobEnd]] = {"Succeeded": "ok", "Failed": "failed"}
_WHOLE_MILLI: Final = 1000


def read_openb(sources: Sequence[Source], reading: Reading) -> Trace:
    """Read a pod list that has times. A pod is a job of one task.

    Raises:
        UserError: naming file, line, column and value; or the list records no times.
    """
    tally = Tally(is_lenient=reading.is_lenient)
    jobs: list[TraceJob] = []
    for source in sources:
        head = source.text.partition("\n")[0].split(",")
        if "name" in head and "creation_time" not in [name.strip() for name in head]:
            raise UserError(
                f"{source.name}:1: no column creation_time: the list records no times",
                field="creation_time",
                hint="such lists are orders of arrival only; replay the default list",
            )
        for row in table_rows(source, tally, needed=(*OPENB_COLUMNS, *OPENB_TIMES)):
            try:
                job = _read_pod(row, tally)
            except RowFault as fault:
                tally.fault(fault)
                continue
            if job is not None:
                jobs.append(job)
    return finish(jobs, tally, sources, kind="openb")


def _read_pod(row: Row, tally: Tally) -> TraceJob | None:
    submit_s, deleted_s = row.number("creation_time"), row.number("deletion_time")
    devices = row.whole("num_gpu", high=1000)
    share_milli = row.whole("gpu_milli", high=_WHOLE_MILLI)
    cpus = row.number("cpu_milli") / 1000
    memory_bytes = int(row.number("memory_mib")) << 20
    if not row.text("scheduled_time"):
        tally.drop("never scheduled, so how long it would have run is not known")
        return None
    started_s = row.number("scheduled_time")
    if deleted_s < started_s:
        raise row.fault("deletion_time", "after scheduled_time")
    is_shared = devices == 1 and 0 < share_milli < _WHOLE_MILLI
    types = [canonical_type(name) for name in row.text("gpu_spec").split("|") if name.strip()]
    if len(types) > 1:
        tally.note("of several allowed device types (column gpu_spec) any is taken")
    return TraceJob(
        id=row.text("name"),
        submit_s=submit_s,
        run_s=deleted_s - started_s,
        devices_per_task=0 if is_shared else devices,
        share_milli=share_milli if is_shared else 0,
        device_type=types[0] if len(types) == 1 else None,
        cpus_per_task=cpus,
        memory_bytes_per_task=memory_bytes,
        queue=row.text("qos").lower(),
        columns=row.values,
        end=_OPENB_ENDS.get(row.text("pod_phase"), "unknown"),
    )


def read_itp(sources: Sequence[Source], reading: Reading) -> Trace:
    """Read raw ITP job lists, or ElasticFlow's lists with models and deadlines added.

    Raises:
        UserError: naming file, line, column and value.
    """
    tally = Tally(is_lenient=reading.is_lenient)
    jobs: list[TraceJob] = []
    for source in sources:
        for row in table_rows(source, tally, needed=ITP_COLUMNS):
            try:
                jobs.append(_read_itp(row, reading))
            except RowFault as fault:
                tally.fault(fault)
    return finish(jobs, tally, sources, kind="itp")


def _read_itp(row: Row, reading: Reading) -> TraceJob:
    tasks, each = split_gang(row.whole("num_gpu", low=1), reading.devices_per_node)
    return TraceJob(
        id=row.text("job_id"),
        submit_s=row.number("submission_time"),
        run_s=row.number("duration"),
        tasks=tasks,
        devices_per_task=each,
        columns=row.values,
        model=row.text("model_name") or None,
    )
