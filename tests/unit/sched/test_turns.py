"""Whose turn it is among elastic jobs: by what they had, and what waiting pays back."""

from __future__ import annotations

import msgspec
import pytest

from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import JobSpec
from tercio.model.placement import DeviceShare, TaskPlacement
from tercio.model.snapshot import NOTHING_YET, Had, RunningJob, WaitingJob
from tercio.sched.elastic import Option
from tercio.sched.turns import in_turn, level

SPEC = JobSpec(name="trained")
HOUR_S = 3600.0


def waits(name: str, sequence: int, *, had: Had | None = None, priority: int = 0) -> WaitingJob:
    return WaitingJob(
        job_id=JobId(name), spec=SPEC, queue=QueuePath("default"), user="ana", tenant="default",
        priority=priority, is_preemptible=True, submitted_s=0.0, sequence=sequence, had=had,
    )  # fmt: skip


def runs(name: str, sequence: int, *, placed_s: float = 0.0, devices: int = 1) -> RunningJob:
    share = tuple(DeviceShare(index=at, memory_bytes=1) for at in range(devices))
    task = TaskPlacement(
        task=0, group="main", node=NodeName("n1"), devices=share, cpus_milli=0, memory_bytes=0
    )
    return RunningJob(
        job_id=JobId(name), spec=SPEC, queue=QueuePath("default"), user="ana", tenant="default",
        priority=0, is_preemptible=True, sequence=sequence, attempt=1, tasks=(task,),
        placed_s=placed_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hours", "devices", "expected"), [(0.9, 1, 0), (1, 1, 1), (2.9, 1, 1), (3, 1, 2), (1, 3, 2)]
)
def test_each_level_is_twice_as_long_as_the_one_before_in_device_time(
    hours: float, devices: int, expected: int
) -> None:
    assert level(runs("a", 1, devices=devices), HOUR_S, hours * HOUR_S) == expected


def test_who_waited_four_times_as_long_as_it_ran_counts_as_new_and_stays_so_while_it_runs() -> None:
    had = NOTHING_YET.and_then(0.0, 3 * HOUR_S, 6 * HOUR_S, moves=1)
    job = waits("a", 1, had=had)
    assert [level(job, HOUR_S, hours * HOUR_S) for hours in (3, 14.9, 15, 40)] == [2, 2, 0, 0]
    early = msgspec.structs.replace(runs("a", 1, placed_s=14 * HOUR_S), had=had)
    assert level(early, HOUR_S, 14 * HOUR_S) == 2
    assert level(early, HOUR_S, 15 * HOUR_S) == 3
    late = msgspec.structs.replace(runs("a", 1, placed_s=15 * HOUR_S), had=had)
    assert [level(late, HOUR_S, hours * HOUR_S) for hours in (15, 15.9, 16)] == [0, 0, 1]


def test_what_was_paid_back_is_forgotten_for_good() -> None:
    first = NOTHING_YET.and_then(0.0, HOUR_S, HOUR_S, moves=0)
    soon, late = (first.and_then(at, at + HOUR_S, HOUR_S, moves=1) for at in (7200.0, 36000.0))
    assert (soon.run_s, soon.served_s, soon.device_s) == (7200.0, 7200.0, 7200.0)
    assert (late.run_s, late.served_s, late.device_s) == (7200.0, 3600.0, 3600.0)
    assert (late.moves, late.until_s) == (1, 39600.0)


def test_two_jobs_of_one_place_stop_each_other_ever_more_seldom() -> None:
    now_s, stops, had = 0.0, 0, {"a": NOTHING_YET, "b": NOTHING_YET}
    up, down = "a", "b"
    placed_s = {"a": 0.0, "b": 0.0}
    while now_s < 1_000 * HOUR_S:
        now_s += 60.0
        jobs = [
            msgspec.structs.replace(runs(up, 1, placed_s=placed_s[up]), had=had[up]),
            waits(down, 2, had=had[down]),
        ]
        if in_turn([(job, [Option(0, 1, 1, 1.0)]) for job in jobs], [1],
                   kept=(), turn_s=HOUR_S, at_s=now_s) == {JobId(down)}:  # fmt: skip
            ran_s = now_s - placed_s[up]
            had[up] = had[up].and_then(placed_s[up], now_s, ran_s, moves=1)
            placed_s[down], stops = now_s, stops + 1
            up, down = down, up
    assert 8 <= stops <= 20


def chosen(
    jobs: list[RunningJob | WaitingJob], supply: list[int], *, kept: tuple[str, ...] = ()
) -> set[str]:
    options = [Option(0, 1, 1, 0.5), Option(0, 2, 2, 0.7)]
    found = in_turn(
        [(job, options) for job in jobs], supply,
        kept={JobId(name) for name in kept}, turn_s=HOUR_S, at_s=10 * HOUR_S,
    )  # fmt: skip
    return {str(name) for name in found}


def test_who_had_least_comes_first_and_on_a_level_who_runs() -> None:
    old, young = runs("old", 1), runs("young", 2, placed_s=9.5 * HOUR_S)
    assert chosen([old, young, waits("new", 3)], [2]) == {"young", "new"}
    assert chosen([young, waits("new", 3), waits("later", 4)], [2]) == {"young", "new"}
    assert chosen([old, waits("new", 3)], [1, 1]) == {"old", "new"}


def test_a_priority_comes_before_a_level_and_who_may_not_be_stopped_before_both() -> None:
    old, new = runs("old", 1), waits("new", 2)
    assert chosen([old, waits("low", 2, priority=-1)], [1]) == {"old"}
    assert chosen([old, new], [1], kept=("old",)) == {"old"}
    assert chosen([old, new], [1]) == {"new"}
