"""Public traces in a shortened form, through the live scheduler in virtual time."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tercio.cli.twin_files import open_trace
from tercio.formats.cluster import read_cluster
from tercio.twin.policies import built_in
from tercio.twin.replay import run

SHARED = Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not at hand")


@pytest.mark.parametrize(
    "path",
    [
        "philly-2017/philly_jobs.csv.gz",
        "alibaba-openb-2023/openb_pod_list_default.csv.gz",
        "microsoft-itp-2021/raw/cluster10.csv",
        "microsoft-itp-2021/elasticflow/195job.csv",
        "sia-workloads/workloads/philly/workload-1.csv",
        "sia-workloads/workloads/saturn/workload-1.csv",
        "pollux-workloads/workloads-realistic/workload-1.csv",
        "gavel/traces/msr/seed=0/925e2b.trace",
        "gavel/traces/physical_cluster/max_min_fairness.trace",
    ],
)
def test_every_job_of_the_first_hundred_is_done(path: str) -> None:
    trace = open_trace([SHARED / path], ignores_types=True)
    # Cores and memory of the recorded machines are not those of ours.
    jobs = tuple(
        msgspec.structs.replace(job, cpus_per_task=1.0, memory_bytes_per_task=1 << 30)
        for job in trace.jobs[:100]
    )
    short = msgspec.structs.replace(trace, jobs=jobs)
    result = run(short, read_cluster("16x8"), built_in("easy"))
    assert result.summary.jobs == len(jobs)
    held_s = sum(job.held_s * job.devices for job in result.jobs)
    assert held_s == pytest.approx(sum(job.run_s * job.devices for job in jobs), rel=1e-6)
