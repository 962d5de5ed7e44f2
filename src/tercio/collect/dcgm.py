"""Readings in Prometheus format under the names and labels of dcgm-exporter.

Existing dashboards (Grafana 12239) and alerts work with them unchanged. Everything is a gauge:
DCGM's counters do not end in `_total`, and no function of Prometheus asks for the type. What was
not measured has no line: stale is absent, never the last value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily

from tercio.model.readings import DeviceTelemetry, NodeReading, SliceTelemetry

MIB: Final = 2**20
LABELS: Final = (
    "gpu", "UUID", "device", "modelName", "Hostname", "pci_bus_id", "DCGM_FI_DRIVER_VERSION",
    "hpc_job", "user", "queue", "GPU_I_ID", "GPU_I_PROFILE",
)  # fmt: skip
BY_SLICE: Final = frozenset(
    {
        "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE",
    }
)  # fmt: skip
"""What is told of each MIG instance, and then not of the whole card: sums would count it twice."""
OWN_LABELS: Final = ("node", "gpu", "uuid")
Value = Callable[[DeviceTelemetry], float | int | bool | None]


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """One node to export.

    Attributes:
        hostname: name of the node.
        reading: its newest one.
        devices: of it, by position on the node.
        holders: job, user and queue of each device; devices without one are free or shared.
        slice_holders: the same of MIG instances, by UUID.
        last_xid: by position; 0 for none.
        health: state of the node, empty where nobody judges it.
    """

    hostname: str
    reading: NodeReading
    devices: Mapping[int, DeviceTelemetry]
    holders: Mapping[int, tuple[str, str, str]] = {}
    slice_holders: Mapping[str, tuple[str, str, str]] = {}
    last_xid: Mapping[int, int] = {}
    health: str = ""


def _free_mib(device: DeviceTelemetry) -> float | None:
    if device.memory_total_bytes is None or device.memory_used_bytes is None:
        return None
    return (device.memory_total_bytes - device.memory_used_bytes) // MIB


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else ratio * 100


METRICS: Final[tuple[tuple[str, str, Value], ...]] = (
    ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda d: d.sm_clock_mhz),
    ("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", lambda d: d.memory_clock_mhz),
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda d: d.temperature_c),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda d: d.power_w),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power limit in force (in W).", lambda d: d.power_limit_w),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded (in mJ).",
        lambda d: d.energy_mj,
    ),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe retries.", lambda d: d.pcie_replay_count),
    ("DCGM_FI_DEV_PCIE_LINK_GEN", "PCIe generation.", lambda d: d.pcie_generation),
    ("DCGM_FI_DEV_PCIE_LINK_WIDTH", "PCIe lanes.", lambda d: d.pcie_width),
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda d: _percent(d.utilization_ratio)),
    (
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Memory utilization (in %).",
        lambda d: _percent(d.memory_busy_ratio),
    ),
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", _free_mib),
    (
        "DCGM_FI_DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        lambda d: None if d.memory_used_bytes is None else d.memory_used_bytes // MIB,
    ),
    (
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        "Clock event reasons (bitmask).",
        lambda d: d.throttle_mask,
    ),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected errors.", lambda d: d.ecc_corrected_count),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected errors.", lambda d: d.ecc_uncorrected_count),
    (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for correctable errors.",
        lambda d: d.remapped_corrected_count,
    ),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for uncorrectable errors.",
        lambda d: d.remapped_uncorrected_count,
    ),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether a remap is pending.", lambda d: d.is_remap_pending),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping failed.", lambda d: d.is_remap_failed),
    (
        "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "What the driver asks for.",
        lambda d: d.recovery_action,
    ),
    (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Share of time in which a graphics or compute engine was active (0 to 1).",
        lambda d: d.activity.engine_ratio if d.activity else d.utilization_ratio,
    ),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Share of cycles in which tensor cores were active (0 to 1).",
        lambda d: d.activity.tensor_ratio if d.activity else None,
    ),
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        "Share of time in which SMs were busy (0 to 1).",
        lambda d: d.activity.sm_ratio if d.activity else None,
    ),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Share of the memory bandwidth that was used (0 to 1).",
        lambda d: d.activity.dram_ratio if d.activity else None,
    ),
)
"""Names, help and values; the names are those of DCGM's default counters."""
HEALTH_STATES: Final = ("ok", "suspect", "quarantined", "repairing", "probation", "retired")


def families(nodes: Iterable[Exported]) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics of nodes with fresh readings; a metric that nobody has is left out."""
    nodes = list(nodes)
    for name, text, value in METRICS:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        for node in nodes:
            for index, device in sorted(node.devices.items()):
                for told, part in parts_of(device) if name in BY_SLICE else ((device, None),):
                    amount = value(told)
                    if amount is not None:
                        family.add_metric(labels_of(node, index, device, part), float(amount))
        if family.samples:
            yield family
    xids = GaugeMetricFamily("DCGM_FI_DEV_XID_ERRORS", "Value of the last Xid.", labels=LABELS)
    up = GaugeMetricFamily("tercio_device_up", "Whether the device answers.", labels=OWN_LABELS)
    for node in nodes:
        for index, device in sorted(node.devices.items()):
            labels = labels_of(node, index, device)
            xids.add_metric(labels, node.last_xid.get(index, 0))
            own = [node.hostname, str(index), device.uuid]
            up.add_metric(own, 0.0 if device.fault else 1.0)
    yield from (family for family in (xids, up) if family.samples)
    yield from _node_families(nodes)


def _node_families(nodes: list[Exported]) -> Iterator[GaugeMetricFamily]:
    polled = GaugeMetricFamily(
        "tercio_node_reading_timestamp_seconds", "When the node was read last.", labels=["node"]
    )
    health = GaugeMetricFamily(
        "tercio_node_health", "1 for the state that the node is in.", labels=["node", "state"]
    )
    for node in nodes:
        polled.add_metric([node.hostname], node.reading.at_s)
        for state in HEALTH_STATES if node.health else ():
            health.add_metric([node.hostname, state], float(state == node.health))
    yield from (family for family in (polled, health) if family.samples)


def labels_of(
    node: Exported, index: int, device: DeviceTelemetry, part: SliceTelemetry | None = None
) -> list[str]:
    """Return the values of `LABELS`, for a device or one MIG instance of it."""
    free = ("", "", "")
    job, user, queue = (
        node.holders.get(index, free) if part is None else node.slice_holders.get(part.uuid, free)
    )
    return [
        str(index), device.uuid, f"nvidia{device.index}", device.name, node.hostname, device.pci,
        node.reading.driver, job, user, queue,
        "" if part is None else str(part.number), "" if part is None else part.profile,
    ]  # fmt: skip


def parts_of(device: DeviceTelemetry) -> Iterator[tuple[DeviceTelemetry, SliceTelemetry | None]]:
    """Yield a device as it is, or with what is told of each of its MIG instances."""
    if not device.slices:
        yield device, None
    for part in device.slices:
        yield (
            msgspec.structs.replace(
                device,
                utilization_ratio=None,
                memory_used_bytes=part.memory_used_bytes,
                memory_total_bytes=part.memory_total_bytes,
                activity=part.activity,
            ),
            part,
        )
