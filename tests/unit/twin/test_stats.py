"""Figures of a run, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from unit_twin import record, result, spans

from tercio.twin.recorded import recorded_waits
from tercio.twin.stats import Prices, fairness_error, fragmentation, measure, size_class, water_fill
from tercio.twin.trace import Trace, TraceJob


def test_fragmentation_is_free_time_on_partly_used_nodes() -> None:
    jobs = [record("a", 0, 0, 10, devices=1), record("b", 0, 0, 10, devices=4)]
    # Node 0 uses 1 of 4, node 1 uses 4 of 4, node 2 is idle: 3 x 10 of 7 x 10 free.
    found = fragmentation(spans(jobs, [0, 1]), [4, 4, 4], 0.0, 10.0)
    assert found == pytest.approx(30 / 70)
    # A second half in which all is free counts as free and whole.
    assert fragmentation(spans(jobs, [0, 1]), [4, 4, 4], 0.0, 20.0) == pytest.approx(30 / 190)


def test_a_node_is_whole_before_its_first_job_and_after_its_last() -> None:
    jobs = [record("a", 0, 5, 10, devices=3)]
    # 4 x 5 free and whole, 1 x 5 free beside the job, 4 x 10 free and whole.
    assert fragmentation(spans(jobs, [0]), [4], 0.0, 20.0) == pytest.approx(5 / 65)


def test_nothing_free_is_no_fragmentation() -> None:
    jobs = [record("a", 0, 0, 10, devices=4)]
    assert fragmentation(spans(jobs, [0]), [4], 0.0, 10.0) is None


def test_waits_are_grouped_by_size_and_queue() -> None:
    jobs = [
        record("a", 0, 10, 20),
        record("b", 0, 30, 40),
        record("c", 0, 100, 140, devices=8, queue="b"),
        record("d", 0, None, None, devices=8, queue="b"),
    ]
    figures = measure(result(jobs))
    assert list(figures.waits_by_size) == ["1", "5-8"]
    assert figures.waits_by_size["1"].mean_s == 20.0
    assert (figures.waits_by_queue["b"].jobs, figures.waits_by_queue["b"].p99_s) == (1, 100.0)
    assert figures.values["unfinished"] == 1.0
    assert figures.values["makespan_s"] == 140.0
    assert figures.values["fragmentation_ratio"] is None
    assert figures.values["cost_usd"] is None


def test_energy_and_cost_follow_from_busy_and_free_device_time() -> None:
    figures = measure(
        result([record("a", 0, 0, 3600, devices=4)]),
        prices=Prices(usd_per_device_h=2.0, busy_w=1000.0, idle_w=100.0),
    )
    assert figures.values["energy_kwh"] == pytest.approx(4.0 + 0.4)
    assert figures.values["cost_usd"] == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("kind", "columns", "mean_s"),
    [
        ("sacct", {"Submit": "2026-03-01T08:00:00", "Start": "2026-03-01T08:01:30"}, 90.0),
        ("sacct", {"Submit": "1000", "Start": "1005"}, 5.0),
        ("openb", {"creation_time": "10", "scheduled_time": "40"}, 30.0),
        ("swf", {"wait": "7"}, 7.0),
        ("swf", {"wait": "-1"}, None),
        ("sacct", {"Submit": "2026-03-01T08:00:00", "Start": "Unknown"}, None),
        ("philly", {"timestamp": "2017-10-02 00:00:01"}, None),
    ],
)
def test_waits_of_the_log_itself(kind: str, columns: dict[str, str], mean_s: float | None) -> None:
    job = TraceJob(id="1", submit_s=0.0, run_s=1.0, columns=columns)
    waits = recorded_waits(Trace(jobs=(job,), source="x", kind=kind))
    assert (None if waits is None else waits.mean_s) == mean_s


def test_water_filling_gives_none_more_than_it_wants() -> None:
    wanted, weights = np.array([1.0, 9.0, 9.0, 0.0]), np.array([1.0, 1.0, 2.0, 5.0])
    assert water_fill(wanted, weights, 10.0).tolist() == [1.0, 3.0, 6.0, 0.0]
    assert water_fill(wanted, weights, 100.0).tolist() == wanted.tolist()
    assert water_fill(wanted, np.zeros(4), 10.0).tolist() == [0.0] * 4


def test_a_queue_that_waits_while_another_has_all_is_half_the_entitlement() -> None:
    # Both want all 8 for all the time; one has them for the first half, the other then.
    jobs = [
        record("a", 0, 0, 100, devices=8, queue="a"),
        record("b", 0, 100, 200, devices=8, queue="b"),
    ]
    error = fairness_error(jobs, capacity=8.0, weights={})
    # First half: b lacks its 4 of 8. Second half: only b wants, and has all.
    assert error == pytest.approx(0.25, abs=0.01)
    none = fairness_error(jobs, capacity=16.0, weights={"a": 1.0, "b": 0.0})
    assert none == pytest.approx(0.0, abs=0.01)
    assert fairness_error(jobs[:1], capacity=8.0, weights={}) is None


@pytest.mark.parametrize(
    ("devices", "name"),
    [(0, "0"), (1, "1"), (2, "2-4"), (4, "2-4"), (5, "5-8"), (16, "9-16"), (65, "65+")],
)
def test_size_classes(devices: int, name: str) -> None:
    assert size_class(devices) == name
