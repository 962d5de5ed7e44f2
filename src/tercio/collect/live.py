"""Live readings of NVIDIA devices through NVML, for the child process of `sampling`.

What never changes is asked once; a question that a device does not support is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import pynvml

from tercio.collect.gpm import GpmMeter, is_supported
from tercio.model.power import PowerRange
from tercio.model.readings import Activity, DeviceTelemetry

_T = TypeVar("_T")
_UNSUPPORTED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
_LINKS_EVERY_POLLS = 30
_CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers 570 and later


class NvmlReader:
    """Keeps the library open between two polls.

    Attributes:
        calls: calls into the library so far.
        driver: version of the driver.
        refused: power limits that the last read could not set and why, by what to call them.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.calls = 0
        self.driver = ""
        self._is_open = False
        self._static: dict[int, DeviceTelemetry] = {}
        self._not_asked: set[tuple[int, str]] = set()
        self._gpm: dict[int, GpmMeter] = {}
        self._polls = 0
        self._links: dict[int, tuple[int, int | None]] = {}
        self._limits_w: Mapping[str, int] = {}

    def read(self, limits_w: Mapping[str, int] | None = None) -> tuple[DeviceTelemetry, ...]:
        """Set the power limits that are asked for by UUID, and return every device in index order.

        Raises:
            pynvml.NVMLError: without a driver.
        """
        self._limits_w = limits_w or {}
        self.refused = {}
        if not self._is_open:
            self.calls += 2
            pynvml.nvmlInit()
            self._is_open = True
            self.driver = _text(pynvml.nvmlSystemGetDriverVersion())
        self.calls += 1
        self._polls += 1
        try:
            return tuple(self._device(index) for index in range(pynvml.nvmlDeviceGetCount()))
        except pynvml.NVMLError:
            self.close()
            raise

    def close(self) -> None:
        """Let the library go; the next read opens it again."""
        self._is_open = False
        self._static.clear()
        self._gpm.clear()
        self._links.clear()
        self._not_asked.clear()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return

    def _device(self, index: int) -> DeviceTelemetry:
        self.calls += 1
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            known = self._static.get(index) or self._identity(index, handle)
        except pynvml.NVMLError as error:
            known = self._static.get(index, DeviceTelemetry(index=index))
            return _failed(known, str(error))
        try:
            wanted_w = self._limits_w.get(known.uuid)
            if wanted_w is not None:
                known = self._limit(index, handle, known, wanted_w)
            return self._dynamic(index, handle, known)
        except pynvml.NVMLError as error:
            return _failed(known, str(error))

    def _limit(
        self, index: int, handle: object, known: DeviceTelemetry, wanted_w: int
    ) -> DeviceTelemetry:
        """Set the limit of a device where it is another, and return what is in force then."""
        self.calls += 2
        try:
            if pynvml.nvmlDeviceGetPowerManagementLimit(handle) != 1000 * wanted_w:
                self.calls += 1
                pynvml.nvmlDeviceSetPowerManagementLimit(handle, 1000 * wanted_w)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN):
                raise
            self.refused[f"power limit of GPU {index}"] = f"{wanted_w} W refused: {error}"
        in_force_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        known = msgspec.structs.replace(known, power_limit_w=in_force_w)
        self._static[index] = known
        return known

    def _identity(self, index: int, handle: object) -> DeviceTelemetry:
        self.calls += 2
        found = DeviceTelemetry(
            index=index,
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            serial=self._ask(index, "serial", lambda: _text(pynvml.nvmlDeviceGetSerial(handle)))
            or "",
            pci=self._ask(
                index, "pci", lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()
            )
            or "",
            power_limit_w=self._ask(
                index, "limit", lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
            ),
            power_range=self._ask(index, "power_range", lambda: _power_range(handle)),
            pcie_generation_max=self._ask(
                index, "gen_max", lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
            ),
            pcie_width_max=self._ask(
                index, "width_max", lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
            ),
        )
        self._static[index] = found
        return found

    def _dynamic(self, index: int, handle: object, known: DeviceTelemetry) -> DeviceTelemetry:
        def ask(name: str, question: Callable[[], _T]) -> _T | None:
            return self._ask(index, name, question)

        rates = ask("rates", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        memory = ask("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        rows = ask("rows", lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
        pids = ask("pids", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return DeviceTelemetry(
            index=index,
            uuid=known.uuid,
            serial=known.serial,
            pci=known.pci,
            name=known.name,
            power_limit_w=known.power_limit_w,
            power_range=known.power_range,
            pcie_generation_max=known.pcie_generation_max,
            pcie_width_max=known.pcie_width_max,
            utilization_ratio=None if rates is None else rates.gpu / 100,
            memory_busy_ratio=None if rates is None else rates.memory / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=ask("power", lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            energy_mj=ask("energy", lambda: _energy(handle)),
            temperature_c=ask(
                "temperature",
                lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            ),
            sm_clock_mhz=ask("sm", lambda: _clock(handle, pynvml.NVML_CLOCK_SM)),
            memory_clock_mhz=ask("mem", lambda: _clock(handle, pynvml.NVML_CLOCK_MEM)),
            throttle_mask=ask(
                "throttle", lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            ),
            ecc_corrected_count=ask("ecc_c", lambda: _ecc(handle, _CORRECTED)),
            ecc_uncorrected_count=ask("ecc_u", lambda: _ecc(handle, _UNCORRECTED)),
            remapped_corrected_count=None if rows is None else int(rows[0]),
            remapped_uncorrected_count=None if rows is None else int(rows[1]),
            is_remap_pending=None if rows is None else bool(rows[2]),
            is_remap_failed=None if rows is None else bool(rows[3]),
            pcie_replay_count=ask(
                "replay", lambda: int(pynvml.nvmlDeviceGetPcieReplayCounter(handle))
            ),
            pcie_generation=ask(
                "gen", lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
            ),
            pcie_width=ask("width", lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
            activity=self._activity(index, handle),
            nvlink_active_count=self._nvlinks(index, handle),
            recovery_action=ask("recovery", lambda: _field(handle, _RECOVERY_FIELD)),
            pids=() if pids is None else tuple(sorted(int(p.pid) for p in pids)),
        )  # fmt: skip

    def _nvlinks(self, index: int, handle: object) -> int | None:
        """Return the active links; counted anew every so often, since each link is a call."""
        counted = self._links.get(index)
        if counted is not None and self._polls - counted[0] < _LINKS_EVERY_POLLS:
            return counted[1]
        active: int | None = None
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            self.calls += 1
            try:
                state = pynvml.nvmlDeviceGetNvLinkState(handle, link)
            except pynvml.NVMLError:
                break  # past the last link, or a device without any
            active = (active or 0) + int(state)
        self._links[index] = (self._polls, active)
        return active

    def _activity(self, index: int, handle: object) -> Activity | None:
        if (index, "gpm") in self._not_asked:
            return None
        meter = self._gpm.get(index)
        if meter is None:
            if not self._ask(index, "gpm", lambda: is_supported(handle)):
                self._not_asked.add((index, "gpm"))
                return None
            meter = self._ask(index, "gpm", GpmMeter)
            if meter is None:
                return None
            self._gpm[index] = meter
        self.calls += 1
        return self._ask(index, "gpm", lambda: meter.read(handle))

    def _ask(self, index: int, name: str, question: Callable[[], _T]) -> _T | None:
        """Return the answer, None for what the device does not say; raises when it is lost."""
        if (index, name) in self._not_asked:
            return None
        self.calls += 1
        try:
            return question()
        except pynvml.NVMLError as error:
            if error.value in _UNSUPPORTED:
                self._not_asked.add((index, name))
            if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN):
                raise
            return None


def _failed(known: DeviceTelemetry, why: str) -> DeviceTelemetry:
    return DeviceTelemetry(
        index=known.index,
        uuid=known.uuid,
        serial=known.serial,
        pci=known.pci,
        name=known.name,
        fault=why,
    )


def _clock(handle: object, kind: int) -> int:
    return int(pynvml.nvmlDeviceGetClockInfo(handle, kind))


def _power_range(handle: object) -> PowerRange:
    least, most = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    default = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    return PowerRange(min_w=-(-least // 1000), max_w=most // 1000, default_w=default // 1000)


def _energy(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def _ecc(handle: object, kind: int) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


def _field(handle: object, field: int) -> int | None:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
    return int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
