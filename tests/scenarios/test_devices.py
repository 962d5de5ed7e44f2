"""Topology, device accounting, failures, explanations and scale (groups E and F)."""

import msgspec
import pytest
from play import USUAL, play

from tercio.model.job import JobSpec
from tercio.model.node import NodeState
from tercio.model.queue import Policy, QueueSpec
from tercio.model.reasons import Reason
from tercio.sched.cycle import schedule
from tercio.testing import rules
from tercio.testing.build import cluster, gang, group, node
from tercio.testing.rounds import Rounds


def test_e1_one_node_is_not_given_twice_in_a_cycle():
    """kueue#14570, #14572."""
    r = play("""
    cluster 3n x 8g
    queue A 0/-/1
    queue B 0/-/1
    0 submit a A 2x8
    0 submit b B 1x8
    0 expect a,b running
    """)
    assert sorted([*r.where("a"), *r.where("b")]) == ["n1", "n2", "n3"]
    r.submit("c", gang("1x8"), queue="B")
    r.run(5.0)
    assert r.reason("c") == "WaitingForShare"
    r.finish("b")
    r.settle()
    assert sorted([*r.where("a"), *r.where("c")]) == ["n1", "n2", "n3"]


def test_e3_small_jobs_do_not_scatter():
    """volcano#4368, #4331."""
    play("""
    cluster 4r x 2n x 8g
    0 run s1 default 1x8
    1 run s2 default 1x8
    2 run s3 default 1x8
    3 run s4 default 1x8
    4 submit T1 default 2x8 same=rack
    4 submit T2 default 2x8 same=rack
    4 expect T1,T2 running
    5 submit T3 default 2x8 same=rack
    5 expect T3 waits NoFreeDevices
    9 end T1
    9 expect T3 running
    """)


def test_e4_fragmented_without_moves():
    """volcano#3948."""
    play(f"""
    {FRAGMENTED}
    1 submit J default 1x4
    1 expect J waits Fragmented
    1 says J "needs 4 H100 on one node; 4 free, best node n2 has 2"
    """)


FRAGMENTED = """
    cluster 3n x 8g
    0 run a4 default 1x4 on=n1
    0 run a2 default 1x2 on=n1
    0 run a1 default 1x1 on=n1
    0 run b4 default 1x4 on=n2
    0 run b2 default 1x2 on=n2
    0 run c4 default 1x4 on=n3
    0 run c2 default 1x2 on=n3
    0 run c1 default 1x1 on=n3
"""


def test_e4_two_moves_of_three_devices_make_room():
    r = play(f"""
    policy defragment=on
    {FRAGMENTED}
    1 submit J default 1x4
    1 expect J running
    1 expect evicted 2
    2 expect a4,a2,a1,b4,b2,c4,c2,c1 running
    """)
    moved = [line.job for line in r.log if line.what == "evict"]
    assert sum(len(r.running[job].tasks[0].devices) for job in moved) == 3


def test_e4_nothing_moves_without_a_place_to_go():
    play("""
    cluster 2n x 4g
    policy defragment=on
    0 run a default 1x3 on=n1
    0 run b default 1x3 on=n2
    1 submit J default 1x2
    1 expect J waits Fragmented
    1 expect evicted none
    """)


def test_e6_a_firm_share_of_cards_stays_inside_the_guarantee():
    """KAI#1369. Two devices of 60 % are 1.2, not one."""
    play("""
    cluster 1n x 2g
    queue q 1/-/1
    0 submit J q 2x0.6 firm
    0 expect J waits WaitingForShare
    """)


@pytest.mark.parametrize("together", [True, False])
def test_e7_memory_slices_fill_a_card_exactly(together: bool):
    """KAI#416, KAI#2153."""
    r = Rounds([node("n1", 1, memory_mib=46_068)], Policy(half_life_s=0.0), checks=rules.ALL)
    for at in range(40):
        r.submit(f"j{at}", gang("1x2000MiB"))
        if not together:
            r.cycle()
    r.settle()
    assert len(r.running) == 23
    decision = r.why("j39")
    assert decision.reason is Reason.NO_FREE_DEVICES
    assert decision.wanted == {"H100": 0.043}
    assert decision.free == {"H100": 0.011}


def test_shares_of_memory_left_over_on_two_cards_are_fragmented():
    """Two times 1,068 MiB are more than 2,000, and no card has them."""
    r = Rounds([node("n1", 2, memory_mib=3_068)], Policy(half_life_s=0.0), checks=rules.ALL)
    for at in range(3):
        r.submit(f"j{at}", gang("1x2000MiB"))
    r.settle()
    assert len(r.running) == 2
    assert r.reason("j2") == "Fragmented"


def test_e8_failed_attempts_do_not_corrupt_the_state():
    """KAI#1217. A hundred attempts fail, each in a cycle of its own."""
    full = "\n".join(f"0 run f{at} default 1x4 on=n{at + 1}" for at in range(18))
    r = play(f"""
    cluster 2r x 18n x 4g
    {full}
    """)
    r.checks = [rules.capacity, rules.gangs]
    memory = r._memory
    assert memory is not None
    for at in range(100):
        r.now_s += 1.0
        r.submit(f"no{at}", gang("19x4", same="rack", exclude=(f"n{1 + at % 18}",)))
        before = memory.table.state_hash()
        assert not r.cycle().starts
        assert r.reason(f"no{at}") == "NeverFits"
        assert memory.table.state_hash() == before
    r.checks = [*rules.ALL]
    r.submit("G", gang("16x4", same="rack"))
    assert [start.job_id for start in r.cycle().starts] == ["G"]
    assert all(int(name[1:]) > 18 for name in r.where("G"))


def test_f1_one_dead_node_does_not_hide_another():
    """kueue#12344. b restarts on what its rack has left; a, which has no spare, waits."""
    r = play("""
    cluster 2r x 3n x 8g
    0 run a default 2x8 same=rack on=n1,n2
    0 run other default 1x8 on=n3
    0 run b default 2x8 same=rack on=n4,n5
    """)
    r.now_s = 5.0
    r.fail("a", node="n1")
    r.fail("b", node="n4")
    r.settle()
    assert sorted(r.where("b")) == ["n5", "n6"]
    assert r.reason("a") == "NoFreeDevices"
    assert "needs 16 H100 (2 tasks of 8 H100); 8 of 32 H100 free" in r.why("a").message
    r.set_state("n1", NodeState.READY)
    r.settle()
    assert sorted(r.where("a")) == ["n1", "n2"]


def test_f3_evicted_on_one_site_started_on_another():
    """kueue#8302, #6790."""
    sites = [node("w1", 8, site="one"), node("w2", 8, site="two")]
    r = Rounds(sites, Policy(half_life_s=0.0, preemption=USUAL), checks=rules.ALL)
    r.start("W", gang("1x8"), on=("w1",))
    r.submit("local", gang("1x8", sites=("one",)), priority=100)
    r.settle()
    assert r.where("local") == ["w1"]
    assert r.where("W") == ["w2"]
    r.submit("third", gang("1x8"), priority=-1)
    r.run(20.0)
    assert r.reason("third") == "NoFreeDevices"
    assert r.evicted() == ["W"]
    r.finish("local")
    r.settle()
    assert r.where("third") == ["w1"]


def test_f4_fits_the_sum_of_sites_but_no_site():
    """kueue#8602."""
    sites = [node("w1", 8, site="one"), node("w2", 8, site="two")]
    r = Rounds(sites, Policy(half_life_s=0.0), checks=rules.ALL)
    r.submit("W", gang("2x8"))
    r.settle()
    assert r.reason("W") == "NeverFits"
    assert "one site" in r.why("W").message
    assert not r.promises


def test_f5_five_causes_have_five_codes():
    """volcano#3220, #4479, kueue#10497, KAI#2058: the message names the true blocker."""
    told = {}
    r = play("""
    cluster 1n x 8g
    queue G 8/-/1
    queue BE 0/-/1
    0 run G1 G 1x4 t=100
    1 submit G2 G 1x8 t=100
    2 submit BE1 BE 1x4 firm t=200
    """)
    told["reserved head"] = r.why("BE1")
    r = play(f"{FRAGMENTED}\n1 submit J default 1x4")
    told["fragmentation"] = r.why("J")
    r = play("""
    cluster 1n x 8g slots=2
    0 run c default 1x0 p-100 firm
    1 submit H default 2x4 p100
    """)
    told["slots"] = r.why("H")
    r = play("cluster 1n x 16g\nqueue q -/8/1")
    roles = (group("1x8", name="master"), group("1x8", name="worker"))
    r.submit("J", JobSpec(name="ray", groups=roles), queue="q")
    r.settle()
    told["gang"] = r.why("J")
    r = play("""
    cluster 1n x 16g
    queue q -/8/1
    0 run a q 1x8
    1 submit b q 1x1
    """)
    told["limit"] = r.why("b")
    assert {name: str(d.reason) for name, d in told.items()} == {
        "reserved head": "Reserved",
        "fragmentation": "Fragmented",
        "slots": "NodeSlots",
        "gang": "NeverFits",
        "limit": "QueueLimit",
    }
    assert "promised to G2" in told["reserved head"].message
    assert "n1 has 8 H100 free but 1 of 2 task slots" in told["slots"].message
    assert "may hold 8 devices and holds 8 devices" in told["limit"].message


def test_f6_a_no_is_definite_and_evicts_nobody():
    """KAI#1660: nine tasks could be freed, the tenth never."""
    nodes, size = 500, 8
    total = nodes * size
    queues = {
        "S": QueueSpec(guarantee={"devices": (total - 80 + 1) * 1000}, weight=0),
        "R": QueueSpec(guarantee={"devices": total * 1000}),
    }
    policy = Policy(half_life_s=0.0, queues=queues, preemption=USUAL, overcommit=True)
    r = Rounds(cluster(f"{nodes}n x {size}g"), policy)
    for at in range(total):
        r.submit(f"s{at}", gang("1x1"), queue="S")
    r.cycle()
    assert len(r.running) == total
    r.submit("G", gang("10x8"), queue="R")
    r.submit("bystander", gang("1x0"), queue="S")
    r.settle()
    assert r.evicted() == []
    assert r.reason("G") == "NoFreeDevices" or r.reason("G") == "WaitingForShare"
    assert r.reason("bystander") == "Running"


@pytest.mark.parametrize(
    ("nodes", "running"), [(500, 2000), pytest.param(5000, 20_000, marks=pytest.mark.full)]
)
def test_f7_hopeless_pressure_costs_bystanders_nothing(nodes: int, running: int):
    """Kubernetes scheduler_perf, also at its size: an easy job starts in the cycle it comes in."""
    r = Rounds(cluster(f"{nodes}n x 8g"), Policy(half_life_s=0.0, preemption=USUAL))
    for at in range(running):
        r.submit(f"run{at}", gang("1x1"))
    assert len(r.cycle().starts) == running
    easy = running // 100
    for at in range(50):
        r.now_s += 0.2
        r.submit(f"bad{at}", gang(f"{nodes + 1}x8"), priority=100)
        for number in range(easy):
            r.submit(f"ok{at}-{number}", gang("1x1"))
        assert len(r.cycle().starts) == easy
    assert r.reason("bad49") == "NeverFits"


def test_f8_thousands_of_equal_domains_are_one_candidate():
    """volcano#5811, at its size: 6,000 nodes in 9,600 domains; same quality as a full scan."""
    nodes = [
        node(f"n{at + 1}", 4, labels={"rack": f"r{at // 2}", "block": f"b{at // 10}"})
        for at in range(6000)
    ]
    r = Rounds(nodes, Policy(half_life_s=0.0))
    r.start("near", gang("1x4"), on=("n7",))
    r.submit("G", gang("2x4", same="rack"))
    r.submit("wide", gang("4x4", same="block"))
    r.submit("one", gang("1x4"))
    r.cycle()
    assert r.where("one") == ["n8"]
    assert len({r.nodes[name].spec.labels["rack"] for name in r.where("G")}) == 1
    assert len({r.nodes[name].spec.labels["block"] for name in r.where("wide")}) == 1


@pytest.mark.full
@pytest.mark.timeout(900)
def test_f9_first_decisions_after_a_restart_at_full_size():
    """volcano#5819: 10,000 nodes, 20,000 jobs run and 80,000 wait."""
    r = Rounds(cluster("200r x 50n x 8g"), Policy(half_life_s=0.0, preemption=USUAL))
    for at in range(20_000):
        r.submit(f"run{at}", gang("1x4"))
    assert len(r.cycle().starts) == 20_000
    for at in range(80_000):
        r.submit(f"wait{at}", gang(f"{1 + at % 4}x{1 + at % 8}"), priority=-(at % 3))
    r.cycle()
    for at in range(10):
        r.finish(f"run{at * 7}")
    # Made first: the cycle that goes on changes what the snapshot shows.
    snapshot = msgspec.structs.replace(r.snapshot(), changes=None)
    fresh = schedule(snapshot, r.policy, r.now_s, r.seed)
    going_on = r.cycle()
    assert going_on.starts
    assert (going_on.starts, going_on.promises) == (fresh.starts, fresh.promises)


def test_f9_a_restarted_scheduler_decides_the_same():
    """volcano#5819. Every cycle of every scenario is compared with one that remembers nothing;
    here the memory is dropped in the middle."""
    (first, told), (second, told_again) = (_busy(restart=restart) for restart in (False, True))
    assert told == told_again
    assert {"NoFreeDevices", "Fragmented"} <= {reason for _, _, reason in told}
    assert [line for line in first.log if line.what in ("start", "evict")] == [
        line for line in second.log if line.what in ("start", "evict")
    ]


def _busy(*, restart: bool) -> tuple[Rounds, list[tuple[float, str, str]]]:
    """The cluster at the end, and what each waiting job was told after each submit."""
    told: list[tuple[float, str, str]] = []
    r = Rounds(cluster("2r x 4n x 8g"), Policy(half_life_s=0.0, preemption=USUAL))
    for at in range(60):
        r.submit(
            f"j{at}", gang(f"{1 + at % 3}x{1 + at % 8}", limit_s=50.0 + at), priority=at % 4,
            runs_s=20.0 + 7 * at % 40,
        )  # fmt: skip
        r.now_s += 1.0
        if restart and at % 7 == 0:
            r.forget()
        r.settle()
        told += [(r.now_s, job, r.reason(job)) for job in sorted(r.waiting)]
    r.run(2000.0)
    assert not r.waiting
    return r, told
