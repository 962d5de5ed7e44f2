"""Progress by throughput profile in the event loop: type, size, moves and restarts."""

from __future__ import annotations

import msgspec
import pytest

from tercio.formats.cluster import read_cluster
from tercio.model.ids import JobId
from tercio.model.queue import ElasticPolicy
from tercio.twin.arms import Plan, Setting, run_arms
from tercio.twin.pace import ProfilePace
from tercio.twin.policies import Discipline, built_in
from tercio.twin.progress.application import Application, Epoch, Steps
from tercio.twin.progress.book import ProfileBook, Rates
from tercio.twin.progress.course import Course, steady
from tercio.twin.replay import run
from tercio.twin.runs import Run, Work
from tercio.twin.stats import Prices
from tercio.twin.trace import Trace, TraceJob
from tercio.twin.world import World

BOOK = ProfileBook(
    rates={
        "m": {
            "A100": Rates(together={1: 4.0, 2: 8.0, 4: 16.0}),
            "T4": Rates(together={1: 1.0, 2: 2.0, 4: 3.0}, apart={2: 1.5, 4: 2.0}),
        }
    }
)
NODES = read_cluster(
    "nodes:\n"
    "  - {name: t, devices: 'T4:4', cpus: 64, memory: 256GiB}\n"
    "  - {name: a, devices: 'A100:4', cpus: 64, memory: 256GiB}\n"
)


def job(name: str, submit_s: float, *, work: float = 1600.0, tasks: int = 1) -> TraceJob:
    return TraceJob(
        id=name, submit_s=submit_s, run_s=work, tasks=tasks, cpus_per_task=1.0,
        memory_bytes_per_task=1 << 30, model="m", work=work,
    )  # fmt: skip


def trace(*jobs: TraceJob) -> Trace:
    return Trace(jobs=jobs, source="hand-made", kind="gavel")


def elastic(restart_s: float = 0.0) -> Discipline:
    found = built_in("elastic")
    policy = ElasticPolicy(restart_s=restart_s, period_s=10.0)
    return msgspec.structs.replace(
        found, policy=msgspec.structs.replace(found.policy, elastic=policy)
    )


def test_a_course_is_followed_from_where_the_work_stands() -> None:
    course = Course(parts=(0.0, 0.5, 1.0), times_s=(0.0, 10.0, 40.0))
    assert course.run_s == 40.0
    assert course.at_s(0.25) == 5.0
    assert course.at_s(0.75) == 25.0
    assert course.part_at(25.0) == 0.75
    assert course.part_at(99.0) == 1.0


def test_type_and_spread_decide_how_fast_a_job_is() -> None:
    pace = ProfilePace(BOOK, NODES)
    pace.jobs[JobId("j")] = job("j", 0.0)
    assert pace.course(JobId("j"), (("A100", 2),)) == steady(200.0)
    assert pace.course(JobId("j"), (("T4", 2),)) == steady(800.0)
    assert pace.course(JobId("j"), (("T4", 1), ("T4", 1))) == steady(1600.0 / 1.5)
    assert pace.course(JobId("j"), (("A100", 1), ("T4", 1))) == steady(1600.0 / 1.5)
    assert pace.course(JobId("j"), (("H100", 1),)) is None
    assert pace.course(JobId("nobody"), (("A100", 1),)) is None


def test_a_gang_runs_as_its_profile_says_at_the_place_that_it_gets() -> None:
    only_t4 = NODES[:1]
    result = run(trace(job("j", 0.0, tasks=4)), only_t4, built_in("fifo"), profiles=BOOK)
    assert result.jobs[0].end_s == pytest.approx(1600.0 / 3.0)
    plain = run(trace(job("j", 0.0, tasks=4)), only_t4, built_in("fifo"))
    assert plain.jobs[0].end_s == 1600.0


def test_a_job_goes_on_at_its_new_rate_after_a_move() -> None:
    # The first has all A100s; when the second comes, both share them; work is kept.
    nodes = NODES[1:]
    result = run(trace(job("first", 0.0), job("second", 50.0)), nodes, elastic(), profiles=BOOK)
    first, second = result.jobs
    # Alone 16/s until 50 s (800 done); then 8/s each: the first has 800 left, the second 1600.
    assert first.end_s == pytest.approx(150.0, abs=11.0)
    assert second.end_s is not None
    assert first.end_s is not None
    assert second.end_s == pytest.approx(200.0, abs=11.0)
    assert first.evictions >= 1
    assert sum(record.held_s for record in result.jobs) > 0


def test_a_restart_costs_what_the_model_says_at_every_start() -> None:
    epoch = Epoch(progress=100.0, steps=100.0, metric=0.5, grad_sqr=1.0, grad_var=0.0)
    points = ((8.0, 1.0, 0.0),)
    steps = Steps(by_placement={(1,): points}, by_shape={(1, 1): points})
    application = Application(
        name="net", steps_by_type={"A100": steps}, runs={8: (epoch,)}, epochs=1, restart_s=30.0,
        slowdown=2.0,
    )  # fmt: skip
    book = ProfileBook(applications={"net": application})
    one = msgspec.structs.replace(job("j", 0.0), model="net", work=None)
    result = run(trace(one), NODES[1:], built_in("fifo"), profiles=book)
    assert result.jobs[0].end_s == pytest.approx(30.0 + 2.0 * 100.0)


def test_a_checkpoint_lies_in_the_time_of_the_run_not_of_the_record() -> None:
    attempt = Run(JobId("j"), 1, Work(total_s=1000.0))
    attempt.course = steady(100.0)
    world = World(checkpoint_every_s=30.0)
    assert attempt.done_after(75.0, 1.0) == pytest.approx(750.0)
    assert attempt.saved_s(world, 750.0) == pytest.approx(600.0)
    assert attempt.rest_s(1000.0, 1.0) == pytest.approx(100.0)


def test_the_profile_for_the_scheduler_holds_what_was_measured_and_fits() -> None:
    pace = ProfilePace(BOOK, NODES)
    (t4, a100) = pace.profile(job("j", 0.0))
    assert (t4.type, t4.tasks, t4.units_per_s) == ("T4", (1, 2, 4), (1.0, 2.0, 3.0))
    assert a100.tasks == (1, 2, 4)
    assert pace.profile(job("j", 0.0), tasks=2)[1].tasks == (2,)
    assert pace.profile(msgspec.structs.replace(job("j", 0.0), model=None)) == ()


def test_arms_that_are_compared_advance_by_the_profiles() -> None:
    jobs = trace(*(job(f"j{n}", float(n)) for n in range(2)))
    plans = [
        Plan(name=name, discipline=lambda _, make=make: make(), nodes=NODES)
        for name, make in (("fifo", lambda: built_in("fifo")), ("elastic", elastic))
    ]

    def makespans(profiles: ProfileBook | None) -> list[float]:
        setting = Setting(
            plans=plans, workload_of=lambda _: jobs, seeds=1, world=World(),
            faults=lambda *_: (), prices=Prices(), weights={}, profiles=profiles,
        )  # fmt: skip
        outcomes = run_arms(setting)
        return [outcome.figures[0].values["makespan_s"] or 0.0 for outcome in outcomes]

    plain, paced = makespans(None), makespans(BOOK)
    assert plain[0] == plain[1], "nothing is known of types and sizes"
    assert paced[1] < paced[0], "elastic moves jobs to the faster type and more devices"
