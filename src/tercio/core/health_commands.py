"""Commands of people about health: nodes quarantined, tried again and returned; the policy."""

from __future__ import annotations

from enum import StrEnum
from typing import get_type_hints

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.healing import book_of, change_event, policy_of
from tercio.errors import IllegalTransition, UserError, did_you_mean
from tercio.health.machine import NodeState
from tercio.health.policy import HealthPolicy
from tercio.model.commands import MoveNode, ResetBreaker, SetHealthPolicy
from tercio.model.events import AnyEvent, HealthBreakerMoved, HealthPolicyChanged
from tercio.model.health import HealthSettings
from tercio.model.identity import Principal
from tercio.model.ids import NodeName

SETTINGS = tuple(
    name for name in HealthPolicy.__struct_fields__ if name not in ("repeat_rules", "wave", "lemon")
)
"""What `tercio health policy set` takes."""
_FINISH = {
    "quarantine": NodeState.QUARANTINED,
    "probation": NodeState.PROBATION,
    "return": NodeState.OK,
    "retire": NodeState.RETIRED,
}


def move_node(
    cluster: Cluster, command: MoveNode, principal: Principal, now_s: float
) -> list[AnyEvent]:
    """Return the events of a move that a person asks for.

    Raises:
        UserError: `conflict` when a node cannot go there from where it stands.
    """
    name = NodeName(command.node)
    book = book_of(cluster, now_s, also=(name,))
    finish = _FINISH[command.to]
    start = book.record(name).state
    if start is finish:
        return []
    reason = command.reason or f"{command.to} asked for by {principal.user}"
    actor = f"user:{principal.user}"
    try:
        if start is NodeState.SUSPECT and finish is NodeState.PROBATION:
            raise IllegalTransition(f"node {name}", start, finish)
        if start is NodeState.REPAIRING and finish is NodeState.OK:
            book.move_by_operator(
                name, NodeState.PROBATION, reason=reason, actor=actor, now_s=now_s
            )
        book.move_by_operator(name, finish, reason=reason, actor=actor, now_s=now_s)
    except IllegalTransition:
        raise UserError(
            f"node {name} is {start.value}: it cannot go to {finish.value}",
            code="conflict",
            hint=_HINTS.get(start, f"see `tercio node show {name}`"),
        ) from None
    event = change_event(cluster, book, name, by=actor, now_s=now_s)
    return [] if event is None else [event]


_HINTS = {
    NodeState.OK: "only a quarantined or retired node is tried or returned;"
    " `tercio node quarantine` takes one out",
    NodeState.RETIRED: "bring it back by `tercio node probation`",
    NodeState.PROBATION: "`tercio node return` ends the probation",
}


def set_policy(
    cluster: Cluster, command: SetHealthPolicy, principal: Principal, now_s: float
) -> list[AnyEvent]:
    """Return the event of a new health policy.

    Raises:
        UserError: `conflict` for a stale version; `invalid` for a setting that makes no sense.
    """
    version = cluster.health.version
    if command.if_version is not None and command.if_version != version:
        raise UserError(
            f"the health policy is at version {version}, not {command.if_version}",
            code="conflict",
            hint="read the new version, and apply your change to it",
        )
    settings = {**cluster.health.settings, **command.settings}
    check_settings(settings)
    if settings == cluster.health.settings:
        return []
    by = principal.user
    return [HealthPolicyChanged(at_s=now_s, version=version + 1, settings=settings, by=by)]


def check_settings(settings: HealthSettings) -> HealthPolicy:
    """Return the policy of the settings.

    Raises:
        UserError: an unknown name, a wrong type, or a value out of range.
    """
    for name, value in settings.items():
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS) or f"settings: {', '.join(SETTINGS)}"
            raise UserError(f"no health setting '{name}'", code="invalid", hint=hint, field=name)
        try:
            policy_of({name: value})
        except msgspec.ValidationError:
            raise _not_right(name, value) from None
        if name == "webhook" and value and not _is_address(str(value)):
            raise _not_right(name, value)
    return policy_of(settings)


def _not_right(name: str, value: object) -> UserError:
    kind = get_type_hints(HealthPolicy)[name]
    if name == "webhook":
        fix = "write an address such as https://pager.example.org/hook, or nothing for none"
    elif issubclass(kind, StrEnum):
        fix = f"write one of {', '.join(kind)}"
    else:
        fix = "write a whole number" if kind is int else "write a number"
    return UserError(f"{name}: {value!r} is not right", code="invalid", hint=fix, field=name)


def _is_address(text: str) -> bool:
    scheme, _, rest = text.partition("://")
    return scheme in ("http", "https") and bool(rest.partition("/")[0]) and " " not in text


def reset_breaker(
    cluster: Cluster, command: ResetBreaker, principal: Principal, now_s: float
) -> list[AnyEvent]:
    """Return the event that lets automation act again; none while it may."""
    if cluster.health.breaker_open_s is None:
        return []
    reason = command.reason or "a person has looked"
    return [HealthBreakerMoved(at_s=now_s, is_open=False, reason=reason, by=principal.user)]
