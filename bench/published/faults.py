"""A real fault trace of 348 days laid over a workload: what each policy loses."""

from __future__ import annotations

import msgspec

from bench.published.places import traces
from bench.table import Row
from tercio.cli.twin_files import open_trace
from tercio.cli.twin_input import load_faults
from tercio.formats.cluster import read_cluster
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.trace import Trace
from tercio.twin.world import World

NOTES = (
    "Microsoft ITP cluster03 (3,011 jobs, 2021-03 to 05) on 64 nodes of 8; each node plays one of "
    "the 400 servers of InfiniteHBD's trace (584 faults in 348 days), drawn with seed 0, from its "
    "first day on. A crash takes a job back to its last checkpoint, one an hour; a "
    "restart costs 5 minutes. Lost is work done twice and restarts. Nothing published to compare "
    "with."
)
CLUSTER = "64x8"
POLICIES = ("fifo", "easy", "srtf", "default")


def workload(most: int | None = None) -> Trace:
    """ITP cluster03; a task takes one core and 1 GiB."""
    trace = open_trace([traces() / "microsoft-itp-2021/raw/cluster03.csv.gz"], ignores_types=True)
    jobs = tuple(
        msgspec.structs.replace(job, cpus_per_task=1.0, memory_bytes_per_task=1 << 30)
        for job in trace.jobs[:most]
    )
    return msgspec.structs.replace(trace, jobs=jobs)


def row(policy: str, trace: Trace) -> Row:
    """One policy with and without the faults."""
    nodes = read_cluster(CLUSTER)
    path = str(traces() / "infinitehbd-faults-2024" / "fault_trace.json.gz")
    faults = load_faults(path, nodes, trace, 0)
    world = World(checkpoint_every_s=3600.0, restart_s=300.0)
    calm = run(trace, nodes, built_in(policy, trace.jobs), world=world).summary
    sums = run(trace, nodes, built_in(policy, trace.jobs), world=world, faults=faults).summary
    ours = (
        f"goodput {sums.goodput_ratio:.2%} of the time held ({calm.goodput_ratio:.2%} without"
        f" faults), lost {sums.lost_device_h:,.0f} device hours, down {sums.down_device_h:,.0f};"
        f" wait {sums.mean_wait_s / 3600:.2f} h ({calm.mean_wait_s / 3600:.2f} h)"
    )
    return Row(f"faults, {policy}", ours)


def table(most: int | None = None) -> tuple[str, list[Row], str]:
    """Every policy."""
    trace = workload(most)
    return "A real fault trace", [row(policy, trace) for policy in POLICIES], NOTES
