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
    "decisions allow is compared. Not rebuilt: `large-scale`, of which the published range belongs "
    "to an earlier version of 50,000 jobs, and the TAS set-up, which asks for topologies of pods."
)


class Kind(NamedTuple):
    """Jobs of one class in each queue."""

    count: int
    every_s: float
    run_s: float
    cores: int
    priority: int


class Setup(NamedTuple):
    """One configuration."""

    name: str
    cohorts: int
    queues: int
    kinds: tuple[Kind, ...]
    others: str


BASELINE = Setup(
    "baseline", 5, 6,
    (Kind(350, 0.1, 0.2, 1, 50), Kind(100, 0.5, 0.5, 5, 100), Kind(50, 1.2, 1.0, 20, 200)),
    "Kueue 351 s, use 56 %; admission: large 16.5, medium 76.8, small 215.5 s",
)  # fmt: skip
QUOTA_CORES = 20
BORROW_CORES = 100


def workload(setup: Setup) -> Trace:
    """The jobs in order of submit."""
    jobs = [
        TraceJob(
            id=f"{cohort}-{queue}-{kind.priority}-{number}",
            submit_s=number * kind.every_s,
            run_s=kind.run_s,
            devices_per_task=0,
            cpus_per_task=float(kind.cores),
            memory_bytes_per_task=1 << 20,
            queue=f"c{cohort}/q{queue}",
            priority=kind.priority,
        )
        for cohort in range(setup.cohorts)
        for queue in range(setup.queues)
        for kind in setup.kinds
        for number in range(kind.count)
    ]
    jobs.sort(key=lambda job: job.submit_s)
    return Trace(jobs=tuple(jobs), source=setup.name, kind="kueue")


def discipline(setup: Setup) -> Discipline:
    """Cohorts of queues with a quota each; `reclaimWithinCohort: Any`, lower priorities yield."""
    one = QueueSpec(guarantee={CPUS: QUOTA_CORES * 1000}, borrow_limit={CPUS: BORROW_CORES * 1000})
    total = setup.queues * QUOTA_CORES * 1000
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
    work = sum(kind.count * kind.run_s * kind.cores for kind in setup.kinds)
    last = max((kind.count - 1) * kind.every_s + kind.run_s for kind in setup.kinds)
    return max(work / QUOTA_CORES, last)


def replay(setup: Setup) -> TwinResult:
    """Run it; one node per cohort, since quotas and not nodes bind."""
    cores = setup.queues * QUOTA_CORES
    nodes = read_cluster(
        f"nodes:\n  - {{name: 'n[1-{setup.cohorts}]', cpus: {cores}, memory: 1024GiB}}\n"
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
    waits = {
        kind.cores: statistics.mean(
            job.start_s - job.submit_s
            for job, spec in zip(result.jobs, workload(setup).jobs, strict=True)
            if job.start_s is not None and spec.cpus_per_task == kind.cores
        )
        for kind in setup.kinds
    }
    admission = ", ".join(f"{cores} cores {wait_s:.1f} s" for cores, wait_s in waits.items())
    used = sum(k.count * k.run_s * k.cores for k in setup.kinds) / QUOTA_CORES / sums.makespan_s
    ours = (
        f"{sums.makespan_s:.1f} s ({sums.makespan_s / ideal - 1:+.1%} of the ideal), use {used:.0%}"
        f"; admission: {admission}; {sums.jobs:,} jobs, {sums.evictions:,} evictions"
    )
    return Row(f"Kueue {setup.name}: makespan", ours, f"{1.05 * ideal:.1f} s", setup.others)


def table() -> tuple[str, list[Row], str]:
    """What can be rebuilt."""
    return "Kueue's performance set-ups", [row(BASELINE)], NOTES
