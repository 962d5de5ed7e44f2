"""All budgets at once: lower first, confirmed, then raised; nothing is ever passed on the way."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tercio.energy.caps import CapClass
from tercio.energy.control import BudgetShare, ControlledDevice, plan_limits


def device(name: str, **fields: object) -> ControlledDevice:
    known = ControlledDevice(
        device=name, job=f"job-{name}", cap_class=CapClass.NORMAL, limit_w=700, ceiling_w=700,
        floor_w=420, default_w=700, wanted_w=700,
    )  # fmt: skip
    return msgspec.structs.replace(known, **fields)


def plan(*devices: ControlledDevice, budget_w: int, demand_w: int = 0) -> dict[str, int]:
    by_name = {each.device: each for each in devices}
    share = BudgetShare(
        domain="row-a", budget_w=budget_w, devices=tuple(by_name), demand_w=demand_w
    )
    return plan_limits(by_name, [share]).limits_w


def test_a_passed_budget_lowers_all_alike() -> None:
    assert plan(device("a"), device("b"), budget_w=1000) == {"a": 500, "b": 500}


def test_nothing_rises_before_what_was_lowered_is_confirmed() -> None:
    low = device("a", limit_w=420, ceiling_w=420)
    coming = device("b", limit_w=500, ceiling_w=700)
    assert plan(low, coming, budget_w=1000) == {}
    there = device("b", limit_w=500, ceiling_w=500)
    assert plan(low, there, budget_w=1000) == {"a": 455}


def test_free_devices_wait_at_their_floor_and_count_nothing() -> None:
    free = device("c", job=None)
    assert plan(device("a", limit_w=665, ceiling_w=665), free, budget_w=700) == {
        "a": 700, "c": 420,
    }  # fmt: skip


def test_room_is_made_for_a_job_that_waits_down_to_the_floors_and_no_further() -> None:
    running = [device("a"), device("b")]
    assert plan(*running, budget_w=1400, demand_w=420) == {"a": 490, "b": 490}
    assert plan(*running, budget_w=1400, demand_w=4000) == {"a": 420, "b": 420}


def test_a_silent_node_takes_power_from_the_others_and_stops_nobody() -> None:
    silent = device("s", is_heard=False, limit_w=420, ceiling_w=420)
    by_name = {"a": device("a"), "s": silent}
    share = BudgetShare(domain="r", budget_w=1000, devices=("a", "s"))
    found = plan_limits(by_name, [share])
    assert found.limits_w == {"a": 420}
    assert found.stop == ()


def test_floors_beyond_the_budget_stop_the_jobs_that_may_be_evicted_first() -> None:
    by_name = {
        "a": device("a"),
        "b": device("b", cap_class=CapClass.PREEMPTIBLE),
    }
    share = BudgetShare(domain="r", budget_w=500, devices=("a", "b"))
    assert plan_limits(by_name, [share]).stop == ("job-b",)


def test_the_tighter_of_two_budgets_rules() -> None:
    by_name = {"a": device("a"), "b": device("b")}
    row = BudgetShare(domain="row", budget_w=500, devices=("a",))
    site = BudgetShare(domain="site", budget_w=1400, devices=("a", "b"))
    assert plan_limits(by_name, [row, site]).limits_w == {"a": 500}


_devices = st.lists(
    st.builds(
        lambda job, limit, extra, wanted, heard: {
            "job": "j" if job else None, "limit_w": limit, "ceiling_w": min(700, limit + extra),
            "wanted_w": wanted, "is_heard": heard,
        },
        st.booleans(), st.integers(420, 700), st.sampled_from([0, 0, 50, 300]),
        st.integers(420, 700), st.sampled_from([True, True, True, False]),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(fields=_devices, budget_w=st.integers(400, 4200), demand_w=st.sampled_from([0, 420, 840]))
def test_ceilings_pass_no_budget_at_any_step(
    fields: list[dict[str, object]], budget_w: int, demand_w: int
) -> None:
    """Whatever is confirmed when: once inside the budget, the ceilings in use stay inside."""
    devices = {
        str(i): device(str(i), **{**each, "job": each["job"] and f"j{i}"})
        for i, each in enumerate(fields)
    }
    share = BudgetShare(domain="r", budget_w=budget_w, devices=tuple(devices), demand_w=demand_w)
    for turn in range(12):
        before_w = _used_w(devices)
        for name, limit_w in plan_limits(devices, [share]).limits_w.items():
            known = devices[name]
            devices[name] = msgspec.structs.replace(
                known, limit_w=limit_w, ceiling_w=max(known.ceiling_w, limit_w)
            )
        assert _used_w(devices) <= max(before_w, budget_w)
        if turn % 2:
            devices = {
                name: msgspec.structs.replace(each, ceiling_w=each.limit_w)
                if each.is_heard
                else each
                for name, each in devices.items()
            }


def _used_w(devices: dict[str, ControlledDevice]) -> int:
    return sum(each.ceiling_w for each in devices.values() if each.job is not None)
