"""Where nobody reads what a task starts it is not written; all else is the same."""

from __future__ import annotations

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, Step
from tercio.formats.cluster import read_cluster
from tercio.model.effects import LaunchTask
from tercio.model.events import JobSubmitted, NodeReported, TaskExited, TaskStarted
from tercio.model.ids import JobId, QueuePath
from tercio.testing import make_job

JOB = JobId("job-00001")


def place(*, renders: bool) -> tuple[Driver, Step, LaunchTask]:
    driver = Driver(Cluster(renders=renders))
    driver.step([NodeReported(at_s=0.0, spec=spec) for spec in read_cluster("1x8")], 0.0)
    submitted = JobSubmitted(
        at_s=1.0, job_id=JOB, spec=make_job(devices=8), queue=QueuePath("default"),
        user="ana", tenant="default",
    )  # fmt: skip
    step = driver.step([submitted], 1.0)
    (launch,) = step.effects
    assert isinstance(launch, LaunchTask)
    return driver, step, launch


def test_orders_differ_by_what_is_started_alone() -> None:
    full, full_step, full_order = place(renders=True)
    bare, bare_step, bare_order = place(renders=False)
    assert full_order.env
    assert not bare_order.env
    assert bare_order == msgspec.structs.replace(full_order, command="", env={})
    assert bare_step.entries == full_step.entries
    for driver in (full, bare):
        started = TaskStarted(
            at_s=2.0, job_id=JOB, attempt=1, task=0, effect_id=full_order.effect_id
        )
        ended = TaskExited(at_s=3.0, job_id=JOB, attempt=1, task=0, exit_code=0)
        driver.step([started], 2.0)
        driver.step([ended], 3.0)
    assert full.cluster.state_hash() == bare.cluster.state_hash()
