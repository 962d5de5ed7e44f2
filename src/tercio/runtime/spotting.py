"""From the readings of one machine to faults: kernel lines classified, counters judged.

A fault is told when it begins, again when more is known of it, and once when it is over. Its id
comes from the machine, the boot and the line, so that a repeated report is the same fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tercio.core.cluster import Cluster
from tercio.health.classify import Classifier
from tercio.health.finding import Action, Finding, Incident, Severity
from tercio.health.logline import normalise_pci
from tercio.health.parse import driver_branch_of
from tercio.health.readings import (
    DeviceSample,
    PortSample,
    judge_device,
    judge_port,
    judge_temperatures,
)
from tercio.health.table import FaultTable
from tercio.model.events import AnyEvent, FaultCleared, FaultFound
from tercio.model.health import FaultFact
from tercio.model.ids import NodeName
from tercio.model.node import DeviceSpec
from tercio.model.readings import DeviceTelemetry, NodeReading

BUSY_CLOCK_RATIO: Final = 0.05
MISSES_MAX: Final = 3
"""A driver that misses so many polls in a row is stuck (NVIDIA/NVSentinel: 3 polls of 15 s)."""
LINES_KEPT: Final = 1000
"""Lines of one machine that are looked at together; a burst has tens."""
_EVIDENCE_CHARS: Final = 300
Place = tuple[NodeName, DeviceSpec]


class Spotter:
    """Follows one machine, which is one node or several."""

    def __init__(self, machine: str, table: FaultTable) -> None:
        self._machine = machine
        self._table = table
        self._boot = ""
        self._classifier: Classifier | None = None
        self._seq_of_line: dict[int, int] = {}
        self._line_count = 0
        self._before: NodeReading | None = None
        self._misses = 0
        self._failed: dict[str, int] = {}
        # Kept over readings: a device that is lost does not say its address any more.
        self._uuid_by_pci: dict[str, str] = {}

    def spot(
        self, cluster: Cluster, nodes: Sequence[NodeName], reading: NodeReading
    ) -> list[AnyEvent]:
        """Return the faults that a reading shows and the core does not know, and those over."""
        for device in reading.devices:
            if device.pci and device.uuid:
                self._uuid_by_pci[_bus(normalise_pci(device.pci))] = device.uuid
        events = self._spot_lines(cluster, nodes, reading)
        events += self._spot_readings(cluster, nodes, reading, events)
        self._before = reading
        return events

    # Kernel lines.

    def _spot_lines(
        self, cluster: Cluster, nodes: Sequence[NodeName], reading: NodeReading
    ) -> list[AnyEvent]:
        if not reading.lines:
            return []
        classifier = self._classifier
        if classifier is None or reading.boot_id != self._boot or self._line_count >= LINES_KEPT:
            branch = driver_branch_of(reading.driver) if reading.driver else None
            classifier = self._classifier = Classifier(self._table, driver_branch=branch)
            self._boot, self._line_count, self._seq_of_line = reading.boot_id, 0, {}
        touched: dict[int, None] = {}
        for line in reading.lines:
            self._line_count += 1
            self._seq_of_line[self._line_count] = line.seq
            finding = classifier.feed_line(line.text)
            if finding is not None and finding.incident is not None:
                touched[finding.incident] = None
        said = classifier.finish()
        events: list[AnyEvent] = []
        for number in touched:
            incident = said.incidents[number]
            findings = [said.findings[i] for i in incident.findings]
            events += self._incident(cluster, nodes, reading, incident, findings)
        return events

    def _incident(
        self,
        cluster: Cluster,
        nodes: Sequence[NodeName],
        reading: NodeReading,
        incident: Incident,
        findings: list[Finding],
    ) -> list[AnyEvent]:
        root = next((f for f in findings if f.line == incident.root_line), findings[0])
        seq = self._seq_of_line.get(findings[0].line, 0)
        fault_id = f"{self._machine}/{self._boot[:8] or 'boot'}/{seq}"
        place = place_of(cluster, nodes, self._uuid(incident.target.pci))
        node = place[0] if place else nodes[0]
        if incident.cleared:
            return [FaultCleared(at_s=reading.at_s, node=node, fault_id=fault_id)]
        if incident.action is Action.NONE or incident.severity is Severity.NOTE:
            return []
        fact = fact_of(
            root, place, cluster, fault_id=fault_id, at_s=reading.at_s,
            severity=incident.severity, action=incident.action,
        )  # fmt: skip
        return [FaultFound(at_s=reading.at_s, node=node, fault=fact)]

    # Readings.

    def _spot_readings(
        self,
        cluster: Cluster,
        nodes: Sequence[NodeName],
        reading: NodeReading,
        events_before: list[AnyEvent],
    ) -> list[AnyEvent]:
        found = self._judge(reading)
        events: list[AnyEvent] = []
        open_ids = {
            fault.id: node
            for node in nodes
            for fault in cluster.health.faults.get(node, ())
            if fault.fault_class == "reading" and fault.cleared_at_s is None
        }
        standing: dict[str, None] = {}
        explained = _fatal_devices(cluster, nodes, events_before)
        for finding in found:
            place = place_of(cluster, nodes, self._uuid(finding.target.pci))
            where = (place[1].serial or place[1].uuid) if place else (finding.target.port or "")
            prefix = f"{self._machine}/reading/{finding.code}/{where}/"
            known = next((each for each in open_ids if each.startswith(prefix)), None)
            if known is not None:
                standing[known] = None
                continue
            if finding.action in (Action.NONE, Action.OBSERVE):
                continue
            if finding.code == "gpu_unreachable" and where in explained:
                continue  # the kernel has said why
            node = place[0] if place else nodes[0]
            fact = fact_of(
                finding, place, cluster, fault_id=f"{prefix}{int(reading.at_s)}",
                at_s=reading.at_s, severity=finding.severity, action=finding.action,
            )  # fmt: skip
            standing[fact.id] = None
            events.append(FaultFound(at_s=reading.at_s, node=node, fault=fact))
        if reading.devices:
            events += [
                FaultCleared(at_s=reading.at_s, node=node, fault_id=fault_id)
                for fault_id, node in open_ids.items()
                if fault_id not in standing
            ]
        return events

    def _uuid(self, pci: str | None) -> str:
        return self._uuid_by_pci.get(_bus(pci), "") if pci else ""

    def _judge(self, reading: NodeReading) -> list[Finding]:
        before = self._before
        old = {d.uuid: d for d in before.devices} if before is not None else {}
        found: list[Finding] = []
        samples: list[DeviceSample] = []
        for device in reading.devices:
            sample = self._sample(reading, device)
            if sample is None:
                continue
            samples.append(sample)
            was = old.get(device.uuid)
            last = None
            if before is not None and was is not None and not was.fault:
                last = sample_of(before, was)
            found += judge_device(last, sample, self._table)
        found += judge_temperatures(samples, self._table)
        if before is not None:
            ports = {port.port: port for port in before.ports}
            for port in reading.ports:
                known = ports.get(port.port)
                if known is not None:
                    earlier = PortSample(
                        at_s=before.at_s, port=port.port, boot=before.boot_id,
                        counters=known.counters,
                    )  # fmt: skip
                    later = PortSample(
                        at_s=reading.at_s, port=port.port, boot=reading.boot_id,
                        counters=port.counters,
                    )  # fmt: skip
                    found += judge_port(earlier, later, self._table)
        self._misses = self._misses + 1 if "probe" in reading.notes else 0
        if self._misses >= MISSES_MAX:
            silent = DeviceSample(at_s=reading.at_s, pci="", driver_load="", has_answered=False)
            found += judge_device(None, silent, self._table)
        return found

    def _sample(self, reading: NodeReading, device: DeviceTelemetry) -> DeviceSample | None:
        """Return the sample to be judged; None for a first failure that may pass."""
        if not device.fault:
            self._failed.pop(device.uuid, None)
            return sample_of(reading, device)
        times = self._failed[device.uuid] = self._failed.get(device.uuid, 0) + 1
        if "lost" not in device.fault.lower() and times < 2:
            return None
        return DeviceSample(
            at_s=reading.at_s,
            pci=normalise_pci(device.pci) or "",
            driver_load=reading.boot_id,
            has_answered=False,
        )


def sample_of(reading: NodeReading, device: DeviceTelemetry) -> DeviceSample:
    """Return a device's telemetry as the judge takes it."""
    return DeviceSample(
        at_s=reading.at_s,
        pci=normalise_pci(device.pci) or "",
        driver_load=f"{reading.boot_id}/{reading.driver}",
        temperature_c=device.temperature_c,
        power_w=device.power_w,
        throttle_mask=device.throttle_mask,
        ecc_uncorrected_count=device.ecc_uncorrected_count,
        is_remap_pending=device.is_remap_pending,
        is_remap_failed=device.is_remap_failed,
        nvlink_active_count=device.nvlink_active_count,
        pcie_replay_count=device.pcie_replay_count,
        pcie_generation=device.pcie_generation,
        pcie_generation_max=device.pcie_generation_max,
        pcie_width=device.pcie_width,
        pcie_width_max=device.pcie_width_max,
        recovery_action=device.recovery_action,
        is_busy=(device.utilization_ratio or 0.0) > BUSY_CLOCK_RATIO,
    )


def place_of(cluster: Cluster, nodes: Sequence[NodeName], uuid: str) -> Place | None:
    """Return the node and the device with this UUID, None where it is none of them."""
    for name in nodes:
        node = cluster.nodes.get(name)
        for spec in node.spec.devices if node is not None and uuid else ():
            if spec.uuid == uuid:
                return name, spec
    return None


def _fatal_devices(
    cluster: Cluster, nodes: Sequence[NodeName], fresh: list[AnyEvent]
) -> dict[str, None]:
    """Return the devices, by serial, that the kernel log calls unusable."""
    known = [fault for node in nodes for fault in cluster.health.faults.get(node, ())]
    known += [event.fault for event in fresh if isinstance(event, FaultFound)]
    return {
        fault.serial: None
        for fault in known
        if fault.serial
        and fault.cleared_at_s is None
        and fault.fault_class != "reading"
        and fault.severity == Severity.FATAL
    }


def _bus(pci: str | None) -> str:
    """Return an address without its function: the driver and NVML differ in naming it."""
    return (pci or "").partition(".")[0]


def fact_of(
    finding: Finding,
    place: Place | None,
    cluster: Cluster,
    *,
    fault_id: str,
    at_s: float,
    severity: Severity,
    action: Action,
) -> FaultFact:
    """Return a finding as the journal keeps it, with the device and the job that held it."""
    job = None
    if place is not None:
        job = next(iter(cluster.jobs_holding(place[0], place[1].index)), None)
    return FaultFact(
        id=fault_id,
        at_s=at_s,
        fault_class=finding.fault_class,
        code=finding.code,
        severity=severity.value,
        action=action.value,
        meaning=finding.meaning,
        serial=(place[1].serial or place[1].uuid or None) if place else None,
        device=place[1].index if place else None,
        locus=finding.locus,
        job=job,
        evidence=finding.evidence[0][:_EVIDENCE_CHARS] if finding.evidence else "",
    )
