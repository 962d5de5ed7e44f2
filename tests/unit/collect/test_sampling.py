"""Live readings through the child process, under the unmodified nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fake_nvml
from tercio.collect.dcgm import Exported, families
from tercio.collect.sampling import Sampler
from tercio.model.readings import NodeReading


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    sampler = Sampler(timeout_s=30.0)
    yield sampler
    sampler.close()


def test_a_device_says_everything(gpus: fake_nvml.FakeDriver, sampler: Sampler) -> None:
    gpus.set({"1.temp": 91, "1.power_mw": 650_000, "1.throttle": 72, "1.used": 2**30,
              "1.recovery": 2, "1.remap_pending": 1, "1.links_down": 2,
              "*.tensor": 33})  # fmt: skip
    sampler.sample()
    sample = sampler.sample()
    assert (sample.driver, sample.notes, len(sample.devices)) == ("580.65.06", {}, 2)
    device = sample.devices[1]
    assert (device.uuid, device.serial, device.pci) == (
        "GPU-00000001", "1650301", "00000000:11:00.0",
    )  # fmt: skip
    assert (device.temperature_c, device.power_w, device.throttle_mask) == (91.0, 650.0, 72)
    assert (device.utilization_ratio, device.memory_used_bytes) == (0.5, 2**30)
    assert (device.recovery_action, device.is_remap_pending, device.is_remap_failed) == (
        2, True, False,
    )  # fmt: skip
    assert (device.nvlink_active_count, device.pcie_width) == (16, 16)
    assert device.activity is not None
    assert device.activity.tensor_ratio == 0.33
    assert sample.devices[0].recovery_action is None


def test_a_poll_of_eight_devices_makes_few_calls(
    gpus: fake_nvml.FakeDriver, sampler: Sampler
) -> None:
    gpus.set({"-1.count": 8})
    sampler.sample()
    calls = [sampler.sample().calls for _ in range(3)]
    assert max(calls) <= 8 * 20 + 1, calls


def test_a_question_that_is_not_supported_is_asked_once(
    gpus: fake_nvml.FakeDriver, sampler: Sampler
) -> None:
    gpus.set({"-1.count": 1, "0.gpm": 0, "0.recovery": -1, "0.replay": -1})
    sampler.sample()
    first = sampler.sample().calls
    assert sampler.sample().calls == first
    assert sampler.sample().devices[0].pcie_replay_count is None


def test_a_lost_device_has_its_fault_and_keeps_its_name(
    gpus: fake_nvml.FakeDriver, sampler: Sampler
) -> None:
    sampler.sample()
    gpus.set({"1.lost": 1})
    lost = sampler.sample().devices[1]
    assert (lost.fault, lost.serial, lost.utilization_ratio) == ("GPU is lost", "1650301", None)
    gpus.set({"1.lost": 0})
    assert sampler.sample().devices[1].utilization_ratio == 0.5


def test_a_driver_that_hangs_costs_its_deadline_and_comes_back(
    gpus: fake_nvml.FakeDriver,
) -> None:
    sampler = Sampler(timeout_s=30.0)
    try:
        sampler.sample()
        gpus.set({"0.hang": 600})
        sampler._timeout_s = 0.5
        sample = sampler.sample()
        assert sample.devices == ()
        assert "no answer within" in sample.notes["probe"]
        assert sampler.pid is None
        gpus.set({"0.hang": 0})
        sampler._timeout_s = 30.0
        assert len(sampler.sample().devices) == 2
    finally:
        sampler.close()


def test_a_driver_that_is_not_loaded_is_a_note_until_it_is(
    gpus: fake_nvml.FakeDriver, sampler: Sampler
) -> None:
    gpus.set({"-1.init": 9})
    assert "Driver Not Loaded" in sampler.sample().notes["nvidia"]
    gpus.set({"-1.init": 0})
    assert len(sampler.sample().devices) == 2


def test_the_instances_of_a_card_are_read_and_exported_one_by_one(
    gpus: fake_nvml.FakeDriver, sampler: Sampler
) -> None:
    gpus.set({"0.mig": 2, "1000.used": 2**30, "1000.tensor": 40, "1001.tensor": 7})
    sampler.sample()
    sample = sampler.sample()
    first, second = sample.devices[0].slices
    assert (first.number, first.profile, first.uuid) == (1, "1g.10gb", "MIG-00001000")
    assert first.memory_used_bytes == 2**30
    assert first.activity is not None
    assert first.activity.tensor_ratio == 0.4
    assert second.activity is not None
    assert second.activity.tensor_ratio == 0.07
    assert sample.devices[1].slices == ()
    reading = NodeReading(at_s=0.0, devices=sample.devices)
    node = Exported(hostname="n1", reading=reading, devices=dict(enumerate(sample.devices)))
    lines = [
        (s.labels["gpu"], s.labels["GPU_I_ID"], s.labels["GPU_I_PROFILE"], s.value)
        for family in families([node])
        if family.name == "DCGM_FI_DEV_FB_USED"
        for s in family.samples
    ]
    assert lines == [
        ("0", "1", "1g.10gb", 1024.0), ("0", "2", "1g.10gb", 0.0), ("1", "", "", 0.0),
    ]  # fmt: skip
