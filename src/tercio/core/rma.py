"""What a maker asks for before it takes a part back: every fault of a device, by serial number."""

from __future__ import annotations

from collections import Counter

from tercio.core.cluster import Cluster
from tercio.core.healing import fault_of_fact, policy_of
from tercio.health.finding import Action, Severity
from tercio.health.history import Origin, judge_repeats
from tercio.model.health import FaultFact, HealthRecord
from tercio.model.health_views import RmaReport, RmaRow
from tercio.model.ids import NodeName


def rma_report(cluster: Cluster, *, since_s: float, now_s: float) -> RmaReport:
    """Return the devices with faults since an instant, the worst first.

    A device is known by its serial number, or its UUID where it has none; its faults on
    another node are its own too.
    """
    found: dict[str, list[tuple[NodeName, FaultFact]]] = {}
    for name, faults in cluster.health.faults.items():
        for fault in faults:
            if fault.serial and fault.at_s >= since_s:
                found.setdefault(fault.serial, []).append((name, fault))
    rows = [_row(cluster, serial, faults) for serial, faults in found.items()]
    order = ("replace", "inspect", "watch")
    rows.sort(key=lambda row: (order.index(row.advice), -row.faults, row.serial))
    return RmaReport(since_s=since_s, until_s=now_s, rows=tuple(rows))


def _row(cluster: Cluster, serial: str, faults: list[tuple[NodeName, FaultFact]]) -> RmaRow:
    faults = sorted(faults, key=lambda each: each[1].at_s)
    name, last = faults[-1]
    facts = [fact for _, fact in faults]
    codes = Counter(fact.title.partition(" on GPU")[0] for fact in facts)
    worst = max((Severity(fact.severity) for fact in facts), key=lambda severity: severity.rank)
    record = cluster.health.records.get(name, HealthRecord())
    ends = {None: "under way", True: "worked", False: "failed"}
    repairs = [r for r in record.repairs if r.cause[2] == serial]
    advice, why = _advice(cluster, faults)
    return RmaRow(
        serial=serial,
        type=_type(cluster, name, last.device),
        node=name,
        device=last.device,
        nodes=tuple(dict.fromkeys(node for node, _ in faults)),
        faults=len(faults),
        first_s=facts[0].at_s,
        last_s=last.at_s,
        severity=worst.value,
        codes=tuple(f"{code} x{count}" for code, count in codes.items()),
        evidence=last.evidence,
        repairs=tuple(f"{r.action} {ends[r.succeeded]}" for r in repairs),
        state=record.state,
        advice=advice,
        why=why,
    )


def _advice(cluster: Cluster, faults: list[tuple[NodeName, FaultFact]]) -> tuple[str, str]:
    """Return what to do with the device, by the repeat rules in force, and why."""
    rules = policy_of(cluster.health.settings).repeat_rules
    history = [fault_of_fact(fact, node) for node, fact in faults]
    verdicts = [judge_repeats(fault, history, rules=rules) for fault in history]
    hardware = [v for v in verdicts if v.origin is Origin.HARDWARE]
    for verdict in hardware:
        if verdict.action is Action.INSPECT_HW:
            return "replace", verdict.reason
    for _, fact in faults:
        if fact.action == Action.INSPECT_HW:
            return "replace", f"{fact.title}: {fact.meaning}"
    if hardware:
        return "inspect", hardware[-1].reason
    return "watch", "no rule blames the device yet"


def _type(cluster: Cluster, name: NodeName, index: int | None) -> str:
    node = cluster.nodes.get(name)
    if node is None or index is None or index >= len(node.spec.devices):
        return ""
    return node.spec.devices[index].type
