"""Invented readings: plausible, steady, and never mistaken for measured ones."""

from __future__ import annotations

import json

import pytest

from tercio.engines.sim.readings import Load, simulated_reading, slow_device, with_identity
from tercio.testing import make_node

NODE = with_identity(make_node("n1", devices=8))
ENV = {
    "TERCIO_SIM": json.dumps(
        {"steps": {"every_s": 5, "own_s": 4, "slow_task": 1, "slow_from_step": 10}}
    )
}


def test_they_say_that_they_are_simulated() -> None:
    reading = simulated_reading(NODE, {}, 0.0)
    assert reading.driver == "simulated"
    assert all(device.name.endswith("(simulated)") for device in reading.devices)
    assert len({device.uuid for device in reading.devices}) == 8
    assert [device.uuid for device in reading.devices] == [d.uuid for d in NODE.devices]


@pytest.mark.parametrize("at_s", [0.0, 333.0, 1e9])
def test_what_is_held_is_busy_warm_and_draws_power(at_s: float) -> None:
    held = {0: [Load(job="job-00001")], 1: [Load(job="job-00002", share=0.5)]}
    whole, half, idle = simulated_reading(NODE, held, at_s).devices[:3]
    assert 0.55 <= whole.utilization_ratio <= 1.0
    assert 0.25 <= half.utilization_ratio <= 0.55
    assert idle.utilization_ratio == 0.0
    assert idle.power_w < 80 < half.power_w < whole.power_w < 700
    assert idle.temperature_c < half.temperature_c < whole.temperature_c < 85
    assert 0 < half.memory_used_bytes < whole.memory_total_bytes
    assert simulated_reading(NODE, held, at_s) == simulated_reading(NODE, held, at_s)


def test_a_slow_device_is_warm_and_clocks_low_but_is_no_fault_by_itself() -> None:
    usual = simulated_reading(NODE, {4: [Load(job="a")], 5: [Load(job="a")]}, 9.0).devices
    slow = simulated_reading(NODE, {4: [Load(job="a", is_slow=True)]}, 9.0).devices
    assert slow[4].sm_clock_mhz < 0.95 * usual[4].sm_clock_mhz
    assert 5 < slow[4].temperature_c - usual[4].temperature_c < 10
    assert slow[4].power_w < usual[4].power_w


def test_one_device_of_the_slow_task_is_slow_from_its_step_on() -> None:
    def found(task: int, after_s: float) -> int | None:
        return slow_device(ENV, task=task, devices=[0, 1, 2, 3], since_s=0.0, now_s=after_s)

    assert [found(1, 49.0), found(1, 50.0), found(0, 50.0)] == [None, 2, None]
    assert slow_device({}, task=1, devices=[0], since_s=0.0, now_s=99.0) is None
