"""Start estimates on replayed days: what a job is told at its submit, and when it starts.

`python -m bench.estimates FOLDER [CLUSTER/DATE ...]` replays days, each on its own, and keeps what
it finds of each in a file of the folder; days that are there are not replayed again. So they can
be run as separate processes, and a run that was cut goes on where it was.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import math
import os
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.table import Row
from tercio.model.job import JobSpec, TaskGroup, TimeSpec
from tercio.model.reasons import StartEstimate
from tercio.model.resources import DeviceRequest, Request
from tercio.testing import make_node
from tercio.testing.replay import Arrival, Forecast, Replay

DAY_S = 86_400.0
WARM_S = 7 * DAY_S
LIMITS_S = tuple(3600.0 * hours for hours in (0.5, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 720, 1440))
ASKED = 80
CLUSTERS, DAY_SUBMITS, APART_DAYS, LOAD = 4, (100, 400), 8, 1.1
CHOSEN = (("October", (10,), 1),)
REPORTED = (("November and December", (11, 12), 2), ("September", (9,), 1))
"""Name, months, and days of each cluster."""
NOTES = (
    "Philly trace, replayed through the real driver in virtual time. The week before fills the "
    "cluster and teaches it; the jobs of the day are asked about once, at their submit, when they "
    "have to wait. Days by rule, not by result: of each of the four virtual clusters with the most "
    "jobs the busiest days of 100 to 400 submits, a week apart, one of October and two of November "
    "and December (one cluster has none); so many nodes of 8 that the week and the day offer 110 % "
    "of them. The trace names no limits: each job declares the next of {limits} hours above its "
    "run time by a factor whose logarithm is half-normal with deviation 1/2, and nothing else. "
    "The band is meant to hold 80 %. The constants of today were chosen on days of October; an "
    "earlier width of the band was chosen with 2017-11-08 of one of these clusters in view too, so "
    "that November is no clean test of the method, and September is."
)


class Submit(NamedTuple):
    """A line of the trace."""

    at_s: float
    run_s: float
    devices: int


def trace() -> Path:
    shared = Path(os.environ.get("TERCIO_SHARED", "../shared"))
    return shared / "traces" / "philly-2017" / "philly_jobs.csv.gz"


def read() -> dict[str, list[Submit]]:
    """The submits by virtual cluster, in order."""
    found: dict[str, list[Submit]] = {}
    with gzip.open(trace(), "rt") as file:
        for row in csv.DictReader(file):
            at = datetime.datetime.fromisoformat(row["timestamp"]).replace(tzinfo=datetime.UTC)
            submit = Submit(
                at.timestamp(), max(float(row["duration"]), 1.0), int(row["num_gpus"])
            )  # fmt: skip
            found.setdefault(row["cluster"], []).append(submit)
    return {cluster: sorted(submits) for cluster, submits in found.items()}


class Day(NamedTuple):
    """A day to replay, and on how many nodes."""

    cluster: str
    date: datetime.date
    nodes: int

    @property
    def key(self) -> str:
        """What the day is called on the command line and in the folder."""
        return f"{self.cluster}/{self.date}"

    @property
    def begin_s(self) -> float:
        return datetime.datetime.combine(self.date, datetime.time(), datetime.UTC).timestamp()


def days(submits: Mapping[str, Sequence[Submit]], months: Sequence[int], most: int) -> list[Day]:
    """The days of some months by the rule in the notes."""
    found = []
    busiest = sorted(submits, key=lambda name: -len(submits[name]))[:CLUSTERS]
    for cluster in busiest:
        counts = Counter(_date(submit) for submit in submits[cluster])
        taken: list[datetime.date] = []
        for date, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
            is_apart = all(abs((date - other).days) >= APART_DAYS for other in taken)
            is_busy = DAY_SUBMITS[0] <= count <= DAY_SUBMITS[1]
            if len(taken) < most and date.month in months and is_busy and is_apart:
                taken.append(date)
        for date in taken:
            day = Day(cluster, date, 0)
            found.append(day._replace(nodes=_nodes(_of(submits[cluster], day))))
    return found


def _date(submit: Submit) -> datetime.date:
    return datetime.datetime.fromtimestamp(submit.at_s, datetime.UTC).date()


def _of(submits: Sequence[Submit], day: Day) -> list[Submit]:
    """The submits of a day and of the week before."""
    return [s for s in submits if day.begin_s - WARM_S <= s.at_s < day.begin_s + DAY_S]


def _nodes(submits: Sequence[Submit]) -> int:
    span_s = WARM_S + DAY_S
    load = sum(min(submit.run_s, span_s) * submit.devices for submit in submits) / (8 * span_s)
    return max(math.ceil(max(submit.devices for submit in submits) / 8), round(load / LOAD), 1)


def arrivals(submits: Sequence[Submit], seed: int) -> list[Arrival]:
    """Jobs with declared limits."""
    rng = random.Random(seed)
    found = []
    for submit in submits:
        declared_s = submit.run_s * math.exp(abs(rng.gauss(0.0, 0.5)))
        limit_s = next((limit for limit in LIMITS_S if limit >= declared_s), LIMITS_S[-1])
        tasks, each = (submit.devices // 8, 8) if submit.devices > 8 else (1, submit.devices)
        group = TaskGroup(tasks=tasks, per_task=Request(devices=(DeviceRequest(count=each),)))
        spec = JobSpec(name="job", groups=(group,), time=TimeSpec(limit_s=limit_s))
        found.append(Arrival(submit.at_s, spec, min(submit.run_s, limit_s)))
    return found


def forecasts(submits: Sequence[Submit], day: Day, asked: int = ASKED) -> list[Forecast]:
    """What the jobs of one day were told, beside what happened."""
    jobs = arrivals(_of(submits, day), seed=1)
    of_day = sum(job.at_s >= day.begin_s for job in jobs)
    replay = Replay(
        [make_node(f"n{at}") for at in range(day.nodes)], day.begin_s - WARM_S,
        ask_from_s=day.begin_s, ask_every=max(1, of_day // asked),
    )  # fmt: skip
    return replay.run(jobs, until_told=True)


def pairs(found: Sequence[Forecast]) -> list[tuple[float, StartEstimate, float]]:
    """Submit, what was told, and start, of the jobs that were told anything."""
    return [
        (each.submitted_s, each.told, each.started_s)
        for each in found
        if each.told is not None and each.started_s is not None
    ]


def figures(found: Sequence[Forecast]) -> str:
    """Median wait, median absolute error, and the share inside the band, of what was told."""
    known = pairs(found)
    if not known:
        return "none"
    error_s = statistics.median(abs(started_s - told.at_s) for _, told, started_s in known)
    wait_s = statistics.median(started_s - submitted_s for submitted_s, _, started_s in known)
    band_s = statistics.median(told.high_s - told.low_s for _, told, _ in known)
    inside = sum(told.low_s <= started_s <= told.high_s for _, told, started_s in known)
    below = sum(started_s < told.low_s for _, told, started_s in known)
    return (
        f"error {error_s / 60:.0f} min of a wait of {wait_s / 60:.0f} min; "
        f"{inside / len(known):.0%} inside a band of {band_s / 60:.0f} min, "
        f"{below / len(known):.0%} before; {len(known)} of {len(found)} told"
    )


def tables() -> list[tuple[str, list[Row], str]]:
    return _tables(REPORTED)


def full_tables() -> list[tuple[str, list[Row], str]]:
    return _tables((*REPORTED, *CHOSEN))


def _tables(
    seasons: Sequence[tuple[str, Sequence[int], int]], kept: Path | None = None
) -> list[tuple[str, list[Row], str]]:
    if not trace().exists():
        return [("Start estimates", [], "The trace is not at hand: set TERCIO_SHARED.")]
    submits, rows = read(), []
    for season, months, most in seasons:
        shares = []
        for day in days(submits, months, most):
            words, share = measured(submits, day, kept)
            shares.append(share)
            rows.append(
                Row(f"{day.cluster}, {day.date}, {day.nodes} x 8, medians", words,
                    "80 % inside", "Slurm and Flux tell no band")
            )  # fmt: skip
        every = [each for share in shares for each in share]
        words = f"{sum(every) / len(every):.0%} inside; {len(every)} jobs of {len(shares)} days"
        rows.append(Row(f"all of {season}", words, "75 to 85 % inside", ""))
    limits = ", ".join(f"{limit / 3600:g}" for limit in LIMITS_S)
    return [("Start estimates", rows, NOTES.format(limits=limits))]


def measured(
    submits: Mapping[str, Sequence[Submit]], day: Day, kept: Path | None
) -> tuple[str, list[bool]]:
    """Figures of a day, and for each job whether it started inside its band; kept in a folder."""
    file = None if kept is None else kept / f"{day.cluster}-{day.date}.json"
    if file is not None and file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))
        return str(known["figures"]), [bool(each) for each in known["inside"]]
    found = forecasts(submits[day.cluster], day)
    words = figures(found)
    inside = [told.low_s <= at_s <= told.high_s for _, told, at_s in pairs(found)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"figures": words, "inside": inside}), encoding="utf-8")
    return words, inside


def main(arguments: Sequence[str]) -> int:
    """Replay days apart; see the module's description."""
    if not arguments or not trace().exists():
        print("usage: python -m bench.estimates FOLDER [CLUSTER/DATE ...]", file=sys.stderr)
        return 2
    submits, wanted = read(), arguments[1:]
    for _, months, most in (*REPORTED, *CHOSEN):
        for day in days(submits, months, most):
            if not wanted or day.key in wanted:
                words, _ = measured(submits, day, Path(arguments[0]))
                print(f"{day.key} on {day.nodes} x 8: {words}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
