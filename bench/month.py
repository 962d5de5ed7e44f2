"""A month of a large cluster in the twin: what it costs, and what it keeps."""

from __future__ import annotations

import multiprocessing
import random
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import msgspec

from bench.table import Row
from bench.twin_traces import shared
from tercio.cli.long_run import seldom_collected
from tercio.cli.twin_files import open_trace
from tercio.formats.cluster import read_cluster
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.trace import Trace, TraceJob

NOTES = (
    "Philly's jobs of November 2017, drawn with their sizes and run times (those of over ten days"
    " left out) by a fixed seed until they ask for the named part of the cluster's GPU-hours, each"
    " at its time of day on a day of the month. Strict order of submit, best fit. Memory is what"
    " the process grew by beyond the trace, over the jobs that ended."
)
MONTH: Final = ("timestamp>=2017-11-01", "timestamp<2017-12-01")
GPUS: Final = 10_000
DAY_S: Final = 86_400.0


def workload(part_ratio: float, *, gpus: int = GPUS, days: int = 30, seed: int = 7) -> Trace:
    """Draw a month that asks for a part of the cluster."""
    real = open_trace([shared() / "philly-2017" / "philly_jobs.csv.gz"], filters=MONTH)
    usable = [job for job in real.jobs if job.run_s <= 10 * DAY_S]
    draw = random.Random(seed)
    left_s = part_ratio * gpus * days * DAY_S
    jobs: list[TraceJob] = []
    while left_s > 0:
        job = draw.choice(usable)
        at_s = draw.randrange(days) * DAY_S + job.submit_s % DAY_S
        jobs.append(msgspec.structs.replace(job, submit_s=at_s, id=f"{len(jobs)}"))
        left_s -= job.run_s * job.tasks * job.devices_per_task
    jobs.sort(key=lambda job: job.submit_s)
    return msgspec.structs.replace(real, jobs=tuple(jobs))


def measure(policy: str, part_ratio: float) -> Row:
    """Replay one month; memory is told by the peak of the process."""
    trace = workload(part_ratio)
    before = _peak_bytes()
    begun_s = time.process_time()
    with seldom_collected():
        sums = run(trace, read_cluster(f"{GPUS // 8}x8"), built_in(policy)).summary
    cpu_s = time.process_time() - begun_s
    grown = _peak_bytes() - before
    return Row(
        what=f"{policy}, asked for {part_ratio:.0%}",
        ours=(
            f"{sums.jobs:,} jobs in {cpu_s:.0f} s of CPU, {sums.jobs / cpu_s:,.0f} jobs/s; wait"
            f" {sums.mean_wait_s:,.0f} s, used {sums.utilization_ratio:.0%}; grew by"
            f" {grown / sums.jobs / 1024:.1f} KiB a job"
        ),
        bar="minutes; 2 KB a job",
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _table(parts: tuple[float, ...]) -> list[tuple[str, list[Row], str]]:
    if not shared().is_dir():
        return []
    # A process each: the peak of one must not hide what the next one grows by.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        rows = list(pool.map(measure, ["fifo"] * len(parts), parts))
    return [("A month at 10,000 GPUs in the twin", rows, NOTES)]


def tables() -> list[tuple[str, list[Row], str]]:
    """Return the table of a month with room."""
    return _table((0.8,))


def full_tables() -> list[tuple[str, list[Row], str]]:
    """Return also the month that asks for more than there is: a quarter of an hour."""
    return _table((0.8, 1.2))
