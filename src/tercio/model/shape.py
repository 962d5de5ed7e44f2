"""Guarantees by shape: so many whole domains of a topology level, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tercio.model.node import NodeSpec
from tercio.model.queue import QueueSpec, above_capacity
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI, Amounts
from tercio.model.topology import ISLAND, domain_of

PREFIX: Final = "shape."
"""Begins the pseudo-resource that counts whole domains: `shape.node`, in thousandths."""

Domains = Mapping[str, tuple[Amounts, ...]]
"""By level, the devices of every domain that has some, by type, in thousandths."""

_HOST: Final = (CPUS, MEMORY)


def domains_of(nodes: Iterable[NodeSpec], levels: Iterable[str]) -> Domains:
    """Return what each domain of some levels has, whether it is up or not."""
    found: dict[str, dict[tuple[str, int], Amounts]] = {level: {} for level in levels}
    for node in nodes:
        for level, domains in found.items():
            name = domain_of(node, level)
            if name is None:
                continue
            for device in node.devices:
                key = (name, device.island if level == ISLAND else 0)
                amounts = domains.setdefault(key, {})
                amounts[device.type] = amounts.get(device.type, 0) + WHOLE_DEVICE_MILLI
    return {level: tuple(domains.values()) for level, domains in found.items()}


def shape_levels(queues: Mapping[str, QueueSpec]) -> tuple[str, ...]:
    """Return the levels that guarantees of these queues, or of queues below them, name."""
    found: dict[str, None] = {}
    for queue in queues.values():
        found.update(dict.fromkeys(level for level, n in queue.guarantee_shape.items() if n))
        found.update(dict.fromkeys(shape_levels(queue.children)))
    return tuple(found)


def shape_amounts(shape: Mapping[str, int], domains: Domains) -> Amounts:
    """Return the devices of so many domains, the largest there are; by type and in all.

    With one type in the cluster the answer is about `devices`; with several, each type counts
    the domains that have most of it, since any of them may be meant.
    """
    types = dict.fromkeys(t for each in domains.values() for amounts in each for t in amounts)
    total: Amounts = {}
    for level, count in shape.items():
        every = domains.get(level, ())
        for name in types if len(types) > 1 else ():
            largest = sorted((amounts.get(name, 0) for amounts in every), reverse=True)
            total[name] = total.get(name, 0) + sum(largest[:count])
        largest = sorted((sum(amounts.values()) for amounts in every), reverse=True)
        total[DEVICES] = total.get(DEVICES, 0) + sum(largest[:count])
    return total


def with_shape(queue: QueueSpec, domains: Domains) -> Amounts:
    """Return the guaranteed amounts of a queue, those of its whole domains among them.

    Beside amounts of devices the shape is a part of them: the larger of the two holds.
    """
    if not any(queue.guarantee_shape.values()):
        return queue.guarantee
    own = shape_amounts(queue.guarantee_shape, domains)
    named = [name for name in queue.guarantee if name not in _HOST]
    if not named:
        return {**queue.guarantee, **own}
    larger = {name: max(queue.guarantee[name], own.get(name, 0)) for name in named}
    if DEVICES not in larger and len(named) == 1 and len(own) == 1:
        larger = {named[0]: max(queue.guarantee[named[0]], own[DEVICES])}
    return {**queue.guarantee, **larger}


def with_shapes(queues: Mapping[str, QueueSpec], domains: Domains) -> dict[str, QueueSpec]:
    """Return top-level queues with guaranteed amounts that include their whole domains.

    To be compared with what there is: domains of any type count once, as `devices`.
    """
    found: dict[str, QueueSpec] = {}
    for name, queue in queues.items():
        amounts = with_shape(queue, domains)
        is_any = all(key in _HOST for key in queue.guarantee)
        if is_any and queue.guarantee_shape:
            amounts = {key: n for key, n in amounts.items() if key in (*_HOST, DEVICES)}
        found[name] = msgspec.structs.replace(queue, guarantee=amounts)
    return found


def above_domains(queues: Mapping[str, QueueSpec], domains: Domains) -> tuple[str, int, int] | None:
    """Return the first level of which more whole domains are guaranteed than there are.

    The answer is (pseudo-resource, guaranteed, there are), in thousandths like devices.
    """
    for level in shape_levels(queues):
        if level not in domains:
            continue
        total = sum(queue.guarantee_shape.get(level, 0) for queue in queues.values())
        have = len(domains.get(level, ()))
        if total > have:
            return PREFIX + level, total * WHOLE_DEVICE_MILLI, have * WHOLE_DEVICE_MILLI
    return None


def exceeds(
    queues: Mapping[str, QueueSpec], capacity: Amounts, domains: Domains | None
) -> tuple[str, int, int] | None:
    """Return the first thing of which top-level queues are guaranteed more than there is, or None.

    Without domains only amounts are compared. The answer is as that of `above_capacity`.
    """
    if domains is None:
        return above_capacity(queues, capacity)
    whole = above_domains(queues, domains)
    return whole or above_capacity(with_shapes(queues, domains), capacity)


def whole_words(resource: str, amount: int) -> str:
    """Return a count of whole domains for people: `8 whole nodes`."""
    count = amount // WHOLE_DEVICE_MILLI
    level = resource.removeprefix(PREFIX)
    return f"{count} whole {level}" + ("" if count == 1 else "s")
