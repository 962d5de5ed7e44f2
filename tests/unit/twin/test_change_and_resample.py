"""Changed clusters, other workloads like the recorded one, and who held what."""

from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.formats.cluster import read_cluster
from tercio.twin.change import add_devices, drain_nodes
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.resample import resample
from tercio.twin.spans import SpanKeeper
from tercio.twin.trace import Trace, TraceJob

RACKS = """
nodes:
  - {name: "a[1-2]", devices: "V100:4", labels: {rack: r1}}
  - {name: "b[1-2]", devices: "H100:8", labels: {rack: r2}}
"""


def trace(days: int = 20) -> Trace:
    jobs = [
        TraceJob(id=f"{day}-{n}", submit_s=86400.0 * day + 60.0 * n, run_s=10.0 + day)
        for day in range(days)
        for n in range(5)
    ]
    return Trace(jobs=tuple(jobs), source="t", kind="test")


def test_added_nodes_are_like_those_of_their_type() -> None:
    nodes = add_devices(read_cluster(RACKS), "8xV100")
    assert [(str(n.name), len(n.devices), n.pool) for n in nodes[4:]] == [
        ("new1", 4, "V100"), ("new2", 4, "V100"),
    ]  # fmt: skip
    assert nodes[4].labels == {}
    assert nodes[4].cpus_milli == nodes[0].cpus_milli
    other = add_devices(nodes, "16xA100")[6:]
    assert [len(node.devices) for node in other] == [8, 8]
    assert other[0].name == "new3"


@pytest.mark.parametrize("text", ["H100:16", "12xH100", "0xH100", "x", "16x", "999999999xH100"])
def test_what_cannot_be_added_is_refused_with_a_form(text: str) -> None:
    with pytest.raises(UserError) as caught:
        add_devices(read_cluster(RACKS), text)
    assert caught.value.field == "add"
    assert caught.value.hint


def test_racks_names_and_patterns_are_drained() -> None:
    nodes = read_cluster(RACKS)
    assert [str(n.name) for n in drain_nodes(nodes, "r1")] == ["b1", "b2"]
    assert [str(n.name) for n in drain_nodes(nodes, "b2")] == ["a1", "a2", "b1"]
    assert [str(n.name) for n in drain_nodes(nodes, "b*")] == ["a1", "a2"]
    with pytest.raises(UserError, match="rack9") as caught:
        drain_nodes(nodes, "rack9")
    assert caught.value.hint
    with pytest.raises(UserError, match="leaves no node"):
        drain_nodes(nodes, "*")


def test_a_drawn_workload_is_made_of_whole_days_of_the_recorded_one() -> None:
    recorded = trace()
    assert resample(recorded, 0) is recorded
    drawn = resample(recorded, 1)
    assert drawn == resample(recorded, 1)
    assert drawn != resample(recorded, 2)
    assert [job.submit_s for job in drawn.jobs] == sorted(job.submit_s for job in drawn.jobs)
    assert len({job.id for job in drawn.jobs}) == len(drawn.jobs)
    by_day: dict[int, set[float]] = {}
    for job in drawn.jobs:
        by_day.setdefault(int(job.submit_s // 86400), set()).add(job.run_s)
    assert all(len(runs) == 1 for runs in by_day.values())
    assert list(by_day) == list(range(len(by_day)))
    assert len(by_day) >= 19
    assert len({run for runs in by_day.values() for run in runs}) > 5
    alone = Trace(jobs=recorded.jobs[:1], source="t", kind="test")
    assert resample(alone, 3) == alone


def test_spans_are_what_the_run_held() -> None:
    jobs = tuple(
        TraceJob(id=str(n), submit_s=0.0, run_s=100.0, tasks=2, devices_per_task=8)
        for n in range(3)
    )
    nodes = read_cluster("4x8")
    keeper = SpanKeeper([node.name for node in nodes])
    result = run(
        Trace(jobs=jobs, source="t", kind="test"), nodes, built_in("fifo"), observers=(keeper,)
    )
    spans = keeper.finish(1000.0)
    assert sorted((span.job, span.devices, span.start_s, span.end_s) for span in spans) == [
        (job, 8.0, start, start + 100.0)
        for job, start in ((0, 0.0), (0, 0.0), (1, 0.0), (1, 0.0), (2, 100.0), (2, 100.0))
    ]
    assert len({(span.node, span.start_s) for span in spans}) == 6
    held = sum((span.end_s - span.start_s) * span.devices for span in spans)
    assert held == sum(job.held_s * job.devices for job in result.jobs)


def test_what_is_still_held_at_the_end_is_kept() -> None:
    jobs = (TraceJob(id="long", submit_s=0.0, run_s=10_000.0, devices_per_task=8),)
    keeper = SpanKeeper(["n1"])
    run(
        Trace(jobs=jobs, source="t", kind="test"), read_cluster("1x8"), built_in("fifo"),
        until_s=500.0, observers=(keeper,),
    )  # fmt: skip
    assert [(span.start_s, span.end_s) for span in keeper.finish(500.0)] == [(0.0, 500.0)]


def test_spans_of_evicted_attempts_are_kept_apart() -> None:
    jobs = (
        TraceJob(id="long", submit_s=0.0, run_s=10_000.0, devices_per_task=8),
        TraceJob(id="short", submit_s=100.0, run_s=50.0, devices_per_task=8),
    )
    keeper = SpanKeeper(["n1"])
    result = run(
        Trace(jobs=jobs, source="t", kind="test"), read_cluster("1x8"), built_in("srtf"),
        observers=(keeper,),
    )  # fmt: skip
    spans = keeper.finish(20_000.0)
    assert [(span.job, span.start_s, span.end_s) for span in spans] == [
        (0, 0.0, 100.0), (1, 100.0, 150.0), (0, 150.0, 10_050.0),
    ]  # fmt: skip
    assert result.jobs[0].evictions == 1
