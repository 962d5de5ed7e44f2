"""Preemption loops, and wrong or wasteful victims (groups A and B of users' reports)."""

import msgspec
import pytest
from play import USUAL, play

from tercio.model.queue import Policy, PowerBudget
from tercio.testing import rules
from tercio.testing.build import gang, node
from tercio.testing.rounds import Rounds


def test_a1_fair_share_victim_does_not_come_back():
    """kueue#3779. A would pass its entitlement of 5, so fairness forbids it to take from BE."""
    play("""
    cluster 1n x 6g
    queue A 3/-/1
    queue B 3/-/1
    queue BE 0/-/1
    0 run A1 A 1x5 p100
    1 run BE1 BE 1x1 p-100
    2 submit A2 A 1x1 p100
    2 expect A2 waits WaitingForShare
    2 expect evicted none
    2 says A2 "its share now is 5 devices"
    """)


def test_a1_across_queues_by_priority():
    play("""
    cluster 1n x 6g
    policy across=priority
    queue A 3/-/1
    queue B 3/-/1
    queue BE 0/-/1
    0 run A1 A 1x5 p100
    1 run BE1 BE 1x1 p-100
    2 submit A2 A 1x1 p100
    2 expect A2 running
    2 expect evicted BE1
    9 expect BE1 waits NoFreeDevices
    """)


def test_a2_capacity_freed_early_stays_reserved():
    """kueue#13662. The first victim to die does not take its devices back."""
    play("""
    cluster 1n x 8g
    queue Q1 8/-/1
    queue Q2 0/-/1
    0 run W1 Q2 1x4 p100 dies=5
    1 run W2 Q2 1x4 p100 dies=60
    2 submit P Q1 1x8
    2 expect P waits Preempting
    2 says P "waits for W1, W2 to stop"
    2 expect evicted W1,W2
    10 expect W1 waits Reserved
    10 says P "waits for W2 to stop"
    62 expect P started 62
    62 expect P label reserved
    99 expect evicted W1,W2
    """)


def test_a2_a_victim_that_never_dies_releases_the_promise():
    play("""
    cluster 1n x 8g
    queue Q1 8/-/1
    queue Q2 0/-/1
    0 run W1 Q2 1x4 dies=5
    1 run W2 Q2 1x4 dies=never
    2 submit P Q1 1x8
    10 expect W1 waits Reserved
    700 expect W1 running        # what was kept for P is released
    700 expect P waits NoFreeDevices
    700 expect evicted W1,W2
    """)


def test_a4_legality_is_checked_on_the_final_set():
    """kueue#14543. Exactly five devices, all of the winner's own queue."""
    play("""
    cluster 1n x 14g
    queue X 0/-/1
    queue Y 0/-/1
    0 run x1 X 1x4 p10
    0 run x2 X 1x1 p50
    0 run y1 Y 1x5
    0 run y2 Y 1x4
    1 submit xh X 1x5 p100
    1 expect evicted x1,x2
    1 expect xh running
    1 expect x1 waits WaitingForShare
    1 says x1 "queue X holds 5 devices and its share now is 7 devices"
    1 expect x2 waits NoFreeDevices
    9 expect y1,y2 running
    20 end y1
    20 expect x1,x2 running
    """)


def test_a5_equal_share_gangs():
    """kueue#7101. Only a gang that ends inside the fair half may take back."""
    play("""
    cluster 8n x 1g
    queue P1 0/-/1
    queue P2 0/-/1
    0 run a P1 2x1
    1 run b P1 2x1
    2 run c P1 2x1
    3 run d P1 2x1
    4 submit G6 P2 6x1
    5 submit G5 P2 5x1
    5 expect G6,G5 waits WaitingForShare
    6 submit G4 P2 4x1
    6 expect G4 running
    6 expect evicted 2
    7 submit G3 P2 3x1
    9 expect G3,G5,G6 waits WaitingForShare
    9 expect evicted 2
    """)


def test_a5_without_the_gang_of_four():
    play("""
    cluster 8n x 1g
    queue P1 0/-/1
    queue P2 0/-/1
    0 run a P1 2x1
    1 run b P1 2x1
    2 run c P1 2x1
    3 run d P1 2x1
    4 submit G6 P2 6x1
    5 submit G5 P2 5x1
    6 submit G3 P2 3x1
    6 expect G3 running
    9 expect evicted 2
    """)


def test_a7_equal_jobs_never_evict_each_other():
    """volcano#377."""
    jobs = "\n".join(f"0 submit j{at} default 1x1 runs=60" for at in range(24))
    r = play(f"""
    cluster 12n x 1g
    {jobs}
    30 expect j12,j23 waits NoFreeDevices
    130 expect evicted none
    """)
    assert [r.started_s(f"j{at}") for at in range(24)] == [0.0] * 12 + [60.0] * 12
    assert not r.waiting


def test_a9_outside_work_takes_the_freed_slot():
    """kubernetes#130429. No storm of evictions: the promise waits, and says why."""
    play("""
    cluster 1n x 1g
    0 run V default 1x1 p-100 dies=1
    1 submit P default 1x1 p100
    1 expect evicted V
    1.5 foreign n1 0
    3 expect P waits Preempting
    3 says P "taken by outside work"
    900 expect evicted V
    901 foreign n1
    901 expect P running
    """)


def test_b1_domain_first_then_victims():
    """kueue#10815. Three jobs of one rack, the youngest; never two that free no rack."""
    play("""
    cluster 2r x 4n x 4g
    queue L 0/-/1
    queue H 32/-/1
    0 run L1 L 1x4 on=n1
    1 run L4 L 1x4 on=n5
    2 run L2 L 1x4 on=n2
    3 run L5 L 1x4 on=n6
    4 run L3 L 1x4 on=n3
    5 run L6 L 1x4 on=n7
    6 submit H1 H 4x4 same=rack
    6 expect H1 running on=n5,n6,n7,n8
    9 expect evicted L4,L5,L6
    9 expect L5,L6 waits WaitingForShare
    """)


def test_b2_a_fully_packed_domain_is_considered():
    """KAI#1591. One clique drained, the other untouched."""
    jobs = "\n".join(f"0 run v{at} default 1x1 p-100" for at in range(16))
    r = play(f"""
    cluster 2r x 2n x 4g
    {jobs}
    1 submit H default 2x4 p100 same=rack
    1 expect H running
    5 expect evicted 8
    """)
    assert len(set(r.where("H"))) == 2
    out = sorted(r.evicted())
    assert {r.reason(job) for job in out} == {"NoFreeDevices"}
    r.finish("H")
    r.settle()
    assert not r.waiting


def test_b3_every_node_is_drained_in_one_decision():
    jobs = "\n".join(f"0 run v{at} default 1x1" for at in range(44))
    play(f"""
    cluster 11n x 4g
    {jobs}
    1 submit G default 11x4 p100
    1 expect G running
    1 expect evicted 44
    1 expect v0,v43 waits NoFreeDevices
    """)


@pytest.mark.parametrize("queue", ["default", "other"])
def test_b5_one_surplus_task_is_enough(queue: str):
    """volcano#5984, #5994."""
    r = play(f"""
    cluster 1n x 11g
    queue default 0/-/1
    queue other 4/-/1
    0 run V default 1x1 p10 max=11
    0 expect V tasks 11
    1 submit P {queue} 1x1 p100
    1 expect P running
    1 expect V tasks 10
    9 expect V tasks 10
    9 end P
    9 expect V tasks 11
    """)
    assert len(r.evicted()) == 1


def test_b6_a_task_without_devices_holds_the_slot():
    """kueue#10497."""
    play("""
    cluster 1n x 8g slots=2
    0 run g default 1x8 p-100
    0 run c default 1x0 p-100
    1 submit H default 2x4 p100
    1 expect H running
    1 expect evicted g,c
    1 expect g waits NoFreeDevices
    1 expect c waits NodeSlots
    1 says c "n1 has 0 of 2 task slots free"
    """)


def test_b7_two_heads_share_one_victim():
    """kueue#6581, #6165, #13863."""
    play("""
    cluster 1n x 8g
    queue Borrow 0/-/1
    queue P1 4/-/1
    queue P2 4/-/1
    0 run B Borrow 1x8
    1 submit a P1 1x4
    1 submit b P2 1x4
    1 expect a,b running
    1 expect evicted B
    1 expect B waits WaitingForShare
    """)


def test_b7_a_large_job_is_not_starved_by_small_ones():
    """kueue#13320. The large job gets its own victims although small ones keep coming."""
    small = "\n".join(f"{at} submit s{at} P1 1x1 runs=3" for at in range(2, 30))
    play(f"""
    cluster 1n x 8g
    queue Borrow 0/-/1
    queue P1 2/-/1
    queue P2 6/-/1
    0 run B1 Borrow 1x4
    0 run B2 Borrow 1x4
    1 submit big P2 1x6
    {small}
    31 expect big running
    """)


def test_b10_a_job_that_cannot_be_placed_evicts_nobody():
    """volcano#4925, #3673."""
    play("""
    cluster 2n x 8g
    0 run low default 1x8 p-100 on=n1
    0 run firm default 1x8 firm on=n2
    1 submit high default 1x8 p100 match="name=='n2'"
    1 expect high waits NoFreeDevices
    1 expect evicted none
    """)


def test_what_was_freed_for_one_is_not_for_another_whose_own_comes_later():
    """P was first, and waits for V; what W gives back sooner is Q's all the same."""
    play("""
    cluster 1n x 1g
    cluster 1n x 2g
    0 run V default 1x1 on=n1 dies=60
    0 run W default 1x2 on=n2 dies=5
    1 submit P default 1x1 p100
    2 submit Q default 1x2 p100
    2 expect evicted V,W
    9 expect Q started 7
    70 expect P started 61
    99 expect evicted V,W
    """)


def _one_rack(limit_w: int, *types: str, grace_s: float = 0.0) -> Rounds:
    """Nodes of two devices of 700 W each, by type, in a rack with a budget."""
    nodes = []
    for at, device_type in enumerate(types):
        found = node(f"n{at + 1}", 2, device_type=device_type, labels={"rack": "r1"})
        drawing = tuple(msgspec.structs.replace(d, power_w=700) for d in found.spec.devices)
        spec = msgspec.structs.replace(found.spec, devices=drawing)
        nodes.append(msgspec.structs.replace(found, spec=spec))
    policy = Policy(
        half_life_s=0.0,
        preemption=msgspec.structs.replace(USUAL, grace_s=grace_s),
        budgets=(PowerBudget(domain="r1", power_w=limit_w),),
    )
    return Rounds(nodes, policy, checks=rules.ALL)


def test_nobody_is_stopped_for_a_start_that_power_forbids():
    r = _one_rack(2240, "H100", "H100")
    r.start("other", gang("1x2"), on=("n1",), priority=10)
    r.start("small", gang("1x1"), on=("n2",))
    r.submit("big", gang("1x2"), priority=10)
    r.settle()
    assert r.evicted() == []
    assert "small" in r.running
    assert r.reason("big") == "NoFreeDevices"


def test_victims_are_those_that_power_needs_too():
    """One of them would do for the devices, and another has to go for its power."""
    r = _one_rack(2240, "A100", "H100", "H100")
    r.start("small", gang("1x1", device_type="A100"))
    r.start("low", gang("1x1"), on=("n2",))
    r.start("lower", gang("1x1"), on=("n3",), priority=-1)
    r.submit("big", gang("1x2"), priority=10)
    r.settle()
    assert "big" in r.running
    assert len(r.evicted()) == len(set(r.evicted())) == 2


def test_power_that_was_freed_is_kept_for_whom_it_was_freed():
    r = _one_rack(2240, "H100", "A100")
    r.start("small", gang("1x1"), dies_s=30.0)
    r.submit("big", gang("1x2"), priority=10)
    r.cycle()
    assert r.evicted() == ["small"]
    r.submit("late", gang("1x2", device_type="A100"))
    r.run(20.0)
    assert r.reason("late") == "Power"
    r.run(100.0)
    assert r.started_s("big") == 30.0
    assert r.evicted() == ["small"]


def test_a_rack_over_its_budget_keeps_nothing_from_another():
    r = _one_rack(1400, "H100", "H100")
    r.start("big", gang("1x2"))
    r.set_policy(msgspec.structs.replace(r.policy, budgets=(
        PowerBudget(domain="n1", power_w=700), PowerBudget(domain="n2", power_w=700),
    )))  # fmt: skip
    r.submit("small", gang("1x1"))
    r.settle()
    assert r.where("small") == ["n2"]
