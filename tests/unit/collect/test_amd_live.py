"""Live readings of AMD devices: a stand-in for the `amdsmi` package, read by the real child."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tercio.collect.sampling import Sampler
from tercio.model.readings import DeviceTelemetry

# The names and units of AMD SMI's Python interface (ROCm/amdsmi, py-interface/amdsmi_interface.py):
# memory in MiB, power in watts, the limit in microwatts, energy in ticks of some microjoules, rates
# of PCIe in MT/s, and N/A where a device says nothing.
STAND_IN = """
import enum

class AmdSmiException(Exception): ...
class AmdSmiTemperatureType(enum.IntEnum):
    EDGE = 0
    HOTSPOT = 1
class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0
class AmdSmiClkType(enum.IntEnum):
    GFX = 0
    MEM = 4

def amdsmi_init(): ...
def amdsmi_shut_down(): ...
def amdsmi_get_processor_handles(): return [0, 1]
def amdsmi_get_gpu_driver_info(h): return {"driver_version": "6.12.12"}
def amdsmi_get_gpu_asic_info(h):
    return {"market_name": "AMD Instinct MI300X", "asic_serial": f"0xB4C1F{h}"}
def amdsmi_get_gpu_board_info(h): return {"product_serial": f"6923{h}"}
def amdsmi_get_gpu_device_bdf(h): return f"0000:0{h + 5}:00.0"
def amdsmi_get_gpu_activity(h):
    if h == 1:
        raise AmdSmiException("device hangs")
    return {"gfx_activity": 87, "umc_activity": 41, "mm_activity": "N/A"}
def amdsmi_get_gpu_vram_usage(h): return {"vram_used": 1024, "vram_total": 196592}
def amdsmi_get_power_info(h):
    return {"current_socket_power": 612, "average_socket_power": "N/A", "power_limit": 750000000}
def amdsmi_get_energy_count(h):
    return {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1}
def amdsmi_get_temp_metric(h, kind, metric): return 71 if kind == 1 else 40
def amdsmi_get_clock_info(h, kind): return {"clk": 2100 if kind == 0 else 1300, "max_clk": 2100}
def amdsmi_get_gpu_total_ecc_count(h):
    return {"correctable_count": 3, "uncorrectable_count": 0, "deferred_count": 0}
def amdsmi_get_pcie_info(h):
    return {"pcie_metric": {"pcie_width": 8, "pcie_speed": 32000, "pcie_replay_count": 2},
            "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32000}}
def amdsmi_get_gpu_process_list(h): return [{"pid": 42}, {"pid": 7}]
"""


@pytest.fixture
def sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampler]:
    (tmp_path / "amdsmi.py").write_text(STAND_IN)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PYTHONPATH", path)
    sampler = Sampler(timeout_s=30.0)
    yield sampler
    sampler.close()


def test_a_device_says_everything_in_our_units(sampler: Sampler) -> None:
    sample = sampler.sample()
    assert sample.driver == "6.12.12"
    assert sample.devices[0] == DeviceTelemetry(
        index=0, vendor="amd", uuid="GPU-b4c1f0", serial="69230", pci="0000:05:00.0",
        name="AMD Instinct MI300X", utilization_ratio=0.87, memory_busy_ratio=0.41,
        memory_used_bytes=2**30, memory_total_bytes=196592 * 2**20, power_w=612.0,
        power_limit_w=750.0, energy_mj=30_600, temperature_c=71.0, sm_clock_mhz=2100,
        memory_clock_mhz=1300, ecc_corrected_count=3, ecc_uncorrected_count=0,
        pcie_replay_count=2, pcie_width=8, pcie_width_max=16, pcie_generation=5,
        pcie_generation_max=5, pids=(7, 42),
    )  # fmt: skip


def test_a_device_that_answers_nothing_is_there_with_its_fault(sampler: Sampler) -> None:
    sick = sampler.sample().devices[1]
    assert (sick.uuid, sick.fault) == ("GPU-b4c1f1", "no answer from AMD SMI")
    assert sick.power_w is None


def test_a_machine_of_one_maker_says_nothing_of_the_other(sampler: Sampler) -> None:
    assert "amd" not in sampler.sample().notes
    assert "nvidia" not in sampler.sample().notes


def test_a_poll_makes_few_calls(sampler: Sampler) -> None:
    sampler.sample()
    assert sampler.sample().calls <= 2 * 12 + 2
