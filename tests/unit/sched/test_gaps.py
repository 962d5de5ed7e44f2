"""Gaps before promises and windows: what is said to fit is let in, and what is longer is not."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tercio.model.ids import QueuePath
from tercio.model.node import NodeState
from tercio.model.queue import Policy, PreemptionPolicy
from tercio.model.reservation import Reservation
from tercio.sched.cycle import schedule
from tercio.sched.gaps import SHORTEST_S, gaps
from tercio.sched.memory import Memory
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

HOUR_S = 3600.0
FIRM = PreemptionPolicy(grace_s=0.0, min_runtime_s=0.0, max_evictions_per_job_per_hour=None)


def rounds(nodes: str = "2n x 8g", **more: object) -> Rounds:
    policy = Policy(half_life_s=0.0, preemption=FIRM, **more)  # type: ignore[arg-type]
    return Rounds(cluster(nodes), policy, checks=rules.ALL)


def found(r: Rounds) -> list[tuple[str, float, float, str, dict[str, int]]]:
    """The gaps of a settled cluster, rows by name."""
    memory = Memory()
    schedule(r.snapshot(), r.policy, r.now_s, 0, memory)
    names = memory.table.names
    return [
        (
            gap.type,
            gap.from_s,
            gap.until_s,
            gap.hold.job,
            {names[k]: n for k, n in gap.rows.items()},
        )
        for gap in gaps(memory, r.now_s)
    ]


def kept(**fields: object) -> Reservation:
    known = {"name": "kept", "queue": QueuePath("lab"), "from_s": 4 * HOUR_S, "duration_s": HOUR_S}
    return Reservation(**{**known, **fields})  # type: ignore[arg-type]


def test_free_devices_before_a_promise_are_a_gap_now():
    r = rounds()
    r.start("a", gang("1x8", limit_s=2 * HOUR_S), on=("n1",))
    r.submit("head", gang("2x8", limit_s=HOUR_S))
    r.cycle()
    assert found(r) == [("H100", 0.0, 2 * HOUR_S, "head", {"n2": 8})]
    r.submit("long", gang("1x1", limit_s=2 * HOUR_S + 1), priority=-1)
    r.submit("short", gang("1x8", limit_s=2 * HOUR_S), priority=-2)
    r.cycle()
    assert (r.reason("short"), r.where("short")) == ("Running", ["n2"])
    assert r.reason("long") == "Reserved"
    assert found(r) == []


def test_devices_of_running_jobs_are_a_gap_from_their_planned_ends_on():
    r = rounds()
    r.start("a", gang("1x8", limit_s=HOUR_S), on=("n1",))
    r.start("b", gang("1x3", limit_s=2 * HOUR_S - 7), on=("n2",))
    r.set_reservation("kept", kept(shape={"node": 2}))
    r.cycle()
    assert found(r) == [
        ("H100", 0.0, 4 * HOUR_S, "reservation kept", {"n2": 5}),
        ("H100", HOUR_S, 4 * HOUR_S, "reservation kept", {"n1": 8}),
        ("H100", 2 * HOUR_S, 4 * HOUR_S, "reservation kept", {"n2": 3}),
    ]


def test_between_two_windows_is_a_gap_and_after_the_last_is_none():
    r = rounds("1n x 8g")
    r.set_reservation("kept", kept(devices=8, from_s=0.0, every_s=3 * HOUR_S))
    r.cycle()
    assert found(r) == [
        ("H100", HOUR_S, 3 * HOUR_S, "reservation kept (next window)", {"n1": 8}),
    ]


def test_no_gap_where_nothing_new_may_start_nor_under_a_job_without_an_end():
    r = rounds("3n x 8g")
    r.start("endless", gang("1x8"), on=("n1",))
    r.set_state("n2", NodeState.READY, cordon=True)
    r.set_reservation("kept", kept(shape={"node": 3}, from_s=HOUR_S))
    r.cycle()
    assert [gap[4] for gap in found(r)] == [{"n3": 8}]


def test_a_gap_too_short_to_use_is_left_out():
    r = rounds("1n x 8g")
    r.set_reservation("kept", kept(devices=8, from_s=SHORTEST_S - 1))
    r.cycle()
    assert found(r) == []


def test_a_gap_holds_no_more_than_the_cores_that_are_left():
    r = Rounds(cluster("1n x 8g", cpus=16), Policy(half_life_s=0.0), checks=rules.ALL)
    r.start("cores", gang("1x0", cpus=13, limit_s=HOUR_S), on=("n1",))
    r.set_reservation("kept", kept(devices=8))
    r.cycle()
    assert [(gap[1], gap[4]) for gap in found(r)] == [(0.0, {"n1": 1})]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 6)), max_size=5),
    st.integers(1, 3),
    st.integers(1, 5),
)
@example([(1, 3), (3, 1), (5, 1), (5, 1), (5, 1)], 1, 2)
def test_what_is_said_to_fit_now_is_let_in(running, nodes_wanted, opens_h):
    """Also beside reservations that overlap promises, on devices held in any pattern."""
    for number in range(8):
        r = rounds("3n x 8g")
        for at, (devices, hours) in enumerate(running):
            r.submit(f"r{at}", gang(f"1x{devices}", limit_s=hours * HOUR_S))
        r.cycle()
        r.submit("head", gang(f"{nodes_wanted}x8", limit_s=HOUR_S))
        r.set_reservation("kept", kept(devices=9, from_s=opens_h * HOUR_S))
        r.cycle()
        now = [gap for gap in found(r) if gap[1] == r.now_s]
        if number >= len(now):
            return
        _, _, until_s, _, rows = now[number]
        # It names no node: one that did would be a pool of its own, with promises of its own.
        fits = gang(f"1x{max(rows.values())}", limit_s=until_s - r.now_s)
        r.submit("fits", fits, priority=-1)
        r.cycle()
        assert r.reason("fits") == "Running"
