"""One node's preflight: what can be checked without work on it, in a few seconds.

Each check ends as `ok`, `problem` or `unknown`; `skipped` is what this machine does not have.
The thresholds are those of `health.readings`, and the fault table says what a kernel line means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from tercio.collect.kernel_log import since_boot
from tercio.collect.ports import ROOT, read_ports
from tercio.collect.sampling import Sample
from tercio.health.classify import classify
from tercio.health.finding import PASSIVE_ACTIONS, Action, Severity
from tercio.health.readings import HW_SLOWDOWN_MASK
from tercio.health.table import FaultTable
from tercio.health.xid import RECOVERY_ACTIONS
from tercio.model.readings import DeviceTelemetry, PortTelemetry

Verdict = Literal["ok", "problem", "unknown", "skipped"]
DISK_FREE_RATIO_MIN: Final = 0.05
BUSY_RATIO: Final = 0.05


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was looked at, how it ended, and one line that says why."""

    name: str
    verdict: Verdict
    text: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What this node should have; None asks nothing.

    Attributes:
        gpus: devices.
        nvlinks: active links of each device.
        mounts: directories that must be mount points.
        disks: directories whose file systems need room.
    """

    gpus: int | None = None
    nvlinks: int | None = None
    mounts: tuple[str, ...] = ()
    disks: tuple[str, ...] = ("/", "/tmp")


def preflight(
    *,
    sample: Callable[[], Sample],
    table: FaultTable,
    wanted: Wanted,
    kernel_log: str = "kmsg",
    ports: Path = ROOT,
    is_driver_loaded: Callable[[], bool] | None = None,
) -> tuple[Check, ...]:
    """Return every check, in the order in which a person would look. Blocks for the driver."""
    loaded = is_driver_loaded or _has_nvidia
    found = sample()
    checks = [_driver(found, is_expected=bool(wanted.gpus) or loaded())]
    checks.append(_count(found, wanted))
    checks.append(_xids(kernel_log, table))
    for name, judge in _DEVICE_CHECKS:
        checks.append(_each(name, found.devices, judge))
    checks.append(_nvlink(found.devices, wanted))
    checks.append(_ports(read_ports(ports)))
    checks += [_mount(path) for path in wanted.mounts]
    checks += [_disk(path) for path in wanted.disks]
    return tuple(checks)


def _has_nvidia() -> bool:
    return Path("/proc/driver/nvidia").exists()


def _driver(found: Sample, *, is_expected: bool) -> Check:
    if "probe" in found.notes:
        text = f"the driver hangs: {found.notes['probe']}"
        return Check(name="driver", verdict="problem", text=text)
    if "nvidia" in found.notes:
        if not is_expected:
            return Check(name="driver", verdict="skipped", text="no NVIDIA driver on this machine")
        return Check(name="driver", verdict="problem", text=found.notes["nvidia"])
    return Check(name="driver", verdict="ok", text=f"version {found.driver}")


def _count(found: Sample, wanted: Wanted) -> Check:
    answering = sum(1 for device in found.devices if not device.fault)
    silent = [f"GPU {d.index}: {d.fault}" for d in found.devices if d.fault]
    if silent:
        return Check(name="gpus", verdict="problem", text="; ".join(silent))
    if wanted.gpus is not None and answering != wanted.gpus:
        text = f"{answering} of {wanted.gpus} answer"
        return Check(name="gpus", verdict="problem", text=text)
    if not found.devices:
        return Check(name="gpus", verdict="skipped", text="none")
    return Check(name="gpus", verdict="ok", text=f"{answering} answer")


def _xids(source: str, table: FaultTable) -> Check:
    try:
        text = since_boot(source)
    except OSError as error:
        why = f"the kernel log cannot be read: {error.strerror or error}"
        return Check(name="kernel log", verdict="unknown", text=why)
    said = classify(text, table)
    bad = [
        incident
        for incident in said.incidents
        if not incident.cleared
        and incident.severity.rank >= Severity.ERROR.rank
        and incident.action not in PASSIVE_ACTIONS
        and incident.action is not Action.RESTART_APP
    ]
    if not bad:
        count = len(said.incidents)
        told = f"{count} incidents, none that asks for a repair" if count else "no faults"
        return Check(name="kernel log", verdict="ok", text=f"{told} since boot")
    worst = max(bad, key=lambda i: (i.severity.rank, i.action.rank))
    family = {"xid": "Xid ", "sxid": "SXid "}.get(worst.root_class, "")
    where = f" on {worst.target.pci}" if worst.target.pci else ""
    text = f"{family}{worst.root_code}{where} asks for {worst.action}"
    return Check(name="kernel log", verdict="problem", text=text)


Judge = Callable[[DeviceTelemetry], tuple[Verdict, str]]


def _each(name: str, devices: Sequence[DeviceTelemetry], judge: Judge) -> Check:
    """Judge every device that answers; the first problem names the check."""
    answering = [device for device in devices if not device.fault]
    if not answering:
        return Check(name=name, verdict="skipped", text="no device answers")
    ends = [(device.index, *judge(device)) for device in answering]
    for wanted in ("problem", "unknown"):
        bad = [f"GPU {index}: {text}" for index, verdict, text in ends if verdict == wanted]
        if bad:
            return Check(name=name, verdict=wanted, text="; ".join(bad))
    return Check(name=name, verdict="ok", text=ends[0][2])


def _ecc(device: DeviceTelemetry) -> tuple[Verdict, str]:
    count = device.ecc_uncorrected_count
    if count is None:
        return "ok", "not counted by this device"
    return ("problem", f"{count} uncorrected") if count else ("ok", "no uncorrected errors")


def _remaps(device: DeviceTelemetry) -> tuple[Verdict, str]:
    if device.is_remap_failed:
        return "problem", "a row could not be remapped: replace the card"
    if device.is_remap_pending:
        # Work may go on; the remap happens at the next reset (NVIDIA, A100 memory errors).
        return "ok", "a row is remapped at the next reset"
    return "ok", "none pending, none failed"


def _recovery(device: DeviceTelemetry) -> tuple[Verdict, str]:
    asked = device.recovery_action
    if not asked:
        return "ok", "the driver asks for nothing" if asked == 0 else "not told by this driver"
    action, _ = RECOVERY_ACTIONS.get(asked, (None, None))
    return "problem", f"the driver asks for {action or f'action {asked}'}"


def _pcie(device: DeviceTelemetry) -> tuple[Verdict, str]:
    width, most = device.pcie_width, device.pcie_width_max
    if width is None or most is None:
        return "ok", "not told by this device"
    if width < most:
        return "problem", f"x{width} of x{most}"
    generation, best = device.pcie_generation, device.pcie_generation_max
    is_busy = (device.utilization_ratio or 0.0) > BUSY_RATIO
    # An idle link drops its generation by design.
    if is_busy and generation is not None and best is not None and generation < best:
        return "problem", f"generation {generation} of {best} under load"
    return "ok", f"x{width}, generation {generation} of {best}"


def _clocks(device: DeviceTelemetry) -> tuple[Verdict, str]:
    mask = device.throttle_mask
    if mask is None:
        return "ok", "not told by this device"
    if mask & HW_SLOWDOWN_MASK:
        return "problem", f"held down by the hardware (reasons {mask:#x})"
    return "ok", "not held down by the hardware"


_DEVICE_CHECKS: Final[tuple[tuple[str, Judge], ...]] = (
    ("ecc", _ecc),
    ("row remaps", _remaps),
    ("recovery action", _recovery),
    ("pcie", _pcie),
    ("clocks", _clocks),
)


def _nvlink(devices: Sequence[DeviceTelemetry], wanted: Wanted) -> Check:
    known = [d for d in devices if not d.fault and d.nvlink_active_count is not None]
    if not known:
        verdict: Verdict = "unknown" if wanted.nvlinks else "skipped"
        return Check(name="nvlink", verdict=verdict, text="no device tells of its links")
    counts = [d.nvlink_active_count or 0 for d in known]
    most = wanted.nvlinks if wanted.nvlinks is not None else max(counts)
    bad = [f"GPU {d.index}: {n} of {most}" for d, n in zip(known, counts, strict=True) if n < most]
    if bad:
        return Check(name="nvlink", verdict="problem", text="; ".join(bad))
    return Check(name="nvlink", verdict="ok", text=f"{most} active on each")


def _ports(ports: Sequence[PortTelemetry]) -> Check:
    if not ports:
        return Check(name="network ports", verdict="skipped", text="no InfiniBand or RoCE")
    # A port that nobody cabled is `Disabled`; one that should work and does not is `Polling`.
    cabled = [port for port in ports if "Disabled" not in port.phys_state]
    bad = [
        f"{port.port} is {port.state or 'unknown'}, {port.phys_state or 'unknown'}"
        for port in cabled
        if "ACTIVE" not in port.state
    ]
    if bad:
        return Check(name="network ports", verdict="problem", text="; ".join(bad))
    rates = list(dict.fromkeys(port.rate for port in cabled))
    if len(rates) > 1:
        return Check(name="network ports", verdict="problem", text=f"rates differ: {rates}")
    return Check(name="network ports", verdict="ok", text=f"{len(cabled)} active")


def _mount(path: str) -> Check:
    name = f"mount {path}"
    try:
        if not os.path.ismount(path):
            return Check(name=name, verdict="problem", text="nothing is mounted there")
        os.listdir(path)
    except OSError as error:
        return Check(name=name, verdict="problem", text=error.strerror or str(error))
    return Check(name=name, verdict="ok", text="mounted")


def _disk(path: str) -> Check:
    name = f"disk {path}"
    try:
        room = os.statvfs(path)
    except OSError as error:
        return Check(name=name, verdict="unknown", text=error.strerror or str(error))
    ratio = room.f_bavail / room.f_blocks if room.f_blocks else 1.0
    if room.f_flag & os.ST_RDONLY:
        return Check(name=name, verdict="problem", text="is read-only")
    verdict: Verdict = "problem" if ratio < DISK_FREE_RATIO_MIN else "ok"
    return Check(name=name, verdict=verdict, text=f"{ratio:.0%} free")
