"""What health decides: facts of the state to the health book, its decisions to events.

The book is made anew from the state for every decision, so that a restart, a replay and the
twin decide alike. A decision is due when a fact of health changed, when something changed on a
node that is not healthy, and when time alone may move one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.maintaining import is_in_maintenance
from tercio.core.records import Job
from tercio.health.book import HEALTH_ACTOR, HealthBook
from tercio.health.finding import Action, Severity
from tercio.health.history import Fault
from tercio.health.lemon import Blame
from tercio.health.machine import CORDONED_STATES, NodeState, StateChange
from tercio.health.policy import HealthPolicy, Repair
from tercio.health.record import Decision, NodeRecord, Order
from tercio.model.events import (
    AnyEvent,
    HealthBreakerMoved,
    HealthDecided,
    NodeHealthChanged,
    SpareActivated,
)
from tercio.model.health import (
    HEALTH_OWNER,
    SPARE_OWNER,
    FaultFact,
    HealthRecord,
    HealthSettings,
    MoveFact,
    RepairFact,
)
from tercio.model.ids import NodeName
from tercio.model.job import EndCause
from tercio.model.node import Node
from tercio.model.reservation import MAINTENANCE_OWNER

_OWN_CORDONS: Final = frozenset({HEALTH_OWNER, SPARE_OWNER, MAINTENANCE_OWNER})
MOVES_KEPT: Final = 20
LOOK_AGAIN_S: Final = 60.0
"""Between two looks at nodes that time alone may move: probation, repairs, brakes."""


class Healing:
    """Remembers when the last decision was made and on what, and which waves were told."""

    def __init__(self) -> None:
        self._seen: object = None
        self._next_s: float | None = None
        self._waves: dict[tuple[str, str, str | None], float] = {}

    def is_due(self, cluster: Cluster, now_s: float) -> bool:
        """Whether another decision than the last one may come out."""
        if self._next_s is not None and self._next_s <= now_s:
            return True
        return _fingerprint(cluster) != self._seen

    @property
    def next_s(self) -> float | None:
        """When to look again even if nothing happens, or None."""
        return self._next_s

    def decide(self, cluster: Cluster, now_s: float) -> list[AnyEvent]:
        """Return what is decided now, as events to be applied in this order."""
        health = cluster.health
        events: list[AnyEvent] = []
        if any(health.faults.values()) or health.records or health.blames:
            book = book_of(cluster, now_s)
            _note_repairs(cluster, book, now_s)
            book.waves_said = self._waves
            decisions = book.decide(now_s)
            self._waves = book.waves_said
            events += _events_of(cluster, book, decisions, now_s)
        events += _spares(cluster, now_s)
        return events

    def settle(self, cluster: Cluster, now_s: float) -> None:
        """Note that the decisions for this state were made."""
        self._seen = _fingerprint(cluster)
        self._next_s = now_s + LOOK_AGAIN_S if _is_moving(cluster) else None


def policy_of(settings: HealthSettings) -> HealthPolicy:
    """Return the policy that settings make of the defaults.

    Raises:
        UserError: a value out of range.
        msgspec.ValidationError: an unknown name or a wrong type.
    """
    return msgspec.convert(dict(settings), HealthPolicy)


def book_of(
    cluster: Cluster,
    now_s: float,
    *,
    policy: HealthPolicy | None = None,
    also: tuple[NodeName, ...] = (),
) -> HealthBook:
    """Return the health book of a state: the nodes with a fault or a record, and those `also`.

    `policy` stands in the place of the one in force.
    """
    health = cluster.health
    book = HealthBook(policy or policy_of(health.settings))
    book.load_breaker(open_s=health.breaker_open_s, reset_s=health.breaker_reset_s)
    book.fleet = dict.fromkeys(cluster.nodes)
    excluding = _excluding(cluster)
    for name in noted(cluster, also):
        node = cluster.nodes[name]
        foreign = [c for c in node.cordons if c.owner not in _OWN_CORDONS]
        book.note_node(
            name,
            now_s=now_s,
            jobs=cluster.jobs_on(name),
            foreign_cordon=bool(foreign),
            in_maintenance=is_in_maintenance(node),
            excluded_by=len(excluding.get(name, ())),
        )
        book.record(name).seen_s = health.known_since.get(name, now_s)
        record = health.records.get(name)
        if record is not None:
            _load(book.record(name), record)
        for fact in health.faults.get(name, ()):
            book.note_fault(fault_of_fact(fact, name))
    book.note_blame(
        tuple(
            Blame(node=each.node, at_s=each.at_s, weight=each.weight, cause=each.cause)
            for each in health.blames
        )
    )
    return book


def noted(cluster: Cluster, also: tuple[NodeName, ...] = ()) -> tuple[NodeName, ...]:
    """Return the nodes with a fault, a record or some blame, and those `also`."""
    health = cluster.health
    blamed = [each.node for each in health.blames]
    names = dict.fromkeys([*health.records, *health.faults, *blamed, *also])
    return tuple(name for name in names if name in cluster.nodes)


def _excluding(cluster: Cluster) -> dict[NodeName, dict[str, None]]:
    """Return the users whose jobs keep off a node by its name, of nodes with some blame."""
    blamed = {each.node: dict[str, None]() for each in cluster.health.blames}
    for job in cluster.jobs.values() if blamed else ():
        for name in job.spec.nodes.exclude if job.spec.nodes is not None else ():
            if name in blamed:
                blamed[NodeName(name)][job.user] = None
    return blamed


def _note_repairs(cluster: Cluster, book: HealthBook, now_s: float) -> None:
    """Tell the book of the repairs that have ended since."""
    for name, record in cluster.health.records.items():
        if record.state != NodeState.REPAIRING or not record.repairs or name not in cluster.nodes:
            continue
        succeeded = record.repairs[-1].succeeded
        if succeeded is not None:
            book.note_repair_ended(name, succeeded=succeeded, now_s=now_s)


def fault_of_fact(fact: FaultFact, node: str) -> Fault:
    """Return a journalled fault as the book takes it; unknown words ask for a person."""
    return Fault(
        id=fact.id,
        node=node,
        at_s=fact.at_s,
        fault_class=fact.fault_class,
        code=fact.code,
        severity=Severity(fact.severity),
        action=Action(fact.action),
        serial=fact.serial,
        locus=fact.locus,
        job=fact.job,
        cleared_at_s=fact.cleared_at_s,
        words=fact.words,
    )


def _load(node: NodeRecord, record: HealthRecord) -> None:
    node.state = NodeState(record.state)
    node.since_s, node.reason, node.evidence = record.since_s, record.reason, record.evidence
    node.handled_s, node.said = record.handled_s, record.said
    node.quarantine_code = record.quarantine_code
    node.repairs = [
        Repair(at_s=r.at_s, action=Action(r.action), cause=r.cause, succeeded=r.succeeded)
        for r in record.repairs
    ]
    node.changes = [
        StateChange(
            node=node.name,
            start=NodeState(m.start),
            finish=NodeState(m.finish),
            at_s=m.at_s,
            reason=m.reason,
            actor=m.actor,
        )
        for m in record.moves
    ]


def record_of(node: NodeRecord, before: HealthRecord) -> HealthRecord:
    """Return what the book knows of a node as the journal keeps it."""
    return HealthRecord(
        state=node.state.value,
        since_s=node.since_s if node.changes else 0.0,
        reason=node.reason,
        evidence=node.evidence,
        handled_s=max(node.handled_s, -1.0),
        quarantine_code=node.quarantine_code,
        said=node.said,
        repairs=tuple(
            RepairFact(at_s=r.at_s, action=r.action.value, cause=r.cause, succeeded=r.succeeded)
            for r in node.repairs
        ),
        moves=tuple(
            MoveFact(
                at_s=c.at_s,
                start=c.start.value,
                finish=c.finish.value,
                reason=c.reason,
                actor=c.actor,
            )
            for c in node.changes[-MOVES_KEPT:]
        ),
        replaced_by=before.replaced_by,
    )


def change_event(
    cluster: Cluster, book: HealthBook, name: NodeName, *, by: str, now_s: float
) -> NodeHealthChanged | None:
    """Return the event of a node that the book moved or mended, None where nothing moved."""
    before = cluster.health.records.get(name, HealthRecord())
    after = record_of(book.record(name), before)
    kept = msgspec.structs.replace(before, said=after.said)
    if after == kept:
        return None
    return NodeHealthChanged(at_s=now_s, node=name, record=after, by=by, jobs=cluster.jobs_on(name))


def _events_of(
    cluster: Cluster, book: HealthBook, decisions: list[Decision], now_s: float
) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    if book.breaker_open_s is not None and cluster.health.breaker_open_s is None:
        reason = decisions[0].reason if decisions else "too many nodes need a repair"
        opened = HealthBreakerMoved(at_s=now_s, is_open=True, reason=reason, by=HEALTH_ACTOR)
        events.append(opened)
    for decision in decisions:
        name = NodeName(decision.node)
        if decision.held_by is None and decision.order in _MOVES:
            continue  # the event of the move says it
        events.append(
            HealthDecided(
                at_s=now_s,
                node=name,
                order=decision.order.value,
                action=decision.action.value,
                reason=decision.reason,
                evidence=decision.evidence,
                held_by=decision.held_by.value if decision.held_by else "",
                # What follows for the node alone is no part of the story of a job on it.
                jobs=cluster.jobs_on(name) if decision.order in _OF_JOBS else (),
            )
        )
    for name in noted(cluster):
        moved = change_event(cluster, book, name, by=HEALTH_ACTOR, now_s=now_s)
        if moved is not None:
            events.append(moved)
    return events


_OF_JOBS: Final = frozenset({Order.QUARANTINE, Order.RESTART_JOB})
_MOVES: Final = frozenset({Order.QUARANTINE, Order.REPAIR, Order.PROBATION, Order.RETURN})


def _spares(cluster: Cluster, now_s: float) -> list[AnyEvent]:
    """Bring a spare in for every node that a job lost to quarantine and waits to restart."""
    ready = _ready_spares(cluster)
    if not ready:
        return []
    events: list[AnyEvent] = []
    replaced: dict[NodeName, None] = {}
    for job in _broken(cluster):
        for name in job.last_nodes:
            node = cluster.nodes.get(name)
            record = cluster.health.records.get(name)
            if node is None or record is None or name in replaced:
                continue
            if NodeState(record.state) not in CORDONED_STATES or record.replaced_by is not None:
                continue
            spare = _choose(ready, node)
            if spare is None:
                continue
            ready.remove(spare)
            replaced[name] = None
            events.append(SpareActivated(at_s=now_s, node=spare.name, replaces=name, job_id=job.id))
    return events


def _ready_spares(cluster: Cluster) -> list[Node]:
    """Return the spares that may come in; none while no node waits to be replaced."""
    records = cluster.health.records.values()
    if not any(NodeState(r.state) in CORDONED_STATES and not r.replaced_by for r in records):
        return []
    return [node for node in cluster.nodes.values() if _is_ready_spare(node)]


_REPLACED: Final = frozenset({EndCause.QUARANTINED, EndCause.HUNG})


def _broken(cluster: Cluster) -> list[Job]:
    """Return the jobs that wait to restart since a node of theirs was quarantined."""
    repairs = [cluster.jobs[job_id] for job_id in cluster.repairs_waiting()]
    broken = [job for job in repairs if job.cause in _REPLACED]
    return sorted(broken, key=lambda job: (-job.spec.priority, job.submitted_s, job.sequence))


def _is_ready_spare(node: Node) -> bool:
    owners = [cordon.owner for cordon in node.cordons]
    return owners == [SPARE_OWNER] and node.lost_s is None


def _choose(ready: list[Node], lost: Node) -> Node | None:
    """Return the spare most like the lost node: the same pool, then the most shared labels."""
    alike = [n for n in ready if n.spec.pool == lost.spec.pool]
    able = [n for n in alike if len(n.spec.devices) >= len(lost.spec.devices)]
    labels = lost.spec.labels.items()
    shared = [sum(1 for pair in labels if pair in n.spec.labels.items()) for n in able]
    if not able:
        return None
    return able[max(range(len(able)), key=lambda i: (shared[i], -i))]


def _is_moving(cluster: Cluster) -> bool:
    """Whether time alone may lead to another decision."""
    records = cluster.health.records.values()
    return any(r.state not in ("ok", "retired") for r in records) or any(
        fault.cleared_at_s is None
        for faults in cluster.health.faults.values()
        for fault in faults[-1:]
    )


def _fingerprint(cluster: Cluster) -> object:
    """Return what a decision depends on besides time; O(nodes that are not healthy)."""
    health = cluster.health
    if not health.records:
        return (health.revision, (), ())
    watched = []
    for name, record in health.records.items():
        node = cluster.nodes.get(name)
        if record.state not in ("ok", "retired") and node is not None:
            watched.append((name, cluster.jobs_on(name), node.cordons))
    waiting = tuple(job.id for job in _broken(cluster)) if _ready_spares(cluster) else ()
    return (health.revision, tuple(watched), waiting)
