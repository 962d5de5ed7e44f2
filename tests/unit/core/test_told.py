"""What a waiting job was told about its start is kept, settled at its start, and learned from."""

from __future__ import annotations

import pytest

from tercio.core.accuracy import start_accuracy
from tercio.core.cluster import Cluster
from tercio.core.told import KEPT
from tercio.model.events import JobCancelRequested, JobHeld, JobReleased, JobWaited
from tercio.model.ids import JobId
from tercio.model.reasons import Reason, StartEstimate
from tercio.model.snapshot import StartRatios

from .machine import Machine


def tell(machine: Machine, job_id: JobId, wait_s: float, *, has_raw: bool = True) -> None:
    now_s = machine.now_s
    start = StartEstimate(
        at_s=now_s + wait_s, low_s=now_s + wait_s / 2, high_s=now_s + wait_s * 2, label="immediate",
        raw_s=(now_s + wait_s,) * 3 if has_raw else None,
    )  # fmt: skip
    machine.do(JobWaited(at_s=now_s, job_id=job_id, reason=Reason.ORDER, message="", start=start))


def run_told(machine: Machine, *, told_s: float, wait_s: float) -> None:
    job_id = machine.submit()
    tell(machine, job_id, told_s)
    machine.now_s += wait_s - 1
    machine.place(job_id)
    machine.start(job_id)
    machine.exit(job_id)


def test_the_error_is_recorded_at_the_start(machine: Machine) -> None:
    run_told(machine, told_s=100.0, wait_s=150.0)
    run_told(machine, told_s=100.0, wait_s=300.0)
    record = machine.cluster.starts
    assert (record.count, record.inside, record.error_s) == (2, 1, 250.0)
    first = start_accuracy(record).rows[0]
    assert (first.key, first.jobs, first.wait_s, first.bias_s) == ("all", 2, 225.0, 125.0)
    assert (first.inside_ratio, first.early_ratio, first.late_ratio) == (0.5, 0.0, 0.5)
    assert [row.key for row in start_accuracy(record).rows][1:] == [
        "queue default", "1 device or less",
    ]  # fmt: skip


def test_a_job_that_was_told_nothing_or_never_starts_counts_for_nothing(machine: Machine) -> None:
    machine.place(machine.submit())
    cancelled = machine.submit()
    tell(machine, cancelled, 100.0)
    machine.do(JobCancelRequested(at_s=machine.now_s, job_id=cancelled, by="ana"))
    assert machine.cluster.starts.count == 0


def test_a_hold_voids_what_was_told(machine: Machine) -> None:
    job_id = machine.submit()
    tell(machine, job_id, 100.0)
    machine.do(JobHeld(at_s=machine.now_s, job_id=job_id, by="ana"))
    machine.do(JobReleased(at_s=machine.now_s, job_id=job_id, by="ana"))
    machine.place(job_id)
    assert machine.cluster.starts.count == 0


@pytest.mark.parametrize("ratio", [0.25, 4.0])
def test_estimates_are_corrected_by_what_the_last_ones_came_to(
    machine: Machine, ratio: float
) -> None:
    assert machine.cluster.snapshot().start_ratios == StartRatios()
    for _ in range(300):
        run_told(machine, told_s=10_000.0, wait_s=10_000.0 * ratio)
    ratios = machine.cluster.snapshot().start_ratios
    for found in (ratios.low, ratios.at, ratios.high):
        assert found == pytest.approx(ratio, rel=0.2)
    for _ in range(300):
        run_told(machine, told_s=10_000.0, wait_s=10_000.0)
    assert machine.cluster.snapshot().start_ratios.at == pytest.approx(1.0, rel=0.05)


def test_the_record_is_bounded_and_survives_a_restart(machine: Machine) -> None:
    for _ in range(KEPT + 5):
        run_told(machine, told_s=100.0, wait_s=130.0)
    waiting = machine.submit()
    tell(machine, waiting, 50.0)
    again = Cluster.from_image(machine.cluster.image())
    assert len(again.starts.outcomes) == KEPT
    assert again.starts.count == KEPT + 5
    assert again.snapshot().start_ratios == machine.cluster.snapshot().start_ratios
    assert again.jobs[waiting].told == machine.cluster.jobs[waiting].told
    assert again.state_hash() == machine.cluster.state_hash()


def test_an_estimate_without_a_future_is_reported_but_corrects_nothing(machine: Machine) -> None:
    for _ in range(50):
        job_id = machine.submit()
        tell(machine, job_id, 100.0, has_raw=False)
        machine.now_s += 999.0
        machine.place(job_id)
        machine.start(job_id)
        machine.exit(job_id)
    assert machine.cluster.starts.count == 50
    assert machine.cluster.snapshot().start_ratios == StartRatios()


def test_a_burst_is_one_episode_however_many_jobs_it_has(machine: Machine) -> None:
    jobs = [machine.submit() for _ in range(100)]
    for job_id in jobs:
        tell(machine, job_id, 10_000.0)
    machine.now_s += 50_000.0
    for job_id in jobs:
        machine.place(job_id)
        machine.start(job_id)
        machine.exit(job_id)
    record = machine.cluster.starts
    assert (record.count, len(record.episodes)) == (100, 1)
    assert len(record.episodes[0].scores) < 50
    assert machine.cluster.snapshot().start_ratios.at == pytest.approx(5.0**0.05, rel=0.01)
