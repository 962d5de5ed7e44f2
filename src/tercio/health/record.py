"""One node as the health book keeps it: what it asks for and what was decided about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tercio.health.finding import Action, Severity
from tercio.health.history import Fault
from tercio.health.machine import NodeState, StateChange
from tercio.health.policy import HeldBy, Repair


class Order(StrEnum):
    """What the shell is asked to do."""

    RESTART_JOB = "restart_job"
    QUARANTINE = "quarantine"
    REPAIR = "repair"
    PROBATION = "probation"
    RETURN = "return"
    ALERT = "alert"
    HOLD = "hold"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One order, or one that is held back, with its reason and evidence.

    Attributes:
        action: the repair that is meant, `none` where none is.
        evidence: ids of the faults behind it.
        held_by: why it is not carried out, None where it is.
    """

    node: str
    at_s: float
    order: Order
    action: Action
    reason: str
    evidence: tuple[str, ...] = ()
    held_by: HeldBy | None = None


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the book knows of one node, for display."""

    node: str
    state: NodeState
    since_s: float
    reason: str
    evidence: tuple[str, ...]
    unfit_serials: tuple[str, ...]
    repairs: tuple[Repair, ...]


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a node asks for, the most demanding of its open faults.

    Attributes:
        cause: what the escalation ladder counts by.
        evidence: ids of the faults behind it.
        at_s: time of the fault.
    """

    action: Action
    severity: Severity
    reason: str
    cause: tuple[str, str, str]
    evidence: tuple[str, ...]
    at_s: float


class NodeRecord:
    """What the book keeps of one node. Mutable; only the book changes it."""

    __slots__ = (
        "changes",
        "driver",
        "evidence",
        "excluded_by",
        "faults",
        "foreign_cordon",
        "handled_s",
        "in_maintenance",
        "jobs",
        "name",
        "need",
        "quarantine_code",
        "reason",
        "repairs",
        "said",
        "seen_s",
        "since_s",
        "state",
    )

    def __init__(self, name: str, *, driver: str | None, now_s: float) -> None:
        self.name = name
        self.driver = driver
        self.seen_s = self.since_s = now_s
        self.state = NodeState.OK
        self.reason = ""
        self.evidence: tuple[str, ...] = ()
        self.jobs: tuple[str, ...] = ()
        self.foreign_cordon = False
        self.in_maintenance = False
        self.excluded_by = 0
        self.faults: list[Fault] = []
        self.repairs: list[Repair] = []
        self.changes: list[StateChange] = []
        self.need: Need | None = None
        self.quarantine_code: tuple[str, str] | None = None
        # Faults up to this time were dealt with by a repair or by a person.
        self.handled_s = float("-inf")
        self.said = ""

    def open_faults(self) -> list[Fault]:
        """Return the faults that stand and came after the last repair."""
        return [f for f in self.faults if f.cleared_at_s is None and f.at_s > self.handled_s]
