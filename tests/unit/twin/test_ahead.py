"""A saved state played forward: draws of run times, and what becomes of each kind of job."""

from __future__ import annotations

from functools import partial

import pytest

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.core.snapshots import load_state, save_state
from tercio.errors import UserError
from tercio.model.effects import LaunchTask
from tercio.model.events import JobSubmitted, NodeReported, ServerStarted, TaskStarted
from tercio.model.ids import QueuePath, job_id
from tercio.model.job import ArraySpec, IndexRange, JobSpec, NotifySpec, TaskGroup, TimeSpec
from tercio.model.resources import DeviceRequest, Request
from tercio.model.snapshot import RunRatios
from tercio.sched.cycle import schedule
from tercio.testing.factories import make_node
from tercio.twin import ahead
from tercio.twin.ahead import Change, draw_run_s, play
from tercio.twin.outlook import Ahead, play_one, sum_up

HOUR_S = 3600.0


def spec(name: str, devices: int, **fields: object) -> JobSpec:
    group = TaskGroup(per_task=Request(devices=(DeviceRequest(type="H100", count=devices),)))
    return JobSpec(name=name, groups=(group,), run="secret words", env={"K": "hunter2"}, **fields)


class Live:
    """A server of one node of four devices, half an hour after its first job started."""

    def __init__(self, *specs: JobSpec, launched: bool = True) -> None:
        self.driver = Driver(Cluster(), settings=DriverSettings())
        self.step(0.0, ServerStarted(at_s=0.0, epoch=1, version="t"),
                  NodeReported(at_s=0.0, spec=make_node("n1", devices=4)))  # fmt: skip
        for number, each in enumerate(specs, start=1):
            step = self.step(0.0, JobSubmitted(
                at_s=0.0, job_id=job_id(number), spec=each, queue=QueuePath("default"),
                user="ana", tenant="default"))  # fmt: skip
            for order in step.effects if launched else ():
                assert isinstance(order, LaunchTask)
                self.step(0.0, TaskStarted(
                    at_s=0.0, job_id=order.job_id, attempt=order.attempt, task=order.task,
                    effect_id=order.effect_id))  # fmt: skip
        self.step(HOUR_S / 2)

    def step(self, at_s: float, *events: object):
        return self.driver.step(events, at_s)

    def saved(self):
        text = save_state(self.driver.cluster.image(), saved_s=HOUR_S / 2, version="t")
        assert b"hunter2" not in text
        assert b"secret words" not in text
        assert b"https://hook" not in text
        return load_state(text, "now.json").state


def course(live: Live, **more: object):
    more = {"now_s": HOUR_S / 2, "until_s": 100 * HOUR_S, "seed": 0, **more}
    return play(live.saved(), **more)


def test_a_waiting_job_starts_when_the_running_one_ends():
    times = TimeSpec(limit_s=HOUR_S, expected_s=HOUR_S)
    hook = (NotifySpec(on=("failed",), url="https://hook/secret"),)
    live = Live(spec("a", 4, time=times, notify=hook), spec("b", 4, time=times))
    starts = [course(live, seed=seed) for seed in range(30)]
    ends = [found.starts_s[job_id(2)] for found in starts]
    assert min(ends) >= HOUR_S / 2
    assert max(ends) == HOUR_S, "the limit ends the first one"
    assert len(set(ends)) > 1, "each seed draws anew"
    for found in starts:
        run_s = found.ends_s[job_id(2)] - found.starts_s[job_id(2)]
        assert 0 < run_s <= HOUR_S
    assert course(live, seed=3) == course(live, seed=3)


def test_a_course_decides_when_something_comes_free_and_not_at_every_start(monkeypatch):
    """Neither the news of a start nor the deadline of its order is worth a cycle."""
    looked_s = []

    def counted(snapshot, policy, now_s, seed, memory=None):
        looked_s.append(now_s)
        return schedule(snapshot, policy, now_s, seed, memory)

    monkeypatch.setattr(ahead, "Driver", partial(Driver, scheduler=counted))
    times = TimeSpec(limit_s=HOUR_S, expected_s=HOUR_S)
    live = Live(*(spec(f"j{number}", 4, time=times) for number in range(20)))
    found = course(live)
    assert len(found.ends_s) == 19
    assert len(looked_s) <= 30, "one where a job ends, some where its limit says it should"


def test_a_task_that_is_being_launched_is_launched_here_too():
    live = Live(spec("a", 4, time=TimeSpec(limit_s=HOUR_S)), spec("b", 4), launched=False)
    assert job_id(2) in course(live).starts_s


def test_without_a_word_on_time_a_job_runs_on_unless_told_otherwise():
    live = Live(spec("a", 4), spec("b", 4))
    assert course(live).starts_s == {}
    assert course(live, unknown_s=HOUR_S).starts_s == {job_id(2): HOUR_S}


def test_an_array_starts_with_its_first_and_ends_with_its_last_element():
    array = ArraySpec(ranges=(IndexRange(start=0, stop=3),))
    live = Live(spec("a", 4, time=TimeSpec(limit_s=HOUR_S)),
                spec("many", 2, array=array, time=TimeSpec(limit_s=HOUR_S)))  # fmt: skip
    found = course(live)
    assert found.starts_s[job_id(2)] < found.ends_s[job_id(2)]
    ahead = Ahead(image=live.saved(), changes={"as it is": Change()}, now_s=HOUR_S / 2,
                  until_s=9 * HOUR_S, seeds=3)  # fmt: skip
    outlook = sum_up(ahead, [play_one(ahead, each) for each in ahead.courses()])
    (row,) = outlook.jobs
    assert (row.elements, row.devices) == (3, 2.0)
    assert 0 < outlook.utilization_ratio[0] < 1


@pytest.mark.parametrize(
    ("time", "done_s", "draw", "run_s"),
    [
        (TimeSpec(expected_s=100), 0, 0.0, 50),
        (TimeSpec(expected_s=100), 0, 0.99, 200),
        (TimeSpec(expected_s=100), 60, 0.0, 100),
        (TimeSpec(expected_s=100), 300, 0.5, 450),
        (TimeSpec(expected_s=100, limit_s=150), 0, 0.99, 150),
        (TimeSpec(limit_s=100), 0, 0.0, 30),
        (TimeSpec(), 0, 0.5, 7),
        (TimeSpec(), 10, 0.5, 15),
    ],
)
def test_run_times_follow_what_recent_jobs_made_of_theirs(time, done_s, draw, run_s):
    ratios = RunRatios(expected=(0.5, 1.0, 2.0), limit=(0.3, 0.6))
    assert draw_run_s(time, ratios, done_s, draw, unknown_s=7) == pytest.approx(run_s)


def test_a_file_of_another_kind_is_refused():
    with pytest.raises(UserError, match="no snapshot"):
        load_state(b"{}", "x.json")
