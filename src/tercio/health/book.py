"""The health book: every node's state, and the one function that decides.

The shell reports facts (faults, repairs that ended, jobs that came and went) and calls
`decide(now_s)`; what comes back are orders with their reasons. The book applies its own orders
to itself at once, so that the budget can never be spent twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.health.finding import Action, Severity
from tercio.health.history import DAY_S, Fault, Wave, find_waves, software_faults
from tercio.health.lemon import Blame
from tercio.health.machine import (
    BUDGETED_STATES,
    CORDONED_STATES,
    NodeState,
    StateChange,
    check_transition,
)
from tercio.health.needs import asks_for_repair, need_of_node
from tercio.health.policy import MANUAL_ACTIONS, HealthPolicy, HeldBy, Mode, Repair, Repairs
from tercio.health.record import Decision, Need, NodeHealth, NodeRecord, Order

HEALTH_ACTOR = "health"
JOB_CLASS = "job"
"""Class of what running jobs say of the nodes of their tasks."""
_SILENT_ACTIONS = frozenset({Action.NONE, Action.OBSERVE})
_CHANGES_KEPT = 200


class HealthBook:
    """All nodes of a cluster under one policy. Same facts in the same order, same decisions.

    Attributes:
        policy: in force.
        waves_said: when each wave was last seen, so that it is told once.
        fleet: drivers of all nodes by name, where the book holds only those that ask for
            something; budgets and waves count them all. None: the book holds all.
    """

    __slots__ = (
        "_blames",
        "_breaker_open_s",
        "_breaker_reset_s",
        "_history",
        "_nodes",
        "fleet",
        "policy",
        "waves_said",
    )

    def __init__(self, policy: HealthPolicy) -> None:
        self.policy = policy
        self._nodes: dict[str, NodeRecord] = {}
        self.fleet: Mapping[str, str | None] | None = None
        self._history: list[Fault] = []
        self._blames: list[Blame] = []
        self.waves_said: dict[tuple[str, str, str | None], float] = {}
        self._breaker_open_s: float | None = None
        self._breaker_reset_s = float("-inf")

    # -- facts -------------------------------------------------------------------------------

    def note_node(
        self,
        name: str,
        *,
        now_s: float,
        driver: str | None = None,
        jobs: tuple[str, ...] = (),
        foreign_cordon: bool = False,
        in_maintenance: bool = False,
        excluded_by: int = 0,
    ) -> None:
        """Take what is known of a node now: its driver, its running jobs, whose cordon it has.

        Args:
            name: the node.
            now_s: seconds since the epoch.
            driver: driver version or image, which a wave is told by.
            jobs: jobs running on it.
            foreign_cordon: someone else keeps it out of use.
            in_maintenance: a planned window is open.
            excluded_by: users whose jobs exclude it by name.
        """
        node = self._nodes.setdefault(name, NodeRecord(name, driver=driver, now_s=now_s))
        node.driver, node.jobs = driver, jobs
        node.foreign_cordon, node.in_maintenance = foreign_cordon, in_maintenance
        node.excluded_by = excluded_by

    def note_fault(self, fault: Fault) -> None:
        """Take a new incident on a node.

        Raises:
            UserError: the node is unknown.
        """
        node = self._node(fault.node)
        node.faults.append(fault)
        self._history.append(fault)

    def note_cleared(self, fault_id: str, *, now_s: float) -> None:
        """Take that a fault is over, by the driver's word or by a check."""
        for node in self._nodes.values():
            node.faults = [
                msgspec.structs.replace(f, cleared_at_s=now_s) if f.id == fault_id else f
                for f in node.faults
            ]

    def note_blame(self, blames: tuple[Blame, ...]) -> None:
        """Take who carries a failed job."""
        self._blames.extend(blames)

    def note_repair_ended(self, name: str, *, succeeded: bool, now_s: float) -> None:
        """Take the outcome of a repair and of the checks after it.

        A report for a node that is not under repair is late (the repair timed out) and is
        dropped.
        """
        node = self._node(name)
        if node.state is not NodeState.REPAIRING:
            return
        node.repairs[-1] = msgspec.structs.replace(node.repairs[-1], succeeded=succeeded)
        if succeeded:
            node.handled_s = now_s
            self._move(node, NodeState.PROBATION, "the repair worked", now_s=now_s)
        else:
            self._move(node, NodeState.QUARANTINED, "the repair failed", now_s=now_s)

    def move_by_operator(
        self, name: str, finish: NodeState, *, reason: str, actor: str, now_s: float
    ) -> StateChange:
        """Move a node as a person says. What a person returns is not judged by old faults.

        Raises:
            UserError: the node is unknown.
            IllegalTransition: the table does not hold the move.
        """
        node = self._node(name)
        change = self._move(node, finish, reason, now_s=now_s, actor=actor)
        if finish in (NodeState.OK, NodeState.PROBATION):
            node.handled_s = now_s
        return change

    def reset_breaker(self, *, now_s: float) -> None:
        """Let automation act again after a person has looked at what stopped it."""
        self._breaker_open_s = None
        self._breaker_reset_s = now_s

    def load_breaker(self, *, open_s: float | None, reset_s: float) -> None:
        """Take over where the breaker stood."""
        self._breaker_open_s, self._breaker_reset_s = open_s, reset_s

    # -- views -------------------------------------------------------------------------------

    def record(self, name: str) -> NodeRecord:
        """Return the record of a node, to be loaded or read by the keeper of the book.

        Raises:
            UserError: the node is unknown.
        """
        return self._node(name)

    @property
    def breaker_open_s(self) -> float | None:
        """Time at which the breaker opened, None while automation may act."""
        return self._breaker_open_s

    def drained(self) -> tuple[str, ...]:
        """Return the nodes that count against the drain budget."""
        return tuple(n.name for n in self._nodes.values() if n.state in BUDGETED_STATES)

    def health(self, name: str) -> NodeHealth:
        """Return what is known of a node.

        Raises:
            UserError: the node is unknown.
        """
        node = self._node(name)
        unfit = [f.serial for f in node.open_faults() if f.severity is Severity.FATAL and f.serial]
        return NodeHealth(
            node=node.name,
            state=node.state,
            since_s=node.since_s,
            reason=node.reason,
            evidence=node.evidence,
            unfit_serials=tuple(dict.fromkeys(unfit)),
            repairs=tuple(node.repairs),
        )

    def changes(self, name: str) -> tuple[StateChange, ...]:
        """Return the moves of a node, oldest first."""
        return tuple(self._node(name).changes)

    # -- decisions ---------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Decision]:
        """Return the orders that are due, the most severe first, each said once."""
        self._forget(now_s)
        drivers = self.fleet or {n.name: n.driver for n in self._nodes.values()}
        waves = find_waves(self._history, drivers, now_s=now_s, rule=self.policy.wave)
        decisions = self._wave_alerts(waves, now_s)
        software = software_faults(self._history, drivers, rule=self.policy.wave)
        history = [fault for fault in self._history if fault.id not in software]
        blames_by_node: dict[str, list[Blame]] = {}
        for blame in self._blames:
            blames_by_node.setdefault(blame.node, []).append(blame)
        for node in self._nodes.values():
            node.need = need_of_node(
                node,
                history=history,
                software=software,
                blames=blames_by_node.get(node.name, []),
                waves=waves,
                policy=self.policy,
                now_s=now_s,
            )
        decisions += self._watch_breaker(now_s)
        for node in sorted(self._nodes.values(), key=_urgency):
            decisions += self._decide_node(node, now_s)
        return decisions

    def _decide_node(self, node: NodeRecord, now_s: float) -> list[Decision]:
        match node.state:
            case NodeState.OK | NodeState.SUSPECT:
                return self._decide_free(node, now_s)
            case NodeState.QUARANTINED:
                return self._decide_quarantined(node, now_s)
            case NodeState.REPAIRING:
                if now_s - node.since_s > self.policy.repair_timeout_s:
                    node.repairs[-1] = msgspec.structs.replace(node.repairs[-1], succeeded=False)
                    self._move(node, NodeState.QUARANTINED, "the repair timed out", now_s=now_s)
                    return self._say(node, Order.ALERT, "the repair timed out", now_s=now_s)
                return []
            case NodeState.PROBATION:
                return self._decide_probation(node, now_s)
            case NodeState.RETIRED:
                return []

    def _decide_free(self, node: NodeRecord, now_s: float) -> list[Decision]:
        need = node.need
        if need is not None and asks_for_repair(need):
            return self._decide_repair(node, need, now_s)
        said: list[Decision] = []
        if node.state is NodeState.SUSPECT:
            self._move(node, NodeState.OK, "no open fault asks for a repair", now_s=now_s)
            said += self._say(node, Order.RETURN, node.reason, now_s=now_s)
        if need is None or need.action in _SILENT_ACTIONS:
            return said
        order = Order.RESTART_JOB if need.action is Action.RESTART_APP else Order.ALERT
        return said + self._say(node, order, need.reason, now_s=now_s, need=need)

    def _decide_repair(self, node: NodeRecord, need: Need, now_s: float) -> list[Decision]:
        """Quarantine a node that asks for a repair, unless a brake holds it."""
        held_by = self._held(node, need)
        if held_by is None:
            self._move(
                node, NodeState.QUARANTINED, need.reason, now_s=now_s, evidence=need.evidence
            )
            node.quarantine_code = need.cause[:2]
        elif node.state is NodeState.OK:
            self._move(node, NodeState.SUSPECT, need.reason, now_s=now_s, evidence=need.evidence)
        return self._say(
            node, Order.QUARANTINE, need.reason, now_s=now_s, need=need, held_by=held_by
        )

    def _decide_quarantined(self, node: NodeRecord, now_s: float) -> list[Decision]:
        need = node.need
        if node.changes[-1].actor != HEALTH_ACTOR:
            # A person put it here; a person takes it out.
            return []
        if need is None or not asks_for_repair(need):
            node.handled_s = now_s
            self._move(node, NodeState.PROBATION, "no fault of its own stands", now_s=now_s)
            return self._say(node, Order.PROBATION, node.reason, now_s=now_s)
        if need.cause[0] == JOB_CLASS:
            # What a job says of a node ends with its attempt; then the node is tried.
            return []
        if need.action in MANUAL_ACTIONS:
            reason = f"needs a person: {need.reason}"
            return self._say(node, Order.ALERT, reason, now_s=now_s, need=need)
        held_by = self._repair_held(node, now_s)
        if held_by is None:
            self._move(node, NodeState.REPAIRING, need.reason, now_s=now_s, evidence=need.evidence)
            node.repairs.append(Repair(at_s=now_s, action=need.action, cause=need.cause))
        return self._say(node, Order.REPAIR, need.reason, now_s=now_s, need=need, held_by=held_by)

    def _decide_probation(self, node: NodeRecord, now_s: float) -> list[Decision]:
        need = node.need
        if need is not None and asks_for_repair(need):
            return self._decide_repair(node, need, now_s)
        if now_s - node.since_s >= self.policy.probation_s:
            self._move(node, NodeState.OK, "probation passed", now_s=now_s)
            return self._say(node, Order.RETURN, node.reason, now_s=now_s)
        if need is not None and need.action is Action.RESTART_APP:
            return self._say(node, Order.RESTART_JOB, need.reason, now_s=now_s, need=need)
        return []

    @property
    def _size(self) -> int:
        return len(self._nodes if self.fleet is None else self.fleet)

    # -- brakes ------------------------------------------------------------------------------

    def _held(self, node: NodeRecord, need: Need) -> HeldBy | None:
        """Return what keeps a node from being quarantined now, or None."""
        if node.foreign_cordon:
            return HeldBy.FOREIGN_CORDON
        if node.in_maintenance:
            return HeldBy.MAINTENANCE
        if self.policy.mode is Mode.SHADOW:
            return HeldBy.SHADOW
        if self._breaker_open_s is not None:
            return HeldBy.BREAKER
        if need.action is Action.RESET_GPU_WHEN_IDLE and node.jobs:
            return HeldBy.BUSY
        if self._shares_job(node):
            return HeldBy.SAME_JOB
        if len(self.drained()) >= self.policy.drain_budget(self._size):
            return HeldBy.DRAIN_BUDGET
        return None

    def _shares_job(self, node: NodeRecord) -> bool:
        """Return whether a node that is being emptied runs a job of this one."""
        emptying = [n for n in self._nodes.values() if n.state in BUDGETED_STATES and n is not node]
        return any(job in other.jobs for other in emptying for job in node.jobs)

    def _repair_held(self, node: NodeRecord, now_s: float) -> HeldBy | None:
        if node.foreign_cordon:
            return HeldBy.FOREIGN_CORDON
        if node.in_maintenance:
            return HeldBy.MAINTENANCE
        if self.policy.mode is Mode.SHADOW:
            return HeldBy.SHADOW
        if self._breaker_open_s is not None:
            return HeldBy.BREAKER
        if self.policy.repairs is Repairs.PERSON:
            return HeldBy.PERSON
        recent = [r for r in node.repairs if now_s - r.at_s <= self.policy.loop_window_s]
        if len(recent) >= self.policy.loop_count:
            return HeldBy.LOOP
        return HeldBy.BUSY if node.jobs else None

    def _watch_breaker(self, now_s: float) -> list[Decision]:
        """Stop all automation when too many nodes ask for a repair within the window."""
        since_s = max(now_s - self.policy.breaker_window_s, self._breaker_reset_s)
        struck = [
            n
            for n in self._nodes.values()
            if n.need is not None and asks_for_repair(n.need) and n.need.at_s > since_s
        ]
        if self._breaker_open_s is not None or len(struck) <= self.policy.breaker_count(self._size):
            return []
        self._breaker_open_s = now_s
        reason = (
            f"{len(struck)} of {self._size} nodes need a repair within"
            f" {self.policy.breaker_window_s / 60:g} min: automation stops until a person resets"
            " the breaker"
        )
        return [
            Decision(
                node=node.name,
                at_s=now_s,
                order=Order.ALERT,
                action=Action.CONTACT_SUPPORT,
                reason=reason,
                held_by=HeldBy.BREAKER,
            )
            for node in struck
        ]

    # -- bookkeeping -------------------------------------------------------------------------

    def _wave_alerts(self, waves: tuple[Wave, ...], now_s: float) -> list[Decision]:
        """Say each wave once, on its first node, until it has been quiet for its window."""
        alerts = []
        for wave in waves:
            key = (wave.fault_class, wave.code, wave.driver)
            if key not in self.waves_said:
                alerts.append(
                    Decision(
                        node=wave.nodes[0],
                        at_s=now_s,
                        order=Order.ALERT,
                        action=Action.CHECK_SOFTWARE,
                        reason=wave.reason,
                    )
                )
            self.waves_said[key] = now_s
        quiet_s = self.policy.wave.window_s
        self.waves_said = {k: s for k, s in self.waves_said.items() if now_s - s <= quiet_s}
        return alerts

    def _say(
        self,
        node: NodeRecord,
        order: Order,
        reason: str,
        *,
        now_s: float,
        need: Need | None = None,
        held_by: HeldBy | None = None,
    ) -> list[Decision]:
        """Return the decision; one that moves nothing is not repeated."""
        action = need.action if need is not None else Action.NONE
        evidence = need.evidence if need is not None else ()
        said = "|".join((order, action, reason, ",".join(evidence), held_by or ""))
        is_talk = held_by is not None or order in (Order.ALERT, Order.RESTART_JOB)
        if is_talk and node.said == said:
            return []
        node.said = said
        return [
            Decision(
                node=node.name,
                at_s=now_s,
                order=order,
                action=action,
                reason=reason,
                evidence=evidence,
                held_by=held_by,
            )
        ]

    def _move(
        self,
        node: NodeRecord,
        finish: NodeState,
        reason: str,
        *,
        now_s: float,
        actor: str = HEALTH_ACTOR,
        evidence: tuple[str, ...] = (),
    ) -> StateChange:
        story = [
            f"{c.at_s:.0f} {c.start} -> {c.finish}: {c.reason} ({c.actor})" for c in node.changes
        ]
        check_transition(node.name, node.state, finish, story)
        change = StateChange(
            node=node.name,
            start=node.state,
            finish=finish,
            at_s=now_s,
            reason=reason,
            actor=actor,
            evidence=evidence,
        )
        node.changes = [*node.changes[-_CHANGES_KEPT:], change]
        node.state, node.since_s, node.reason, node.evidence = finish, now_s, reason, evidence
        return change

    def _forget(self, now_s: float) -> None:
        """Drop what no rule looks at any more, and faults that a suspect node has outlived."""
        keep_s = max(self.policy.rung_window_s, 30 * DAY_S)
        self._history = [f for f in self._history if now_s - f.at_s <= keep_s]
        self._blames = [b for b in self._blames if now_s - b.at_s <= self.policy.lemon.history_s]
        for node in self._nodes.values():
            node.repairs = [
                r for r in node.repairs if now_s - r.at_s <= keep_s or r.succeeded is None
            ]
            if node.state in CORDONED_STATES:
                continue
            node.faults = [f for f in node.faults if not self._outlived(f, now_s)]

    def _outlived(self, fault: Fault, now_s: float) -> bool:
        if now_s - fault.at_s <= self.policy.suspect_quiet_s:
            return False
        # A fatal fault stands until a repair, a clear or a person, however long that is held.
        return fault.severity is not Severity.FATAL or self.policy.mode is Mode.SHADOW

    def _node(self, name: str) -> NodeRecord:
        node = self._nodes.get(name)
        if node is None:
            raise UserError(
                f"no node {name!r}",
                code="not_found",
                field="node",
                hint=did_you_mean(name, self._nodes),
            )
        return node


def _urgency(node: NodeRecord) -> tuple[int, float, str]:
    need = node.need
    if need is None:
        return (0, 0.0, node.name)
    return (-need.severity.rank - 1, need.at_s, node.name)
