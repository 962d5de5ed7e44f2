"""From readings to findings: counters, flags and sensors of devices and ports.

Totals say nothing: counters reset when the driver loads, and a flap of last year must not drain
a node today. So counters are judged by their growth between two samples of one driver load, and
what was not measured (None) is never taken for zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from tercio.health.finding import Finding, Target
from tercio.health.table import FaultTable
from tercio.health.xid import RECOVERY_ACTIONS

READING_CLASS = "reading"

# Clock event reasons that are faults: hardware slowdown, hardware thermal, hardware power brake.
# Idle (0x1) and the software power cap (0x4) are normal for a working GPU.
HW_SLOWDOWN_MASK = 0x8 | 0x40 | 0x80
# PCIe replays a minute and lane, by generation (DCGM modules/health).
PCIE_REPLAYS_PER_MIN_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
RETIRED_PAGES_MAX = 63
NVLINK_CRC_PER_MIN = 1.0
THERMAL_MARGIN_C = 10.0
POWER_EQUAL_RATIO = 0.1
# Port counters and the rate a second from which they are bad (NVSentinel's NIC monitor).
PORT_ERRORS_PER_S: dict[str, float] = {
    "symbol_error": 120 / 3600,
    "link_error_recovery": 5 / 60,
    "port_rcv_errors": 10.0,
    "local_ack_timeout_err": 1.0,
    "port_xmit_discards": 100.0,
    "roce_slow_restart": 10.0,
}
# Port counters of which a single count is bad.
PORT_ERRORS_ANY = (
    "excessive_buffer_overrun_errors",
    "local_link_integrity_errors",
    "rnr_nak_retry_err",
)


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU says at one instant. None is not measured, or not supported.

    Attributes:
        driver_load: boot and driver load that the counters belong to.
        has_answered: the probe came back before its deadline.
        throttle_mask: clock event reasons, NVML's bits.
        recovery_action: NVML field 230.
        is_busy: the SM clock is up; PCIe width and generation drop by design when it is not.
    """

    at_s: float
    pci: str
    driver_load: str
    has_answered: bool = True
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_mask: int | None = None
    ecc_uncorrected_count: int | None = None
    is_remap_pending: bool | None = None
    is_remap_failed: bool | None = None
    is_sram_threshold_exceeded: bool | None = None
    retired_page_count: int | None = None
    nvlink_active_count: int | None = None
    nvlink_crc_count: int | None = None
    nvlink_recovery_count: int | None = None
    pcie_replay_count: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    recovery_action: int | None = None
    is_busy: bool | None = None


class PortSample(msgspec.Struct, frozen=True, kw_only=True):
    """The error counters of one network port, by their sysfs names."""

    at_s: float
    port: str
    boot: str
    counters: Mapping[str, int]


class _Judge:
    """Collects the findings of one target."""

    __slots__ = ("_at_s", "_table", "_target", "findings")

    def __init__(self, table: FaultTable, *, target: Target, at_s: float) -> None:
        self._table = table
        self._target = target
        self._at_s = at_s
        self.findings: list[Finding] = []

    def find(self, code: str, evidence: str) -> None:
        row = self._table.rows[(READING_CLASS, code, "")]
        self.findings.append(
            Finding(
                line=0,
                line_end=0,
                at_s=self._at_s,
                stamp=("epoch", self._at_s),
                fault_class=READING_CLASS,
                code=code,
                meaning=row.meaning,
                severity=row.severity,
                scope=row.scope,
                action=row.action,
                target=self._target,
                evidence=(evidence,),
            )
        )


def judge_device(
    before: DeviceSample | None,
    now: DeviceSample,
    table: FaultTable,
    *,
    nvlink_count: int | None = None,
) -> tuple[Finding, ...]:
    """Return the faults that a sample shows, given the sample before.

    Args:
        before: the previous sample of the same device, None for the first one.
        now: the sample.
        table: fault table with the site's overrides.
        nvlink_count: active links that the model has when it is whole, None where unknown.
    """
    judge = _Judge(table, target=Target(pci=now.pci), at_s=now.at_s)
    if not now.has_answered:
        judge.find("gpu_unreachable", "no answer before the deadline")
        return tuple(judge.findings)
    _judge_flags(judge, now)
    _judge_links(judge, now, nvlink_count)
    if before is not None and before.driver_load == now.driver_load and now.at_s > before.at_s:
        _judge_growth(judge, before, now)
    return tuple(judge.findings)


def _judge_flags(judge: _Judge, now: DeviceSample) -> None:
    if now.is_remap_failed:
        judge.find("row_remap_failed", "row remapping failure flag is set")
    elif now.is_remap_pending:
        judge.find("row_remap_pending", "row remapping is pending")
    if now.is_sram_threshold_exceeded:
        judge.find("sram_threshold", "SRAM threshold flag is set")
    if now.retired_page_count is not None and now.retired_page_count > RETIRED_PAGES_MAX:
        judge.find("retired_pages", f"{now.retired_page_count} pages are retired")
    if now.recovery_action:
        action, severity = RECOVERY_ACTIONS.get(now.recovery_action, (None, None))
        judge.find("recovery_action", f"recovery action {now.recovery_action}")
        if action is not None and severity is not None:
            judge.findings[-1] = msgspec.structs.replace(
                judge.findings[-1], action=action, severity=severity
            )


def _judge_links(judge: _Judge, now: DeviceSample, nvlink_count: int | None) -> None:
    if (
        nvlink_count is not None
        and now.nvlink_active_count is not None
        and now.nvlink_active_count < nvlink_count
    ):
        judge.find("nvlink_inactive", f"{now.nvlink_active_count} of {nvlink_count} links")
    if not now.is_busy:
        return
    for name, value, most in (
        ("width x", now.pcie_width, now.pcie_width_max),
        ("generation ", now.pcie_generation, now.pcie_generation_max),
    ):
        if value is not None and most is not None and value < most:
            judge.find("pcie_degraded", f"{name}{value} of {most}")
            return


def _judge_growth(judge: _Judge, before: DeviceSample, now: DeviceSample) -> None:
    minutes = (now.at_s - before.at_s) / 60
    ecc = _growth(before.ecc_uncorrected_count, now.ecc_uncorrected_count)
    if ecc:
        judge.find("ecc_uncorrected", f"{ecc} more uncorrectable errors")
    crc = _growth(before.nvlink_crc_count, now.nvlink_crc_count)
    if crc and crc / minutes >= NVLINK_CRC_PER_MIN:
        judge.find("nvlink_crc", f"{crc / minutes:.1f} CRC errors a minute")
    recoveries = _growth(before.nvlink_recovery_count, now.nvlink_recovery_count)
    if recoveries:
        judge.find("nvlink_recovery", f"{recoveries} recoveries")
    replays = _growth(before.pcie_replay_count, now.pcie_replay_count)
    if replays and now.pcie_generation is not None and now.pcie_width is not None:
        per_lane = PCIE_REPLAYS_PER_MIN_LANE.get(now.pcie_generation)
        if per_lane is not None:
            limit = math.ceil(per_lane * now.pcie_width)
            if replays / minutes > limit:
                judge.find("pcie_replay", f"{replays / minutes:.1f} replays a minute of {limit}")
    # One sample may catch a spike; two in a row are a state.
    masks = (before.throttle_mask or 0) & (now.throttle_mask or 0) & HW_SLOWDOWN_MASK
    if masks:
        judge.find("hw_slowdown", f"clock event reasons {masks:#x} in two samples")


def _growth(before: int | None, now: int | None) -> int:
    """Return how far a counter grew; one that fell was reset and has not grown."""
    if before is None or now is None:
        return 0
    return max(0, now - before)


def judge_temperatures(samples: Sequence[DeviceSample], table: FaultTable) -> tuple[Finding, ...]:
    """Return the GPUs of one node that are hotter than the others at equal power.

    An outlier among neighbours is a better alarm than any absolute level: it sees a failing fan
    or paste long before the hardware slows down.
    """
    found: list[Finding] = []
    for sample in samples:
        mates = [
            other.temperature_c
            for other in samples
            if other is not sample
            and other.temperature_c is not None
            and _draws_alike(sample, other)
        ]
        if sample.temperature_c is None or len(mates) < 3:
            continue
        middle = statistics.median(mates)
        if sample.temperature_c > middle + THERMAL_MARGIN_C:
            judge = _Judge(table, target=Target(pci=sample.pci), at_s=sample.at_s)
            judge.find("thermal_outlier", f"{sample.temperature_c:g} C, neighbours {middle:g} C")
            found += judge.findings
    return tuple(found)


def _draws_alike(a: DeviceSample, b: DeviceSample) -> bool:
    if a.power_w is None or b.power_w is None:
        return False
    return abs(a.power_w - b.power_w) <= POWER_EQUAL_RATIO * max(a.power_w, b.power_w)


def judge_port(before: PortSample, now: PortSample, table: FaultTable) -> tuple[Finding, ...]:
    """Return the faults of a network port by the growth of its counters.

    Counters of another boot, or that fell, count as no growth.
    """
    judge = _Judge(table, target=Target(port=now.port), at_s=now.at_s)
    span_s = now.at_s - before.at_s
    if before.boot != now.boot or span_s <= 0:
        return ()
    growth = {
        name: _growth(before.counters.get(name), value) for name, value in now.counters.items()
    }
    downed = growth.get("link_downed", 0)
    if downed:
        judge.find("port_link_downed", f"link_downed grew by {downed}")
    for name in PORT_ERRORS_ANY:
        if growth.get(name, 0):
            judge.find("port_errors", f"{name} grew by {growth[name]}")
    for name, limit in PORT_ERRORS_PER_S.items():
        rate = growth.get(name, 0) / span_s
        if rate > limit:
            judge.find("port_errors", f"{name} at {rate:.3g} a second")
    return tuple(judge.findings)
