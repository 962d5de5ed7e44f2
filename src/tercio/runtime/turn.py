"""One turn of the writer: what came in, decided on the driver, ready to be made durable.

Nothing here waits or reaches outside. If the journal then refuses the turn, all of it is
undone by rebuilding the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tercio.core import hangs, idling, powering, prices
from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, Step
from tercio.errors import StoreError, UserError
from tercio.model.commands import SubmitJob
from tercio.model.effects import AnyEffect
from tercio.model.events import (
    AnyEvent,
    Entry,
    FaultCleared,
    FaultFound,
    JobHung,
    JobIdled,
    JobsForgotten,
    JobSubmitted,
    NodeFenced,
    NodeLost,
    NodeRemoved,
    NodeRepairEnded,
    NodeReported,
    PowerCapped,
    PricesRead,
    RankPaceChanged,
    TaskExited,
)
from tercio.model.health import FaultFact
from tercio.model.ids import JobId, task_key
from tercio.runtime.inbox import Outcome, Request
from tercio.runtime.recovery import is_live
from tercio.runtime.retention import is_forgettable

_encode = msgspec.msgpack.Encoder().encode


class Turn:
    """What one turn did to the driver.

    Attributes:
        requests, observations: what it took in.
        entries: to be written.
        effects: to be performed after that.
        answers: for the requests, to be given after that.
        secrets: values to be kept before that, by new job.
        refused: parts of the plan that did not hold.
    """

    __slots__ = (
        "answers",
        "effects",
        "entries",
        "observations",
        "refused",
        "requests",
        "secrets",
    )

    def __init__(self, requests: Sequence[Request], observations: Sequence[AnyEvent]) -> None:
        self.requests = requests
        self.observations = observations
        self.entries: list[Entry] = []
        self.effects: list[AnyEffect] = []
        self.answers: list[tuple[Request, Outcome | Exception]] = []
        self.secrets: list[tuple[JobId, Mapping[str, str]]] = []
        self.refused: list[str] = []

    def add(self, step: Step) -> None:
        """Take in what one step of the driver did."""
        self.entries.extend(step.entries)
        self.effects.extend(step.effects)
        self.refused.extend(f"{part.job_id}: {part.why}" for part in step.refused)


def take_in(driver: Driver, turn: Turn, now_s: float) -> None:
    """Apply the observations, then the requests, each on the state that the ones before left."""
    for observation in turn.observations:
        event = admitted(driver.cluster, observation, now_s)
        if event is not None:
            turn.add(driver.step([event], now_s, is_scheduling=False))
    for request in turn.requests:
        try:
            turn.answers.append((request, _do(driver, turn, request, now_s)))
        except UserError as refusal:
            turn.answers.append((request, refusal))


def _do(driver: Driver, turn: Turn, request: Request, now_s: float) -> Outcome:
    cluster = driver.cluster
    if len(request.commands) > 1:
        # All or none: nothing is applied before every one has been found good. Submits do not
        # spoil each other, so what was good stays good.
        for command in request.commands:
            _check_storable(to_events(cluster, command, request.principal, now_s))
    outcome = Outcome()
    for command, secrets in zip(request.commands, request.secrets, strict=True):
        events = to_events(cluster, command, request.principal, now_s)
        _check_storable(events)
        step = driver.step(events, now_s, is_scheduling=False)
        turn.add(step)
        outcome.events.extend(entry.event for entry in step.entries)
        for event in events:
            if isinstance(event, JobSubmitted):
                outcome.job_ids.append(event.job_id)
                if secrets:
                    turn.secrets.append((event.job_id, secrets))
        if isinstance(command, SubmitJob) and not events and command.submit_key is not None:
            asker = request.principal
            known = cluster.job_by_submit_key(asker.tenant, asker.user, command.submit_key)
            if known is not None:
                outcome.job_ids.append(known)
    return outcome


def admitted(cluster: Cluster, event: AnyEvent, now_s: float) -> AnyEvent | None:
    """Return the observation as the core should see it, None when it says nothing new.

    An engine reports again after every restart; the journal need not grow by that. An
    engine's clock may be ahead of ours; the journal's time must not run away with it.
    """
    match event:
        case NodeReported(spec=spec):
            known = cluster.nodes.get(spec.name)
            if known is not None and known.spec == spec and known.lost_s is None:
                return None
        case NodeLost(node=node):
            known = cluster.nodes.get(node)
            if known is None or known.lost_s is not None:
                return None
        case NodeFenced(node=node) | NodeRemoved(node=node):
            if node not in cluster.nodes:
                return None
        case FaultFound(node=node, fault=fault):
            faults = cluster.health.faults.get(node, ())
            if node not in cluster.nodes or any(_is_told(each, fault) for each in faults):
                return None
        case FaultCleared(node=node, fault_id=fault_id):
            faults = cluster.health.faults.get(node, ())
            if not any(f.id == fault_id and f.cleared_at_s is None for f in faults):
                return None
        case JobHung() | RankPaceChanged():
            if not hangs.is_news(cluster.jobs.get(event.job_id), event):
                return None
        case JobIdled():
            if not idling.is_news(cluster.jobs.get(event.job_id), event):
                return None
        case PowerCapped():
            if not powering.is_news(cluster, event):
                return None
        case PricesRead(series=series):
            if not prices.is_news(cluster.prices.series, series, now_s):
                return None
        case NodeRepairEnded(effect_id=effect_id):
            if effect_id not in cluster.open_effects:
                return None
        case TaskExited():
            key = task_key(event.job_id, event.attempt, event.task)
            is_awaited = any(f"{kind}:{key}" in cluster.open_effects for kind in ("launch", "stop"))
            if not is_awaited and not is_live(cluster, event.job_id, event.attempt, event.task):
                return None
        case JobsForgotten(job_ids=job_ids):
            gone = tuple(j for j in job_ids if is_forgettable(cluster, j))
            if not gone:
                return None
            event = msgspec.structs.replace(event, job_ids=gone)
        case _:
            pass
    if event.at_s > now_s:
        event = msgspec.structs.replace(event, at_s=now_s)
    return _storable(event)


def _is_told(known: FaultFact, fault: FaultFact) -> bool:
    """Whether a fault says nothing that is not known of it: its time and job are of the first."""
    same = msgspec.structs.replace(
        fault, at_s=known.at_s, job=known.job, cleared_at_s=known.cleared_at_s
    )
    return known == same


def _check_storable(events: Sequence[AnyEvent]) -> None:
    """Refuse what the journal cannot hold, before it is applied.

    Raises:
        UserError: a text is no Unicode, or a number is beyond 64 bits.
    """
    for event in events:
        try:
            _encode(event)
        except (UnicodeEncodeError, OverflowError) as failure:
            raise UserError(
                f"this cannot be kept: {failure}",
                hint="use valid Unicode, and numbers within 64 bits",
            ) from failure


def _storable(event: AnyEvent) -> AnyEvent:
    """Return the observation with the bytes that are no Unicode replaced.

    Texts of an engine come from file names and programs, which may hold anything.
    """
    try:
        _encode(event)
    except UnicodeEncodeError:
        readable: AnyEvent = msgspec.convert(_readable(msgspec.to_builtins(event)), AnyEvent)
        return readable
    return event


def _readable(tree: object) -> object:
    match tree:
        case str():
            return tree.encode("utf-8", "replace").decode("utf-8")
        case dict():
            return {_readable(key): _readable(value) for key, value in tree.items()}
        case list() | tuple():
            return [_readable(value) for value in tree]
        case _:
            return tree


def give_answers(turn: Turn) -> None:
    """Answer the requests as decided."""
    for request, answer in turn.answers:
        if isinstance(answer, Outcome):
            request.succeed(answer)
        else:
            request.fail(answer)


def refuse(turn: Turn, why: str) -> None:
    """Answer all requests with the journal's refusal."""
    for request in turn.requests:
        request.fail(StoreError(why))
