"""Kueue's performance set-ups in virtual time: queues of CPU jobs that borrow from each other."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from bench.table import Row
from tercio.formats.cluster import read_cluster
from tercio.model.ids import QueuePath
from tercio.model.queue import (
    AcrossQueues,
    PlacementPolicy,
    Policy,
    PreemptionPolicy,
    QueueSpec,
    WithinQueue,
)
from tercio.model.resources import CPUS
from tercio.model.topology import SliceRequest, TopologyRequest
from tercio.twin.policies import Discipline
from tercio.twin.replay import run
from tercio.twin.result import TwinResult
from tercio.twin.trace import Trace, TraceJob
from tercio.twin.world import World

NOTES = (
    "test/performance/scheduler/configs of kubernetes-sigs/kueue: the same queues, quotas, "
    "borrowing limits, priorities, arrivals and run times; a unit is a core, and an evicted job "
    "starts anew. The ideal is the work of a queue over its quota. Kueue's wall times hold its API "
    "server and the creation of objects; ours is virtual time, so that only the makespan that the "
    "decisions allow is compared. Published are means of CI runs of an earlier `large-scale` of "
    "50,000 jobs and of an earlier `tas` of smaller gangs; for the set-ups as they are now, which "
    "are rebuilt here, its files say that the ranges are placeholders. In `tas` a gang of the kind "
    "`balanced` is asked for as slices of 4 or 8 tasks in one rack each; Kueue also evens out how "
    "many a rack gets."
)


class Kind(NamedTuple):
    """Jobs of one class in each queue; `cores` are those of each task."""

    count: int
    every_s: float
    run_s: float
    cores: int
    priority: int
    tasks: int = 1
    topology: TopologyRequest | None = None


class Setup(NamedTuple):
    """One configuration."""

    name: str
    cohorts: int
    queues: int
    kinds: tuple[Kind, ...]
    others: str
    quota_cores: int = 20
    borrow_cores: int = 100
    cluster: str = ""


BASELINE = Setup(
    "baseline", 5, 6,
    (Kind(350, 0.1, 0.2, 1, 50), Kind(100, 0.5, 0.5, 5, 100), Kind(50, 1.2, 1.0, 20, 200)),
    "Kueue 351 s, use 56 %; admission: large 16.5, medium 76.8, small 215.5 s",
)  # fmt: skip
LARGE = Setup(
    "large-scale", 20, 100,
    (Kind(20, 0.02, 0.05, 1, 50), Kind(7, 0.05, 0.1, 5, 100), Kind(3, 0.2, 0.2, 20, 200)),
    "Kueue, of 50,000 jobs: 1,179 s, use 39 %; admission: large 106, medium 256, small 700 s",
)  # fmt: skip
RACK = TopologyRequest(same="rack")
NEAR_RACK, NEAR_BLOCK = TopologyRequest(prefer="rack"), TopologyRequest(prefer="block")
FOURS, EIGHTS = (TopologyRequest(slice=SliceRequest(tasks=tasks, same="rack")) for tasks in (4, 8))
TAS = Setup(
    "tas", 2, 3,
    (
        Kind(50, 0.2, 10.0, 2, 50, 4, RACK), Kind(30, 0.5, 15.0, 4, 100, 8, RACK),
        Kind(20, 1.0, 20.0, 8, 200, 16, RACK), Kind(30, 0.3, 12.0, 2, 100, 4, NEAR_RACK),
        Kind(20, 0.4, 16.0, 4, 150, 8, NEAR_BLOCK), Kind(15, 0.6, 18.0, 4, 200, 16, FOURS),
        Kind(10, 0.8, 25.0, 8, 250, 32, EIGHTS),
    ),
    "Kueue, of gangs of 2 to 8: 401.5 s; admission: large 39, medium 107, small 243 s",
    quota_cores=8500, borrow_cores=17000,
    cluster="nodes:\n" + "".join(
        f"  - {{name: 'r{rack}n[1-64]', cpus: 96, memory: 256GiB,"
        f" labels: {{block: b1, rack: r{rack}}}}}\n"
        for rack in range(10)
    ),
)  # fmt: skip
"""10 racks of 64 nodes."""


def workload(setup: Setup) -> Trace:
    """The jobs in order of submit."""
    jobs = [
        TraceJob(
            id=f"{cohort}-{queue}-{at}-{number}",
            submit_s=number * kind.every_s,
            run_s=kind.run_s,
            tasks=kind.tasks,
            devices_per_task=0,
            cpus_per_task=float(kind.cores),
            memory_bytes_per_task=1 << 20,
            queue=f"c{cohort}/q{queue}",
            priority=kind.priority,
            topology=kind.topology,
        )
        for cohort in range(setup.cohorts)
        for queue in range(setup.queues)
        for at, kind in enumerate(setup.kinds)
        for number in range(kind.count)
    ]
    jobs.sort(key=lambda job: job.submit_s)
    return Trace(jobs=tuple(jobs), source=setup.name, kind="kueue")


def discipline(setup: Setup) -> Discipline:
    """Cohorts of queues with a quota each; `reclaimWithinCohort: Any`, lower priorities yield."""
    one = QueueSpec(
        guarantee={CPUS: setup.quota_cores * 1000}, borrow_limit={CPUS: setup.borrow_cores * 1000}
    )
    total = setup.queues * setup.quota_cores * 1000
    cohort = QueueSpec(
        guarantee={CPUS: total},
        limit={CPUS: total},
        children={f"q{queue}": one for queue in range(setup.queues)},
    )
    policy = Policy(
        default_queue=QueuePath("c0/q0"),
        half_life_s=0.0,
        preemption=PreemptionPolicy(
            within_queue=WithinQueue.LOWER_PRIORITY,
            across_queues=AcrossQueues.RECLAIM,
            grace_s=0.0,
            min_runtime_s=0.0,
            max_evictions_per_job_per_hour=None,
        ),
        placement=PlacementPolicy(pack="bestfit"),
        queues={f"c{number}": cohort for number in range(setup.cohorts)},
    )
    return Discipline(name="kueue", policy=policy, queue_of=lambda job: QueuePath(job.queue))


def ideal_s(setup: Setup) -> float:
    """Work of a queue over its quota, or the last arrival with its run time if that is later."""
    work = sum(kind.count * kind.run_s * kind.cores * kind.tasks for kind in setup.kinds)
    last = max((kind.count - 1) * kind.every_s + kind.run_s for kind in setup.kinds)
    return max(work / setup.quota_cores, last)


def replay(setup: Setup) -> TwinResult:
    """Run it; where quotas and not nodes bind, on one node per cohort."""
    cores = setup.queues * setup.quota_cores
    nodes = read_cluster(
        setup.cluster
        or f"nodes:\n  - {{name: 'n[1-{setup.cohorts}]', cpus: {cores}, memory: 1024GiB}}\n"
    )
    world = World(keeps_on_stop=False, checkpoint_every_s=None)
    return run(workload(setup), nodes, discipline(setup), world=world)


def shortened(setup: Setup, part: int) -> Setup:
    """The same with fewer jobs of each kind."""
    kinds = tuple(kind._replace(count=max(kind.count // part, 1)) for kind in setup.kinds)
    return setup._replace(kinds=kinds)


def row(setup: Setup) -> Row:
    """Makespan beside the ideal, and time to admission by class."""
    result = replay(setup)
    sums, ideal = result.summary, ideal_s(setup)
    jobs = workload(setup).jobs
    waits: dict[int, list[float]] = {}
    for job, spec in zip(result.jobs, jobs, strict=True):
        if job.start_s is not None:
            cores = round(spec.tasks * (spec.cpus_per_task or 0))
            waits.setdefault(cores, []).append(job.start_s - job.submit_s)
    admission = ", ".join(
        f"{cores} cores {statistics.mean(waits[cores]):.1f} s" for cores in sorted(waits)
    )
    work = sum(k.count * k.run_s * k.cores * k.tasks for k in setup.kinds)
    used = work / setup.quota_cores / sums.makespan_s
    ours = (
        f"{sums.makespan_s:.2f} s ({sums.makespan_s / ideal - 1:+.1%} of the ideal), use {used:.0%}"
        f"; admission: {admission}; {sums.jobs:,} jobs, {sums.evictions:,} evictions"
    )
    return Row(f"Kueue {setup.name}: makespan", ours, f"{1.05 * ideal:.2f} s", setup.others)


def table() -> tuple[str, list[Row], str]:
    """What can be rebuilt."""
    return "Kueue's performance set-ups", [row(each) for each in (BASELINE, TAS, LARGE)], NOTES
