"""One log in every form of our own users: a Slurm dump, SWF, and the journal of a server.

No public dump of `sacct` with GPUs is at hand, nor one of SWF: a virtual cluster of Philly is
written down in each form, read again and replayed whole. The sums have to stay the same.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.table import Row
from tercio.cli.long_run import seldom_collected
from tercio.cli.twin_files import open_trace
from tercio.formats.cluster import read_cluster
from tercio.model.events import Entry
from tercio.store.journal import Journal
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.result import Summary
from tercio.twin.trace import Trace, TraceJob

QUEUE, CLUSTER = "11cb48", "16x8"
ENTRIES_AT_ONCE = 10_000
STATES = {"ok": ("COMPLETED", 1), "failed": ("FAILED", 0), "cancelled": ("CANCELLED by 1", 5)}
NOTES = (
    f"Virtual cluster {QUEUE} of Philly on {CLUSTER}, policy fifo: written down as a dump of"
    " `sacct`, as SWF, and as the journal of a server that ran it; then read and replayed whole."
    " The mean wait of the log itself is that of Philly above."
)


def as_sacct(jobs: Sequence[TraceJob]) -> str:
    """Write jobs down as `sacct --parsable2` does."""
    head = "JobID|User|Partition|Submit|ElapsedRaw|State|NNodes|AllocTRES"
    lines = [head]
    for number, job in enumerate(jobs, 1):
        state, _ = STATES.get(job.end, STATES["ok"])
        submit = datetime.datetime.fromtimestamp(job.submit_s, tz=datetime.UTC)
        tres = f"cpu={job.tasks},mem=1G,node={job.tasks},gres/gpu={job.devices:.0f}"
        lines.append(
            f"{number}|{job.user or 'ana'}|gpu|{submit:%Y-%m-%dT%H:%M:%S}|{job.run_s:.0f}|{state}"
            f"|{job.tasks}|{tres}"
        )
    return "\n".join(lines) + "\n"


def as_swf(jobs: Sequence[TraceJob]) -> str:
    """Write jobs down in the Standard Workload Format; a processor is a device."""
    start_s = jobs[0].submit_s
    lines = [f"; UnixStartTime: {start_s:.0f}"]
    for number, job in enumerate(jobs, 1):
        _, status = STATES.get(job.end, STATES["ok"])
        size = f"{job.devices:.0f}"
        lines.append(
            f"{number} {job.submit_s - start_s:.0f} -1 {job.run_s:.0f} {size} -1 -1 {size} -1 -1"
            f" {status} 1 1 -1 1 -1 -1 -1"
        )
    return "\n".join(lines) + "\n"


def as_journal(trace: Trace, cluster: str, path: Path) -> None:
    """Run jobs, and keep the journal as a server does."""
    entries: list[Entry] = []
    run(trace, read_cluster(cluster), built_in("fifo"), journal=entries)
    journal = Journal.open(path)
    for at in range(0, len(entries), ENTRIES_AT_ONCE):
        journal.append(entries[at : at + ENTRIES_AT_ONCE])
    journal.close()


def write_all(trace: Trace, cluster: str, folder: Path) -> dict[str, Path]:
    """Write a log down in every form, and return the files by the name of the form."""
    paths = {name: folder / name for name in ("sacct", "swf", "journal")}
    paths["sacct"].write_text(as_sacct(trace.jobs), encoding="utf-8")
    paths["swf"].write_text(as_swf(trace.jobs), encoding="utf-8")
    as_journal(trace, cluster, paths["journal"])
    return paths


def sums_of(path: Path, cluster: str) -> tuple[Summary, float, float]:
    """Read and replay one log; return its sums and the CPU seconds of both."""
    begun_s = time.process_time()
    trace = open_trace([path], ignores_types=True)
    read_s = time.process_time() - begun_s
    begun_s = time.process_time()
    with seldom_collected():
        sums = run(trace, read_cluster(cluster), built_in("fifo")).summary
    return sums, read_s, time.process_time() - begun_s


def tables() -> list[tuple[str, list[Row], str]]:
    folder = Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces/philly-2017"
    if not folder.is_dir():
        return []
    whole = open_trace([folder / "philly_jobs.csv.gz"], filters=(
        "timestamp>=2017-10-01", "timestamp<2017-12-01", f"cluster={QUEUE}",
    ))  # fmt: skip
    jobs = tuple(
        msgspec.structs.replace(job, cpus_per_task=1.0, memory_bytes_per_task=1 << 30)
        for job in whole.jobs
    )
    trace = msgspec.structs.replace(whole, jobs=jobs)
    with tempfile.TemporaryDirectory() as place:
        rows = []
        for name, path in write_all(trace, CLUSTER, Path(place)).items():
            sums, read_s, cpu_s = sums_of(path, CLUSTER)
            cost = (
                f"{sums.jobs:,} jobs: read {read_s:.2f} s, replayed {cpu_s:.1f} s of CPU,"
                f" {sums.jobs / max(cpu_s, 1e-6):,.0f} jobs/s; wait {sums.mean_wait_s:,.1f} s"
            )
            rows.append(Row(what=f"{name}, {path.stat().st_size / 1e6:.1f} MB", ours=cost))
    return [("A log in the forms of our users, in the twin", rows, NOTES)]
