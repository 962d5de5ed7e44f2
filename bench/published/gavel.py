"""Gavel's continuous workload: jobs of fixed size on three device types."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from bench.published.places import traces
from bench.table import Row
from tercio.cli.twin_files import load_profiles
from tercio.formats.cluster import read_cluster
from tercio.model.queue import ElasticPolicy
from tercio.twin.policies import built_in
from tercio.twin.progress.book import ProfileBook
from tercio.twin.replay import run
from tercio.twin.trace import Trace, TraceJob

NOTES = (
    "Gavel's generator (Poisson arrivals; 70, 10, 15 and 5 % of the jobs on 1, 2, 4 and 8 devices; "
    "80 % of the run times 10^1.5 to 10^3 minutes, the others 10^3 to 10^4) on 36 V100, 36 P100 "
    "and 36 K80 with its measured rates, at 2.6 jobs an hour, under `elastic-types`: sizes stay, "
    "types are chosen by gain, and jobs take turns (by least attained service) every 30 minutes "
    "where Gavel and LAS do every 6. Jobs {first} to {last} of three seeds, as in its protocol; "
    "about ten minutes of CPU each. Two jobs on one device (space sharing) are not modelled."
)
CLUSTER: Final = """
nodes:
  - {name: "v[1-9]", devices: "V100:4", cpus: 64, memory: 256GiB}
  - {name: "p[1-9]", devices: "P100:4", cpus: 64, memory: 256GiB}
  - {name: "k[1-9]", devices: "K80:4", cpus: 64, memory: 256GiB}
"""
SIZES: Final = ((1, 0.7), (2, 0.1), (4, 0.15), (8, 0.05))
PER_HOUR: Final = 2.6
SEEDS: Final = (0, 1, 2)


def book() -> ProfileBook:
    """Gavel's measured rates."""
    return load_profiles(traces() / "gavel")


def workload(rates: ProfileBook, count: int, seed: int = 0) -> Trace:
    """Jobs as its generator draws them: the model from those that were measured at the size.

    Whether a model was measured changes neither arrivals nor sizes, and so not the load.
    """
    stream = random.Random(seed)
    measured = {
        size: [name for name in sorted(rates.rates) if rates.units_per_s(name, "V100", [size])]
        for size, _ in SIZES
    }
    jobs: list[TraceJob] = []
    at_s = 0.0
    while len(jobs) < count:
        at_s += stream.expovariate(PER_HOUR / 3600)
        size = stream.choices([s for s, _ in SIZES], [part for _, part in SIZES])[0]
        power = stream.uniform(1.5, 3) if stream.random() < 0.8 else stream.uniform(3, 4)
        run_s = 60 * 10**power
        model = stream.choice(measured[size])
        rate = rates.units_per_s(model, "V100", [size])
        jobs.append(
            TraceJob(
                id=f"{len(jobs)}", submit_s=at_s, run_s=run_s, tasks=size, cpus_per_task=1.0,
                memory_bytes_per_task=1 << 30, model=model, work=run_s * rate,
            )
        )  # fmt: skip
    return Trace(jobs=tuple(jobs), source="gavel", kind="gavel")


def mean_h(count: int, first: int, last: int, seed: int = 0) -> float:
    """Mean completion time in hours of some of the jobs."""
    rates = book()
    discipline = built_in("elastic-types")
    policy = msgspec.structs.replace(
        discipline.policy, elastic=ElasticPolicy(period_s=1800.0, restart_s=60.0)
    )
    discipline = msgspec.structs.replace(discipline, policy=policy)
    result = run(workload(rates, count, seed), read_cluster(CLUSTER), discipline, profiles=rates)
    spent = [job.end_s - job.submit_s for job in result.jobs[first:last] if job.end_s is not None]
    return sum(spent) / len(spent) / 3600


def table(count: int = 5300, first: int = 4000, last: int = 5000) -> tuple[str, list[Row], str]:
    """One rate, the mean of the seeds."""
    hours = [mean_h(count, first, last, seed) for seed in SEEDS]
    row = Row(
        f"mean completion time, {PER_HOUR} jobs an hour, jobs {first} to {last}",
        f"{sum(hours) / len(hours):.1f} h ({', '.join(f'{mean:.1f}' for mean in hours)})",
        "36.4 h",
        "jobs 4,000 to 5,000: Gavel 36.4 (space sharing 30.5), LAS 70.5, FIFO 305 h",
    )
    return "Gavel (OSDI 2020)", [row], NOTES.format(first=first, last=last)
