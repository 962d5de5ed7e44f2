"""Public traces whole: read, and replayed through the live scheduler in virtual time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.table import Row
from tercio.cli.long_run import seldom_collected
from tercio.cli.twin_files import open_trace
from tercio.formats.cluster import read_cluster
from tercio.twin.policies import built_in
from tercio.twin.replay import run

NOTES = (
    "Policy fifo with best fit; any device type, one core and 1 GiB a task, since the traces do not"
    " say what the machines had. Gavel, Sia and Pollux jobs run as long as their profile says on"
    " V100 or T4. Others' simulators: 0.5 to 1,300 jobs per CPU second on such traces."
)

WINDOW = ("timestamp>=2017-10-01", "timestamp<2017-12-01")
PHILLY_NOTES = (
    "Two months of eleven virtual clusters, each on the nodes that it had, strict order of submit"
    " with best fit; reading the trace is left out."
)


class Case(NamedTuple):
    """A trace and the cluster it is replayed on."""

    path: str
    cluster: str


CASES = (
    Case("philly-2017/philly_jobs.csv.gz", "352x8"),
    Case("alibaba-openb-2023/openb_pod_list_default.csv.gz", "776x8"),
    # Sizes as in the simulations of ElasticFlow (ASPLOS 2023).
    *(Case(f"microsoft-itp-2021/raw/cluster{n}.csv.gz", "64x8") for n in ("01", "02", "03")),
    *(Case(f"microsoft-itp-2021/raw/cluster{n}.csv.gz", "64x8") for n in ("05", "06")),
    *(Case(f"microsoft-itp-2021/raw/cluster{n}.csv.gz", "128x8") for n in ("04", "07", "08", "09")),
    Case("microsoft-itp-2021/raw/cluster10.csv", "32x8"),
    Case("microsoft-itp-2021/elasticflow/cluster10.csv.gz", "32x8"),
    Case("sia-workloads/workloads/newtrace/workload-1.csv.gz", "16x8"),
    Case("pollux-workloads/workloads-realistic/workload-1.csv", "16x8"),
    Case("gavel/traces/msr/seed=0/103959.trace.gz", "16x8"),
    Case("gavel/traces/physical_cluster/max_min_fairness.trace", "16x8"),
)


def shared() -> Path:
    return Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces"


def measure(case: Case) -> Row:
    begun_s = time.process_time()
    trace = open_trace([shared() / case.path], ignores_types=True)
    read_s = time.process_time() - begun_s
    jobs = tuple(
        msgspec.structs.replace(job, cpus_per_task=1.0, memory_bytes_per_task=1 << 30)
        for job in trace.jobs
    )
    begun_s = time.process_time()
    trace = msgspec.structs.replace(trace, jobs=jobs)
    with seldom_collected():
        result = run(trace, read_cluster(case.cluster), built_in("fifo"))
    cpu_s = time.process_time() - begun_s
    sums = result.summary
    return Row(
        what=f"{case.path.removesuffix('.gz')} on {case.cluster}",
        ours=(
            f"{sums.jobs:,} jobs: read {read_s:.2f} s, replayed {cpu_s:.1f} s of CPU,"
            f" {sums.jobs / max(cpu_s, 1e-6):,.0f} jobs/s; wait {sums.mean_wait_s:,.0f} s,"
            f" used {sums.utilization_ratio:.0%}"
        ),
    )


def philly_by_cluster() -> list[Row]:
    """Return what the virtual clusters of Philly cost one after another, and all together."""
    folder = shared() / "philly-2017"
    whole = open_trace([folder / "philly_jobs.csv.gz"], filters=WINDOW)
    lines = (folder / "philly_vc_nodes.csv").read_text(encoding="utf-8").splitlines()
    rows, jobs, total_s = [], 0, 0.0
    for name, nodes in (line.split(",") for line in lines[1:]):
        own = tuple(job for job in whole.jobs if job.queue == name)
        trace = msgspec.structs.replace(whole, jobs=own)
        begun_s = time.process_time()
        with seldom_collected():
            sums = run(trace, read_cluster(f"{nodes}x8"), built_in("fifo")).summary
        cpu_s = time.process_time() - begun_s
        jobs, total_s = jobs + len(own), total_s + cpu_s
        cost = f"{len(own):,} jobs in {cpu_s:.2f} s of CPU, wait {sums.mean_wait_s:,.1f} s"
        rows.append(Row(what=f"{name} on {nodes}x8", ours=cost))
    ours = f"{jobs:,} jobs in {total_s:.1f} s of CPU, {jobs / total_s:,.0f} jobs/s"
    return [*rows, Row("all, one after another", ours, bar="20,000 jobs/s", others="0.5 to 1,300")]


def tables() -> list[tuple[str, list[Row], str]]:
    if not shared().is_dir():
        return []
    return [
        ("Philly in the twin, by virtual cluster", philly_by_cluster(), PHILLY_NOTES),
        ("Public traces in the twin", [measure(case) for case in CASES], NOTES),
    ]
