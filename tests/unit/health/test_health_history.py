"""Repeats blame the device or the code; waves blame the software; lemons are rare."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.health.finding import Action, Severity
from tercio.health.history import Fault, Origin, find_waves, judge_repeats
from tercio.health.lemon import Blame, LemonRule, gamma_tail, judge_lemon, share_blame

HOUR_S = 3600.0
DAY_S = 86_400.0


def fault(
    at_s: float,
    *,
    node: str = "n1",
    code: str = "31",
    serial: str | None = "s1",
    locus: str | None = None,
    job: str | None = None,
    action: Action = Action.RESTART_APP,
) -> Fault:
    return Fault(
        id=f"{node}-{at_s:g}-{serial}",
        node=node,
        at_s=at_s,
        fault_class="xid",
        code=code,
        severity=Severity.ERROR,
        action=action,
        serial=serial,
        locus=locus,
        job=job,
    )


def origin(*faults: Fault) -> Origin:
    return judge_repeats(faults[-1], faults).origin


def test_same_device_twice_in_a_day_is_hardware() -> None:
    assert origin(fault(0)) is Origin.UNDECIDED
    assert origin(fault(0), fault(HOUR_S)) is Origin.HARDWARE
    assert origin(fault(0), fault(25 * HOUR_S)) is Origin.UNDECIDED


def test_a_board_is_known_by_its_serial_on_any_node() -> None:
    assert origin(fault(0, node="n1"), fault(HOUR_S, node="n2")) is Origin.HARDWARE
    assert origin(fault(0, serial="s1"), fault(HOUR_S, serial="s2")) is Origin.UNDECIDED


def test_13_counts_at_one_place_inside_the_device_only() -> None:
    first = fault(0, code="13", locus="GPC 7 TPC 0")
    assert origin(first, fault(60, code="13", locus="GPC 1 TPC 0")) is Origin.UNDECIDED
    assert origin(first, fault(60, code="13", locus="GPC 7 TPC 0")) is Origin.HARDWARE


def test_a_job_that_fails_on_several_devices_is_to_blame() -> None:
    spread = [fault(0, serial="s1", job="j"), fault(60, serial="s2", job="j")]
    verdict = judge_repeats(spread[-1], spread)
    assert (verdict.origin, verdict.action) == (Origin.APPLICATION, Action.RESTART_APP)
    again = [*spread, fault(120, serial="s2", job="j")]
    assert origin(*again) is Origin.APPLICATION


def test_a_device_that_fails_another_job_too_is_not_excused() -> None:
    history = [
        fault(0, serial="s1", job="j"),
        fault(60, serial="s2", job="other"),
        fault(120, serial="s2", job="j"),
    ]
    assert origin(*history) is Origin.HARDWARE


def test_79_twice_in_a_month_asks_for_hands() -> None:
    lost = [fault(d * DAY_S, code="79", action=Action.REBOOT_NODE) for d in (0, 20)]
    assert judge_repeats(lost[-1], lost).action is Action.INSPECT_HW


def test_wave_names_driver_and_nodes() -> None:
    drivers = {f"n{i}": "610" if i < 50 else "570" for i in range(100)}
    faults = [fault(i, node=f"n{i}", serial=f"s{i}") for i in range(10)]
    [wave] = find_waves(faults, drivers, now_s=60)
    assert (wave.driver, len(wave.nodes)) == ("610", 10)
    assert find_waves(faults[:2], drivers, now_s=60) == ()
    assert find_waves(faults, drivers, now_s=2 * HOUR_S) == ()
    big = drivers | {f"m{i}": "610" for i in range(1000)}
    assert find_waves(faults, big, now_s=60) == ()


def test_memory_faults_are_never_called_software() -> None:
    faults = [fault(i, node=f"n{i}", serial=f"s{i}", code="48") for i in range(10)]
    assert find_waves(faults, {f"n{i}": "610" for i in range(10)}, now_s=60) == ()


def test_blame_is_shared_named_or_nobodys() -> None:
    nodes = ["n1", "n2", "n3"]
    shared = share_blame(nodes, at_s=0, cause="j", culprit=None, is_user_code=False)
    assert math.isclose(sum(b.weight for b in shared), 1)
    named = share_blame(nodes, at_s=0, cause="j", culprit="n2", is_user_code=False)
    assert [(b.node, b.weight) for b in named] == [("n2", 1.0)]
    assert share_blame(nodes, at_s=0, cause="j", culprit="n2", is_user_code=True) == ()


@pytest.mark.parametrize(
    ("shape", "x", "tail"),
    # Erlang tails: exp(-x) sum x^k / k!, summed by hand.
    [(1, 2.0, math.exp(-2)), (3, 2.0, 5 * math.exp(-2)), (3, 8.0, 41 * math.exp(-8))],
)
def test_gamma_tail_against_the_closed_form(shape: float, x: float, tail: float) -> None:
    assert math.isclose(gamma_tail(shape=shape, rate=1, above=x), tail, rel_tol=1e-12)


@given(st.floats(0.1, 60), st.floats(0, 200))
def test_gamma_tail_is_a_probability_and_falls(shape: float, x: float) -> None:
    here = gamma_tail(shape=shape, rate=1, above=x)
    assert 0 <= here <= 1
    assert gamma_tail(shape=shape, rate=1, above=x + 1) <= here + 1e-12


@pytest.mark.parametrize(
    ("days", "reason"),
    [
        ([0, 3, 6], "3 failures in 7 days"),
        ([0, 9, 18, 27], "4 failures in 30 days"),
        ([0, 9, 18], ""),
    ],
)
def test_acute_and_chronic_counts(days: list[float], reason: str) -> None:
    blames = [Blame(node="n1", at_s=d * DAY_S, weight=1.0, cause="j") for d in days]
    verdict = judge_lemon(blames, node="n1", exposure_s=90 * DAY_S, now_s=days[-1] * DAY_S)
    assert verdict.is_lemon is bool(reason)
    assert reason in verdict.reason


def test_thirds_add_up_to_whole_failures() -> None:
    blames = [Blame(node="n1", at_s=0, weight=1 / 3, cause="j")] * 9
    assert judge_lemon(blames, node="n1", exposure_s=DAY_S, now_s=0).is_lemon


def test_users_who_avoid_a_node_raise_its_odds() -> None:
    blames = [Blame(node="n1", at_s=0, weight=1.0, cause="j")] * 2
    calm = judge_lemon(blames, node="n1", exposure_s=30 * DAY_S, now_s=0)
    warned = judge_lemon(blames, node="n1", exposure_s=30 * DAY_S, now_s=0, excluded_by=6)
    assert warned.probability_ratio > calm.probability_ratio


def test_a_thousand_healthy_nodes_lose_at_most_one_a_month_and_lemons_are_found() -> None:
    """20 months of 1,000 nodes at the fleet's rate; then nodes at ten times the rate."""
    rate, months = LemonRule().fleet_rate_per_day, 20
    healthy = sum(_quarantined(random.Random(seed), 1000, rate, days=30) for seed in range(months))
    assert healthy / months <= 1
    lemons = sum(_quarantined(random.Random(seed), 10, 10 * rate, days=90) for seed in range(10))
    assert lemons >= 50


def _quarantined(rng: random.Random, nodes: int, rate: float, *, days: int) -> int:
    count = 0
    for number in range(nodes):
        blames: list[Blame] = []
        at_days = rng.expovariate(rate)
        while at_days < days:
            now_s = at_days * DAY_S
            blames.append(Blame(node=f"n{number}", at_s=now_s, weight=1.0, cause="j"))
            if judge_lemon(blames, node=f"n{number}", exposure_s=now_s, now_s=now_s).is_lemon:
                count += 1
                break
            at_days += rng.expovariate(rate)
    return count
