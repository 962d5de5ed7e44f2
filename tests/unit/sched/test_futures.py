"""Start estimates: the queue played forward by what recent jobs made of their time."""

from __future__ import annotations

import statistics

import pytest

from tercio.core.run_times import RunTimes
from tercio.model.job import TimeSpec
from tercio.model.queue import Policy
from tercio.model.snapshot import RunRatios
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


def test_run_times_count_what_ran_through_and_say_so_in_rising_order() -> None:
    times = RunTimes()
    for run_s in range(40, 0, -1):
        times.note(TimeSpec(limit_s=100.0), float(run_s))
    assert times.published.expected == ()
    assert times.published.limit == tuple(sorted(times.published.limit))
    assert 20 <= len(times.published.limit) <= 40
    assert times.published != RunRatios()


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
