"""Bodies of health: where a node stands and why, its faults, live devices, the policy."""

from __future__ import annotations

import msgspec

from tercio.model.health import FaultFact, HealthSettings, MoveFact, RepairFact
from tercio.model.power import CapOrders, NodeCaps
from tercio.model.queue import Flexible
from tercio.model.readings import DeviceTelemetry
from tercio.model.views import View


class NodeHealthView(View, frozen=True, kw_only=True):
    """The health of one node.

    Attributes:
        state: `ok suspect quarantined repairing probation retired`.
        reason: of the last move.
        faults: newest last; those of before the last repair are told too.
        said: what health would do, or asks a person to do; empty for nothing.
        replaced_by: the spare in its place, empty for none.
        agent: version of the program that reads the node; empty without fresh readings.
        devices: what they say now, by position on the node; empty without fresh readings.
        notes: what could not be read, and why.
        caps: power limits that are kept on it, None where its power is left alone.
    """

    kind: str = "NodeHealth"
    node: str
    state: str = "ok"
    since_s: float = 0.0
    reason: str = ""
    said: str = ""
    replaced_by: str = ""
    faults: tuple[FaultFact, ...] = ()
    moves: tuple[MoveFact, ...] = ()
    repairs: tuple[RepairFact, ...] = ()
    driver: str = ""
    agent: str = ""
    devices: dict[int, DeviceTelemetry] = msgspec.field(default_factory=dict)
    notes: dict[str, str] = msgspec.field(default_factory=dict)
    caps: NodeCaps | None = None


class LiveNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node as it is now: the devices that readings know, and who holds them.

    `at_s` is 0 for a node without fresh readings: old values are not shown as new ones.
    """

    node: str
    at_s: float = 0.0
    health: str = "ok"
    driver: str = ""
    devices: dict[int, DeviceTelemetry] = {}
    jobs: dict[int, tuple[str, ...]] = {}
    notes: dict[str, str] = {}


class LiveList(View, frozen=True, kw_only=True):
    """All nodes as they are now."""

    kind: str = "LiveList"
    rows: tuple[LiveNode, ...]
    next: str | None = None


class ReadingsAnswer(View, frozen=True, kw_only=True):
    """What the server made of a reading: faults told, and how often it wants to hear.

    `caps` are the power limits to keep; None: what was set for Tercio is taken back. `jobs` are
    those on each device and MIG slice in use, by its UUID.
    """

    kind: str = "Readings"
    faults: int
    poll_s: float
    caps: CapOrders | None = None
    jobs: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class PowerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One power budget: what it allows, and what the devices below it may draw and do draw.

    Attributes:
        ceiling_w: the most that devices in use may draw now, by the limits that may be in force.
        drawn_w: by all its devices now; None where none of them says.
        in_use, devices: how many hold work, and how many there are.
        limit_least_w, limit_most_w: of those in use; None where none is.
        demand_w: kept free for a job that waits for power.
        due: limits that the plan changes now; nothing is done about them in shadow mode.
        silent: devices whose node is not heard: they count at their default limit.
    """

    domain: str
    budget_w: int
    ceiling_w: int
    drawn_w: float | None = None
    in_use: int
    devices: int
    limit_least_w: int | None = None
    limit_most_w: int | None = None
    demand_w: int = 0
    due: int = 0
    silent: int = 0


class PowerReport(View, frozen=True, kw_only=True):
    """The power budgets as they are now. `mode` is the setting `power`: `off shadow act`."""

    kind: str = "PowerReport"
    mode: str
    rows: tuple[PowerRow, ...]
    next: str | None = None


class PricesView(View, frozen=True, kw_only=True):
    """What power costs, as far as it is known.

    Attributes:
        source: the file or address that the server reads; empty where prices are sent to it.
        failure: why the source could not be read the last time; empty where it could.
        read_s: when it was last read; None for never.
        flexible: what the policy orders flexible jobs by.
        warning: what is lacking for that; empty for nothing.
        price_usd_per_kwh, carbon_g_per_kwh: of now; None where it is not known.
        price_until_s, carbon_until_s: until when each is known without a gap; None where it is
            not known now.
        rows: the hours from now on.
    """

    kind: str = "Prices"
    source: str = ""
    failure: str = ""
    read_s: float | None = None
    flexible: Flexible = Flexible.OFF
    warning: str = ""
    price_usd_per_kwh: float | None = None
    carbon_g_per_kwh: float | None = None
    price_until_s: float | None = None
    carbon_until_s: float | None = None
    rows: tuple[PriceHour, ...] = ()
    next: str | None = None


class PriceHour(msgspec.Struct, frozen=True, kw_only=True):
    """Price and carbon from `at_s` to the next row, the last one for an hour; None for unknown."""

    at_s: float
    price_usd_per_kwh: float | None = None
    carbon_g_per_kwh: float | None = None


class HealthPolicyView(View, frozen=True, kw_only=True):
    """The health policy: its version, what differs from the defaults, and all of it."""

    kind: str = "HealthPolicy"
    version: int
    settings: HealthSettings
    effective: HealthSettings
    breaker_open_s: float | None = None


class HealthDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that health does, or would do. `held_by` says why not, empty where it does."""

    node: str
    order: str
    action: str
    reason: str
    held_by: str = ""


class HealthPlanView(View, frozen=True, kw_only=True):
    """What a health policy would do now to the nodes as they are."""

    kind: str = "HealthPlan"
    settings: HealthSettings
    rows: tuple[HealthDecision, ...]


class RmaRow(msgspec.Struct, frozen=True, kw_only=True):
    """The fault history of one device, by its serial number.

    Attributes:
        node, device: where it struck last; `nodes` are all it was on.
        severity: the worst.
        codes: each with how often.
        evidence: the last line or reading that said so.
        repairs: what was tried on its node for it, and how that ended.
        state: where that node stands.
        advice: `replace`, `inspect` or `watch`, by the repeat rules; `why` says which.
    """

    serial: str
    type: str = ""
    node: str
    device: int | None = None
    nodes: tuple[str, ...] = ()
    faults: int
    first_s: float
    last_s: float
    severity: str
    codes: tuple[str, ...] = ()
    evidence: str = ""
    repairs: tuple[str, ...] = ()
    state: str = "ok"
    advice: str = "watch"
    why: str = ""


class RmaReport(View, frozen=True, kw_only=True):
    """The devices with faults, those to replace first."""

    kind: str = "RmaReport"
    since_s: float
    until_s: float
    rows: tuple[RmaRow, ...]
    next: str | None = None
