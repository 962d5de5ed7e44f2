"""The built-in policies on workloads small enough to work out by hand."""

from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.formats.cluster import read_cluster
from tercio.model.queue import Policy, QueueSpec
from tercio.twin.policies import BUILT_IN, built_in, from_policy
from tercio.twin.replay import run
from tercio.twin.rng import Stream
from tercio.twin.trace import Trace, TraceJob


def job(name: str, at_s: float, run_s: float, devices: int, user: str = "") -> TraceJob:
    return TraceJob(id=name, submit_s=at_s, run_s=run_s, devices_per_task=devices, user=user)


def starts(policy: str, *jobs: TraceJob, cluster: str = "1x8") -> dict[str, float | None]:
    trace = Trace(jobs=jobs, source="test", kind="test")
    result = run(trace, read_cluster(cluster), built_in(policy, jobs))
    return {record.id: record.start_s for record in result.jobs}


HEAD = job("a", 0, 100, 6)
WIDE = job("b", 1, 100, 8)
SHORT = job("c", 2, 50, 2)
LONG = job("d", 3, 500, 2)


def test_fifo_lets_nobody_pass_the_head() -> None:
    assert starts("fifo", HEAD, WIDE, SHORT) == {"a": 0, "b": 100, "c": 200}


def test_easy_lets_pass_what_ends_before_the_head_starts() -> None:
    assert starts("easy", HEAD, WIDE, SHORT, LONG) == {"a": 0, "b": 100, "c": 2, "d": 200}


def test_multifactor_backfills_too() -> None:
    assert starts("multifactor", HEAD, WIDE, SHORT, LONG) == {"a": 0, "b": 100, "c": 2, "d": 200}


def test_shortest_first() -> None:
    jobs = (job("a", 0, 100, 8), job("b", 1, 90, 8), job("c", 2, 10, 8))
    assert starts("sjf", *jobs) == {"a": 0, "c": 100, "b": 110}


def test_srtf_stops_the_longer_one_and_keeps_its_work() -> None:
    jobs = (job("a", 0, 100, 8), job("b", 10, 20, 8))
    result = run(
        Trace(jobs=jobs, source="t", kind="t"), read_cluster("1x8"), built_in("srtf", jobs)
    )
    first, second = result.jobs
    assert (second.start_s, second.end_s) == (10, 30)
    assert (first.end_s, first.evictions, first.held_s) == (120, 1, 100)
    assert first.wait_s == 20


def test_las_lets_the_newcomer_go_first_until_it_had_as_much() -> None:
    """On 8 devices the first limit of 3,250 device seconds is reached after 406.25 s."""
    jobs = (job("a", 0, 2000, 8), job("b", 500, 100, 8))
    result = run(
        Trace(jobs=jobs, source="t", kind="t"), read_cluster("1x8"), built_in("las2d", jobs)
    )
    first, second = result.jobs
    assert (second.start_s, second.end_s) == (500, 600)
    assert (first.end_s, first.evictions) == (2100, 1)


def test_drf_serves_the_user_with_the_smaller_share_next() -> None:
    jobs = (
        job("a1", 0, 100, 4, "ana"), job("a2", 0, 100, 4, "ana"), job("a3", 1, 100, 4, "ana"),
        job("b1", 2, 100, 4, "ben"),
    )  # fmt: skip
    found = starts("drf", *jobs)
    assert found == {"a1": 0, "a2": 0, "b1": 100, "a3": 100}
    assert starts("fifo", *jobs, job("b2", 3, 100, 4, "ben"))["b2"] == 200


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_ends_every_job_with_the_same_work(name: str) -> None:
    stream = Stream(5, "workload")
    jobs = tuple(
        job(str(n), 10.0 * n, 1.0 + stream.whole(400), stream.choice((1, 1, 2, 4, 8)), f"u{n % 3}")
        for n in range(60)
    )
    trace = Trace(jobs=jobs, source="test", kind="test")
    first = run(trace, read_cluster("2x8"), built_in(name, jobs))
    again = run(trace, read_cluster("2x8"), built_in(name, jobs))
    assert first.summary.jobs == 60
    assert first.state_hash == again.state_hash
    for record in first.jobs:
        assert record.held_s == pytest.approx(record.run_s)
    used = first.course.integral(first.course.devices_used, 1e9)
    assert used == pytest.approx(sum(each.run_s * each.devices for each in jobs))


def test_a_policy_of_ones_own_keeps_the_queues_it_knows() -> None:
    policy = Policy(queues={"default": QueueSpec(), "prod": QueueSpec()})
    discipline = from_policy("mine", policy)
    known = TraceJob(id="a", submit_s=0, run_s=1, queue="prod")
    other = TraceJob(id="b", submit_s=0, run_s=1, queue="elsewhere")
    assert (discipline.queue_of(known), discipline.queue_of(other)) == ("prod", "default")


def test_an_unknown_policy_is_answered_by_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        built_in("srft")
    assert "srtf" in (caught.value.hint or "")
