"""Live readings of AMD devices through AMD SMI, for the child process of `sampling`.

Releases of the library name the same thing in different ways, and say `N/A` for what a device does
not tell: the first name that has a number counts.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Final

import msgspec

from tercio.collect.amdsmi import uuid_of
from tercio.model.readings import DeviceTelemetry

_MIB: Final = 2**20
_MICRO: Final = 1_000_000
_MOST_W: Final = 10_000
"""A power limit above this is in microwatts, as some releases of the library say it."""
# Transfer rates of the PCIe generations in MT/s, as the library says them.
_PCIE_MTS: Final = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


class AmdReader:
    """Keeps the library open between two polls; there is nothing to read where it is missing.

    Attributes:
        calls: calls into the library so far.
        driver: version of the driver.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.driver = ""
        self._smi: ModuleType | None = None
        self._handles: list[object] = []
        self._static: list[DeviceTelemetry] = []

    def read(self) -> tuple[DeviceTelemetry, ...]:
        """Return every AMD device, in the library's order.

        Raises:
            ImportError: the library is not installed.
            Exception: what the library raises without a driver.
        """
        if self._smi is None:
            self._open()
        return tuple(self._device(index) for index in range(len(self._handles)))

    def _open(self) -> None:
        smi = importlib.import_module("amdsmi")
        self.calls += 2
        smi.amdsmi_init()
        self._handles = list(smi.amdsmi_get_processor_handles())
        self._smi = smi
        self._static = [self._identity(index) for index in range(len(self._handles))]
        if self._handles:
            self.driver = str(
                self._facts(0, "amdsmi_get_gpu_driver_info").get("driver_version", "")
            )

    def _identity(self, index: int) -> DeviceTelemetry:
        asic = self._facts(index, "amdsmi_get_gpu_asic_info")
        board = self._facts(index, "amdsmi_get_gpu_board_info")
        return DeviceTelemetry(
            index=index,
            vendor="amd",
            name=str(asic.get("market_name", "")),
            uuid=uuid_of(str(asic.get("asic_serial", ""))),
            serial=str(board.get("product_serial", "")),
            pci=str(self._ask(index, "amdsmi_get_gpu_device_bdf") or "").lower(),
        )

    def _device(self, index: int) -> DeviceTelemetry:
        activity = self._facts(index, "amdsmi_get_gpu_activity")
        if not activity:
            # It answers nothing, not even that it idles.
            return msgspec.structs.replace(self._static[index], fault="no answer from AMD SMI")
        memory = self._facts(index, "amdsmi_get_gpu_vram_usage")
        power = self._facts(index, "amdsmi_get_power_info")
        ecc = self._facts(index, "amdsmi_get_gpu_total_ecc_count")
        pcie = self._facts(index, "amdsmi_get_pcie_info")
        link, most = _part(pcie, "pcie_metric"), _part(pcie, "pcie_static")
        used, total = _number(memory, "vram_used"), _number(memory, "vram_total")
        return msgspec.structs.replace(
            self._static[index],
            utilization_ratio=_share(_number(activity, "gfx_activity")),
            memory_busy_ratio=_share(_number(activity, "umc_activity")),
            memory_used_bytes=None if used is None else int(used * _MIB),
            memory_total_bytes=None if total is None else int(total * _MIB),
            power_w=_number(power, "socket_power", "current_socket_power", "average_socket_power"),
            power_limit_w=_watts(_number(power, "power_limit")),
            energy_mj=self._energy_mj(index),
            temperature_c=self._celsius(index),
            sm_clock_mhz=self._clock_mhz(index, "GFX"),
            memory_clock_mhz=self._clock_mhz(index, "MEM"),
            ecc_corrected_count=_whole(_number(ecc, "correctable_count")),
            ecc_uncorrected_count=_whole(_number(ecc, "uncorrectable_count")),
            pcie_replay_count=_whole(_number(link, "pcie_replay_count")),
            pcie_width=_whole(_number(link, "pcie_width")),
            pcie_width_max=_whole(_number(most, "max_pcie_width")),
            pcie_generation=_generation(_number(link, "pcie_speed")),
            pcie_generation_max=_generation(_number(most, "max_pcie_speed")),
            pids=self._pids(index),
        )

    def _energy_mj(self, index: int) -> int | None:
        """Return the counter, which is in units of `counter_resolution` microjoules."""
        facts = self._facts(index, "amdsmi_get_energy_count")
        count = _number(facts, "energy_accumulator", "power")
        unit_uj = _number(facts, "counter_resolution")
        return None if count is None or unit_uj is None else int(count * unit_uj / 1000)

    def _celsius(self, index: int) -> float | None:
        """Return the hottest spot, or the edge where a device has no sensor there."""
        kinds = self._enum("AmdSmiTemperatureType")
        now = self._enum("AmdSmiTemperatureMetric").get("CURRENT")
        for name in ("HOTSPOT", "JUNCTION", "EDGE"):
            if name in kinds:
                found = self._ask(index, "amdsmi_get_temp_metric", kinds[name], now)
                if isinstance(found, int | float) and found > 0:
                    return float(found)
        return None

    def _clock_mhz(self, index: int, name: str) -> int | None:
        kind = self._enum("AmdSmiClkType").get(name)
        if kind is None:
            return None
        return _whole(_number(self._facts(index, "amdsmi_get_clock_info", kind), "clk", "cur_clk"))

    def _pids(self, index: int) -> tuple[int, ...]:
        found = self._ask(index, "amdsmi_get_gpu_process_list")
        rows = found if isinstance(found, list) else []
        return tuple(
            sorted(int(row["pid"]) for row in rows if isinstance(row, dict) and "pid" in row)
        )

    def _facts(self, index: int, question: str, *more: object) -> Mapping[str, object]:
        found = self._ask(index, question, *more)
        return found if isinstance(found, dict) else {}

    def _ask(self, index: int, question: str, *more: object) -> object:
        """Return the answer, None for what a device, or this release, does not say."""
        smi = self._smi
        assert smi is not None
        if not hasattr(smi, question):
            return None
        self.calls += 1
        failure: type[Exception] = smi.AmdSmiException
        try:
            return getattr(smi, question)(self._handles[index], *more)
        except (failure, KeyError, ValueError):
            return None

    def _enum(self, name: str) -> dict[str, object]:
        found = getattr(self._smi, name, None)
        return {} if found is None else {k: getattr(found, k) for k in dir(found) if k.isupper()}


def _part(facts: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = facts.get(name)
    return found if isinstance(found, dict) else {}


def _number(facts: Mapping[str, object], *names: str) -> float | None:
    """Return the first of the named values that is a number: `N/A` is none."""
    for name in names:
        found = facts.get(name)
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)
    return None


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _watts(limit: float | None) -> float | None:
    if not limit:
        return None
    return limit / _MICRO if limit > _MOST_W else limit


def _generation(rate: float | None) -> int | None:
    """Return the PCIe generation of a transfer rate in MT/s, or in GT/s as some releases say."""
    if rate is None:
        return None
    return _PCIE_MTS.get(int(rate if rate >= 1000 else rate * 1000))
