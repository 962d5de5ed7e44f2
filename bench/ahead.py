"""What happens next: a full server's queue played forward, as `tercio twin run` does."""

from __future__ import annotations

import math
import random
import time
from typing import Final

from bench.table import Row
from tercio.cli.long_run import seldom_collected
from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.core.image import StateImage
from tercio.core.snapshots import load_state, save_state
from tercio.model.effects import LaunchTask
from tercio.model.events import AnyEvent, JobSubmitted, NodeReported, ServerStarted, TaskStarted
from tercio.model.ids import QueuePath, job_id
from tercio.model.job import ArraySpec, IndexRange, JobSpec, TimeSpec
from tercio.testing.factories import make_job, make_nodes
from tercio.twin.ahead import play

NOTES = (
    "A snapshot of 32 nodes of 8 devices, all held, with waiting jobs of 12 users in mixed sizes"
    " (1 to 8 devices, gangs of 2 to 8 nodes, arrays), priorities and times, one in five without"
    " any; seven days played forward to the end of the queue. One course, the best of three;"
    " `twin run` plays 20, on as many cores as there are."
)

_HOUR_S: Final = 3600.0
_DAYS_7_S: Final = 7 * 86_400.0


def full_server(waiting: int, *, nodes: int = 32, seed: int = 7) -> StateImage:
    """Return the saved state of a server, all of whose devices are held, half an hour on."""
    draw = random.Random(seed)
    driver = Driver(Cluster(), settings=DriverSettings(tells_waiting=False))
    events: list[AnyEvent] = [ServerStarted(at_s=0.0, epoch=1, version="bench")]
    events += [NodeReported(at_s=0.0, spec=node) for node in make_nodes(nodes)]
    driver.step(events, 0.0)
    running = [make_job(f"now-{n}", devices=4, time=_times(draw)) for n in range(nodes * 2)]
    _submit(driver, running, draw, 1)
    _submit(driver, [_job(draw, n) for n in range(waiting)], draw, 1 + len(running))
    driver.step((), _HOUR_S / 2)
    text = save_state(driver.cluster.image(), saved_s=_HOUR_S / 2, version="bench")
    return load_state(text, "bench").state


def _submit(driver: Driver, specs: list[JobSpec], draw: random.Random, first: int) -> None:
    events = [
        JobSubmitted(at_s=0.0, job_id=job_id(first + n), spec=spec, queue=QueuePath("default"),
                     user=f"u{draw.randrange(12)}", tenant="default")
        for n, spec in enumerate(specs)
    ]  # fmt: skip
    orders = [e for e in driver.step(events, 0.0).effects if isinstance(e, LaunchTask)]
    driver.step(
        [
            TaskStarted(at_s=0.0, job_id=order.job_id, attempt=order.attempt, task=order.task,
                        effect_id=order.effect_id)
            for order in orders
        ],
        0.0,
    )  # fmt: skip


def _times(draw: random.Random) -> TimeSpec:
    if draw.random() < 0.2:
        return TimeSpec(expected_s=_HOUR_S)
    limit_s = _HOUR_S * draw.choice((0.5, 1, 2, 4, 8, 24))
    return TimeSpec(limit_s=limit_s, expected_s=limit_s / 2 if draw.random() < 0.5 else None)


def _job(draw: random.Random, number: int) -> JobSpec:
    times = TimeSpec() if draw.random() < 0.2 else _times(draw)
    priority = draw.choice((0, 0, 0, 10, 50))
    kind = draw.random()
    if kind < 0.08:
        array = ArraySpec(ranges=(IndexRange(start=0, stop=draw.randrange(4, 24)),))
        return make_job(f"array-{number}", array=array, time=times, priority=priority)
    if kind < 0.25:
        tasks = draw.choice((2, 2, 4, 8))
        return make_job(f"gang-{number}", tasks=tasks, devices=8, time=times, priority=priority)
    devices = draw.choice((1, 1, 1, 2, 4, 8))
    return make_job(f"job-{number}", devices=devices, time=times, priority=priority)


def _course_s(image: StateImage) -> tuple[float, int]:
    """CPU seconds of one course, the best of three, and how many jobs start in it."""
    best_s, starts = math.inf, 0
    for _ in range(3):
        begun_s = time.process_time()
        with seldom_collected():
            found = play(image, now_s=_HOUR_S / 2, until_s=_HOUR_S / 2 + _DAYS_7_S, seed=0,
                         unknown_s=8 * _HOUR_S)  # fmt: skip
        best_s, starts = min(best_s, time.process_time() - begun_s), len(found.starts_s)
    return best_s, starts


def tables() -> list[tuple[str, list[Row], str]]:
    """Measure one course of a queue and of a long one."""
    rows = []
    for waiting in (300, 2000):
        cpu_s, starts = _course_s(full_server(waiting))
        what = f"{waiting:,} waiting jobs, one course of seven days"
        rows.append(Row(what, f"{cpu_s:.2f} s of CPU; {starts:,} start"))
    return [("What happens next, in the twin", rows, NOTES)]
