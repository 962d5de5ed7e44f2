"""What a site shares: refusals at submit, shares, topology, reservations, plans of a policy."""

from __future__ import annotations

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver
from tercio.core.history import changed
from tercio.core.plans import plan_job, plan_policy, what_if
from tercio.core.shares import queue_views
from tercio.core.topo import topology_view
from tercio.errors import UserError
from tercio.formats.devices import parse_devices
from tercio.model.commands import SetPolicy, SubmitJob
from tercio.model.events import (
    JobPlaced,
    JobWaited,
    NodeLost,
    NodeRemoved,
    NodeReported,
)
from tercio.model.ids import JobId, NodeName
from tercio.model.job import ArraySpec, Dependency, IndexRange, NodeFilter, TimeSpec
from tercio.model.queue import AcrossQueues
from tercio.model.topology import TopologyRequest
from tercio.testing import make_job, make_node, make_policy, make_queue

from .site import ADMIN, ANA, Site

H8 = {"H100": 8000}


def with_containers(site: Site, *names: str) -> None:
    """Report these nodes as running containers by podman, all others as running none."""
    for node in list(site.cluster.nodes.values()):
        labels = {**node.spec.labels, "containers": "podman" if node.name in names else "none"}
        spec = msgspec.structs.replace(node.spec, labels=labels)
        site.driver.step([NodeReported(at_s=site.now_s, spec=spec)], site.now_s)


def test_an_image_goes_only_where_containers_run():
    site = Site()
    with_containers(site, "n3")
    (event, *_) = site.do(SubmitJob(spec=make_job(image="python:3.11", devices=8)))
    assert [task.placement.node for task in site.cluster.jobs[event.job_id].tasks] == ["n3"]
    (second, *_) = site.do(SubmitJob(spec=make_job(image="python:3.11")))
    decision = site.driver.decisions[second.job_id]
    assert decision.outcome.value == "waiting"
    assert {row.by: row.nodes for row in decision.excluded}["constraint"] == 3


def test_an_image_goes_only_where_containers_run_after_an_equal_job_without_one():
    site = Site()
    with_containers(site, "n3")
    spec = make_job(devices=8, wait_for_capacity=True)
    (plain, *_) = site.do(SubmitJob(spec=spec))
    assert [task.placement.node for task in site.cluster.jobs[plain.job_id].tasks] == ["n1"]
    (event, *_) = site.do(SubmitJob(spec=msgspec.structs.replace(spec, image="python:3.11")))
    assert [task.placement.node for task in site.cluster.jobs[event.job_id].tasks] == ["n3"]
    (next_plain, *_) = site.do(SubmitJob(spec=spec))
    assert [task.placement.node for task in site.cluster.jobs[next_plain.job_id].tasks] == ["n2"]


def test_an_image_that_no_node_runs_is_refused_with_the_way_out():
    site = Site()
    with_containers(site)
    error = site.refused(SubmitJob(spec=make_job(image="python:3.11")))
    assert error.code == "never_fits"
    assert error.message == (
        "has an image, and no node runs containers: install docker, podman or apptainer there, "
        "or leave image out"
    )
    (event, *_) = site.do(SubmitJob(spec=make_job(image="a", wait_for_capacity=True)))
    assert site.driver.decisions[event.job_id].reason.value == "Constraint"
    # It starts once a node can.
    with_containers(site, "n1")
    assert site.cluster.jobs[event.job_id].state.value == "starting"


@pytest.mark.parametrize(
    ("fields", "words", "hint"),
    [
        ({"devices": 16}, "16 H100 on one node; the largest node has 8", "ask for 8 devices"),
        ({"type": "B200"}, "no node has B200; the cluster has H100, A100", "type H100"),
        ({"cpus": 500}, "no node is large enough", "--wait-for-capacity"),
        ({"type": "A100", "cpus": 9}, "no node is large enough", "--wait-for-capacity"),
        ({"nodes": NodeFilter(match="pool == 'x'")}, "allows 0 of 5 nodes", "--wait"),
        ({"sites": ("moon",)}, "no node of site moon", "--wait-for-capacity"),
    ],
)
def test_what_no_kind_of_node_could_hold_is_refused_at_submit(fields, words, hint):
    site = Site()
    error = site.refused(SubmitJob(spec=make_job(**fields)))
    assert error.code == "never_fits"
    assert words in error.message
    assert hint in error.hint
    waits = make_job(**fields, wait_for_capacity=True)
    (event, *_) = site.do(SubmitJob(spec=waits))
    assert site.driver.decisions[event.job_id].reason.value in (
        "NeverFits", "TypeUnavailable", "Constraint", "SiteUnavailable",
    )  # fmt: skip
    view = plan_job(site.driver, waits, ANA, site.now_s)
    assert view.outcome == "never"
    assert view.warnings == ("a submit is accepted, and waits until there is more capacity",)


def test_more_nodes_than_there_are_is_waited_for_and_the_shortage_is_named():
    site = Site()
    job_id = site.submit(tasks=9, devices=4)
    decision = site.driver.decisions[job_id]
    assert decision.reason.value == "NeverFits"
    assert "the whole cluster, empty, has room for 8" in decision.message
    site.submit(tasks=3, devices=8, topology=TopologyRequest(same="rack"))


def test_a_refusal_ends_when_such_a_node_comes_and_is_back_when_it_goes():
    site = Site()
    spec = make_job(devices=16)
    site.refused(SubmitJob(spec=spec))
    site.driver.step([NodeReported(at_s=site.now_s, spec=make_node("big", devices=16))], site.now_s)
    assert to_events(site.cluster, SubmitJob(spec=spec), ANA, site.now_s)
    site.driver.step([NodeRemoved(at_s=site.now_s, node=NodeName("big"))], site.now_s)
    site.refused(SubmitJob(spec=spec))


def test_a_node_that_is_down_still_counts_as_one_that_there_is():
    site = Site()
    for name in ("n1", "n2", "n3", "n4"):
        lost = NodeLost(at_s=site.now_s, node=NodeName(name), reason="gone")
        site.driver.step([lost], site.now_s)
    assert site.submit(devices=8)


def test_nothing_is_refused_before_any_node_has_reported():
    driver = Driver(Cluster())
    assert to_events(driver.cluster, SubmitJob(spec=make_job(devices=64)), ANA, 1.0)


def test_a_minimum_above_a_limit_of_queue_or_user_is_refused_with_the_limit():
    small = make_queue(limit=H8, user_limit={"devices": 4000})
    site = Site(make_policy({"default": make_queue(children={"small": small})}))
    error = site.refused(SubmitJob(spec=make_job(tasks=2, devices=8, queue="default/small")))
    assert error.code == "never_fits"
    assert "needs 16 H100 at once, but queue default/small may hold 8 H100" in error.message
    error = site.refused(SubmitJob(spec=make_job(devices=5, queue="default/small")))
    assert "user ana may hold 4 devices" in error.message
    assert site.submit(devices=4, queue="default/small")


def test_each_group_is_tried_by_itself():
    site = Site()
    (group,) = make_job(devices=8).groups
    named = [msgspec.structs.replace(group, name=name, tasks=20) for name in ("a", "b")]
    spec = msgspec.structs.replace(make_job(), groups=tuple(named))
    assert to_events(site.cluster, SubmitJob(spec=spec), ANA, site.now_s)


def test_one_alternative_that_fits_is_enough():
    site = Site()
    spec = make_job(tasks=3)
    (group,) = spec.groups
    several = msgspec.structs.replace(
        group.per_task, devices=parse_devices("B200:1 | H100:16 | A100:4")
    )
    groups = (msgspec.structs.replace(group, per_task=several),)
    spec = msgspec.structs.replace(spec, groups=groups)
    (event, *_) = site.do(SubmitJob(spec=spec))
    assert site.driver.decisions[event.job_id].reason.value == "NeverFits"


# A policy.


def test_guarantees_above_the_cluster_need_overcommit():
    site = Site()
    policy = make_policy({"default": make_queue(guarantee={"H100": 40_000})})
    error = site.refused(SetPolicy(policy=policy), ADMIN)
    assert "guarantees of 40 H100, but the cluster has 32 H100" in error.message
    assert "--overcommit" in error.hint
    site.do(SetPolicy(policy=msgspec.structs.replace(policy, overcommit=True)), ADMIN)
    # What is in force already is never refused again, only more of it is.
    site.do(SetPolicy(policy=msgspec.structs.replace(policy, half_life_s=60.0)), ADMIN)
    more = make_policy({"default": make_queue(guarantee={"H100": 41_000})})
    site.refused(SetPolicy(policy=more), ADMIN)


def test_devices_of_any_type_count_with_those_by_type():
    site = Site()
    queues = {
        "default": make_queue(guarantee={"devices": 30_000}),
        "b": make_queue(guarantee={"H100": 7000}),
    }
    assert "37 devices" in site.refused(SetPolicy(policy=make_policy(queues)), ADMIN).message


def test_a_plan_of_a_policy_names_who_stops_for_whom_and_the_shares():
    site = Site(make_policy({"a": make_queue(), "b": make_queue(limit=H8)}))
    held = [site.submit(devices=8, queue="a") for _ in range(4)]
    waits = site.submit(devices=8, queue="b")
    new = make_policy({"a": make_queue(preemptible=True), "b": make_queue(guarantee=H8)})
    before = site.cluster.state_hash()
    view = plan_policy(site.driver, new, site.now_s)
    # Under either policy `b` is owed what `a` holds: it happens anyway, and is no difference.
    assert (view.evicts, view.starts) == ((), ())
    firm = make_policy(
        {"a": make_queue(preemptible=False, guarantee={"H100": 32_000}), "b": make_queue()}
    )
    site2 = Site(firm)
    held = [site2.submit(devices=8, queue="a") for _ in range(4)]
    waits = site2.submit(devices=8, queue="b")
    before = site2.cluster.state_hash()
    view = plan_policy(site2.driver, new, site2.now_s)
    assert site2.cluster.state_hash() == before
    assert [row.job for row in view.evicts] == [held[-1]]
    assert view.evicts[0].for_job == waits
    assert [(row.job, row.when) for row in view.starts] == [(waits, "after evictions")]
    shares = {row.path: (row.before, row.after) for row in view.queues}
    assert shares["b"][0]["H100"] == 0
    assert shares["b"][1]["H100"] == 8
    made = site2.do(SetPolicy(policy=new), ADMIN)
    assert [e.job_id for e in made if type(e).__name__ == "JobEvicted"] == [held[-1]]


def test_a_plan_of_a_policy_that_strands_a_job_is_refused():
    site = Site(make_policy({"a": make_queue(), "b": make_queue()}))
    site.submit(queue="b")
    with pytest.raises(UserError, match="queue 'b' cannot go"):
        plan_policy(site.driver, make_policy({"a": make_queue()}), site.now_s)


def test_history_names_what_changed():
    old = make_policy({"a": make_queue(children={"x": make_queue()}), "b": make_queue()})
    new = make_policy(
        {"a": make_queue(weight=2, children={"x": make_queue(limit=H8)}), "c": make_queue()},
        max_overtake_s=1.0,
    )
    assert changed(old, new) == ("max_overtake", "a.weight", "a/x.limit", "-b", "+c")
    assert changed(old, old) == ()


# What-if.


@pytest.fixture
def full() -> tuple[Site, JobId]:
    site = Site(make_policy({"a": make_queue(), "b": make_queue(limit={"H100": 4000})}))
    for _ in range(3):
        site.submit(devices=8, queue="a", time=TimeSpec(limit_s=600))
    site.submit(devices=6, queue="a")
    waits = site.submit(devices=4, queue="a", time=TimeSpec(limit_s=60))
    return site, waits


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"gpus": "2"}, "now"),
        ({"gpus": "3"}, "later"),
        ({"gpus": "A100:4"}, "now"),
        ({"type": "A100"}, "now"),
        ({"gpus": "9"}, "never"),
        ({"gpus": "1", "tasks": "3"}, "later"),
        ({"gpus": "1", "tasks": "2", "topology": "node"}, "now"),
        ({"after": "job-00001"}, "now"),
        ({"queue": "b", "gpus": "2"}, "now"),
        ({"priority": "5"}, "later"),
        ({"time": "1h"}, "later"),
    ],
)
def test_what_if(full, changes, outcome):
    site, job_id = full
    before = site.cluster.state_hash()
    view = what_if(site.driver, site.cluster.jobs[job_id], changes, ANA, site.now_s)
    assert (view.outcome, view.decision.job, view.changes) == (outcome, job_id, changes)
    assert site.cluster.state_hash() == before
    if outcome == "later":
        assert view.decision.start is not None


def test_what_if_says_when_what_it_counts_as_ended_will_end(full):
    site, job_id = full
    view = what_if(site.driver, site.cluster.jobs[job_id], {"after": "job-00001"}, ANA, site.now_s)
    assert view.warnings == (
        "counted as ended: job-00001; its time limit ends it in 9m56s at the latest",
    )


@pytest.mark.parametrize(
    ("changes", "words", "hint"),
    [
        ({}, "no change", "gpus=4"),
        ({"gpu": "4"}, "'gpu' is not a change", "gpus"),
        ({"tasks": "0"}, "'0' is not a whole number", "tasks="),
        ({"gpus": "H100:x"}, "gpus", "H100"),
        ({"type": "H100:4|A100"}, "not one device type", "type=A100"),
        ({"topology": "rak"}, "'rak' is no level", "rack"),
        ({"queue": "aa"}, "no queue 'aa'", "did you mean 'a'"),
        ({"after": "job-00099"}, "there is no such job", "job-0000"),
        ({"priority": "high"}, "'high'", "priority="),
    ],
)
def test_a_change_that_makes_no_sense_is_named(full, changes, words, hint):
    site, job_id = full
    with pytest.raises(UserError) as caught:
        what_if(site.driver, site.cluster.jobs[job_id], changes, ANA, site.now_s)
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_a_running_job_has_no_what_if(full):
    site, _ = full
    job = site.cluster.jobs[JobId("job-00001")]
    with pytest.raises(UserError, match="is running") as caught:
        what_if(site.driver, job, {"gpus": "1"}, ANA, site.now_s)
    assert caught.value.code == "conflict"


def test_what_if_lifts_a_dependency_on_the_job_that_counts_as_ended(full):
    site, _ = full
    job_id = site.submit(queue="a", depends_on=(Dependency(job=JobId("job-00002")),))
    job = site.cluster.jobs[job_id]
    view = what_if(site.driver, job, {"after": "job-00002"}, ANA, site.now_s)
    assert view.outcome == "now"


def test_a_plan_beyond_the_reservation_depth_has_an_estimate(full):
    site, _ = full
    spec = make_job(devices=8, queue="a")
    view = plan_job(site.driver, spec, ANA, site.now_s)
    assert view.outcome == "later"
    assert view.decision.start is not None
    assert view.decision.start.at_s > site.now_s


# Shares and topology.


def test_shares_add_up_over_the_tree():
    children = {"x": make_queue(guarantee=H8), "y": make_queue()}
    queues = {
        "a": make_queue(guarantee={"H100": 16_000}, children=children),
        "b": make_queue(guarantee={"H100": 16_000}),
    }
    site = Site(make_policy(queues))
    for _ in range(3):
        site.submit(devices=8, queue="a/y")
    site.submit(tasks=2, devices=8, queue="a/x", topology=TopologyRequest(same="rack"))
    views = {view.path: view for view in queue_views(site.driver, site.now_s)}
    assert views["a"].used == {"H100": 24.0}
    assert views["a"].borrowed == {"H100": 8.0}
    assert views["a/y"].borrowed == {"H100": 24.0}
    assert views["a/x"].borrowed == {}
    # 16 of `b` lie idle and 8 devices are free: 8 of them are lent.
    assert views["b"].lent == {"H100": 8.0}
    assert views["a"].lent == {}
    assert (views["a"].waiting, views["a"].wanted) == (1, {"H100": 16.0})
    assert views["a"].entitled["H100"] == 32.0
    assert views["b"].entitled["H100"] == 0.0
    assert views["a"].entitled["H100"] == sum(
        views[path].entitled["H100"] for path in ("a/x", "a/y")
    )
    assert (views["a"].running, views["a/y"].running) == (3, 3)


def test_topology_counts_whole_free_devices_and_the_largest_gang_of_each_level():
    site = Site()
    site.submit(devices=4, nodes=NodeFilter(exclude=("n2", "n3", "n4", "a1")))
    site.submit(devices=0.5, nodes=NodeFilter(exclude=("n1", "n2", "n4", "a1")))
    view = topology_view(site.driver)
    rows = {(row.level, row.name): row for row in view.rows}
    assert view.levels == ("site", "rack", "node")
    assert view.per_task == {"H100": 8, "A100": 4}
    assert rows["rack", "r1"].free == {"H100": 12.0}
    assert rows["rack", "r2"].free == {"H100": 15.0}
    assert rows["rack", "r2"].fits == {"H100": 1}
    assert rows["site", "sim"].fits == {"H100": 2, "A100": 1}
    largest = {(g.level, g.type): (g.tasks, g.domain) for g in view.largest}
    assert largest["rack", "H100"] == (1, "r1")
    assert ("rack", "A100") not in largest
    assert largest["node", "A100"] == (1, "a1")
    assert {r.level for r in topology_view(site.driver, devices=2, has_nodes=False).rows} == {
        "site", "rack",
    }  # fmt: skip
    twos = {g.level: g.tasks for g in topology_view(site.driver, devices=2).largest
            if g.type == "H100"}  # fmt: skip
    assert twos == {"site": 13, "rack": 7, "node": 4}


@pytest.mark.parametrize(("devices", "level"), [(8, "rack"), (4, "rack"), (2, "node"), (4, "site")])
def test_the_largest_gang_fits_and_one_more_task_does_not(devices, level):
    site = Site()
    site.submit(devices=3, nodes=NodeFilter(exclude=("n2", "n3", "n4", "a1")))
    view = topology_view(site.driver, devices=devices)
    (most,) = [g.tasks for g in view.largest if (g.level, g.type) == (level, "H100")]
    for tasks, outcome in ((most, {"now"}), (most + 1, {"later", "never"})):
        spec = make_job(
            tasks=tasks, devices=devices, cpus=None, memory_gib=None,
            topology=TopologyRequest(same=level),
        )  # fmt: skip
        assert plan_job(site.driver, spec, ANA, site.now_s).outcome in outcome


def test_a_node_that_takes_no_work_has_nothing_free():
    site = Site()
    lost = NodeLost(at_s=site.now_s, node=NodeName("n1"), reason="gone")
    site.driver.step([lost], site.now_s)
    rows = {row.name: row for row in topology_view(site.driver).rows}
    assert (rows["r1"].nodes, rows["r1"].up, rows["r1"].free["H100"]) == (2, 1, 8.0)


def test_a_guarantee_by_shape_is_planned_and_shown():
    reclaim = {"across_queues": AcrossQueues.RECLAIM}
    site = Site(make_policy({"lab": make_queue(), "prod": make_queue()}, **reclaim))
    for _ in range(4):
        site.submit(devices=8, queue="lab")
    site.submit(tasks=2, devices=8, queue="prod", priority=1)
    shaped = make_queue(guarantee_shape={"node": 3})
    policy = make_policy({"lab": make_queue(weight=9), "prod": shaped}, **reclaim)
    view = plan_policy(site.driver, policy, site.now_s)
    assert [row.queue for row in view.evicts] == ["lab", "lab"]
    site.do(SetPolicy(policy=policy), ADMIN)
    prod = next(row for row in queue_views(site.driver, site.now_s) if row.path == "prod")
    assert (prod.guarantee, prod.guarantee_shape) == ({}, {"node": 3})


def test_the_elements_that_start_at_once_count_in_the_reason_of_the_others() -> None:
    array = ArraySpec(ranges=(IndexRange(start=0, stop=6),), concurrency=2)
    made = Site().do(SubmitJob(spec=make_job(array=array)))
    assert sum(isinstance(event, JobPlaced) for event in made) == 2
    assert [event.message for event in made if isinstance(event, JobWaited)] == [
        "its array runs at most 2 at once; 2 run"
    ]
