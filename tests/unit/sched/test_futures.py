"""Start estimates: the queue played forward by what recent jobs made of their time."""

from __future__ import annotations

import statistics

import msgspec
import pytest

from tercio.core.run_times import RunTimes
from tercio.model.events import JobSubmitted
from tercio.model.ids import JobId, QueuePath
from tercio.model.job import TimeSpec
from tercio.model.queue import Policy, Predict, QueueSpec
from tercio.model.reasons import Reason
from tercio.model.reservation import Reservation
from tercio.model.snapshot import RunRatios, StartRatios
from tercio.testing import make_node
from tercio.testing.build import cluster, gang
from tercio.testing.replay import Arrival, Forecast, Replay
from tercio.testing.rounds import Rounds


def test_every_waiting_job_is_told_when_it_starts() -> None:
    r = Rounds(cluster("1n x 8g"), Policy(half_life_s=0.0))
    r.submit("r", gang("1x8", limit_s=100.0))
    r.cycle()
    for at in range(4):
        r.submit(f"w{at}", gang("1x8", limit_s=100.0))
    r.cycle()
    starts = [r.why(f"w{at}").start for at in range(4)]
    assert all(start is not None for start in starts)
    known = [start for start in starts if start is not None]
    assert [start.at_s for start in known[1:]] == sorted(start.at_s for start in known[1:])
    assert all(start.low_s <= start.at_s <= start.high_s for start in known)


def test_a_job_behind_one_of_unknown_length_is_told_nothing() -> None:
    r = Rounds(cluster("1n x 8g"), Policy(half_life_s=0.0))
    r.submit("r", gang("1x8"))
    r.cycle()
    r.submit("w", gang("1x8", limit_s=100.0))
    r.cycle()
    assert r.why("w").start is None


def kept(from_s: float, devices: int) -> Reservation:
    window = {"from_s": from_s, "duration_s": 50.0, "queue": QueuePath("b"), "devices": devices}
    return Reservation(name="R", **window)  # type: ignore[arg-type]


TWO = Policy(half_life_s=0.0, queues={"a": QueueSpec(), "b": QueueSpec()})


def test_a_job_kept_back_by_a_window_is_told_to_start_after_it() -> None:
    r = Rounds(cluster("1n x 8g"), msgspec.structs.replace(TWO, reservation_depth=0))
    r.set_reservation("R", kept(100.0, 8))
    r.submit("long", gang("1x8", limit_s=300.0), queue="a")
    r.cycle()
    assert r.why("long").reason is Reason.RESERVED
    start = r.why("long").start
    assert start is not None
    assert start.at_s == r.now_s + 150.0


def test_a_window_keeps_no_more_than_its_devices_and_nothing_from_its_own() -> None:
    r = Rounds(cluster("1n x 8g"), TWO)
    r.submit("now", gang("1x8", limit_s=80.0), queue="a")
    r.cycle()
    r.set_reservation("R", kept(100.0, 4))
    r.submit("half", gang("1x4", limit_s=300.0), queue="a")
    r.submit("whole", gang("1x8", limit_s=30.0), queue="a")
    r.cycle()
    half, whole = r.why("half").start, r.why("whole").start
    assert half is not None
    assert whole is not None
    # Four devices are nobody's; all eight are only when the window and the other are over.
    assert half.at_s <= 80.0
    assert whole.at_s >= 150.0
    r.set_reservation("R", None)
    r.set_reservation("R", kept(100.0, 8))
    r.submit("theirs", gang("1x8", limit_s=300.0), queue="b", priority=1)
    r.cycle()
    theirs = r.why("theirs").start
    assert theirs is not None
    assert theirs.at_s <= 80.0


def test_run_times_count_what_ran_through_and_say_so_in_rising_order() -> None:
    times = RunTimes()
    for run_s in range(40, 0, -1):
        times.note(TimeSpec(limit_s=100.0), float(run_s))
    assert times.published.expected == ()
    assert times.published.limit == tuple(sorted(times.published.limit))
    assert 20 <= len(times.published.limit) <= 40
    assert times.published != RunRatios()


def test_a_memory_that_lasted_and_none_tell_the_same() -> None:
    driver = Replay([make_node("n0")], 0.0).driver
    spec = gang("1x8", limit_s=100.0)
    for at in range(6):
        submitted = JobSubmitted(
            at_s=at, job_id=JobId(f"w{at}"), spec=spec, queue=QueuePath("default"), user="ana",
            tenant="default",
        )  # fmt: skip
        driver.step([submitted], float(at))
        snapshot = msgspec.structs.replace(
            driver.cluster.snapshot(), start_ratios=StartRatios(low=0.9, at=2.0, high=3.0)
        )
        plan = driver.dry_run(snapshot, float(at))
        again = driver.dry_run(driver.cluster.snapshot(), float(at))
        if at:
            name = JobId(f"w{at}")
            assert again.decisions[name] == driver.decisions[name]
            start, corrected = again.decisions[name].start, plan.decisions[name].start
            assert start is not None
            assert corrected is not None
            assert corrected.at_s > start.at_s


def day(ratio: float) -> list[Forecast]:
    """A day on one node: jobs that use a fixed part of their limit come faster than they go."""
    replay = Replay([make_node("n0")], 0.0, ask_from_s=2_000.0 * ratio, ask_every=2)
    spec = gang("1x8", limit_s=100.0)
    return replay.run(Arrival(50.0 * ratio * at, spec, 100.0 * ratio) for at in range(80))


@pytest.mark.parametrize("ratio", [0.3, 0.9])
def test_estimates_learn_what_part_of_their_limits_jobs_use(ratio: float) -> None:
    found = [f for f in day(ratio) if f.told is not None and f.started_s is not None]
    assert len(found) == 20
    waits_s = [f.started_s - f.submitted_s for f in found if f.started_s is not None]
    errors_s = [
        abs(f.started_s - f.told.at_s)
        for f in found
        if f.told is not None and f.started_s is not None
    ]
    assert statistics.median(errors_s) < 0.05 * statistics.median(waits_s)
    inside = [
        f.told.low_s <= f.started_s <= f.told.high_s
        for f in found
        if f.told is not None and f.started_s is not None
    ]
    assert sum(inside) >= 0.8 * len(inside)


def test_the_same_day_tells_the_same() -> None:
    assert day(0.5) == day(0.5)


def undeclared(predict: Predict) -> tuple[Replay, list[Forecast]]:
    """A day of one user's jobs that say nothing of their length, and run for 100 s."""
    policy = Policy(half_life_s=0.0, predict=predict)
    replay = Replay([make_node("n0")], 0.0, ask_from_s=3_000.0, ask_every=2, policy=policy)
    spec = gang("1x8")
    return replay, replay.run(Arrival(50.0 * at, spec, 100.0) for at in range(80))


@pytest.mark.parametrize("predict", [Predict.ESTIMATES, Predict.PROMISES])
def test_jobs_that_declare_nothing_are_told_by_what_their_like_ran(predict: Predict) -> None:
    _, found = undeclared(predict)
    assert len(found) == 10
    for each in found:
        assert each.told is not None
        assert each.started_s is not None
        assert abs(each.started_s - each.told.at_s) < 0.1 * (each.started_s - each.submitted_s)


def test_without_predictions_such_jobs_are_told_nothing() -> None:
    _, found = undeclared(Predict.OFF)
    assert [each.told for each in found] == [None] * 10


@pytest.mark.parametrize("predict", list(Predict))
def test_predicted_run_times_date_promises_only_where_the_policy_says_so(
    predict: Predict,
) -> None:
    policy = Policy(half_life_s=0.0, predict=predict)
    replay = Replay([make_node("n0")], 0.0, policy=policy)
    driver, spec = replay.driver, gang("1x8")
    replay.run([Arrival(200.0 * at, spec, 100.0) for at in range(3)])
    for at in range(2):
        job = JobId(f"w{at}")
        submitted = JobSubmitted(
            at_s=1_000.0, job_id=job, spec=spec, queue=QueuePath("default"), user="ana",
            tenant="default",
        )  # fmt: skip
        driver.step([submitted], 1_000.0)
    assert driver.cluster.is_holding(JobId("w0"))
    dates = [promise.from_s for promise in driver.cluster.promises]
    assert dates == ([1_100.0] if predict is Predict.PROMISES else [])
    start = driver.decisions[JobId("w1")].start
    assert (start is None) is (predict is Predict.OFF)
    assert driver.cluster.jobs[JobId("w0")].ends_s is None
