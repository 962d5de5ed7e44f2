"""What one more job costs must not grow with the jobs that wait already; counted in calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver
from tercio.core.views import job_view
from tercio.model.events import AnyEvent, JobSubmitted, NodeReported, ServerStarted
from tercio.model.ids import JobId, job_id
from tercio.model.reasons import Reason
from tercio.testing import make_job, make_node

FEW, MANY = 60, 1200


def calls_of(work: Callable[[], object]) -> int:
    count = 0

    def note(_: FrameType, kind: str, __: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def submit(driver: Driver, *, priority: int = 0) -> JobId:
    new = job_id(driver.cluster.jobs_submitted + 1)
    event = JobSubmitted(
        at_s=1.0, job_id=new, spec=make_job(devices=8, priority=priority),
        queue=driver.cluster.policy.default_queue, user="ana", tenant="default",
    )  # fmt: skip
    driver.step([event], 1.0, is_scheduling=False)
    return new


def full_cluster(waiting: int) -> Driver:
    driver = Driver(Cluster())
    events: list[AnyEvent] = [ServerStarted(at_s=0.0, epoch=1, version="test")]
    driver.step([*events, NodeReported(at_s=0.0, spec=make_node("n1"))], 0.0)
    for number in range(waiting + 1):
        submit(driver, priority=number % 5)
    driver.step((), 1.0)
    assert len(driver.cluster.snapshot().waiting) == waiting
    return driver


@pytest.fixture(scope="module")
def drivers() -> tuple[Driver, Driver]:
    return full_cluster(FEW), full_cluster(MANY)


def test_a_submit_and_its_cycle_cost_the_same_however_many_wait(drivers):
    costs = []
    for driver in drivers:
        submit(driver)
        driver.step((), 1.0)
        costs.append(calls_of(lambda d=driver: (submit(d), d.step((), 1.0))))
    few, many = costs
    assert many < 1.5 * few


def test_a_row_of_a_list_costs_the_same_however_many_wait(drivers):
    costs = []
    for driver in drivers:
        first = next(iter(driver.cluster.snapshot().waiting))
        driver.step([], 1.0)
        job = driver.cluster.jobs[first]
        costs.append(calls_of(lambda d=driver, j=job: job_view(d, j)))
    few, many = costs
    assert many < 1.5 * few


def test_briefs_are_the_decisions_without_positions(drivers):
    driver, _ = drivers
    new = submit(driver, priority=9)
    driver.step((), 1.0)
    assert driver.decisions[new].position == 1
    assert driver.briefs[new].position is None
    assert driver.briefs[new].reason is driver.decisions[new].reason is Reason.NO_FREE_DEVICES
    assert list(driver.briefs) == list(driver.decisions)
