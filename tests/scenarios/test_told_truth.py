"""Reasons and changes that a search by brute force once found untrue."""

import msgspec
from play import USUAL, play

from tercio.model.job import JobSpec
from tercio.model.limits import Limits, OwnerLimit
from tercio.model.node import NodeState
from tercio.model.queue import Policy, QueueOrder, QueueSpec
from tercio.model.reservation import Reservation
from tercio.model.topology import TopologyRequest
from tercio.testing import rules
from tercio.testing.build import cluster, gang, group, node
from tercio.testing.rounds import Rounds


def pair(first: str, second: str, same: str | None = None) -> JobSpec:
    """Two groups, all in one domain of a level if asked."""
    topology = TopologyRequest(same=same) if same else None
    groups = (group(first, name="a"), group(second, name="b"))
    return JobSpec(name="j", groups=groups, topology=topology)


def test_a_domain_with_room_for_both_groups_is_tried_after_one_with_room_for_each():
    nodes = [node("n1", 2, labels={"rack": "r1"}), node("n2", 4, labels={"rack": "r2"})]
    r = Rounds(nodes, Policy(half_life_s=0.0), checks=rules.ALL)
    r.start("j", pair("1x2", "1x0.5", same="rack"))
    assert set(r.where("j")) == {"n2"}


def test_a_group_that_must_stand_in_a_rack_is_placed_before_one_that_may_stand_anywhere():
    nodes = [node("n1", 1, labels={"rack": "r1"}), node("n2", 2)]
    r = Rounds(nodes, Policy(half_life_s=0.0), checks=rules.ALL)
    spec = pair("1x1", "2x0.5")
    racked = msgspec.structs.replace(spec.groups[1], topology=TopologyRequest(same="rack"))
    r.start("j", msgspec.structs.replace(spec, groups=(spec.groups[0], racked)))
    assert r.where("j") == ["n2", "n1", "n1"]


def test_groups_that_fit_together_but_for_a_reservation_are_told_of_it():
    nodes = [node("n1", 4, labels={"rack": "r1"}), node("n2", 2, labels={"rack": "r2"})]
    r = Rounds(nodes, Policy(half_life_s=0.0), checks=rules.ALL)
    r.set_reservation(
        "w", Reservation(name="w", from_s=100.0, duration_s=50.0, user="ben", devices=3)
    )
    r.submit("j", pair("1x2", "1x2", same="rack"))
    r.settle()
    assert r.reason("j") == "Reserved"
    assert "reservation w begins at" in r.why("j").message


def test_a_place_is_cleared_for_groups_of_which_the_larger_must_come_first():
    nodes = [node("n1", 4, labels={"rack": "r1"}), node("n2", 2, labels={"rack": "r2"})]
    policy = Policy(half_life_s=0.0, preemption=USUAL)
    r = Rounds(nodes, policy, checks=rules.ALL)
    r.start("low", gang("1x2"), on=("n1",))
    r.submit("high", pair("1x2", "1x3"), priority=10)
    r.settle()
    assert "high" in r.running
    assert r.evicted() == ["low"]


def test_whoever_is_too_wide_for_what_is_up_of_a_rack_is_told_of_the_node_that_is_down():
    nodes = [node(f"n{at}", 2, labels={"rack": "r1" if at < 3 else "r2"}) for at in (1, 2, 3)]
    r = Rounds(nodes, Policy(half_life_s=0.0), checks=rules.ALL)
    r.set_state("n2", NodeState.CORDONED, cordon=True)
    r.submit("j", gang("2x2", same="rack"))
    r.settle()
    assert r.reason("j") == "Health"
    assert "n2 (cordoned)" in r.why("j").message


def test_no_change_is_named_that_a_limit_on_running_jobs_forbids():
    limits = Limits(per_user=OwnerLimit(amounts={"devices": 4000, "running_jobs": 1}))
    policy = Policy(half_life_s=0.0, limits=limits)
    r = Rounds(cluster("2n x 8g"), policy, checks=rules.ALL)
    r.start("one", gang("1x2"))
    r.submit("two", gang("3x1"))
    r.settle()
    change = r.why("two").change
    assert change is not None
    assert change.what != "tasks"


def test_no_change_is_named_with_which_whole_nodes_would_pass_a_limit():
    limits = Limits(per_user=OwnerLimit(amounts={"devices": 3000}))
    policy = Policy(half_life_s=0.0, limits=limits)
    r = Rounds(cluster("2n x 4g"), policy, checks=rules.ALL)
    r.submit("j", gang("2x1", exclusive=True))
    r.settle()
    change = r.why("j").change
    assert change is None or change.what != "tasks"


def test_no_type_is_named_where_a_strict_head_comes_first():
    queues = {"default": QueueSpec(order=QueueOrder.STRICT)}
    nodes = [*cluster("1n x 4g"), *cluster("1n x 4g", first=2, device_type="A100")]
    r = Rounds(nodes, Policy(half_life_s=0.0, queues=queues), checks=rules.ALL)  # type: ignore[arg-type]
    r.start("one", gang("1x2", device_type="A100"))
    r.start("two", gang("1x4"))
    r.submit("head", gang("1x4", device_type="A100"))
    r.submit("next", gang("1x2"))
    r.settle()
    assert r.reason("next") == "NoFreeDevices"
    change = r.why("next").change
    assert change is None or change.what != "type"


def test_a_shorter_time_limit_is_named_where_it_starts_the_job():
    r = play("""
    cluster 2r x 1n x 4g
    0 reserve W A 6 from=100 for=50
    0 submit J default 2x4
    0 expect J waits Reserved
    """)
    change = r.why("J").change
    assert change is not None
    job = r.waiting["J"]  # type: ignore[index]
    shorter = msgspec.structs.replace(job.spec.time, limit_s=float(change.to))
    r.cancel("J")
    r.submit("K", msgspec.structs.replace(job.spec, time=shorter))
    r.settle()
    assert "K" in r.running


def test_what_wants_no_device_is_not_told_that_no_device_would_fit():
    r = Rounds([node("n1", 2)], Policy(half_life_s=0.0), checks=rules.ALL)
    r.set_reservation("w", Reservation(name="w", from_s=60.0, duration_s=30.0, nodes=("n1",)))
    r.submit("one", gang("1x0"))
    r.submit("two", gang("2x0"))
    r.settle()
    assert r.reason("one") == r.reason("two") == "Reserved"
    assert r.why("one").message.startswith("a task without devices would fit, but reservation w")
    assert r.why("two").message.startswith("2 tasks without devices would fit, but reservation w")
