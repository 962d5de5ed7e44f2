"""Faults over time: what repeats on one device, what comes over the whole fleet.

Repeats separate application from hardware: the same device twice means hardware, spread over
devices means code (NVIDIA/NVSentinel#271). A fault that strikes many nodes of one driver at once
is software (NVIDIA/open-gpu-kernel-modules#1370: 704 nodes rolled back). Devices are told apart
by serial number or UUID, since boards move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from tercio.health.finding import Action, Incident, Severity

DAY_S = 86_400.0


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One incident in the history of a node and of a device.

    Attributes:
        id: unique over the fleet; decisions name it as evidence.
        serial: serial number or UUID of the device, None for a fault of the node.
        locus: place inside the device (`GPC 7 TPC 2`).
        job: job that held the device, None where idle or unknown.
        cleared_at_s: the fault was taken back at this time, None while it stands.
        words: how people are told of it; class and code where empty.
    """

    id: str
    node: str
    at_s: float
    fault_class: str
    code: str
    severity: Severity
    action: Action
    serial: str | None = None
    locus: str | None = None
    job: str | None = None
    cleared_at_s: float | None = None
    words: str = ""

    @property
    def cause(self) -> tuple[str, str, str]:
        """What the escalation ladder counts by: class, code and device."""
        return (self.fault_class, self.code, self.serial or "")


def fault_of(
    incident: Incident,
    *,
    id: str,
    node: str,
    at_s: float,
    serial: str | None = None,
    locus: str | None = None,
    job: str | None = None,
) -> Fault:
    """Return an incident as a fault of a node.

    Args:
        incident: what the log said.
        id: unique over the fleet.
        node: where it was said.
        at_s: when, seconds since the epoch; logs without dates need the reader's clock.
        serial: serial number or UUID of the device behind the incident's PCI address.
        locus: place inside the device, of the incident's root finding.
        job: job that held the device.
    """
    return Fault(
        id=id,
        node=node,
        at_s=at_s,
        fault_class=incident.root_class,
        code=incident.root_code,
        severity=incident.severity,
        action=incident.action,
        serial=serial,
        locus=locus,
        job=job,
        cleared_at_s=at_s if incident.cleared else None,
    )


class Origin(StrEnum):
    """Where a repeated fault comes from."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    UNDECIDED = "undecided"


class RepeatRule(msgspec.Struct, frozen=True, kw_only=True):
    """How often a code may strike one device before the device is blamed.

    Attributes:
        same_locus: only faults at one place inside the device count (Xid 13).
    """

    fault_class: str
    code: str
    count: int
    window_s: float
    action: Action
    same_locus: bool = False


def _xid(code: str, count: int, days: float, action: Action, *, locus: bool = False) -> RepeatRule:
    return RepeatRule(
        fault_class="xid",
        code=code,
        count=count,
        window_s=days * DAY_S,
        action=action,
        same_locus=locus,
    )


# NVSentinel's repeat rules and the escalations of NVIDIA's catalogue, as in the fault table.
REPEAT_RULES: tuple[RepeatRule, ...] = (
    _xid("13", 2, 1, Action.RESET_GPU, locus=True),
    _xid("31", 2, 1, Action.RESET_GPU),
    _xid("8", 2, 1, Action.RESET_GPU),
    _xid("94", 2, 1, Action.RESET_GPU_WHEN_IDLE),
    _xid("48", 2, 30, Action.INSPECT_HW),
    _xid("62", 2, 1, Action.INSPECT_HW),
    _xid("95", 2, 1, Action.INSPECT_HW),
    _xid("140", 2, 30, Action.INSPECT_HW),
    _xid("79", 2, 30, Action.INSPECT_HW),
    RepeatRule(
        fault_class="torch",
        code="cuda_illegal_address",
        count=2,
        window_s=DAY_S,
        action=Action.RESET_GPU,
    ),
    RepeatRule(
        fault_class="host", code="soft_lockup", count=3, window_s=DAY_S, action=Action.REBOOT_NODE
    ),
    RepeatRule(
        fault_class="host", code="hung_task", count=5, window_s=DAY_S, action=Action.REBOOT_NODE
    ),
    RepeatRule(
        fault_class="disk", code="nvme_timeout", count=3, window_s=DAY_S, action=Action.INSPECT_HW
    ),
    RepeatRule(
        fault_class="nic",
        code="nic_tx_timeout",
        count=3,
        window_s=3600.0,
        action=Action.REBOOT_NODE,
    ),
)


class RepeatVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the history says about one fault, with the faults that say it."""

    origin: Origin
    action: Action
    reason: str
    evidence: tuple[str, ...] = ()


def judge_repeats(
    fault: Fault, history: Sequence[Fault], *, rules: Sequence[RepeatRule] = REPEAT_RULES
) -> RepeatVerdict:
    """Return whether the history blames the device of a fault, its job, or neither yet.

    Args:
        fault: the fault to judge.
        history: faults of the whole fleet up to now, the fault itself included or not.
        rules: how often is too often.
    """
    rule = next((r for r in rules if (r.fault_class, r.code) == fault.cause[:2]), None)
    if rule is None:
        return _undecided(fault, "no repeat rule for this code")
    recent = [
        f
        for f in history
        if f.cause[:2] == fault.cause[:2] and 0 <= fault.at_s - f.at_s <= rule.window_s
    ]
    if fault.id not in [f.id for f in recent]:
        recent.append(fault)
    spread = _spread_by_job(fault, recent)
    if spread is not None:
        return spread
    here = [f for f in recent if _same_place(f, fault, rule)]
    if len(here) < rule.count:
        return _undecided(fault, f"{len(here)} of {rule.count} on this device")
    return RepeatVerdict(
        origin=Origin.HARDWARE,
        action=rule.action,
        reason=f"{fault.code} struck {_place(fault, rule)} {len(here)} times in"
        f" {rule.window_s / 3600:g} h",
        evidence=tuple(f.id for f in here),
    )


def _spread_by_job(fault: Fault, recent: Sequence[Fault]) -> RepeatVerdict | None:
    """Blame a job that meets the same fault on several devices, wherever it ran."""
    if fault.job is None or fault.action is not Action.RESTART_APP:
        return None
    devices = dict.fromkeys((f.node, f.serial) for f in recent if f.job == fault.job)
    others = [f for f in recent if _same_device(f, fault) and f.job != fault.job]
    if len(devices) < 2 or others:
        return None
    return RepeatVerdict(
        origin=Origin.APPLICATION,
        action=Action.RESTART_APP,
        reason=f"job {fault.job} met {fault.code} on {len(devices)} devices: application",
        evidence=tuple(f.id for f in recent if f.job == fault.job),
    )


def _same_device(a: Fault, b: Fault) -> bool:
    if a.serial is not None and b.serial is not None:
        return a.serial == b.serial
    return a.serial == b.serial and a.node == b.node


def _same_place(a: Fault, b: Fault, rule: RepeatRule) -> bool:
    return _same_device(a, b) and (not rule.same_locus or a.locus == b.locus)


def _place(fault: Fault, rule: RepeatRule) -> str:
    device = f"device {fault.serial}" if fault.serial else f"node {fault.node}"
    return f"{device} {fault.locus}" if rule.same_locus and fault.locus else device


def _undecided(fault: Fault, reason: str) -> RepeatVerdict:
    return RepeatVerdict(origin=Origin.UNDECIDED, action=fault.action, reason=reason)


class WaveRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a fault on many nodes is software.

    Attributes:
        window_s: span in which the nodes are struck.
        nodes_min: fewest nodes of a wave.
        share_ratio: least share of the nodes of one driver that are struck.
    """

    window_s: float = 3600.0
    nodes_min: int = 3
    share_ratio: float = 0.05


class Wave(msgspec.Struct, frozen=True, kw_only=True):
    """One code on many nodes at once: an alert about software, no action on any node."""

    fault_class: str
    code: str
    driver: str | None
    nodes: tuple[str, ...]
    reason: str


# Parts that break one at a time; many at once point at power, cooling or a switch, and a person
# must look, but the driver is not to blame for the parts themselves.
_PHYSICAL = frozenset({("xid", "54"), ("xid", "48"), ("xid", "63"), ("xid", "64"), ("xid", "95")})
# What a job says of its nodes is of that job, however many nodes it runs on.
_OF_JOBS = frozenset({("job", "straggler"), ("job", "hang")})


def find_waves(
    faults: Sequence[Fault],
    driver_by_node: Mapping[str, str | None],
    *,
    now_s: float,
    rule: WaveRule | None = None,
) -> tuple[Wave, ...]:
    """Return the faults that strike too many nodes at once to be the nodes' own.

    Args:
        faults: faults of the fleet.
        driver_by_node: driver and image of every node; None where unknown.
        now_s: seconds since the epoch.
        rule: thresholds.
    """
    rule = rule or WaveRule()
    struck: dict[tuple[str, str], dict[str, str | None]] = {}
    for fault in faults:
        key = (fault.fault_class, fault.code)
        if 0 <= now_s - fault.at_s <= rule.window_s and key not in _PHYSICAL | _OF_JOBS:
            struck.setdefault(key, {})[fault.node] = driver_by_node.get(fault.node)
    waves = []
    for (fault_class, code), driver_of in struck.items():
        for driver in dict.fromkeys(driver_of.values()):
            nodes = tuple(sorted(n for n, d in driver_of.items() if d == driver))
            fleet_count = sum(1 for d in driver_by_node.values() if d == driver)
            if len(nodes) < rule.nodes_min or len(nodes) < rule.share_ratio * fleet_count:
                continue
            waves.append(
                Wave(
                    fault_class=fault_class,
                    code=code,
                    driver=driver,
                    nodes=nodes,
                    reason=f"{code} on {len(nodes)} of {fleet_count} nodes with"
                    f" {driver or 'unknown driver'} within {rule.window_s / 60:g} min: software",
                )
            )
    return tuple(waves)


def software_faults(
    faults: Sequence[Fault],
    driver_by_node: Mapping[str, str | None],
    *,
    rule: WaveRule | None = None,
) -> frozenset[str]:
    """Return the ids of faults that came in a wave, whenever that was, and left the device well.

    They stay the software's when the wave has passed: else every node that a bad release struck
    would be taken out for it afterwards. A fatal fault asks for its repair all the same.
    """
    rule = rule or WaveRule()
    groups: dict[tuple[str, str, str | None], list[Fault]] = {}
    for fault in faults:
        if (fault.fault_class, fault.code) not in _PHYSICAL:
            key = (fault.fault_class, fault.code, driver_by_node.get(fault.node))
            groups.setdefault(key, []).append(fault)
    sizes: dict[str | None, int] = {}
    for driver in driver_by_node.values():
        sizes[driver] = sizes.get(driver, 0) + 1
    found: dict[str, None] = {}
    for (_, _, driver), group in groups.items():
        least = max(rule.nodes_min, rule.share_ratio * sizes.get(driver, 0))
        group.sort(key=lambda fault: fault.at_s)
        first = 0
        counts: dict[str, int] = {}
        for last, fault in enumerate(group):
            counts[fault.node] = counts.get(fault.node, 0) + 1
            while fault.at_s - group[first].at_s > rule.window_s:
                counts[group[first].node] -= 1
                if not counts[group[first].node]:
                    del counts[group[first].node]
                first += 1
            if len(counts) >= least:
                found.update(dict.fromkeys(each.id for each in group[first : last + 1]))
    fatal = {fault.id for fault in faults if fault.severity is Severity.FATAL}
    return frozenset(fault_id for fault_id in found if fault_id not in fatal)
