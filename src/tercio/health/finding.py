"""The values of the health package: what a log said, where, and what it asks for.

A finding is one recognised fault line or reading. An incident is the findings of one cause on
one target, with the root kept, because the last line of a burst is the least telling one.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad a fault is for the device it names."""

    NOTE = "info"  # the device is fine
    WARNING = "warning"  # it works, degraded or with a planned reset ahead
    ERROR = "error"  # processes on it died, the device is fine
    FATAL = "fatal"  # unusable until the action is taken

    @property
    def rank(self) -> int:
        """Position from mild to severe, 0 to 3."""
        return _SEVERITY_RANK[self]


_SEVERITY_RANK = {severity: rank for rank, severity in enumerate(Severity)}


class Action(StrEnum):
    """What a fault asks for, from nothing to hands on the machine."""

    NONE = "none"
    OBSERVE = "observe"
    FOLLOW_OTHER_XID = "follow_other_xid"
    USE_RECOVERY_ACTION = "use_recovery_action"
    CONTACT_SUPPORT = "contact_support"
    CHECK_SOFTWARE = "check_software"
    UPDATE_SOFTWARE = "update_software"
    RESTART_APP = "restart_app"
    RESET_GPU_WHEN_IDLE = "reset_gpu_when_idle"
    RESET_GPU = "reset_gpu"
    DRAIN_AND_RESET = "drain_and_reset"
    RESET_ALL_GPUS_AND_SWITCHES = "reset_all_gpus_and_switches"
    RESTART_VM = "restart_vm"
    REBOOT_NODE = "reboot_node"
    INSPECT_HW = "inspect_hw"

    @property
    def rank(self) -> int:
        """Position from undemanding to demanding; an incident takes its most demanding one."""
        return _ACTION_RANK[self]


_ACTION_RANK = {action: rank for rank, action in enumerate(Action)}

# Nothing on the node is touched for these: they inform, or ask a person to look.
PASSIVE_ACTIONS = frozenset(
    {
        Action.NONE,
        Action.OBSERVE,
        Action.FOLLOW_OTHER_XID,
        Action.USE_RECOVERY_ACTION,
        Action.CONTACT_SUPPORT,
        Action.CHECK_SOFTWARE,
        Action.UPDATE_SOFTWARE,
    }
)


class Scope(StrEnum):
    """What stands still when the fault strikes."""

    APP = "app"
    GPU = "gpu"
    NODE = "node"
    FABRIC = "fabric"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fault sits. Every part may be unknown.

    Attributes:
        pci: normalised address, `dddd:bb:dd.f`, lower case.
        gi: MIG GPU instance id.
        link: NVLink number on the device.
        port: network port, `mlx5_5:1` or an interface name.
        rank: rank in a training job.
        pid: process in the host's pid namespace.
        device: name of a device that has no PCI address in the line, as `nvme4` or `md0`.
    """

    pci: str | None = None
    gi: int | None = None
    link: int | None = None
    port: str | None = None
    rank: int | None = None
    pid: int | None = None
    device: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename={"fault_class": "class"}):
    """One recognised fault line.

    Attributes:
        line, line_end: first and last line of the record in the input, from 1.
        at_s: seconds since the epoch, or None where the line carries no full date.
        stamp: clock name and seconds on it, or None; only spans on one clock compare.
        fault_class, code: the row of the fault table. Codes are text: `79`, `aer_fatal`.
        action: `none` for a continuation, which asks for nothing on its own.
        cause_code: the code that the line itself names as its cause, or the one found by
            grouping.
        clears: the fault this line speaks of is over.
        continuation: a further record of an event that is already counted.
        locus: the place inside the device (`GPC 7 TPC 2`), for the repeat rules.
        incident: id of the incident it belongs to, or None.
        evidence: the lines themselves.
    """

    line: int
    line_end: int
    at_s: float | None = None
    stamp: tuple[str, float] | None = None
    fault_class: str
    code: str
    meaning: str
    severity: Severity
    scope: Scope
    action: Action
    cause_code: str | None = None
    clears: bool = False
    continuation: bool = False
    target: Target = Target()
    locus: str | None = None
    incident: int | None = None
    evidence: tuple[str, ...] = ()


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one cause on one target.

    Attributes:
        root_line: line of the finding that explains the others.
        root_class, root_code: its row of the fault table.
        cleared: the driver took its verdict back.
        findings: indices into the list of findings, in order.
    """

    id: int
    target: Target
    root_line: int
    root_class: str
    root_code: str
    severity: Severity
    action: Action
    cleared: bool = False
    at_s: float | None = None
    findings: tuple[int, ...]


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one log said.

    Attributes:
        table_date: date of the fault table that was used.
        line_count: lines read.
        uuid_by_pci: GPU identities that the log mentions.
    """

    table_date: str
    line_count: int
    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]
    uuid_by_pci: dict[str, str]

    @property
    def worst(self) -> Severity | None:
        """The most severe finding, or None where there is none."""
        return max((f.severity for f in self.findings), key=lambda s: s.rank, default=None)
