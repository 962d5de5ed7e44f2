"""Amounts of the policy file, and the checks that hold over the queue tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.formats.cards import find_card, nearest_types
from tercio.formats.cursor import Cursor
from tercio.formats.devices import exact_memory
from tercio.formats.document import Json, Node
from tercio.model.queue import QueueSpec
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI, Amounts
from tercio.model.shape import PREFIX, Domains, exceeds, whole_words
from tercio.model.units import format_milli, parse_cores_milli

RUNNING_JOBS: Final = "running_jobs"
MAX_DEVICES: Final = 10_000_000
_HINTS: Final = {
    "gpus": "did you mean 'devices'?",
    "gpu": "did you mean 'devices'?",
    "cpu": "did you mean 'cpus'?",
    "mem": "did you mean 'memory'?",
    "jobs": "did you mean 'running_jobs', in user_limit or limits?",
}


class QuotaContext(msgspec.Struct, frozen=True, kw_only=True):
    """Topology levels of the policy, and device types beside those of the packaged table."""

    levels: tuple[str, ...]
    types: tuple[str, ...] = ()


def read_amounts(at: Cursor, context: QuotaContext, *, of_user: bool = False) -> Amounts:
    """Read amounts by resource name. A null amount is not given."""
    amounts: Amounts = {}
    for key, inner in at.mapping("write amounts such as {H100: 64, cpus: 512, memory: 4TiB}"):
        if inner.node.value is None:
            continue
        name = _resource(inner, key, context, of_user=of_user)
        if name in amounts:
            raise inner.fault(f"'{name}' stands twice", "write each resource once")
        amounts[name] = _amount(inner, name)
    return amounts


def read_guarantee(at: Cursor, context: QuotaContext) -> tuple[Amounts, dict[str, int]]:
    """Read `guarantee`: amounts, and a shape in whole domains."""
    shape: dict[str, int] = {}
    if not isinstance(at.node.value, dict) or "shape" not in at.node.value:
        return read_amounts(at, context), shape
    rest = {key: node for key, node in at.node.value.items() if key != "shape"}
    shape_at = at.child("shape", at.node.value["shape"])
    if shape_at.node.value is not None:
        for key, inner in shape_at.mapping("write a shape such as {nodes: 8} or {island: 2}"):
            level = key.removesuffix("s") if key not in context.levels else key
            if level not in context.levels:
                fix = did_you_mean(key, context.levels) or f"levels: {', '.join(context.levels)}"
                raise inner.fault(f"'{key}' is no level of the topology", fix)
            if level in shape:
                raise inner.fault(f"'{level}' stands twice", "write each level once")
            shape[level] = inner.integer(0, MAX_DEVICES, "a whole number of domains")
    node = msgspec.structs.replace(at.node, value=rest)
    return read_amounts(Cursor(at.source, at.path, node), context), shape


def _resource(at: Cursor, key: str, context: QuotaContext, *, of_user: bool) -> str:
    plain = (DEVICES, CPUS, MEMORY, RUNNING_JOBS) if of_user else (DEVICES, CPUS, MEMORY)
    if key in plain or key in context.types:
        return key
    card = find_card(key)
    if card:
        return card.type
    near = _HINTS.get(key) or did_you_mean(key, plain)
    fix = near or nearest_types(key, others=context.types)
    raise at.fault(f"'{key[:80]}' is no resource", fix)


def _amount(at: Cursor, name: str) -> int:
    if name == MEMORY:
        return at.memory_bytes(least=0)
    if name == RUNNING_JOBS:
        return at.integer(0, MAX_DEVICES, "a whole number of jobs")
    if isinstance(at.node.value, bool):
        raise at.wrong("an amount", "write a number such as 64")
    milli = at.parsed(_milli, "write a number such as 64, or 0.5")
    if milli > MAX_DEVICES * 1000:
        raise at.fault(f"{at.shown()} is out of bounds", f"write at most {MAX_DEVICES}")
    return milli


def _milli(text: str) -> int:
    try:
        return parse_cores_milli(text)
    except UserError:
        fix = "write a number such as 64 or 0.5, not negative, to the thousandth"
        raise UserError(f"'{text}' is not an amount", hint=fix) from None


def amounts_tree(amounts: Mapping[str, int]) -> dict[str, Json]:
    """Return amounts in the form of the file."""
    return {name: _written(name, amount) for name, amount in amounts.items()}


def _written(name: str, amount: int) -> str | int | float:
    if name == MEMORY:
        return exact_memory(amount)
    if name == RUNNING_JOBS:
        return amount
    return amount // 1000 if amount % 1000 == 0 else float(format_milli(amount))


def _shown(name: str, amount: int) -> str:
    return str(_written(name, amount))


def _device_names(amounts: Mapping[str, int]) -> list[str]:
    return [name for name in amounts if name not in (CPUS, MEMORY, RUNNING_JOBS, DEVICES)]


def check_tree(at: Cursor, queues: Mapping[str, QueueSpec]) -> None:
    """Refuse a guarantee above its limit, and children that promise more than their parent."""
    for name, queue in queues.items():
        inner = at.child(name, _below(at, name))
        _check_limit(inner, queue)
        if queue.children:
            children = inner.child("children", _below(inner, "children"))
            _check_children(children, name, queue)
            check_tree(children, queue.children)


def _check_limit(at: Cursor, queue: QueueSpec) -> None:
    where = at.child("guarantee", _below(at, "guarantee"))
    for name, amount in queue.guarantee.items():
        limit = queue.limit.get(name)
        if limit is not None and amount > limit:
            raise where.fault(
                f"{name}: {_shown(name, amount)} is more than the limit of {_shown(name, limit)}",
                f"lower the guarantee to {_shown(name, limit)}, or raise the limit",
            )
    limit = queue.limit.get(DEVICES)
    total = sum(queue.guarantee[name] for name in _device_names(queue.guarantee))
    if limit is not None and total > limit:
        raise where.fault(
            f"{_shown(DEVICES, total)} devices are more than the limit of {_shown(DEVICES, limit)}",
            "lower the guarantee, or raise the limit of devices",
        )


def _check_children(at: Cursor, name: str, parent: QueueSpec) -> None:
    totals: dict[str, int] = {}
    for child in parent.children.values():
        for resource, amount in child.guarantee.items():
            totals[resource] = totals.get(resource, 0) + amount
        for level, count in child.guarantee_shape.items():
            key = f"{PREFIX}{level}"
            totals[key] = totals.get(key, 0) + count * WHOLE_DEVICE_MILLI
    allowed = dict(parent.guarantee)
    allowed |= {
        f"{PREFIX}{level}": count * WHOLE_DEVICE_MILLI
        for level, count in parent.guarantee_shape.items()
    }
    # Types that the parent does not name come out of its `devices`.
    pooled = totals.get(DEVICES, 0)
    for resource, total in totals.items():
        if resource == DEVICES:
            continue
        is_type = resource in _device_names(totals) and not resource.startswith(PREFIX)
        if is_type and resource not in allowed and DEVICES in allowed:
            pooled += total
            continue
        _refuse_above(at, name, resource, total, allowed.get(resource, 0))
    if pooled:
        own = _device_names(parent.guarantee)
        spare = sum(parent.guarantee[t] - totals.get(t, 0) for t in own)
        _refuse_above(at, name, DEVICES, pooled, allowed.get(DEVICES, spare))


def _refuse_above(at: Cursor, name: str, resource: str, total: int, allowed: int) -> None:
    if total > allowed and resource.startswith(PREFIX):
        level = resource.removeprefix(PREFIX)
        raise at.fault(
            f"children of '{name}' are guaranteed {whole_words(resource, total)}, "
            f"the queue itself {allowed // WHOLE_DEVICE_MILLI}",
            f"lower theirs, or set guarantee: {{shape: {{{level}: "
            f"{total // WHOLE_DEVICE_MILLI}}}}} on '{name}'",
        )
    if total > allowed:
        raise at.fault(
            f"children of '{name}' are guaranteed {_shown(resource, total)} {resource}, "
            f"the queue itself {_shown(resource, allowed)}",
            f"lower theirs, or set guarantee: {{{resource}: {_shown(resource, total)}}} "
            f"on '{name}'",
        )


def check_capacity(
    at: Cursor, queues: Mapping[str, QueueSpec], capacity: Amounts, domains: Domains | None
) -> None:
    """Refuse top-level guarantees that the cluster cannot keep."""
    excess = exceeds(queues, capacity, domains)
    if excess is not None:
        resource, total, have = excess
        if resource.startswith(PREFIX):
            wanted, there = whole_words(resource, total), str(have // WHOLE_DEVICE_MILLI)
        else:
            wanted, there = f"{_shown(resource, total)} {resource}", _shown(resource, have)
        raise _naming(at, queues, resource).fault(
            f"guarantees of {wanted}, but the cluster has {there}",
            "lower them, or allow it by overcommit: true (--overcommit)",
        )


def _naming(at: Cursor, queues: Mapping[str, QueueSpec], resource: str) -> Cursor:
    """Return the last queue that is guaranteed any of a resource: its line is where to look."""
    found = at
    for name, queue in queues.items():
        is_whole = queue.guarantee_shape.get(resource.removeprefix(PREFIX), 0) > 0
        by_shape = bool(queue.guarantee_shape) and not resource.startswith(PREFIX)
        if resource in queue.guarantee or is_whole or by_shape:
            inner = at.child(name, _below(at, name))
            found = inner.child("guarantee", _below(inner, "guarantee"))
    return found


def _below(at: Cursor, key: str) -> Node:
    value = at.node.value
    return value.get(key, at.node) if isinstance(value, dict) else at.node
