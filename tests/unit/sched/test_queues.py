"""Limits, entitlement and order."""

from fractions import Fraction

import pytest

from tercio.model.ids import QueuePath
from tercio.model.queue import Policy, PreemptionPolicy, QueueOrder, QueueSpec
from tercio.model.reasons import Change
from tercio.sched.fairshare import QueueTree
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds


def policy(**queues: QueueSpec) -> Policy:
    return Policy(half_life_s=0.0, queues=queues, preemption=PreemptionPolicy(grace_s=0.0))


def g(devices: float) -> dict[str, int]:
    return {"devices": round(devices * 1000)}


def rounds(nodes: str, p: Policy) -> Rounds:
    return Rounds(cluster(nodes), p, checks=rules.ALL)


def entitled(p: Policy, demand: dict[str, float], capacity: float) -> dict[str, float]:
    tree = QueueTree(p)
    for path, amount in demand.items():
        tree.at(QueuePath(path)).want(g(amount), +1)
    tree.entitle(g(capacity))
    return {
        str(n.path): float(n.entitlement.get("devices", Fraction(-1000)) / 1000)
        for n in tree.nodes()
    }


def test_entitlement_is_guarantee_then_weight_up_to_demand():
    p = policy(a=QueueSpec(guarantee=g(3)), b=QueueSpec(guarantee=g(3)), be=QueueSpec())
    assert entitled(p, {"a": 6, "be": 1}, 6) == {"a": 5, "b": 0, "be": 1}


def test_weights_share_exactly():
    p = policy(a=QueueSpec(weight=1), b=QueueSpec(weight=2), c=QueueSpec(weight=0))
    assert entitled(p, {"a": 9, "b": 9, "c": 9}, 9) == {"a": 3, "b": 6, "c": 0}
    assert entitled(p, {"a": 2, "b": 3, "c": 9}, 9) == {"a": 2, "b": 3, "c": 4}


def test_entitlement_runs_down_the_tree():
    p = policy(
        a=QueueSpec(guarantee=g(8), children={"x": QueueSpec(guarantee=g(6)), "y": QueueSpec()}),
        b=QueueSpec(),
    )
    found = entitled(p, {"a/x": 10, "a/y": 10, "b": 10}, 12)
    assert found == {"a": 10, "a/x": 8, "a/y": 2, "b": 2}


def test_lost_nodes_shrink_guarantees_in_proportion():
    p = policy(a=QueueSpec(guarantee=g(6)), b=QueueSpec(guarantee=g(3)))
    assert entitled(p, {"a": 9, "b": 9}, 6) == {"a": 4, "b": 2}


def test_queue_at_its_limit():
    r = rounds("1n x 16g", policy(default=QueueSpec(limit=g(8))))
    r.submit("a", gang("1x8"))
    r.submit("b", gang("1x1"))
    r.cycle()
    assert r.reason("b") == "QueueLimit"
    assert "queue default may hold 8 devices and holds 8 devices" in r.why("b").message
    assert r.why("b").change.what == "after"  # type: ignore[union-attr]


def test_a_higher_limit_is_said_to_start_the_job_only_where_there_is_room():
    r = rounds("1n x 16g", policy(default=QueueSpec(limit=g(8))))
    for number in range(8):
        r.submit(f"small{number}", gang("1x1"))
    r.cycle()
    r.submit("wide", gang("1x4"))
    r.cycle()
    assert r.why("wide").change == Change(what="limit", to="12 devices", starts="now")

    r = rounds("2n x 4g", policy(default=QueueSpec(limit=g(3)), other=QueueSpec()))
    for name in ("o1", "o2"):
        r.submit(name, gang("1x3"), queue="other")
    for name in ("a", "b"):
        r.submit(name, gang("1x1"))
    r.cycle()
    r.submit("c", gang("1x2"))
    r.cycle()
    assert r.reason("c") == "QueueLimit"
    assert r.why("c").change == Change(what="limit", to="4 devices", starts="later")


def test_limit_of_an_ancestor_and_of_a_type():
    p = policy(team=QueueSpec(limit={"H100": 4000}, children={"x": QueueSpec(), "y": QueueSpec()}))
    r = rounds("1n x 8g", p)
    r.submit("a", gang("1x3"), queue="team/x")
    r.submit("b", gang("1x2"), queue="team/y")
    r.cycle()
    assert "queue team may hold 4 H100 and holds 3 H100" in r.why("b").message


def test_gang_larger_than_its_queue_never_fits():
    r = rounds("2n x 8g", policy(default=QueueSpec(limit=g(8))))
    r.submit("a", gang("2x8"))
    r.cycle()
    assert r.reason("a") == "NeverFits"
    assert r.why("a").message == ("needs 16 devices at once, but queue default may hold 8 devices")
    assert (r.why("a").change.what, r.why("a").change.to) == ("tasks", 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [{"devices": 4000}, {"running_jobs": 1}])
def test_user_limit_binds_one_user_only(limit: dict[str, int]):
    r = rounds("1n x 16g", policy(default=QueueSpec(user_limit=limit)))
    r.submit("a", gang("1x3"), user="ana")
    r.submit("b", gang("1x3"), user="ana")
    r.submit("c", gang("1x3"), user="ben")
    r.cycle()
    assert (r.reason("b"), r.reason("c")) == ("UserLimit", "Running")


def test_borrow_limit():
    p = policy(a=QueueSpec(guarantee=g(2), borrow_limit=g(2)), b=QueueSpec(guarantee=g(6)))
    r = rounds("1n x 8g", p)
    r.submit("a1", gang("1x4"), queue="a")
    r.submit("a2", gang("1x1"), queue="a")
    r.cycle()
    assert (r.reason("a1"), r.reason("a2")) == ("Running", "QueueLimit")


def test_lend_limit_keeps_devices_free():
    p = policy(a=QueueSpec(guarantee=g(4), lend_limit=g(1)), b=QueueSpec())
    r = rounds("1n x 8g", p)
    r.submit("b1", gang("1x5"), queue="b")
    r.submit("b2", gang("1x1"), queue="b")
    r.cycle()
    assert (r.reason("b1"), r.reason("b2")) == ("Running", "WaitingForShare")
    assert "kept for queue a" in r.why("b2").message
    r.submit("a1", gang("1x3"), queue="a")
    r.cycle()
    assert r.reason("a1") == "Running"


def test_non_preemptible_work_stays_inside_the_guarantee():
    p = policy(a=QueueSpec(guarantee=g(1)))
    r = rounds("1n x 2g", p)
    r.submit("a", gang("2x0.6"), queue="a", preemptible=False)
    r.cycle()
    assert r.reason("a") == "WaitingForShare"
    assert "may not be evicted" in r.why("a").message


def test_the_queue_inside_its_guarantee_goes_first_then_the_smaller_share():
    p = policy(a=QueueSpec(guarantee=g(2)), b=QueueSpec(), c=QueueSpec(weight=3))
    r = rounds("1n x 8g", p)
    for at in range(8):
        for queue in "bca":
            r.submit(f"{queue}{at}", gang("1x1"), queue=queue)
    r.cycle()
    running = [str(job)[0] for job in r.running]
    assert running[:2] == ["a", "a"]
    assert sorted(running) == list("aaabcccc")


def test_priority_then_age_inside_a_queue_and_position_says_so():
    r = rounds("1n x 1g", policy(default=QueueSpec()))
    r.submit("run", gang("1x1"), preemptible=False)
    r.cycle()
    r.submit("low", gang("1x1"), priority=-1)
    r.submit("mid", gang("1x1"))
    r.submit("high", gang("1x1"), priority=5)
    r.cycle()
    assert [r.why(j).position for j in ("high", "mid", "low")] == [1, 2, 3]
    r.finish("run")
    r.cycle()
    assert r.reason("high") == "Running"


def test_a_position_counts_those_that_want_the_same_nodes():
    r = rounds("2n x 1g", policy(default=QueueSpec()))
    r.submit("run", gang("2x1"), preemptible=False)
    r.cycle()
    for at in range(3):
        r.submit(f"left{at}", gang("1x1", match="name == 'n1'"))
    r.submit("right", gang("1x1", match="name == 'n2'"))
    r.submit("both", gang("1x1"))
    r.cycle()
    assert [r.why(j).position for j in ("left0", "left2", "right", "both")] == [1, 3, 1, 2]


def test_strict_order_holds_per_pool_and_only_in_its_queue():
    p = policy(s=QueueSpec(order=QueueOrder.STRICT), o=QueueSpec())
    nodes = cluster("1n x 8g") + cluster("1n x 8g", device_type="A100", first=2)
    r = Rounds(nodes, p, checks=rules.ALL)
    r.start("busy", gang("1x4"), queue="s", preemptible=False)
    r.submit("first", gang("1x8"), queue="s")
    r.submit("second", gang("1x4", device_type="A100"), queue="s")
    r.submit("third", gang("1x4"), queue="s")
    r.submit("other", gang("1x4"), queue="o")
    r.cycle()
    assert r.reason("second") == "Running"
    assert r.reason("third") == "Order"
    assert "behind first" in r.why("third").message
    assert r.reason("other") == "Running"


def test_depth_zero_is_first_come_first_served():
    p = Policy(half_life_s=0.0, reservation_depth=0)
    r = rounds("1n x 8g", p)
    r.submit("a", gang("1x6"), preemptible=False)
    r.submit("b", gang("1x4"))
    r.submit("c", gang("1x1"))
    r.cycle()
    assert (r.reason("b"), r.reason("c")) == ("NoFreeDevices", "Order")


def test_jobs_of_an_inner_queue_stand_beside_its_children():
    p = policy(team=QueueSpec(children={"x": QueueSpec()}))
    r = rounds("1n x 4g", p)
    for at in range(4):
        r.submit(f"own{at}", gang("1x1"), queue="team")
        r.submit(f"x{at}", gang("1x1"), queue="team/x")
    r.cycle()
    assert sorted(str(job) for job in r.running) == ["own0", "own1", "x0", "x1"]


def test_decayed_use_orders_queues_that_are_equal_otherwise():
    r = rounds("1n x 1g", policy(a=QueueSpec(), b=QueueSpec()))
    r.decayed_use = {QueuePath("a"): 100.0, QueuePath("b"): 1.0}
    r.submit("a1", gang("1x1"), queue="a")
    r.submit("b1", gang("1x1"), queue="b")
    r.cycle()
    assert r.reason("b1") == "Running"


def test_the_next_job_of_an_inner_queue_speaks_for_it_whatever_was_submitted_first():
    p = policy(
        lab=QueueSpec(guarantee=g(1), children={"deep": QueueSpec()}),
        prod=QueueSpec(guarantee=g(1)),
    )
    r = rounds("1n x 1g", p)
    r.decayed_use = {QueuePath("prod"): 100.0}
    r.submit("large", gang("4x1"), queue="lab/deep")
    r.submit("other", gang("1x1"), queue="prod")
    r.submit("own", gang("1x1"), queue="lab")
    r.cycle()
    assert r.reason("own") == "Running"
