"""The smallest cluster for a wait, against workloads whose answer is known."""

from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.formats.cluster import read_cluster
from tercio.twin.fleet import size_fleet
from tercio.twin.policies import built_in
from tercio.twin.trace import Trace, TraceJob


def size(jobs, wait_s, **more):
    trace = Trace(jobs=tuple(jobs), source="t", kind="t")
    return size_fleet(
        trace, built_in("easy"), lambda n: read_cluster(f"{n}x8"), wait_s=wait_s, **more
    )


def jobs(count, *, at_s=0.0, run_s=100.0, devices=8, tasks=1):
    return [
        TraceJob(id=f"{at_s}/{i}", submit_s=at_s, run_s=run_s, devices_per_task=devices,
                 tasks=tasks)
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(("wait_s", "nodes"), [(0, 12), (100, 6), (200, 4), (1100, 1)])
def test_twelve_jobs_at_once_need_as_many_nodes_as_rounds_allow(wait_s, nodes):
    found = size(jobs(12), wait_s, quantile=1.0)
    assert found.best.nodes == nodes
    assert found.best.wait_s <= wait_s
    assert found.peak_devices == 96
    assert [row.nodes for row in found.tried] == sorted(row.nodes for row in found.tried)
    assert all(row.nodes > nodes for row in found.tried if row.is_enough and row != found.best)


def test_what_binds_is_said():
    assert "wait" in size(jobs(12), 100, quantile=1.0).binds
    large = [*jobs(1, tasks=5), *jobs(20, at_s=1000.0, devices=1, run_s=1.0)]
    found = size(large, 1e9)
    assert (found.best.nodes, found.best.never_fit) == (5, 0)
    assert found.binds == "the largest job: it asks for 40 devices at once"
    assert "nothing" in size(jobs(1), 0).binds


def test_the_quantile_leaves_the_rest_to_wait():
    rare = [
        TraceJob(id=str(i), submit_s=1e5 * i, run_s=1.0, devices_per_task=1) for i in range(95)
    ] + jobs(5, at_s=1e7, run_s=1000.0)
    assert size(rare, 0.0, quantile=0.95).best.nodes == 1
    assert size(rare, 0.0, quantile=1.0).best.nodes == 5


def test_a_task_wider_than_a_node_names_the_option():
    with pytest.raises(UserError, match="16 devices") as caught:
        size(jobs(1, devices=16), 0.0)
    assert caught.value.hint == "give --per-node 16"
