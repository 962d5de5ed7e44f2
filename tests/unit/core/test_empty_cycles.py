"""Cycles that can come to nothing are left out, and nothing else changes by it."""

from __future__ import annotations

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.formats.cluster import read_cluster
from tercio.model.events import JobSubmitted, NodeReported, TaskExited, TaskStarted
from tercio.model.ids import JobId, QueuePath
from tercio.sched.cycle import schedule
from tercio.testing import make_job


class Counted:
    """Our scheduler, counting its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args):  # type: ignore[no-untyped-def]
        self.calls += 1
        return schedule(*args)


def submitted(number: int, at_s: float, **fields: object) -> JobSubmitted:
    return JobSubmitted(
        at_s=at_s, job_id=JobId(f"job-{number:05}"), spec=make_job(devices=8, **fields),  # type: ignore[arg-type]
        queue=QueuePath("default"), user="ana", tenant="default",
    )  # fmt: skip


def play(driver: Driver, **fields: object) -> None:
    driver.step([NodeReported(at_s=0.0, spec=spec) for spec in read_cluster("1x8")], 0.0)
    step = driver.step([submitted(1, 1.0, **fields)], 1.0)
    (launch,) = step.effects
    driver.step(
        [
            TaskStarted(
                at_s=2.0, job_id=JobId("job-00001"), attempt=1, task=0,
                effect_id=launch.effect_id,
            )
        ],
        2.0,
    )  # fmt: skip


def whole(*, skips: bool) -> tuple[int, str]:
    """Calls of the scheduler while nothing waited, and the state after one more job."""
    counted = Counted()
    driver = Driver(Cluster(), settings=DriverSettings(skips_empty=skips), scheduler=counted)
    play(driver)
    calls = counted.calls
    assert driver.entitlements()[QueuePath("default")]["H100"] == 8000
    ended = TaskExited(at_s=3.0, job_id=JobId("job-00001"), attempt=1, task=0, exit_code=0)
    driver.step([ended], 3.0)
    # What came free meanwhile is seen by the next cycle.
    step = driver.step([submitted(2, 4.0)], 4.0)
    assert [type(effect).__name__ for effect in step.effects] == ["LaunchTask"]
    return calls, driver.cluster.state_hash()


def test_no_cycle_while_nothing_waits() -> None:
    calls, state = whole(skips=True)
    all_calls, same_state = whole(skips=False)
    assert (calls, all_calls) == (1, 3)
    assert state == same_state


def test_a_job_that_may_grow_keeps_its_cycles() -> None:
    counted = Counted()
    driver = Driver(Cluster(), scheduler=counted)
    play(driver, group={"tasks_max": 2})
    assert counted.calls == 2
