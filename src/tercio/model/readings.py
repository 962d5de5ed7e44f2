"""What a node says of itself at one instant: devices, ports, kernel lines. None is not measured.

Raw telemetry never enters the journal. What a reading measured of a task does, once, when the
task ends: `Measured` and `Marks` are parts of that event.
"""

from __future__ import annotations

import msgspec

from tercio.model.power import PowerRange


class Activity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the inside of a device did between two readings, as shares of the time or the most."""

    tensor_ratio: float | None = None
    sm_ratio: float | None = None
    dram_ratio: float | None = None
    engine_ratio: float | None = None


class DeviceTelemetry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device at one instant.

    Attributes:
        index: position in the vendor's library.
        uuid, serial, pci, name: identity; empty when unknown.
        fault: why it could not be read, empty when it could.
        utilization_ratio: share of the time in which a kernel was resident.
        memory_busy_ratio: share of the time in which memory was read or written.
        energy_mj: since the driver was loaded.
        throttle_mask: clock event reasons, NVML's bits.
        recovery_action: what the driver asks for (NVML field 230).
        activity: of tensor cores, SMs and memory, where the device can tell (Hopper and later).
        power_range: limits that it takes, where limits are under control.
        pids: processes that compute on it.
    """

    index: int
    vendor: str = "nvidia"
    uuid: str = ""
    serial: str = ""
    pci: str = ""
    name: str = ""
    fault: str = ""
    utilization_ratio: float | None = None
    memory_busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_mj: int | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_mask: int | None = None
    ecc_corrected_count: int | None = None
    ecc_uncorrected_count: int | None = None
    remapped_corrected_count: int | None = None
    remapped_uncorrected_count: int | None = None
    is_remap_pending: bool | None = None
    is_remap_failed: bool | None = None
    nvlink_active_count: int | None = None
    pcie_replay_count: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    recovery_action: int | None = None
    activity: Activity | None = None
    power_range: PowerRange | None = None
    pids: tuple[int, ...] = ()


class PortTelemetry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One InfiniBand or RoCE port: state, rate, and error counters by their sysfs names."""

    port: str
    state: str = ""
    phys_state: str = ""
    rate: str = ""
    counters: dict[str, int] = {}


class KernelLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the kernel log that means something.

    `seq` grows within one boot and tells a repeated line from a new one.
    """

    seq: int
    text: str


class NodeReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that one poll of a node found.

    Attributes:
        at_s: by the node's own clock.
        boot_id: of the kernel; counters and line numbers are of one boot.
        driver: version of the GPU driver.
        notes: what could not be read and why, by source.
        calls: calls into the vendor's library that this poll made.
        version: of the program that read.
        caps_revision: of the power limits that were set before it read; 0 for none.
    """

    at_s: float
    boot_id: str = ""
    driver: str = ""
    devices: tuple[DeviceTelemetry, ...] = ()
    ports: tuple[PortTelemetry, ...] = ()
    lines: tuple[KernelLine, ...] = ()
    notes: dict[str, str] = {}
    calls: int = 0
    version: str = ""
    caps_revision: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What readings say of a task's devices over its life.

    Attributes:
        energy_mj: of its share of the devices.
        energy_source: `counter`, `power` or `estimate`; empty for none.
        seen: spans that readings cover, seconds since the epoch.
        low: spans of those with a utilisation under 5 %.
    """

    energy_mj: int = 0
    energy_source: str = ""
    seen: tuple[tuple[float, float], ...] = ()
    low: tuple[tuple[float, float], ...] = ()


class Marks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task itself marked: its steps and its checkpoints.

    Attributes:
        step_count: marked steps.
        first_step_s, last_step_s: when a step first and last ended.
        gaps: spans between two steps that were a minute and longer: start and end.
        checkpoints: begin and end of each, the last ones.
        early_s: when each of the first steps ended, for their speed.
        step_tokens: tokens of one step, None where no mark says them.
        checkpoint_bytes: size of the last checkpoint, None where no mark says it.
    """

    step_count: int = 0
    first_step_s: float | None = None
    last_step_s: float | None = None
    gaps: tuple[tuple[float, float], ...] = ()
    checkpoints: tuple[tuple[float, float], ...] = ()
    early_s: tuple[float, ...] = ()
    step_tokens: float | None = None
    checkpoint_bytes: float | None = None
