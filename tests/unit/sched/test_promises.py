"""Promises: dated ones for heads, held devices for preemptors, their ends, and estimates."""

from tercio.model.ids import QueuePath
from tercio.model.job import IndexRange
from tercio.model.node import NodeState
from tercio.model.queue import Policy, PreemptionPolicy, QueueSpec
from tercio.model.reservation import Reservation
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

FIRM = PreemptionPolicy(grace_s=0.0, min_runtime_s=0.0, max_evictions_per_job_per_hour=None)


def rounds(nodes: str, **more: object) -> Rounds:
    policy = Policy(half_life_s=0.0, preemption=FIRM, **more)  # type: ignore[arg-type]
    return Rounds(cluster(nodes), policy, checks=rules.ALL)


def test_a_head_gets_the_earliest_start_and_says_when():
    r = rounds("2n x 8g")
    r.start("a", gang("1x8", limit_s=100.0), on=("n1",))
    r.start("b", gang("1x8", limit_s=300.0), on=("n2",))
    r.submit("head", gang("1x8", limit_s=50.0))
    r.cycle()
    (promise,) = r.promises
    assert (promise.job_id, promise.from_s, promise.tasks[0].node) == ("head", 100.0, "n1")
    start = r.why("head").start
    assert start is not None
    assert (start.at_s, start.label) == (100.0, "reserved")
    assert start.low_s < start.at_s <= start.high_s
    r.run(100.0)
    assert r.started_s("head") == 100.0


def test_a_promise_stays_on_its_nodes_unless_a_better_start_appears():
    r = rounds("2n x 8g")
    r.start("a", gang("1x8", limit_s=100.0), on=("n1",))
    r.start("b", gang("1x8", limit_s=100.0), on=("n2",))
    r.submit("head", gang("1x8", limit_s=50.0))
    r.cycle()
    first = r.promises[0].tasks[0].node
    r.now_s = 10.0
    r.submit("later", gang("1x8", limit_s=50.0), priority=-1)
    r.cycle()
    assert r.promises[0].tasks[0].node == first
    other = "b" if first == "n1" else "a"
    r.finish(other)
    r.settle()
    assert r.reason("head") == "Running"


def test_depth_is_counted_per_pool_and_all_means_all():
    for depth, expected in ((1, 1), (2, 2), (None, 3)):
        r = rounds("1n x 8g", reservation_depth=depth)
        r.start("a", gang("1x8", limit_s=100.0))
        for at in range(3):
            r.submit(f"h{at}", gang("1x8", limit_s=50.0 + at))
        r.cycle()
        assert len(r.promises) == expected


def test_expected_end_plans_and_limit_stops():
    r = rounds("1n x 8g")
    r.start("a", gang("1x8", limit_s=1000.0, expected_s=100.0))
    r.submit("head", gang("1x8"))
    r.cycle()
    assert r.promises[0].from_s == 100.0


def test_backfill_uses_cores_beside_promised_devices():
    """A task without devices may use a node whose devices are promised, as long as cores last."""
    r = Rounds(cluster("1n x 8g", cpus=8), Policy(half_life_s=0.0, preemption=FIRM),
               checks=rules.ALL)  # fmt: skip
    r.start("a", gang("1x4", limit_s=100.0, cpus=2))
    r.submit("head", gang("1x8", limit_s=50.0, cpus=5))
    r.submit("ok", gang("1x0", cpus=3))
    r.submit("no", gang("1x0", cpus=3))
    r.cycle()
    assert (r.reason("ok"), r.reason("no")) == ("Running", "Reserved")


def test_grace_delays_the_start_and_min_runtime_protects():
    rules_ = PreemptionPolicy(grace_s=30.0, min_runtime_s=60.0)
    r = Rounds(cluster("1n x 8g"), Policy(half_life_s=0.0, preemption=rules_), checks=rules.ALL)
    r.start("low", gang("1x8"), priority=-1, dies_s=30.0)
    r.submit("high", gang("1x8"), priority=1)
    assert r.cycle().wake_at_s == 60.0
    assert r.evicted() == []
    r.run(59.0)
    assert r.evicted() == []
    r.run(60.0)
    assert r.evicted() == ["low"]
    assert r.reason("high") == "Preempting"
    r.run(90.0)
    assert r.started_s("high") == 90.0


def test_eviction_budget_per_hour():
    rules_ = PreemptionPolicy(grace_s=0.0, min_runtime_s=0.0, max_evictions_per_job_per_hour=1)
    r = Rounds(cluster("1n x 8g"), Policy(half_life_s=0.0, preemption=rules_), checks=rules.ALL)
    r.start("low", gang("1x8"), priority=-1)
    r.submit("h1", gang("1x8"), priority=1, runs_s=10.0)
    r.run(20.0)
    assert r.reason("low") == "Running"
    r.submit("h2", gang("1x8"), priority=1, runs_s=10.0)
    r.run(3000.0)
    assert r.evicted() == ["low"]
    r.run(3700.0)
    assert r.evicted() == ["low", "low"]


def test_a_promise_ends_with_its_job():
    r = rounds("1n x 8g")
    r.start("a", gang("1x8", limit_s=100.0))
    r.submit("head", gang("1x8", limit_s=50.0))
    r.cycle()
    r.cancel("head")
    r.cycle()
    assert r.promises == ()


def test_a_promise_moves_off_a_node_that_goes_down():
    r = rounds("2n x 8g")
    r.start("a", gang("1x8", limit_s=100.0), on=("n1",))
    r.start("b", gang("1x8", limit_s=200.0), on=("n2",))
    r.submit("head", gang("1x8", limit_s=50.0))
    r.cycle()
    r.set_state("n1", NodeState.CORDONED, cordon=True)
    r.cycle()
    assert (r.promises[0].from_s, r.promises[0].tasks[0].node) == (200.0, "n2")


def test_reclaim_mode_takes_guarantees_only():
    queues = {"a": QueueSpec(guarantee={"devices": 4000}), "b": QueueSpec()}
    policy = Policy(
        half_life_s=0.0,
        queues=queues,
        preemption=PreemptionPolicy(
            across_queues="reclaim", grace_s=0.0, min_runtime_s=0.0,  # type: ignore[arg-type]
        ),
    )  # fmt: skip
    r = Rounds(cluster("1n x 8g"), policy, checks=rules.ALL)
    for at in range(8):
        r.start(f"b{at}", gang("1x1"), queue="b")
    r.submit("in", gang("1x4"), queue="a")
    r.submit("over", gang("1x1"), queue="a")
    r.settle()
    assert (r.reason("in"), "over" in r.waiting) == ("Running", True)
    assert len(r.evicted()) == 4


def test_an_array_preempts_element_by_element():
    r = rounds("1n x 4g")
    for at in range(4):
        r.start(f"v{at}", gang("1x1"), priority=-1)
    r.submit("arr", gang("1x1"), priority=1, pending=(IndexRange(start=0, stop=3),))
    r.settle()
    assert [j for j in r.running if j.startswith("arr")] == ["arr.0", "arr.1", "arr.2"]
    assert len(r.evicted()) == 3


def test_a_reservation_is_chosen_anew_when_a_job_outlives_its_expected_end():
    r = rounds("2n x 8g", queues={"a": QueueSpec(limit={"devices": 16_000}), "b": QueueSpec()})
    r.start("late", gang("1x8", expected_s=50.0), queue="a", on=("n1",))
    r.start("sure", gang("1x8", limit_s=120.0), queue="a", on=("n2",))
    r.submit("waits", gang("1x1", limit_s=10.0), queue="a")
    r.set_reservation(
        "R", Reservation(name="R", from_s=100.0, duration_s=50.0, queue=QueuePath("b"), devices=8)
    )
    assert r.cycle().wake_at_s == 50.0
    r.now_s = 60.0  # nothing was reported: with a memory and without one, n2 is kept
    r.cycle()
    assert r.reason("waits") == "QueueLimit"
