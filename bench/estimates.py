"""Start estimates on replayed days: what a job is told at its submit, and when it starts."""

from __future__ import annotations

import csv
import datetime
import gzip
import math
import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.table import Row
from tercio.model.job import JobSpec, TaskGroup, TimeSpec
from tercio.model.resources import DeviceRequest, Request
from tercio.testing import make_node
from tercio.testing.replay import Arrival, Forecast, Replay

DAY_S = 86_400.0
LIMITS_S = tuple(3600.0 * hours for hours in (0.5, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 720, 1440))
ASKED = 60
DAYS = (("6214e9", "2017-10-02", 6), ("6214e9", "2017-10-09", 6), ("6214e9", "2017-11-08", 5))
"""Virtual cluster, day and nodes of 8: few nodes, so that most jobs wait."""
NOTES = (
    "Philly trace, replayed through the real driver in virtual time: the day before fills the "
    "cluster, the jobs of the day are asked about once, at their submit, when they have to wait. "
    "The trace names no limits: each job declares the next of {limits} hours above its run time "
    "by a factor whose logarithm is half-normal with deviation 1/2, and nothing else. The band "
    "is meant to hold 80 %; its width was chosen with these days in view, so it is no clean test."
)


class Submit(NamedTuple):
    """A line of the trace."""

    at_s: float
    run_s: float
    devices: int


def trace() -> Path:
    shared = Path(os.environ.get("TERCIO_SHARED", "../shared"))
    return shared / "traces" / "philly-2017" / "philly_jobs.csv.gz"


def read(cluster: str) -> list[Submit]:
    with gzip.open(trace(), "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"] == cluster]
    found = [
        Submit(
            datetime.datetime.fromisoformat(row["timestamp"])
            .replace(tzinfo=datetime.UTC)
            .timestamp(),
            max(float(row["duration"]), 1.0),
            int(row["num_gpus"]),
        )
        for row in rows
    ]
    return sorted(found)


def arrivals(submits: Sequence[Submit], begin_s: float, seed: int) -> list[Arrival]:
    """The jobs of a day and of the day before, with declared limits."""
    rng = random.Random(seed)
    found = []
    for submit in submits:
        declared_s = submit.run_s * math.exp(abs(rng.gauss(0.0, 0.5)))
        if not begin_s - DAY_S <= submit.at_s < begin_s + DAY_S:
            continue
        limit_s = next((limit for limit in LIMITS_S if limit >= declared_s), LIMITS_S[-1])
        tasks, each = (submit.devices // 8, 8) if submit.devices > 8 else (1, submit.devices)
        group = TaskGroup(tasks=tasks, per_task=Request(devices=(DeviceRequest(count=each),)))
        spec = JobSpec(name="job", groups=(group,), time=TimeSpec(limit_s=limit_s))
        found.append(Arrival(submit.at_s, spec, min(submit.run_s, limit_s)))
    return found


def forecasts(cluster: str, day: str, nodes: int, asked: int = ASKED) -> list[Forecast]:
    """What the jobs of one day were told, beside what happened."""
    begin_s = datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()
    submits = arrivals(read(cluster), begin_s, seed=1)
    of_day = sum(submit.at_s >= begin_s for submit in submits)
    replay = Replay(
        [make_node(f"n{at}") for at in range(nodes)], begin_s - DAY_S,
        ask_from_s=begin_s, ask_every=max(1, of_day // asked),
    )  # fmt: skip
    return replay.run(submits)


def figures(found: Sequence[Forecast]) -> str:
    """Median wait, median absolute error, and the share inside the band, of what was told."""
    told = [(f, f.told, f.started_s) for f in found]
    known = [
        (f.submitted_s, estimate, started_s)
        for f, estimate, started_s in told
        if estimate is not None and started_s is not None
    ]
    if not known:
        return "none"
    error_s = statistics.median(abs(started_s - told.at_s) for _, told, started_s in known)
    wait_s = statistics.median(started_s - submitted_s for submitted_s, _, started_s in known)
    inside = sum(told.low_s <= started_s <= told.high_s for _, told, started_s in known)
    below = sum(started_s < told.low_s for _, told, started_s in known)
    return (
        f"error {error_s / 60:.1f} min of a wait of {wait_s / 60:.1f} min; "
        f"{inside / len(known):.0%} inside, {below / len(known):.0%} before; "
        f"{len(known)} of {len(found)} told"
    )


def tables() -> list[tuple[str, list[Row], str]]:
    if not trace().exists():
        return [("Start estimates", [], "The trace is not at hand: set TERCIO_SHARED.")]
    rows = [
        Row(f"{cluster}, {day}, {nodes} x 8, medians", figures(forecasts(cluster, day, nodes)),
            "80 % inside", "Slurm and Flux tell no band")
        for cluster, day, nodes in DAYS
    ]  # fmt: skip
    limits = ", ".join(f"{limit / 3600:g}" for limit in LIMITS_S)
    return [("Start estimates", rows, NOTES.format(limits=limits))]
