"""Whose turn it is among elastic jobs: by what they had, and what waiting pays back."""

from __future__ import annotations

import msgspec
import pytest

from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import Goodput, JobSpec
from tercio.model.placement import DeviceShare, TaskPlacement
from tercio.model.snapshot import Had, RunningJob, WaitingJob
from tercio.sched.elastic import Option
from tercio.sched.turns import in_turn, level, why
from tercio.testing.stops import again

SPEC = JobSpec(name="trained")
PROFILED = JobSpec(name="trained", goodput=(Goodput(type="H100", tasks=(1,), units_per_s=(1.0,)),))
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


def test_who_waited_four_times_as_long_as_it_ran_gets_one_turn_as_if_it_were_new() -> None:
    had = Had(run_s=3 * HOUR_S, device_s=6 * HOUR_S, moves=1, until_s=3 * HOUR_S)
    job = waits("a", 1, had=had)
    assert [level(job, HOUR_S, hours * HOUR_S) for hours in (3, 14.9, 15, 40)] == [2, 2, 0, 0]
    early = msgspec.structs.replace(runs("a", 1, placed_s=14 * HOUR_S), had=had)
    assert [level(early, HOUR_S, hours * HOUR_S) for hours in (14, 15)] == [2, 3]
    late = msgspec.structs.replace(runs("a", 1, placed_s=15 * HOUR_S), had=had)
    assert [level(late, HOUR_S, hours * HOUR_S) for hours in (15, 15.9, 16)] == [0, 0, 3]


def turns_taken(count: int, hours: int) -> list[tuple[str, float]]:
    """Who was stopped, and after how many hours, when so many jobs want one place."""
    jobs: list[RunningJob | WaitingJob] = [waits(f"{at}", at) for at in range(count)]
    jobs[0] = runs("0", 0)
    taken = []
    for minute in range(60 * hours):
        now_s = 60.0 * minute
        pairs = [(job, [Option(0, 1, 1, 1.0)]) for job in jobs]
        (up,) = in_turn(pairs, [1], kept=(), turn_s=HOUR_S, at_s=now_s)
        last = next(job for job in jobs if isinstance(job, RunningJob))
        if up != last.job_id:
            taken.append((str(last.job_id), (now_s - last.placed_s) / HOUR_S))
            first = waits(str(last.job_id), last.sequence)
            comes = next(job for job in jobs if job.job_id == up)
            placed = runs(str(up), comes.sequence, placed_s=now_s)
            jobs[last.sequence] = again(first, msgspec.structs.replace(last, spec=PROFILED), now_s)
            jobs[comes.sequence] = msgspec.structs.replace(placed, had=comes.had)
    return taken


def test_two_jobs_of_one_place_stop_each_other_ever_more_seldom() -> None:
    taken = turns_taken(2, 1_000)
    assert 8 <= len(taken) <= 20
    assert taken[-1][1] > 50


def test_many_jobs_of_one_place_each_run_for_a_turn_at_least_and_nobody_is_left_out() -> None:
    taken = turns_taken(12, 1_000)
    assert all(hours >= 1 for _, hours in taken)
    assert {name for name, _ in taken[-40:]} == {f"{at}" for at in range(12)}


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


def test_who_gives_way_is_told_the_true_reason() -> None:
    had = Had(run_s=HOUR_S, device_s=9 * HOUR_S, moves=1, until_s=HOUR_S)
    light = msgspec.structs.replace(had, device_s=HOUR_S)
    old = runs("old", 1)
    told = {
        name: why(old, waits(name, 2, had=of, priority=priority), HOUR_S, hours * HOUR_S)
        for name, of, priority, hours in (
            ("urgent", had, 1, 2), ("patient", had, 0, 5),
            ("soon", light, 0, 4.9), ("new", None, 0, 9), ("equal", had, 0, 4.9),
        )
    }  # fmt: skip
    assert told == {
        "urgent": "gives its turn to urgent, which has the higher priority",
        "patient": "gives its turn to patient, which waited 4 times as long as it had run",
        "soon": "gives its turn to soon, which had less device time",
        "equal": "gives its turn to equal, which comes before it",
        "new": "gives its turn to new, which had less device time",
    }
