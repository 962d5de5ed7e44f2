"""Readings: growth is judged, totals are not, and what was not measured is not zero."""

import msgspec
import pytest

from tercio.health.finding import Action, Finding, Severity
from tercio.health.readings import (
    DeviceSample,
    PortSample,
    judge_device,
    judge_port,
    judge_temperatures,
)
from tercio.health.table import FaultTable

CALM = DeviceSample(at_s=0, pci="0000:4f:00.0", driver_load="boot-1")


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [f.code for f in findings]


def judged(table: FaultTable, before: dict[str, object], now: dict[str, object]) -> list[str]:
    first = msgspec.structs.replace(CALM, **before)
    second = msgspec.structs.replace(CALM, **({"at_s": 60.0} | now))
    return codes(judge_device(first, second, table))


def test_nothing_measured_is_nothing_found(table: FaultTable) -> None:
    assert judged(table, {}, {}) == []
    assert codes(judge_device(None, CALM, table, nvlink_count=18)) == []


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("is_remap_pending", True, "row_remap_pending"),
        ("is_remap_failed", True, "row_remap_failed"),
        ("is_sram_threshold_exceeded", True, "sram_threshold"),
        ("retired_page_count", 64, "retired_pages"),
        ("has_answered", False, "gpu_unreachable"),
    ],
)
def test_flags(table: FaultTable, field: str, value: object, code: str) -> None:
    assert judged(table, {}, {field: value}) == [code]


def test_failed_remap_outranks_the_pending_one(table: FaultTable) -> None:
    assert judged(table, {}, {"is_remap_pending": True, "is_remap_failed": True}) == [
        "row_remap_failed"
    ]


@pytest.mark.parametrize(
    ("field", "grew", "code"),
    [
        ("ecc_uncorrected_count", 1, "ecc_uncorrected"),
        ("nvlink_crc_count", 1, "nvlink_crc"),
        ("nvlink_recovery_count", 1, "nvlink_recovery"),
    ],
)
def test_counters_are_judged_by_growth(table: FaultTable, field: str, grew: int, code: str) -> None:
    assert judged(table, {field: 1000}, {field: 1000 + grew}) == [code]
    assert judged(table, {field: 1000}, {field: 1000}) == []
    assert judged(table, {field: 1000}, {field: 5}) == []
    assert judged(table, {field: 1000}, {field: 2000, "driver_load": "boot-2"}) == []
    assert judged(table, {}, {field: 1000}) == []


@pytest.mark.parametrize(("replays", "found"), [(31, []), (32, ["pcie_replay"])])
def test_pcie_replays_of_generation_5_x16(
    table: FaultTable, replays: int, found: list[str]
) -> None:
    link = {"pcie_generation": 5, "pcie_width": 16}
    assert judged(table, {"pcie_replay_count": 0}, {"pcie_replay_count": replays, **link}) == found


def test_slow_clocks_are_a_fault_only_by_hardware_and_twice(table: FaultTable) -> None:
    assert judged(table, {"throttle_mask": 0x44}, {"throttle_mask": 0x4C}) == ["hw_slowdown"]
    assert judged(table, {"throttle_mask": 0x5}, {"throttle_mask": 0x4C}) == []
    assert judged(table, {"throttle_mask": 0x5}, {"throttle_mask": 0x5}) == []


def test_pcie_width_counts_only_under_load(table: FaultTable) -> None:
    narrow = {"pcie_width": 8, "pcie_width_max": 16}
    assert judged(table, {}, narrow) == []
    assert judged(table, {}, {**narrow, "is_busy": True}) == ["pcie_degraded"]


def test_missing_nvlink(table: FaultTable) -> None:
    now = msgspec.structs.replace(CALM, nvlink_active_count=17)
    assert codes(judge_device(None, now, table, nvlink_count=18)) == ["nvlink_inactive"]
    assert codes(judge_device(None, now, table)) == []


@pytest.mark.parametrize(
    ("value", "action", "severity"),
    [
        (1, Action.RESET_GPU, Severity.FATAL),
        (4, Action.DRAIN_AND_RESET, Severity.FATAL),
        (99, Action.USE_RECOVERY_ACTION, Severity.WARNING),
    ],
)
def test_recovery_action_is_the_drivers(
    table: FaultTable, value: int, action: Action, severity: Severity
) -> None:
    now = msgspec.structs.replace(CALM, recovery_action=value)
    [finding] = judge_device(None, now, table)
    assert (finding.action, finding.severity) == (action, severity)
    assert judge_device(None, msgspec.structs.replace(CALM, recovery_action=0), table) == ()


def test_hot_gpu_is_told_by_its_neighbours(table: FaultTable) -> None:
    node = [
        msgspec.structs.replace(
            CALM, pci=f"0000:0{i}:00.0", temperature_c=60 + i / 10, power_w=650.0
        )
        for i in range(8)
    ]
    assert judge_temperatures(node, table) == ()
    node[3] = msgspec.structs.replace(node[3], temperature_c=75.0)
    [finding] = judge_temperatures(node, table)
    assert finding.target.pci == "0000:03:00.0"
    node[3] = msgspec.structs.replace(node[3], power_w=700 * 1.2)
    assert judge_temperatures(node, table) == ()


def test_port_counters_by_rate(table: FaultTable) -> None:
    def found(before: dict[str, int], now: dict[str, int], boot: str = "b") -> list[str]:
        first = PortSample(at_s=0, port="mlx5_0:1", boot="b", counters=before)
        second = PortSample(at_s=60, port="mlx5_0:1", boot=boot, counters=now)
        return codes(judge_port(first, second, table))

    assert found({"link_downed": 40}, {"link_downed": 40}) == []
    assert found({"link_downed": 40}, {"link_downed": 41}) == ["port_link_downed"]
    assert found({"link_downed": 40}, {"link_downed": 41}, boot="c") == []
    assert found({"symbol_error": 0}, {"symbol_error": 2}) == []
    assert found({"symbol_error": 0}, {"symbol_error": 3}) == ["port_errors"]
    assert found({"rnr_nak_retry_err": 0}, {"rnr_nak_retry_err": 1}) == ["port_errors"]
    assert found({"port_xmit_wait": 0}, {"port_xmit_wait": 10**9}) == []
    assert found({}, {"link_downed": 41}) == []
