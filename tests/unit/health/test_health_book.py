"""The policy: acts when it must, brakes when it should, and always lets a healthy node back."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercio.errors import IllegalTransition, UserError
from tercio.health.book import HealthBook
from tercio.health.finding import Action, Severity
from tercio.health.history import Fault
from tercio.health.lemon import share_blame
from tercio.health.machine import TRANSITIONS, NodeState
from tercio.health.policy import HealthPolicy, HeldBy, Mode, Repairs
from tercio.health.record import Decision, Order

DAY_S = 86_400.0
ACT = HealthPolicy(mode=Mode.ACT, repairs=Repairs.COMMAND)


def fault(
    node: str,
    at_s: float,
    code: str = "79",
    action: Action = Action.REBOOT_NODE,
    severity: Severity = Severity.FATAL,
    **rest: str | None,
) -> Fault:
    return Fault(
        id=f"{node}-{code}-{at_s:g}",
        node=node,
        at_s=at_s,
        fault_class="xid",
        code=code,
        severity=severity,
        action=action,
        serial=rest.get("serial", f"{node}-s0"),
        locus=rest.get("locus"),
        job=rest.get("job"),
    )


def book_of(count: int, policy: HealthPolicy = ACT, **jobs: tuple[str, ...]) -> HealthBook:
    book = HealthBook(policy)
    for i in range(1, count + 1):
        book.note_node(f"n{i}", now_s=0, driver="570", jobs=jobs.get(f"n{i}", ()))
    return book


def brief(decisions: list[Decision]) -> list[tuple[str, Order, Action, HeldBy | None]]:
    return [(d.node, d.order, d.action, d.held_by) for d in decisions]


def test_a_lost_gpu_is_quarantined_rebooted_tried_and_returned() -> None:
    book = book_of(8)
    book.note_fault(fault("n3", 10))
    assert brief(book.decide(11)) == [("n3", Order.QUARANTINE, Action.REBOOT_NODE, None)]
    assert brief(book.decide(12)) == [("n3", Order.REPAIR, Action.REBOOT_NODE, None)]
    book.note_repair_ended("n3", succeeded=True, now_s=300)
    assert book.health("n3").state is NodeState.PROBATION
    assert brief(book.decide(400)) == []
    assert brief(book.decide(300 + DAY_S)) == [("n3", Order.RETURN, Action.NONE, None)]
    assert [c.finish for c in book.changes("n3")] == [
        NodeState.QUARANTINED,
        NodeState.REPAIRING,
        NodeState.PROBATION,
        NodeState.OK,
    ]
    assert book.changes("n3")[0].evidence == ("n3-79-10",)


def test_repair_waits_until_the_node_is_empty() -> None:
    book = book_of(8, n3=("job-1",))
    book.note_fault(fault("n3", 10))
    book.decide(11)
    assert brief(book.decide(12)) == [("n3", Order.REPAIR, Action.REBOOT_NODE, HeldBy.BUSY)]
    book.note_node("n3", now_s=20, jobs=())
    assert brief(book.decide(20)) == [("n3", Order.REPAIR, Action.REBOOT_NODE, None)]


def test_reset_when_idle_lets_the_job_finish() -> None:
    book = book_of(8, n3=("job-1",))
    book.note_fault(fault("n3", 10, "63", Action.RESET_GPU_WHEN_IDLE, Severity.WARNING))
    assert brief(book.decide(11))[0][3] is HeldBy.BUSY
    assert book.health("n3").state is NodeState.SUSPECT
    assert book.decide(12) == []
    book.note_node("n3", now_s=20, jobs=())
    assert brief(book.decide(20)) == [("n3", Order.QUARANTINE, Action.RESET_GPU_WHEN_IDLE, None)]


def test_shadow_mode_decides_but_touches_nothing() -> None:
    book = book_of(8, HealthPolicy())
    book.note_fault(fault("n3", 10))
    [decision] = book.decide(11)
    assert (decision.order, decision.held_by) == (Order.QUARANTINE, HeldBy.SHADOW)
    assert book.drained() == ()
    book.decide(11 + 2 * DAY_S)
    assert book.health("n3").state is NodeState.OK


def test_ladder_climbs_after_two_failed_tries_and_ends_with_a_person() -> None:
    book = book_of(8)
    book.note_fault(fault("n3", 10, "119", Action.RESET_GPU))
    now_s, tried = 10.0, []
    for _ in range(4):
        decisions = book.decide(now_s)
        decisions += book.decide(now_s)
        tried += [d.action for d in decisions if d.order is Order.REPAIR]
        book.note_repair_ended("n3", succeeded=False, now_s=now_s)
        now_s += 600
    assert tried == [
        Action.RESET_GPU,
        Action.RESET_GPU,
        Action.REBOOT_NODE,
        Action.REBOOT_NODE,
    ]
    [decision] = book.decide(now_s)
    assert (decision.order, decision.action) == (Order.ALERT, Action.INSPECT_HW)
    assert "needs a person" in decision.reason
    assert book.health("n3").state is NodeState.QUARANTINED


def test_loop_of_repairs_stops_for_a_person() -> None:
    book = book_of(8, msgspec.structs.replace(ACT, rung_tries=9))
    now_s = 10.0
    for i in range(5):
        book.note_fault(fault("n3", now_s, "119", Action.RESET_GPU))
        book.decide(now_s)
        book.decide(now_s)
        book.note_repair_ended("n3", succeeded=True, now_s=now_s + 1)
        now_s += 3600 * (i + 1)
    book.note_fault(fault("n3", now_s, "119", Action.RESET_GPU))
    book.decide(now_s)
    [decision] = book.decide(now_s)
    assert (decision.order, decision.held_by) == (Order.REPAIR, HeldBy.LOOP)


def test_repair_without_an_answer_counts_as_failed() -> None:
    book = book_of(8)
    book.note_fault(fault("n3", 10))
    book.decide(10)
    book.decide(10)
    assert brief(book.decide(10 + ACT.repair_timeout_s + 1))[0][1] is Order.ALERT
    assert book.health("n3").repairs[-1].succeeded is False
    book.note_repair_ended("n3", succeeded=True, now_s=9000)
    assert book.health("n3").state is NodeState.QUARANTINED


def test_a_cleared_fault_brings_the_node_back() -> None:
    book = book_of(8, n3=("job-1",))
    book.note_fault(fault("n3", 10))
    book.decide(10)
    book.note_cleared("n3-79-10", now_s=20)
    assert brief(book.decide(21)) == [("n3", Order.PROBATION, Action.NONE, None)]
    assert brief(book.decide(21 + DAY_S)) == [("n3", Order.RETURN, Action.NONE, None)]


def test_the_same_fault_in_probation_counts_double() -> None:
    book = book_of(8)
    book.note_fault(fault("n3", 0, "13", Action.RESTART_APP, Severity.ERROR, locus="GPC 1"))
    book.note_fault(fault("n3", 5, "13", Action.RESTART_APP, Severity.ERROR, locus="GPC 1"))
    assert brief(book.decide(6)) == [("n3", Order.QUARANTINE, Action.RESET_GPU, None)]
    book.decide(6)
    book.note_repair_ended("n3", succeeded=True, now_s=100)
    late = 2 * DAY_S
    book.move_by_operator("n3", NodeState.QUARANTINED, reason="x", actor="ana", now_s=150)
    book.move_by_operator("n3", NodeState.PROBATION, reason="x", actor="ana", now_s=late)
    book.note_fault(fault("n3", late + 1, "13", Action.RESTART_APP, Severity.ERROR, locus="GPC 2"))
    assert brief(book.decide(late + 2)) == [("n3", Order.QUARANTINE, Action.RESET_GPU, None)]


def test_application_fault_restarts_the_job_and_leaves_the_node() -> None:
    book = book_of(8, n3=("job-1",))
    book.note_fault(fault("n3", 10, "31", Action.RESTART_APP, Severity.ERROR, job="job-1"))
    assert brief(book.decide(11)) == [("n3", Order.RESTART_JOB, Action.RESTART_APP, None)]
    assert book.health("n3").state is NodeState.OK


def test_breaker_stops_all_until_a_person_resets_it() -> None:
    book = book_of(10)
    for i, code in enumerate(("48", "62", "95", "140"), start=1):
        book.note_fault(fault(f"n{i}", 10, code, Action.RESET_GPU))
    decisions = book.decide(11)
    assert {d.held_by for d in decisions} == {HeldBy.BREAKER}
    assert book.drained() == ()
    assert book.breaker_open_s == 11
    assert book.decide(5000) == []
    book.reset_breaker(now_s=5001)
    assert len([d for d in book.decide(5001) if d.held_by is None]) == 1


def test_one_code_on_many_nodes_of_one_driver_is_software() -> None:
    book = book_of(10)
    for i in range(1, 8):
        book.note_fault(fault(f"n{i}", 10 + i, "119", Action.RESET_GPU))
    decisions = book.decide(20)
    assert brief(decisions) == [("n1", Order.ALERT, Action.CHECK_SOFTWARE, None)]
    assert "570" in decisions[0].reason
    assert book.drained() == ()
    assert book.decide(30) == []


def test_never_two_nodes_of_one_running_job() -> None:
    policy = msgspec.structs.replace(ACT, drain_budget_min=5)
    book = book_of(8, policy, n1=("job-1",), n2=("job-1",))
    book.note_fault(fault("n1", 10))
    book.note_fault(fault("n2", 11, "119", Action.RESET_GPU))
    held = {d.node: d.held_by for d in book.decide(12)}
    assert held == {"n1": None, "n2": HeldBy.SAME_JOB}


@pytest.mark.parametrize("state", ["foreign_cordon", "in_maintenance"])
def test_what_others_hold_is_left_alone(state: str) -> None:
    book = book_of(8)
    book.note_node("n3", now_s=1, **{state: True})  # type: ignore[arg-type]
    book.note_fault(fault("n3", 10))
    [decision] = book.decide(11)
    assert decision.held_by in (HeldBy.FOREIGN_CORDON, HeldBy.MAINTENANCE)
    assert book.drained() == ()


def test_a_person_overrules_in_both_directions() -> None:
    book = book_of(8)
    book.note_fault(fault("n3", 10))
    book.decide(11)
    book.move_by_operator("n3", NodeState.OK, reason="board swapped", actor="ana", now_s=20)
    assert book.decide(21) == []
    book.move_by_operator("n3", NodeState.QUARANTINED, reason="noise", actor="ana", now_s=30)
    assert book.decide(30 + 40 * DAY_S) == []
    with pytest.raises(IllegalTransition, match="board swapped"):
        book.move_by_operator("n3", NodeState.SUSPECT, reason="x", actor="ana", now_s=31)
    with pytest.raises(UserError, match="n33"):
        book.health("n33")


def test_a_lemon_is_quarantined_for_a_person() -> None:
    book = book_of(8)
    for day in range(3):
        blame = share_blame(
            ["n5"], at_s=day * DAY_S, cause=f"job-{day}", culprit=None, is_user_code=False
        )
        book.note_blame(blame)
    [decision] = book.decide(3 * DAY_S)
    assert (decision.node, decision.action) == ("n5", Action.INSPECT_HW)
    assert "3 failures in 7 days" in decision.reason


def test_every_state_is_reachable_and_has_a_way_back() -> None:
    for state in NodeState:
        seen = {state}
        while True:
            more = {b for a, b in TRANSITIONS if a in seen} - seen
            if not more:
                break
            seen |= more
        assert NodeState.OK in seen
    assert {b for _, b in TRANSITIONS} == set(NodeState)


@pytest.mark.parametrize(
    ("field", "value"), [("drain_budget_ratio", 1.5), ("breaker_min", -1), ("rung_tries", 0)]
)
def test_reckless_policy_is_refused(field: str, value: float) -> None:
    with pytest.raises(UserError) as caught:
        HealthPolicy(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


CODES = [
    ("79", Action.REBOOT_NODE, Severity.FATAL),
    ("119", Action.RESET_GPU, Severity.FATAL),
    ("63", Action.RESET_GPU_WHEN_IDLE, Severity.WARNING),
    ("31", Action.RESTART_APP, Severity.ERROR),
    ("54", Action.INSPECT_HW, Severity.FATAL),
    ("999", Action.CONTACT_SUPPORT, Severity.WARNING),
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fault", "clear", "repaired", "failed", "jobs", "reset", "operator"]),
        st.integers(1, 12),
        st.sampled_from(CODES),
        st.floats(0, 3 * DAY_S),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(STEPS)
def test_any_history_respects_the_budget_and_is_explained(
    steps: list[tuple[str, int, tuple[str, Action, Severity], float]],
) -> None:
    policy = msgspec.structs.replace(ACT, drain_budget_ratio=0.2)
    book = book_of(12, policy)
    now_s = 0.0
    open_ids: list[str] = []
    for what, number, (code, action, severity), gap_s in steps:
        now_s += gap_s
        node = f"n{number}"
        if what == "fault":
            new = fault(node, now_s, code, action, severity)
            book.note_fault(new)
            open_ids.append(new.id)
        elif what == "clear" and open_ids:
            book.note_cleared(open_ids.pop(0), now_s=now_s)
        elif what in ("repaired", "failed"):
            book.note_repair_ended(node, succeeded=what == "repaired", now_s=now_s)
        elif what == "jobs":
            book.note_node(node, now_s=now_s, jobs=(f"job-{number % 3}",))
        elif what == "reset":
            book.reset_breaker(now_s=now_s)
        elif what == "operator" and book.health(node).state is NodeState.QUARANTINED:
            book.move_by_operator(
                node, NodeState.PROBATION, reason="repaired", actor="ana", now_s=now_s
            )
        for decision in book.decide(now_s):
            assert decision.reason
            if decision.order in (Order.QUARANTINE, Order.REPAIR):
                assert decision.evidence
                assert not any("-999-" in e for e in decision.evidence)
        assert len(book.drained()) <= policy.drain_budget(12)


@settings(max_examples=60)
@given(st.sets(st.integers(1, 12), max_size=6))
def test_when_all_faults_clear_every_node_returns(numbers: set[int]) -> None:
    book = book_of(12, msgspec.structs.replace(ACT, drain_budget_ratio=0.5))
    for number in sorted(numbers):
        book.note_fault(fault(f"n{number}", number * 3600, str(40 + number)))
        book.decide(number * 3600)
    now_s = 13 * 3600.0
    for number in sorted(numbers):
        book.note_cleared(f"n{number}-{40 + number}-{number * 3600:g}", now_s=now_s)
        book.note_repair_ended(f"n{number}", succeeded=True, now_s=now_s)
    book.decide(now_s)
    book.decide(now_s + DAY_S + 1)
    assert {book.health(f"n{i}").state for i in range(1, 13)} == {NodeState.OK}


@given(STEPS)
@settings(max_examples=30)
def test_same_facts_same_decisions(
    steps: list[tuple[str, int, tuple[str, Action, Severity], float]],
) -> None:
    def run() -> list[Decision]:
        book, now_s, said = book_of(12), 0.0, []
        for _, number, (code, action, severity), gap_s in steps:
            now_s += gap_s
            book.note_fault(fault(f"n{number}", now_s, code, action, severity))
            said += book.decide(now_s)
        return said

    assert run() == run()
