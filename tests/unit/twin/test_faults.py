"""Faults of nodes: drawn, recorded, and what they do to jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tercio.cli.twin_input import load_faults, load_trace
from tercio.errors import UserError
from tercio.formats.cluster import read_cluster
from tercio.model.ids import NodeName
from tercio.twin.checkers import Books, check_replay
from tercio.twin.faults import Climate, Fault, draw, parse_climate, read_faults
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.trace import Trace, TraceJob
from tercio.twin.world import World

SHARED = Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces"
FAULTS = SHARED / "infinitehbd-faults-2024" / "fault_trace.json.gz"
DAY_S = 86_400.0


def trace(*jobs: TraceJob) -> Trace:
    return Trace(jobs=jobs, source="test", kind="test")


def job(name: str = "a", *, run_s: float = 1000.0, tasks: int = 1) -> TraceJob:
    return TraceJob(id=name, submit_s=0.0, run_s=run_s, tasks=tasks, devices_per_task=8)


def lost_at(at_s: float, *, down_s: float = 50_000.0, is_crash: bool = True) -> Fault:
    return Fault(node=NodeName("n1"), at_s=at_s, down_s=down_s, is_crash=is_crash)


@pytest.mark.parametrize(("every_s", "lost_s"), [(0.0, 0.0), (300.0, 100.0), (None, 400.0)])
def test_a_job_on_a_lost_node_goes_on_from_its_checkpoint_elsewhere(
    every_s: float | None, lost_s: float
) -> None:
    """Lost at 400, fenced 300 s later, restarted on the other node at 50 s cost."""
    result = run(
        trace(job()), read_cluster("2x8"), built_in("fifo"), faults=[lost_at(400.0)],
        world=World(checkpoint_every_s=every_s, restart_s=50.0),
    )  # fmt: skip
    (record,) = result.jobs
    assert record.attempts == 2
    assert record.node == "n2"
    assert record.end_s == 400 + 300 + 50 + 600 + lost_s
    assert record.lost_device_s == lost_s * 8
    assert result.summary.down_device_h == pytest.approx((record.end_s - 400) * 8 / 3600)


def test_a_gang_waits_for_its_node_when_no_other_is_there() -> None:
    result = run(
        trace(job(tasks=2)), read_cluster("2x8"), built_in("fifo"),
        faults=[lost_at(400.0, down_s=2000.0)],
    )  # fmt: skip
    assert result.jobs[0].end_s == 2400 + 600


def test_tasks_that_run_on_unseen_are_not_started_again() -> None:
    """Away for 100 s, less than the fence: the job never notices."""
    result = run(
        trace(job()), read_cluster("2x8"), built_in("fifo"),
        faults=[lost_at(400.0, down_s=100.0, is_crash=False)],
    )  # fmt: skip
    assert (result.jobs[0].attempts, result.jobs[0].end_s) == (1, 1000)


def test_every_rule_holds_under_faults() -> None:
    jobs = [job(str(n), run_s=500.0 + 10 * n, tasks=1 + n % 2) for n in range(30)]
    nodes = read_cluster("4x8")
    climate = Climate(mean_between_s=2000.0, repair_median_s=600.0, partition_ratio=0.3)
    journal: list[object] = []
    result = run(
        trace(*jobs), nodes, built_in("easy"), observers=(Books(),), journal=journal,  # type: ignore[arg-type]
        faults=draw(climate, nodes, start_s=0.0, until_s=1e5, seed=3),
    )  # fmt: skip
    assert result.summary.jobs == 30
    assert result.summary.restarts > 5
    from tercio.core.cluster import Cluster
    from tercio.core.driver import Driver

    driver = Driver(Cluster())
    driver.replay(journal)  # type: ignore[arg-type]
    assert driver.cluster.state_hash() == result.state_hash
    check_replay(journal, driver.cluster)  # type: ignore[arg-type]


def test_drawn_faults_have_the_rates_that_were_asked_for() -> None:
    nodes = read_cluster("200x1")
    span_s = 400 * DAY_S
    climate = Climate(mean_between_s=20 * DAY_S, shape=0.7, repair_median_s=3600.0)
    found = draw(climate, nodes, start_s=0.0, until_s=span_s, seed=1)
    # A shape below one has early failures: a few more than the mean rate in a finite span.
    assert 200 * 20 * 0.9 < len(found) < 200 * 20 * 1.2
    assert list(found) == sorted(found, key=lambda fault: (fault.at_s, fault.node))
    assert found == draw(climate, nodes, start_s=0.0, until_s=span_s, seed=1)
    lemons = draw(
        Climate(mean_between_s=20 * DAY_S, lemon_ratio=0.1, lemon_factor=10.0,
                repair_median_s=3600.0),
        nodes, start_s=0.0, until_s=span_s, seed=1,
    )  # fmt: skip
    share = sum(fault.cause == "lemon" for fault in lemons) / len(lemons)
    assert 0.35 < share < 0.65


def test_racks_fail_whole_and_waves_go_round() -> None:
    rack = "{name: 'a[1-2]', devices: 'H100:8', labels: {rack: r1}}"
    nodes = read_cluster(f"nodes: [{rack}, {{name: b, devices: 'H100:8'}}]")
    racks = draw(Climate(rack_between_s=DAY_S), nodes, start_s=0.0, until_s=20 * DAY_S, seed=2)
    assert racks
    assert len(racks) % 2 == 0
    assert {fault.node for fault in racks} == {"a1", "a2"}
    waves = draw(
        Climate(wave_every_s=DAY_S, wave_down_s=60.0), nodes, start_s=0.0, until_s=1.5 * DAY_S,
        seed=2,
    )  # fmt: skip
    assert [(fault.node, fault.at_s - DAY_S) for fault in waves] == [
        ("a1", 0.0), ("a2", 60.0), ("b", 120.0),
    ]  # fmt: skip


def test_a_recorded_trace_pairs_its_events() -> None:
    lines = [
        {
            "node_id": "x",
            "event_time": 1.0,
            "event_type": "fault_start",
            "fault_type": {"Class": "GPU"},
        },
        {"node_id": "x", "event_time": 1.5, "event_type": "fault_end", "fault_type": {}},
        {"node_id": "x", "event_time": 3.0, "event_type": "fault_start", "fault_type": {}},
    ]
    nodes = read_cluster("400x1")
    first, second = read_faults(json.dumps(lines), "f.json", nodes, start_s=100.0)
    assert (first.at_s, first.down_s, first.cause) == (100 + DAY_S, 0.5 * DAY_S, "GPU")
    assert second.down_s == 0.0


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="lemons"):
        parse_climate("lemons=2")
    with pytest.raises(UserError, match=r"f\.json"):
        read_faults("{}", "f.json", read_cluster("1x1"), start_s=0.0)
    assert parse_climate("mean=30d,repair=20h").mean_between_s == 30 * DAY_S


@pytest.mark.skipif(not FAULTS.exists(), reason="the fault trace is not at hand: set TERCIO_SHARED")
def test_a_real_fault_trace_over_a_real_workload() -> None:
    philly = str(SHARED / "philly-2017" / "philly_jobs.csv.gz")
    jobs = load_trace(philly, ("cluster=103959", "timestamp<2017-11-01"))
    nodes = read_cluster("8x8")
    faults = load_faults(str(FAULTS), nodes, jobs, 11)
    calm = run(jobs, nodes, built_in("easy"))
    worn = run(
        jobs, nodes, built_in("easy"), faults=faults,
        world=World(checkpoint_every_s=3600.0, restart_s=300.0),
    )  # fmt: skip
    assert worn.summary.jobs == calm.summary.jobs == len(jobs.jobs)
    assert worn.summary.faults > 0
    assert worn.summary.mean_jct_s > calm.summary.mean_jct_s
    assert worn.summary.lost_device_h >= 0
    assert calm.summary.lost_device_h == 0
