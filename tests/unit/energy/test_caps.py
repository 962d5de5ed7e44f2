"""Caps: measured, never extrapolated; a domain never leaves its budget, not even half way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.energy.caps import (
    CapClass,
    CappedDevice,
    CapPoint,
    best_cap,
    break_even_slowdown_ratio,
    next_probe_w,
    plan_caps,
)


def curve(*rows: tuple[int, float, float]) -> list[CapPoint]:
    return [CapPoint(limit_w=w, step_s=s, step_energy_j=e) for w, s, e in rows]


# V100, medians over models and batch sizes (Zeus traces): time and energy against 250 W.
V100 = curve((250, 1.0, 250), (225, 1.013, 238.5), (200, 1.037, 224), (175, 1.063, 211))
# A40: below the cliff energy rises again.
A40 = curve((300, 1.0, 300), (174, 1.076, 252), (150, 1.33, 286), (126, 1.97, 322))


def test_best_cap_stays_within_the_slowdown() -> None:
    choice = best_cap(V100, slowdown_max_ratio=0.03)
    assert choice is not None
    assert (choice.limit_w, round(choice.saving_ratio, 3)) == (225, 0.046)
    free = best_cap(V100, slowdown_max_ratio=0)
    assert free is not None
    assert (free.limit_w, free.saving_ratio) == (250, 0)
    assert best_cap([], slowdown_max_ratio=1) is None


def test_best_cap_does_not_fall_off_the_cliff() -> None:
    choice = best_cap(A40, slowdown_max_ratio=5)
    assert choice is not None
    assert choice.limit_w == 174


def test_probing_goes_down_until_time_or_energy_says_stop() -> None:
    bounds = {"limit_min_w": 100, "limit_max_w": 250, "slowdown_max_ratio": 0.05}
    assert next_probe_w([], **bounds) == 250
    assert next_probe_w(V100[:2], **bounds) == 200
    assert next_probe_w(V100, **bounds) is None
    rising = curve((250, 1, 250), (225, 1.0, 251))
    assert next_probe_w(rising, **bounds) is None
    assert next_probe_w(curve((110, 1, 1)), **bounds) is None


@pytest.mark.parametrize(("price", "percent"), [(1, 1.5), (2, 0.7), (3, 0.5)])
def test_break_even(price: float, percent: float) -> None:
    got = break_even_slowdown_ratio(
        power_w=700, saving_ratio=0.2, pue=1.3, usd_per_kwh=0.08, usd_per_hour=price
    )
    assert 100 * got == pytest.approx(percent, abs=0.06)


def device(
    name: str, limit_w: int = 700, *, job: str = "j", cap_class: CapClass = CapClass.NORMAL
) -> CappedDevice:
    return CappedDevice(
        device=name,
        job=job,
        cap_class=cap_class,
        limit_w=limit_w,
        limit_min_w=200,
        limit_default_w=700,
        wanted_w=700,
    )


def test_preemptible_work_pays_first_and_devices_of_a_job_alike() -> None:
    devices = [
        device("a0", job="a"),
        device("a1", job="a"),
        device("b0", job="b", cap_class=CapClass.PREEMPTIBLE),
        device("b1", job="b", cap_class=CapClass.PREEMPTIBLE),
    ]
    plan = plan_caps(devices, budget_w=2200)
    assert {o.device: o.limit_w for o in plan.lower} == {"b0": 400, "b1": 400}
    tighter = plan_caps(devices, budget_w=1400)
    assert {o.device: o.limit_w for o in tighter.lower} == {
        "a0": 500,
        "a1": 500,
        "b0": 200,
        "b1": 200,
    }


def test_limits_rise_slowly() -> None:
    plan = plan_caps([device("a", 300)], budget_w=700)
    assert [o.limit_w for o in plan.raise_after] == [335]


def test_device_without_an_agent_is_counted_at_its_default() -> None:
    import msgspec

    mute = msgspec.structs.replace(device("m", 200), has_agent=False)
    plan = plan_caps([mute, device("a", 700)], budget_w=1000)
    assert {o.device: o.limit_w for o in plan.lower} == {"a": 300}


def test_budget_below_the_minimums_pauses_the_cheapest_jobs() -> None:
    devices = [device("a", job="a"), device("b", job="b", cap_class=CapClass.PREEMPTIBLE)]
    plan = plan_caps(devices, budget_w=300)
    assert plan.pause == ("b",)


DEVICES = st.lists(
    st.builds(
        CappedDevice,
        device=st.uuids().map(str),
        job=st.none() | st.sampled_from(["a", "b", "c"]),
        cap_class=st.sampled_from(CapClass),
        limit_w=st.integers(200, 700),
        limit_min_w=st.just(200),
        limit_default_w=st.just(700),
        wanted_w=st.integers(100, 900),
        has_agent=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda d: d.device,
)


@given(DEVICES, st.integers(0, 9000))
def test_no_step_of_a_plan_leaves_the_budget(devices: list[CappedDevice], budget_w: int) -> None:
    plan = plan_caps(devices, budget_w=budget_w)
    limits = {d.device: d.limit_w if d.has_agent else 700 for d in devices}
    floor_w = sum(200 if d.has_agent else 700 for d in devices)
    for order in plan.lower:
        assert 200 <= order.limit_w < limits[order.device]
        limits[order.device] = order.limit_w
    for order in plan.raise_after:
        assert limits[order.device] < order.limit_w <= 700
        limits[order.device] = order.limit_w
        assert sum(limits.values()) <= max(budget_w, floor_w)
    assert sum(limits.values()) <= max(budget_w, floor_w)
    assert bool(plan.pause) <= (floor_w > budget_w)
