"""What a hunt went through: how often what happened, by name.

A hunt that never saw a thing says nothing about it. Counted are events by their name, features
of the jobs by the names of `formats.support`, and rules of the policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, get_args

from tercio.formats.support import FEATURES, unsupported
from tercio.model.events import (
    AnyEvent,
    Entry,
    JobSubmitted,
    PolicyChanged,
    ReservationAdded,
    TokenCreated,
    TokenRevoked,
)
from tercio.model.job import JobSpec
from tercio.model.queue import (
    AcrossQueues,
    Flexible,
    Policy,
    Predict,
    QueueOrder,
    walk_queues,
)
from tercio.model.reservation import Reservation

_RULES: Final = (
    "borrow_limit", "budgets", "defragment", "elastic", "guarantee_shape", "lend_limit", "limit",
    "not preemptible", "overcommit", "sub-queues", "user_limit",
    *(f"order: {order.value}" for order in QueueOrder),
    *(f"across_queues: {across.value}" for across in AcrossQueues),
    *(f"predict: {predict.value}" for predict in Predict),
    *(f"flexible: {flexible.value}" for flexible in Flexible),
)  # fmt: skip
PASSED_ON: Final = {
    "outputs": "goes into the launch order as it stands",
    "setup": "goes into the launch order as it stands",
    "devices.auto": "sizing has answered it with devices and tasks before a job is submitted",
}
"""What a job file may say that neither core nor scheduler looks at, and why; not counted."""
_OF_PEOPLE: Final = (TokenCreated, TokenRevoked)
"""Events that change who may ask, and nothing of what is decided; not counted."""
_KEYS: Final = (
    *(name for name in FEATURES if name not in PASSED_ON),
    "flexible", "groups", "nodes.exclude", "preemptible", "sites", "wait_for_capacity",
)  # fmt: skip
NAMES: Final = (
    *(f"event {kind.__name__}" for kind in get_args(AnyEvent) if kind not in _OF_PEOPLE),
    *(f"job {name}" for name in _KEYS),
    *(f"policy {name}" for name in _RULES),
    *(f"reservation {name}" for name in ("of a queue", "of a user", "of nodes", "again")),
)
"""All that is counted; what is not here is never seen."""


def coverage(journal: Sequence[Entry]) -> dict[str, int]:
    """Count what a journal holds, by name; only what occurred."""
    found: Counter[str] = Counter()
    for entry in journal:
        event = entry.event
        found[f"event {type(event).__name__}"] += 1
        match event:
            case JobSubmitted(spec=spec):
                found.update(f"job {name}" for name in _features(spec))
            case PolicyChanged(policy=policy):
                found.update(f"policy {name}" for name in _rules(policy))
            case ReservationAdded(reservation=reservation):
                found.update(f"reservation {name}" for name in _kinds(reservation))
            case _:
                pass
    return dict(found)


def never(found: Iterable[str]) -> list[str]:
    """Return what of `NAMES` is not among these."""
    seen = dict.fromkeys(found)
    return [name for name in NAMES if name not in seen]


def _features(spec: JobSpec) -> Iterable[str]:
    used = {}
    for name, hint in FEATURES.items():
        others = frozenset(FEATURES) - {name}
        if name not in PASSED_ON and unsupported(spec, others):
            used[name] = hint
    yield from used
    if spec.time.flexible_s is not None:
        yield "flexible"
    if len(spec.groups) > 1:
        yield "groups"
    if spec.nodes is not None and spec.nodes.exclude:
        yield "nodes.exclude"
    if spec.preemptible is not None:
        yield "preemptible"
    if spec.sites:
        yield "sites"
    if spec.wait_for_capacity:
        yield "wait_for_capacity"


def _rules(policy: Policy) -> Iterable[str]:
    queues = walk_queues(policy)
    for name in ("borrow_limit", "guarantee_shape", "lend_limit", "limit", "user_limit"):
        if any(getattr(queue, name) for queue in queues.values()):
            yield name
    for name, is_used in (
        ("budgets", policy.budgets), ("defragment", policy.placement.defragment),
        ("elastic", policy.elastic is not None), ("overcommit", policy.overcommit),
        ("sub-queues", any(queue.children for queue in queues.values())),
        ("not preemptible", any(not queue.preemptible for queue in queues.values())),
    ):  # fmt: skip
        if is_used:
            yield name
    yield from {f"order: {queue.order.value}": None for queue in queues.values()}
    yield f"across_queues: {policy.preemption.across_queues.value}"
    yield f"predict: {policy.predict.value}"
    yield f"flexible: {policy.flexible.value}"


def _kinds(reservation: Reservation) -> Iterable[str]:
    if reservation.nodes:
        yield "of nodes"
    elif reservation.queue is not None:
        yield "of a queue"
    else:
        yield "of a user"
    if reservation.every_s is not None:
        yield "again"
