"""The core alone: a job's whole life, and cycles with many jobs waiting. CPU of one process."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.table import Row
from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.model.effects import LaunchTask
from tercio.model.events import (
    AnyEvent,
    JobSubmitted,
    NodeReported,
    ServerStarted,
    TaskExited,
    TaskStarted,
)
from tercio.model.ids import JobId, job_id
from tercio.model.job import JobSpec
from tercio.testing import make_job, make_node

LIVES = 2_000
WAITING = 10_000
REPEATS = 20


def new_driver(nodes: int) -> Driver:
    driver = Driver(Cluster(), settings=DriverSettings(is_validating=False))
    events: list[AnyEvent] = [ServerStarted(at_s=0.0, epoch=1, version="bench")]
    events += [NodeReported(at_s=0.0, spec=make_node(f"n{at}")) for at in range(nodes)]
    driver.step(events, 0.0)
    return driver


def submitted(driver: Driver, spec: JobSpec, now_s: float) -> JobSubmitted:
    return JobSubmitted(
        at_s=now_s,
        job_id=job_id(driver.cluster.jobs_submitted + 1),
        spec=spec,
        queue=driver.cluster.policy.default_queue,
        user="ana",
        tenant="default",
    )


def cpu_s(work: Callable[[], object]) -> float:
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s


def live(driver: Driver, spec: JobSpec, now_s: float) -> None:
    """One job from submit to success, a step for each turn of the server."""
    step = driver.step([submitted(driver, spec, now_s)], now_s)
    (order,) = (effect for effect in step.effects if isinstance(effect, LaunchTask))
    named = {"job_id": order.job_id, "attempt": order.attempt, "task": order.task}
    driver.step([TaskStarted(at_s=now_s, effect_id=order.effect_id, **named)], now_s)
    driver.step([TaskExited(at_s=now_s, exit_code=0, **named)], now_s)


def lives() -> Row:
    driver, spec = new_driver(8), make_job()

    def work() -> None:
        for number in range(LIVES):
            live(driver, spec, float(number))

    return Row(
        "jobs submitted, scheduled, started and ended, one by one",
        f"{LIVES / cpu_s(work):,.0f}/s",
        "",
        "Armada: aim 1,000 pods/s, default limit 100 jobs/s",
    )


def fill(driver: Driver, spec_of: Callable[[int], JobSpec]) -> None:
    for number in range(WAITING):
        driver.step([submitted(driver, spec_of(number), 1.0)], 1.0, is_scheduling=False)


def waiting_rows() -> list[Row]:
    """Cycles on a full cluster of 64 devices."""
    driver = new_driver(8)
    for _ in range(8):
        driver.step([submitted(driver, make_job(devices=8), 1.0)], 1.0)
    fill(driver, lambda number: make_job(devices=8, priority=number % 10))
    first_s = cpu_s(lambda: driver.step((), 2.0))
    late = make_job(devices=8, priority=-1)

    def submit_one() -> None:
        driver.step([submitted(driver, late, 3.0)], 3.0, is_scheduling=False)

    def cycle_after_submit() -> float:
        submit_one()
        return cpu_s(lambda: driver.step((), 3.0))

    alone_s = min(cpu_s(submit_one) for _ in range(REPEATS))
    driver.step((), 3.0)
    after_s = min(cycle_after_submit() for _ in range(REPEATS))
    ended = end_first(driver)
    return [
        Row(f"first cycle, {WAITING:,} waiting jobs in 10 classes", f"{1000 * first_s:.0f} ms"),
        Row(f"taking in one submit, {WAITING:,} waiting", f"{1e6 * alone_s:.0f} µs"),
        Row(f"cycle after one submit, {WAITING:,} waiting", f"{1000 * after_s:.2f} ms"),
        Row(f"cycle after one job ended, {WAITING:,} waiting", f"{1000 * ended:.2f} ms", "",
            "none publishes decision time by queue depth"),
    ]  # fmt: skip


def end_first(driver: Driver) -> float:
    """Seconds of the cycle that replaces an ended job."""
    found: JobId = next(iter(driver.cluster.snapshot().running))
    now_s = 4.0
    for effect in list(driver.cluster.open_effects.values()):
        if isinstance(effect, LaunchTask) and effect.job_id == found:
            named = {"job_id": effect.job_id, "attempt": effect.attempt, "task": effect.task}
            driver.step([TaskStarted(at_s=now_s, effect_id=effect.effect_id, **named)], now_s)
            over = TaskExited(at_s=now_s, exit_code=0, **named)
            driver.step([over], now_s, is_scheduling=False)
    return cpu_s(lambda: driver.step((), now_s))


def tables() -> list[tuple[str, list[Row], str]]:
    notes = "In memory, without journal and HTTP; 8 nodes of 8 devices."
    return [("Core and cycles", [lives(), *waiting_rows()], notes)]
