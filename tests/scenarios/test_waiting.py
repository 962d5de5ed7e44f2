"""Work that fits but does not run, gangs, and backfill (groups C and D of users' reports)."""

import pytest
from play import play

from tercio.model.job import JobSpec
from tercio.model.node import NodeState
from tercio.model.queue import Policy
from tercio.testing import rules
from tercio.testing.build import gang, group, node
from tercio.testing.rounds import Rounds


def test_c1_a_reclaimable_borrower_runs_beside_a_strict_head():
    """kueue#4809."""
    play("""
    cluster 1n x 8g
    queue G 8/-/1 strict
    queue BE 0/-/1
    0 run G1 G 1x4
    1 submit G2 G 1x8
    2 submit BE1 BE 1x4
    2 expect BE1 running
    2 expect evicted none
    9 end G1
    9 expect G2 running
    9 expect evicted BE1
    """)


def test_c1_a_borrower_that_may_not_be_evicted_must_end_in_time():
    play("""
    cluster 1n x 8g
    queue G 8/-/1 strict
    queue BE 0/-/1
    0 run G1 G 1x4 t=100
    1 submit G2 G 1x8 t=100
    2 submit no BE 1x4 firm
    2 submit long BE 1x4 firm t=99
    2 expect no waits WaitingForShare
    2 expect long waits Reserved
    2 says long "is promised to G2"
    3 submit short BE 1x4 firm t=97
    3 expect short running
    3 expect short label backfill
    100 expect G2 started 100
    """)


def test_c2_order_holds_per_pool():
    """kueue#8309, #8393."""
    play("""
    cluster 1n x 8g type=H100
    cluster 1n x 8g type=A100
    queue q 0/-/1 strict
    0 run busy q 1x4 firm
    1 submit first q 1x8
    2 submit second q 1x4 type=A100
    3 submit third q 1x4
    3 expect second running
    3 expect third waits Order
    3 says third "behind first"
    """)


@pytest.mark.parametrize("head", ["1x8", "2x4"])
@pytest.mark.parametrize("later", ["1x4", "2x2"])
def test_c2_a_head_of_any_type_blocks_later_jobs_of_any_type(head, later):
    """A single task and a gang compete in the same pools, named or any."""
    play(f"""
    cluster 1n x 8g type=H100
    cluster 1n x 8g type=A100
    queue q 0/-/1 strict
    0 run b1 q 1x4 firm
    0 run b2 q 1x4 firm type=A100
    1 submit first q {head} type=any
    2 submit second q {later} type=any
    2 submit third q {later}
    2 submit none q 1x0
    3 expect first waits
    3 expect second,third waits Order
    3 says second "behind first"
    3 expect none running
    9 end b2
    9 expect first,second running
    9 expect third waits NoFreeDevices
    """)


@pytest.mark.parametrize("later", ["1x4", "2x2"])
def test_c2_a_job_of_any_type_passes_only_on_types_that_nobody_waits_for(later):
    r = play(f"""
    cluster 1n x 8g type=H100
    cluster 1n x 8g type=A100
    queue q 0/-/1 strict
    0 run b1 q 1x4 firm
    0 run b2 q 1x4 firm type=A100
    1 submit first q 1x8
    2 submit second q {later} type=any
    3 submit third q {later} type=any
    3 expect first waits NoFreeDevices
    3 expect second running
    3 expect third waits NoFreeDevices
    3 says third "A100"
    4 submit fourth q 1x1 type=A100
    4 expect fourth waits Order
    """)
    assert set(r.where("second")) == {"n2"}


def test_c2_with_depth_0_a_head_of_any_type_closes_every_pool_it_waits_in():
    play("""
    cluster 1n x 8g type=H100
    cluster 1n x 8g type=A100
    policy depth=0
    0 run b1 default 1x4 firm
    0 run b2 default 1x4 firm type=A100
    1 submit first default 1x8 type=any
    2 submit second default 1x4 type=A100
    2 submit third default 1x4 type=any
    3 expect second,third waits Order
    """)


def test_c2_the_first_of_any_type_is_promised_beside_the_first_of_one_type():
    """Each pool promises its first: the second of one may be the first of another."""
    play("""
    cluster 1n x 8g type=H100
    cluster 1n x 8g type=A100
    0 run b1 default 1x8 firm t=100
    0 run b2 default 1x8 firm type=A100 t=200
    1 submit first default 1x8 t=50
    1 submit second default 1x8 type=any t=50
    2 submit third default 1x8 type=A100 t=50
    100 expect first started 100
    150 expect second started 150
    200 expect third started 200
    """)


def test_c2_growth_leaves_devices_to_a_single_task_of_any_type():
    play("""
    cluster 1n x 8g type=H100
    cluster 1n x 8g type=A100
    0 run b1 default 1x4 firm
    0 run grown default 1x2 max=4
    0 expect grown tasks 2
    0 run b2 default 1x8 firm type=A100
    1 submit first default 1x8 type=any
    2 end b1
    2 expect first waits
    2 expect grown tasks 2
    """)


def test_c3_not_buried_behind_hopeless_jobs():
    """flux-sched#1210. A thousand jobs for a drained node cost one check."""
    hopeless = "\n".join(
        f"1 submit no{at} default 1x8 p10 match=\"name=='n1'\"" for at in range(1000)
    )
    r = play(f"""
    cluster 4n x 8g
    0 cordon n1
    {hopeless}
    1 submit a default 1x8
    1 submit b default 1x4
    1 expect a,b running
    1 expect no0,no999 waits Health
    """)
    assert r.started_s("a") == 1.0


def test_c3_one_that_fits_among_thousands():
    """kueue#9715. The scan never begins again from the top without end."""
    large = "\n".join(f"1 submit L{at} default {1 + at % 7}x8 p1" for at in range(300))
    play(f"""
    cluster 4n x 8g
    0 run f1 default 1x8 firm
    0 run f2 default 1x8 firm
    0 run f3 default 1x8 firm
    0 run f4 default 1x7 firm
    {large}
    2 submit small default 1x1
    2 expect small running
    """)


def test_c4_three_free_needs_three():
    """volcano#1461."""
    play("""
    cluster 1n x 10g
    queue default 0/-/1
    queue test 0/10/3
    0 run d1 default 1x2
    0 run d2 default 1x2
    0 run t1 test 1x3
    1 submit t2 test 1x3
    1 expect t2 running
    1 expect evicted none
    """)


def test_c6_small_jobs_behind_big_ones():
    """kueue#2270. The head keeps a reservation; what does not delay it runs."""
    play("""
    cluster 1n x 8g
    0 run busy default 1x7 firm t=100
    1 submit A default 1x4 t=50
    1 submit B default 1x4 t=50
    1 submit C default 1x4 t=50
    1 submit E default 1x0
    1 submit F default 1x0
    1 submit G default 1x1 t=50
    1 submit X default 1x1 t=500
    1 expect E,F,G running
    1 expect A,B,C waits NoFreeDevices
    100 expect A started 100
    """)


def test_c6_without_times_an_ageing_limit_ends_the_overtaking():
    stream = "\n".join(f"{at} submit s{at} default 1x1 runs=15" for at in range(2, 200, 5))
    play(f"""
    cluster 1n x 2g
    policy max_overtake=60
    0 run a default 1x1 runs=12
    0 run b default 1x1 runs=14
    1 submit big default 1x2 runs=10
    {stream}
    200 expect big started 74
    """)


def test_c8_the_big_job_gets_its_slot():
    """ROCm/spur#732. A small job starts on a freed node only if it ends by minute 60."""
    stream = "\n".join(
        f"{60 * at} submit s{at} default 1x8 p-100 t={60 * 45}" for at in range(1, 56, 5)
    )
    play(f"""
    cluster 4n x 8g
    0 run r60 default 1x8 firm t=3600
    0 run r50 default 1x8 firm t=3000
    0 run r40 default 1x8 firm t=2400
    0 run r30 default 1x8 firm t=1800
    0 submit BIG default 4x8 p100 t=7200
    {stream}
    1790 submit fits default 1x8 p-100 t=1800
    1800 expect fits started 1800
    1800 expect fits label backfill
    2400 expect s1,s26 waits Reserved
    3600 expect BIG started 3600
    3600 expect evicted none
    """)


def test_c8_ends_that_come_early_move_it_forward():
    play("""
    cluster 4n x 8g
    0 run r60 default 1x8 firm t=3600
    0 run r50 default 1x8 firm t=3000
    0 run r40 default 1x8 firm t=2400
    0 run r30 default 1x8 firm t=1800
    0 submit BIG default 4x8 p100 t=7200
    1790 submit fits default 1x8 p-100 t=1700 firm
    1800 expect fits running
    1900 end r60
    3500 expect BIG started 3500
    """)


def test_c9_the_head_waits_for_a_node_that_is_down():
    """flux-sched#670."""
    play("""
    cluster 3n x 8g
    0 down n3
    1 submit head default 3x8 t=60
    2 submit s default 1x8 t=600
    2 expect head waits Health
    2 says head "n3 (down)"
    2 expect s running
    100 up n3
    100 expect head waits NoFreeDevices
    602 expect head started 602
    """)


def test_d1_two_gangs_of_everything():
    """volcano#3373."""
    play("""
    cluster 100n x 1g
    0 submit a default 100x1
    0 submit b default 100x1
    0 expect a running
    0 expect b waits NoFreeDevices
    """)


def test_d2_nothing_is_held_while_a_gang_waits():
    """scheduler-plugins#713."""
    jobs = "\n".join(f"1 submit s{at} default 1x1 t=10" for at in range(10))
    play(f"""
    cluster 10n x 1g
    0 submit G default 10x1 not=n10
    0 expect G waits Constraint
    {jobs}
    1 expect s0,s1,s2,s3,s4,s5,s6,s7,s8,s9 running
    """)


def test_d3_a_stream_of_gangs_on_two_nodes():
    """scheduler-plugins#117, #114."""
    jobs = "\n".join(
        f"{15 * at} submit g{at} default {1 + (at * 5) % 8}x1 runs=30" for at in range(60)
    )
    r = play(f"""
    cluster 2n x 8g
    {jobs}
    1000 expect evicted none
    """)
    assert not r.running
    assert not r.waiting
    waits = [r.started_s(f"g{at}") - 15 * at for at in range(60)]
    assert max(waits) <= 30


def test_d5_a_gang_that_lost_a_node_comes_before_newcomers():
    """volcano#5805. Its attempt is started again, first, when the node returns."""
    r = play("""
    cluster 2n x 1g
    0 run G default 2x1
    """)
    r.now_s = 10.0
    r.fail("G", node="n2")
    r.submit("C", _one(), user="new")
    r.settle()
    assert r.reason("C") == "Running"  # G cannot start: n2 is down, and it holds nothing
    r.finish("C")
    r.submit("D", _one(), user="new")
    r.now_s = 20.0
    r.set_state("n2", NodeState.READY)
    r.settle()
    assert sorted(r.where("G")) == ["n1", "n2"]
    assert r.reason("D") != "Running"


def _one() -> JobSpec:
    return JobSpec(name="one", groups=(group("1x1"),))


def test_d7_a_queue_smaller_than_the_gang():
    """KAI#500, kueue#2796."""
    r = play("""
    cluster 1n x 16g
    queue q -/8/1
    """)
    roles = (group("1x8", name="master"), group("1x8", name="worker"))
    r.submit("J", JobSpec(name="ray", groups=roles), queue="q")
    r.settle()
    assert r.reason("J") == "NeverFits"
    assert r.why("J").message == "needs 16 devices at once, but queue q may hold 8 devices"


def test_d8_a_gang_is_one_revision_of_one_spec():
    """volcano#6010. A job's size is part of its specification: there is no moment at which some
    tasks of a larger group are known and its larger minimum is not."""
    play("""
    cluster 7n x 1g
    0 run old default 4x1
    1 submit new default 8x1
    1 expect new waits NeverFits
    1 expect old running
    """)


def test_no_pool_promises_more_than_its_depth_however_jobs_of_any_type_mix():
    """With depth 1 at most one dated promise lies on each type, whoever it is for."""
    r = play("""
    cluster 1n x 8g type=H100
    cluster 1n x 8g type=A100
    0 run b1 default 1x8 firm t=100
    0 run b2 default 1x8 firm type=A100 t=200
    1 submit first default 1x8 t=50
    1 submit any1 default 1x8 type=any t=50
    1 submit any2 default 1x8 type=any t=50
    1 submit third default 1x8 type=A100 t=50
    """)
    places = [task.node for promise in r.promises for task in promise.tasks]
    assert {promise.job_id for promise in r.promises} == {"first", "any1"}
    assert sorted(places) == ["n1", "n2"]
    r.run(400.0)
    assert not r.waiting


RACKS = """
    cluster 2r x 1n x 8g
    0 run b1 default 1x8 firm t=100 on=n1
    0 run b2 default 1x4 firm t=200 on=n2
"""


def test_a_job_of_other_nodes_has_a_promise_of_its_own():
    """The head of rack r1 does not use up the promise of those that wait for rack r2."""
    r = play(
        RACKS
        + """
    1 submit first default 1x8 t=50 match="labels['rack'] == 'r1'"
    1 submit second default 1x8 t=50 match="labels['rack'] == 'r2'"
    2 submit small default 1x4 t=500           # would take n2 from the second
    2 expect small waits Reserved
    2 submit short default 1x4 t=150
    2 expect short running on=n2
    100 expect first started 100
    200 expect second started 200
    """
    )
    assert r.evicted() == []


def test_a_strict_head_holds_nobody_back_on_nodes_that_it_cannot_use():
    play("""
    cluster 2r x 1n x 8g
    queue q -/-/1 strict
    0 run b1 q 1x4 on=n1
    1 submit first q 1x8 match="labels['rack'] == 'r1'"
    2 submit second q 1x4 match="labels['rack'] == 'r2'"
    2 submit third q 1x4 match="labels['rack'] == 'r1'"
    2 submit fourth q 1x1                      # may use both racks, so it stands behind the first
    2 expect second running on=n2
    2 expect third,fourth waits Order
    """)


def test_a_promise_lies_only_where_its_job_may_run():
    """And jobs of a site, or without a filter, count where their promises lie."""
    r = play(
        RACKS
        + """
    1 submit any default 1x8 t=50
    1 submit other default 1x8 t=50 not=n1
    1 submit third default 1x8 t=50 not=n2
    2 expect any,other,third waits
    """
    )
    where = {promise.job_id: {task.node for task in promise.tasks} for promise in r.promises}
    assert where == {"any": {"n1"}, "other": {"n2"}}
    r.run(400.0)
    assert not r.waiting


@pytest.mark.parametrize("size", ["2x0", "2x8"])
def test_a_gang_with_room_on_two_sites_is_told_that_it_stays_on_one(size: str):
    places = [node(f"{site}{at}", 8, site=site) for site in ("east", "west") for at in (1, 2)]
    r = Rounds(places, Policy(half_life_s=0.0), checks=rules.ALL)
    r.start("e", gang("1x8"), on=("east1",), priority=9)
    r.start("w", gang("1x8"), on=("west1",), priority=9)
    r.submit("W", gang(size, exclusive=True))
    r.settle()
    assert r.reason("W") == "Topology"
    told = r.why("W").message
    assert "a gang stays on one site, and the best, east, has room for 1 task" in told
