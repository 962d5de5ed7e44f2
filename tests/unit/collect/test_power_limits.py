"""Power limits on a machine: set by the child, written down first, taken back at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_nvml
from tercio.collect.power_limits import PowerLimits
from tercio.collect.sampling import Sample, Sampler
from tercio.model.power import CapOrders, PowerRange

FIRST, SECOND = "GPU-00000000", "GPU-00000001"


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    sampler = Sampler(timeout_s=30.0)
    yield sampler
    sampler.close()


def poll(sampler: Sampler, limits: PowerLimits) -> Sample:
    sampler.limits_w = limits.wanted_w
    sample = sampler.sample()
    limits.note(sample.devices)
    return sample


def in_force(sample: Sample) -> list[float | None]:
    return [device.power_limit_w for device in sample.devices]


def test_limits_are_set_and_taken_back(
    gpus: fake_nvml.FakeDriver, sampler: Sampler, tmp_path: Path
) -> None:
    gpus.set({"1.limit_mw": 650_000})
    limits = PowerLimits(tmp_path / "limits")
    first = poll(sampler, limits)
    assert first.devices[0].power_range == PowerRange(min_w=200, max_w=700, default_w=700)
    assert gpus.limits_w() == []
    limits.take(CapOrders(revision=3, limits={FIRST: 420, SECOND: 500}))
    assert in_force(poll(sampler, limits)) == [420, 500]
    poll(sampler, limits)
    assert gpus.limits_w() == [(0, 420), (1, 500)], "a limit that stands is not set again"
    limits.take(CapOrders(revision=4, limits={FIRST: 455}))
    assert in_force(poll(sampler, limits)) == [455, 650], "back to what it was before"
    limits.take(None)
    assert in_force(poll(sampler, limits)) == [700, 650]
    assert limits.wanted_w == {}
    assert limits.revision == 0


def test_an_agent_that_starts_sets_its_limits_again(
    gpus: fake_nvml.FakeDriver, sampler: Sampler, tmp_path: Path
) -> None:
    file = tmp_path / "limits"
    before = PowerLimits(file)
    poll(sampler, before)
    before.take(CapOrders(revision=3, limits={FIRST: 420}))
    poll(sampler, before)
    sampler.close()
    gpus.reboot()
    after = PowerLimits(file)
    assert after.revision == 0, "the server must not take it as confirmed before it has spoken"
    assert in_force(poll(sampler, after)) == [420, 700]
    after.take(None)
    assert in_force(poll(sampler, after)) == [700, 700]


def test_what_was_not_written_down_is_not_set(
    gpus: fake_nvml.FakeDriver, sampler: Sampler, tmp_path: Path
) -> None:
    limits = PowerLimits(tmp_path / "gone" / "limits")
    poll(sampler, limits)
    with pytest.raises(OSError, match="No such file"):
        limits.take(CapOrders(revision=1, limits={FIRST: 420}))
    assert limits.wanted_w == {}
    assert limits.revision == 0
    poll(sampler, limits)
    assert gpus.limits_w() == []


def test_a_limit_that_is_refused_is_a_note(
    gpus: fake_nvml.FakeDriver, sampler: Sampler, tmp_path: Path
) -> None:
    gpus.set({"0.set_error": 4})
    limits = PowerLimits(tmp_path / "limits")
    poll(sampler, limits)
    limits.take(CapOrders(revision=1, limits={FIRST: 420, SECOND: 100}))
    sample = poll(sampler, limits)
    assert in_force(sample) == [700, 700]
    assert sorted(sample.notes) == ["power limit of GPU 0", "power limit of GPU 1"]
    assert sample.notes["power limit of GPU 0"].startswith("420 W refused: ")
    assert "Invalid" in sample.notes["power limit of GPU 1"]
