"""A fleet with known truth under a health policy: what does the policy cost, what does it save?

Nodes meet faults at random; some are lemons, and a driver release may break many at once. The
health book that decides live decides here, on the same facts: incidents, blame and repairs. What
it cannot see is the truth: a broken node strikes again until it is mended, a lemon until a person
has looked at it, the release until it is taken back. Lost are the device-hours that jobs fall
back and those of nodes that stand out of use.

The rate is that of Meta's RSC-1, 6.5 failures per 1,000 node-days (arXiv 2410.21680). How faults
share among the codes, and how long people and repairs take, are assumptions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from tercio.health.book import HealthBook
from tercio.health.finding import Action, Severity
from tercio.health.history import Fault
from tercio.health.lemon import Blame
from tercio.health.machine import NodeState
from tercio.health.policy import HealthPolicy
from tercio.health.record import Decision, Order
from tercio.twin.rng import Stream

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
_TICK_S: Final = 6 * HOUR_S
_ROUNDS: Final = 4
_OUT: Final = (NodeState.QUARANTINED, NodeState.REPAIRING)


class Kind(NamedTuple):
    """A kind of fault: its share, what it is told as, and whether the node stays broken."""

    share: float
    fault_class: str
    code: str
    severity: Severity
    action: Action
    is_hard: bool


KINDS: Final = (
    Kind(0.30, "xid", "31", Severity.ERROR, Action.RESTART_APP, False),
    Kind(0.15, "xid", "13", Severity.ERROR, Action.RESTART_APP, False),
    Kind(0.15, "xid", "94", Severity.ERROR, Action.RESTART_APP, False),
    Kind(0.10, "host", "soft_lockup", Severity.WARNING, Action.OBSERVE, False),
    Kind(0.10, "xid", "79", Severity.FATAL, Action.REBOOT_NODE, True),
    Kind(0.10, "xid", "95", Severity.FATAL, Action.RESET_GPU, True),
    Kind(0.10, "xid", "74", Severity.FATAL, Action.RESET_GPU, True),
)
_WAVE: Final = Kind(0.0, "xid", "31", Severity.ERROR, Action.RESTART_APP, True)


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet, its troubles, and what they cost.

    Attributes:
        nodes, devices_per_node: size.
        days: length.
        faults_per_node_day: of a healthy node.
        lemon_ratio, lemon_factor: part of the nodes that are lemons, and how often they fail.
        release_day: when a bad driver goes to `release_ratio` of the nodes, or None.
        release_s: until it is taken back.
        job_devices, fall_back_s: devices of a job, and the work that it loses by a strike.
        strike_again_s: between two strikes of a broken node that stays in use.
        notice_s: until a person takes a broken node out by himself, or looks at a quarantined one.
        mend_s: of a repair by command; `mended_ratio` of them help a broken node.
    """

    nodes: int = 1000
    devices_per_node: int = 8
    days: float = 30.0
    faults_per_node_day: float = 6.5e-3
    lemon_ratio: float = 0.0
    lemon_factor: float = 10.0
    release_day: float | None = None
    release_ratio: float = 0.5
    release_s: float = 6 * HOUR_S
    job_devices: int = 64
    fall_back_s: float = 1500.0
    strike_again_s: float = HOUR_S
    notice_s: float = DAY_S
    mend_s: float = 0.5 * HOUR_S
    mended_ratio: float = 0.9


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy came to.

    Attributes:
        fallen_back_h, out_h: device-hours that jobs fell back, and of nodes out of use.
        strikes: faults that ended a job.
        quarantines: by the policy.
        soft_quarantines: of them by a repeat or lemon rule, no finding of the node being fatal.
        wrong_quarantines: of nodes that were neither broken nor lemons.
        lemons, lemons_found: there were, and the policy took out.
        breakers: how often all automation stopped.
    """

    fallen_back_h: float
    out_h: float
    strikes: int
    quarantines: int
    soft_quarantines: int
    wrong_quarantines: int
    lemons: int
    lemons_found: int
    breakers: int

    @property
    def lost_h(self) -> float:
        """Device-hours lost in all."""
        return self.fallen_back_h + self.out_h


def live(fleet: Fleet, policy: HealthPolicy, *, seed: int) -> Loss:
    """Let a fleet live under a policy; equal seeds bring equal troubles.

    Args:
        fleet: what it is and meets.
        policy: limits of automation; in shadow mode nothing but people acts.
        seed: of the troubles.
    """
    return _Life(fleet, policy, seed).play()


class _Node:
    """The truth about one node."""

    __slots__ = ("broken", "broken_s", "is_lemon", "name", "out_s", "version", "waits")

    def __init__(self, name: str, *, is_lemon: bool) -> None:
        self.name = name
        self.is_lemon = is_lemon
        self.broken: Kind | None = None
        self.broken_s = 0.0
        self.out_s: float | None = None
        self.version = 0  # grows when what was to come for the node is void
        self.waits = False  # for a person


class _Life:
    """One run; see `live`."""

    def __init__(self, fleet: Fleet, policy: HealthPolicy, seed: int) -> None:
        self.fleet = fleet
        self.book = HealthBook(policy)
        self.end_s = fleet.days * DAY_S
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[_Node, int], None], _Node, int]] = []
        self._order = self._faults = 0
        self._mending = Stream(seed, "mending")
        lemons = Stream(seed, "lemons")
        self.nodes = [
            _Node(f"n{at}", is_lemon=lemons.chance(fleet.lemon_ratio)) for at in range(fleet.nodes)
        ]
        self.of = {node.name: node for node in self.nodes}
        self.book.fleet = dict.fromkeys(self.of, "a")
        self._streams = {node.name: Stream(seed, f"faults/{node.name}") for node in self.nodes}
        self._lemon_count = sum(node.is_lemon for node in self.nodes)
        self._found: dict[str, None] = {}
        self._fallen_h = self._out_h = 0.0
        self._strikes = self._quarantines = self._soft = self._wrong = self._breakers = 0
        for node in self.nodes:
            self._next_fault(node)
        if fleet.release_day is not None:
            self._release(fleet.release_day * DAY_S, Stream(seed, "release"))

    def play(self) -> Loss:
        """Do it."""
        tick_s = _TICK_S
        while self._heap and self._heap[0][0] < self.end_s:
            at_s, _, do, node, version = heapq.heappop(self._heap)
            while tick_s < at_s:
                self.now_s, tick_s = tick_s, tick_s + _TICK_S
                self._decide()
            self.now_s = at_s
            do(node, version)
            self._decide()
        for node in self.nodes:
            if node.out_s is not None:
                self._out_h += (self.end_s - node.out_s) / HOUR_S * self.fleet.devices_per_node
        return Loss(
            fallen_back_h=self._fallen_h,
            out_h=self._out_h,
            strikes=self._strikes,
            quarantines=self._quarantines,
            soft_quarantines=self._soft,
            wrong_quarantines=self._wrong,
            lemons=self._lemon_count,
            lemons_found=len(self._found),
            breakers=self._breakers,
        )

    def _at(self, at_s: float, do: Callable[[_Node, int], None], node: _Node) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at_s, self._order, do, node, node.version))

    # Troubles.

    def _next_fault(self, node: _Node) -> None:
        factor = self.fleet.lemon_factor if node.is_lemon else 1.0
        mean_s = DAY_S / (self.fleet.faults_per_node_day * factor)
        self._order += 1
        at_s = self.now_s + self._streams[node.name].exponential(mean_s)
        heapq.heappush(self._heap, (at_s, self._order, self._fall_ill, node, 0))

    def _fall_ill(self, node: _Node, _: int) -> None:
        stream = self._streams[node.name]
        self._next_fault(node)
        draw = stream.unit()
        device = 0 if node.is_lemon else stream.whole(self.fleet.devices_per_node)
        if node.out_s is not None or node.broken is not None:
            return
        kind = _kind_of(draw)
        if kind.is_hard:
            node.broken, node.broken_s = kind, self.now_s
        self._strike(node, kind, device)

    def _release(self, at_s: float, stream: Stream) -> None:
        """A bad driver: those that get it strike within the hour, and again until it is undone."""
        drivers = dict.fromkeys(self.of, "a")
        for node in self.nodes:
            if stream.chance(self.fleet.release_ratio):
                drivers[node.name] = "b"
                self._at(at_s + stream.uniform(0.0, HOUR_S), self._break_by_release, node)
        self.book.fleet = drivers

    def _break_by_release(self, node: _Node, _: int) -> None:
        if node.out_s is not None or node.broken is not None:
            return
        node.broken, node.broken_s = _WAVE, self.now_s
        self._strike(node, _WAVE, 0)
        assert self.fleet.release_day is not None
        self._at(self.fleet.release_day * DAY_S + self.fleet.release_s, self._undo_release, node)

    def _undo_release(self, node: _Node, _: int) -> None:
        if node.broken is _WAVE:
            node.broken = None

    def _strike(self, node: _Node, kind: Kind, device: int) -> None:
        """A fault ends the job on the node."""
        self._strikes += 1
        self._fallen_h += self.fleet.job_devices * self.fleet.fall_back_s / HOUR_S
        self._faults += 1
        fault_id, book = f"f{self._faults}", self.book
        drivers = book.fleet or {}
        book.note_node(node.name, now_s=0.0, driver=drivers.get(node.name))
        book.note_fault(
            Fault(
                id=fault_id, node=node.name, at_s=self.now_s, fault_class=kind.fault_class,
                code=kind.code, severity=kind.severity, action=kind.action,
                serial=f"{node.name}/{device}", job=f"job{self._faults}",
            )
        )  # fmt: skip
        if kind is not _WAVE:
            blame = Blame(node=node.name, at_s=self.now_s, weight=1.0, cause=fault_id)
            book.note_blame((blame,))
        if kind.is_hard:
            self._at(self.now_s + self.fleet.strike_again_s, self._strike_again, node)

    def _strike_again(self, node: _Node, version: int) -> None:
        if node.broken is None or node.out_s is not None or version != node.version:
            return
        if self.now_s - node.broken_s >= self.fleet.notice_s:
            self._take_out(node)  # a person saw it
            self._at(self.now_s + self.fleet.notice_s, self._look, node)
            return
        self._strike(node, node.broken, 0)

    # Out of use, and back.

    def _take_out(self, node: _Node) -> None:
        node.out_s = self.now_s
        node.version += 1

    def _bring_back(self, node: _Node) -> None:
        if node.out_s is not None:
            self._out_h += (self.now_s - node.out_s) / HOUR_S * self.fleet.devices_per_node
        node.out_s, node.waits = None, False
        node.version += 1
        if node.broken is not None:
            node.broken_s = self.now_s
            self._at(self.now_s + self.fleet.strike_again_s, self._strike_again, node)

    def _look(self, node: _Node, version: int) -> None:
        """A person mends the node, and sees whether it is a lemon."""
        if version != node.version:
            return
        node.broken = None if node.broken is not _WAVE else _WAVE
        node.is_lemon = False
        record = self.book.record(node.name)
        if record.state is NodeState.QUARANTINED:
            self.book.move_by_operator(
                node.name, NodeState.PROBATION, reason="mended", actor="person", now_s=self.now_s
            )
        record.handled_s = self.now_s
        self._bring_back(node)

    def _mended(self, node: _Node, version: int) -> None:
        """A repair by command has ended."""
        if version != node.version or self.book.record(node.name).state is not NodeState.REPAIRING:
            return
        helps = self._mending.chance(self.fleet.mended_ratio)
        if helps and node.broken is not _WAVE:
            node.broken = None
        self.book.note_repair_ended(node.name, succeeded=helps, now_s=self.now_s)

    def _decide(self) -> None:
        was_open = self.book.breaker_open_s is not None
        for _ in range(_ROUNDS):
            decisions = self.book.decide(self.now_s)
            for decision in decisions:
                self._carry_out(decision)
            if not decisions:
                break
        if self.book.breaker_open_s is not None:
            self._breakers += not was_open
            if self.now_s - self.book.breaker_open_s >= self.fleet.notice_s:
                self.book.reset_breaker(now_s=self.now_s)

    def _carry_out(self, decision: Decision) -> None:
        node = self.of.get(decision.node)
        if node is None:
            return
        record = self.book.record(node.name)
        if decision.order is Order.QUARANTINE and decision.held_by is None:
            self._note_quarantine(node, decision)
            if node.out_s is None:
                self._take_out(node)
        if decision.order is Order.REPAIR and decision.held_by is None:
            self._at(self.now_s + self.fleet.mend_s, self._mended, node)
        elif (
            record.state is NodeState.QUARANTINED
            and decision.order in (Order.ALERT, Order.REPAIR)
            and not node.waits
        ):
            node.waits = True
            self._at(self.now_s + self.fleet.notice_s, self._look, node)
        if record.state not in _OUT and node.out_s is not None and decision.order in (
            Order.PROBATION, Order.RETURN,
        ):  # fmt: skip
            self._bring_back(node)

    def _note_quarantine(self, node: _Node, decision: Decision) -> None:
        self._quarantines += 1
        faults = self.book.record(node.name).open_faults()
        is_fatal = any(fault.severity is Severity.FATAL for fault in faults)
        self._soft += not is_fatal
        self._wrong += not (node.is_lemon or (node.broken is not None and node.broken is not _WAVE))
        if node.is_lemon and decision.action is Action.INSPECT_HW:
            self._found[node.name] = None


def _kind_of(draw: float) -> Kind:
    for kind in KINDS:
        draw -= kind.share
        if draw < 0:
            return kind
    return KINDS[-1]


def mean_loss(losses: Sequence[Loss]) -> dict[str, float]:
    """Return the mean of every figure of several lives, `lost_h` with them."""
    fields = {name: [float(getattr(loss, name)) for loss in losses] for name in _FIGURES}
    return {name: sum(values) / len(values) for name, values in fields.items()}


_FIGURES: Final = ("lost_h", *Loss.__struct_fields__)
