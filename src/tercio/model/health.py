"""Health as the journal keeps it: faults of nodes, where each node stands, what was done.

The words (states, severities, actions, orders) are those of the `health` package, as plain text,
so that an older journal is read by a newer program.
"""

from __future__ import annotations

import msgspec

from tercio.model.ids import NodeName
from tercio.model.power import CapCurvePoint

HEALTH_OWNER = "health"
"""Owner of the cordons of quarantined nodes."""
SPARE_OWNER = "spare"
"""Owner of the cordons of nodes that are kept ready."""
SPARE_LABEL = "spare"
"""A node whose label of this name is `true` is kept ready for broken gangs."""


class FaultFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One incident on a node.

    Attributes:
        id: unique over the fleet; a repeated report of the incident has the same one.
        at_s: when it was said, seconds since the epoch.
        fault_class, code: the row of the fault table (`xid`, `79`).
        serial: serial number or UUID of the device; None for a fault of the node.
        device: position of the device on the node, or None.
        locus: place inside the device.
        job: job that held the device, or None.
        evidence: the line or reading that says so.
        cleared_at_s: when it was taken back, or None while it stands.
    """

    id: str
    at_s: float
    fault_class: str
    code: str
    severity: str
    action: str
    meaning: str = ""
    serial: str | None = None
    device: int | None = None
    locus: str | None = None
    job: str | None = None
    evidence: str = ""
    cleared_at_s: float | None = None

    @property
    def words(self) -> str:
        """Say it in a few words: `Xid 79 on GPU 3 (serial 1650301): GPU fell off the bus`."""
        return self.title + (f": {self.meaning}" if self.meaning else "")

    @property
    def title(self) -> str:
        """Code and device: `Xid 79 on GPU 3 (serial 1650301)`."""
        names = {"xid": "Xid ", "sxid": "SXid ", "reading": "", "job": ""}
        code = names.get(self.fault_class, f"{self.fault_class} ") + self.code
        if self.device is None:
            return code
        serial = f" (serial {self.serial})" if self.serial else ""
        return f"{code} on GPU {self.device}{serial}"


class BlameFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of one failure that a node carries, from 0 to 1. `cause` names the failure."""

    node: NodeName
    at_s: float
    weight: float
    cause: str


class RepairFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One repair of a node: what was tried for which cause, and whether it helped."""

    at_s: float
    action: str
    cause: tuple[str, str, str]
    succeeded: bool | None = None


class MoveFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One move of a node between the states of its health, why and by whom."""

    at_s: float
    start: str
    finish: str
    reason: str
    actor: str


class HealthRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a node stands.

    Attributes:
        state: `ok suspect quarantined repairing probation retired`.
        since_s: of the last move.
        evidence: ids of the faults behind it.
        handled_s: faults up to this time were dealt with; -1 for none.
        quarantine_code: class and code that the last quarantine was for.
        said: key of the last decision that was told, so that it is told once.
        moves: the last ones, oldest first.
        replaced_by: the spare that took its place, or None.
    """

    state: str = "ok"
    since_s: float = 0.0
    reason: str = ""
    evidence: tuple[str, ...] = ()
    handled_s: float = -1.0
    quarantine_code: tuple[str, str] | None = None
    said: str = ""
    repairs: tuple[RepairFact, ...] = ()
    moves: tuple[MoveFact, ...] = ()
    replaced_by: NodeName | None = None


HealthSettings = dict[str, str | int | float]
"""Settings of the health policy that differ from its defaults, by name."""


class HealthState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything the state keeps of health. Nodes without a word are healthy.

    Attributes:
        settings, version: of the health policy; version 0 is the defaults.
        records, faults: by node; faults oldest first.
        blames: who carries the failures of jobs and nodes, oldest first.
        curves: what steps of a job class took at each power limit.
        known_since: when each node was first reported.
        breaker_open_s: since when automation is stopped, or None.
        breaker_reset_s: when a person last reset the breaker, -1 for never.
        revision: grows with every fact that a decision may look at.
    """

    settings: HealthSettings = {}
    version: int = 0
    records: dict[NodeName, HealthRecord] = {}
    faults: dict[NodeName, list[FaultFact]] = {}
    blames: list[BlameFact] = []
    known_since: dict[NodeName, float] = {}
    curves: dict[str, tuple[CapCurvePoint, ...]] = {}
    breaker_open_s: float | None = None
    breaker_reset_s: float = -1.0
    revision: int = 0
