"""Changes of a cluster that an operator asks about: more devices, a drained rack.

>>> from tercio.formats.cluster import read_cluster
>>> [len(node.devices) for node in add_devices(read_cluster("2x8"), "16xH100")]
[8, 8, 8, 8]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.formats.cluster import DEFAULT_SITE, MAX_DEVICES, make_node
from tercio.formats.devices import parse_device
from tercio.model.ids import NodeName
from tercio.model.node import NodeSpec
from tercio.model.resources import DeviceRequest

_ADD: Final = re.compile(r"^\s*(\d{1,6})\s*x\s*([A-Za-z0-9][\w.-]*)\s*$", re.ASCII)
_ADDED_MAX: Final = 100_000


def add_devices(nodes: Sequence[NodeSpec], text: str) -> tuple[NodeSpec, ...]:
    """Return the cluster with `16xH100` more: whole nodes like those of that type, or of eight.

    Raises:
        UserError: the text cannot be read, or is no whole number of nodes.
    """
    match = _ADD.match(text)
    if match is None:
        raise UserError(
            f"--add {text!r} is not a number of devices of a type",
            field="add",
            hint="write DEVICESxTYPE, such as 16xH100",
        )
    count, request = int(match[1]), parse_device(match[2], field="add")
    if request.type is None or not 0 < count <= _ADDED_MAX:
        raise UserError(
            f"--add {text!r} is out of bounds", field="add", hint="such as 16xH100, at most 100000"
        )
    alike = [node for node in nodes if node.devices and node.devices[0].type == request.type]
    each = max((len(node.devices) for node in alike), default=min(8, count, MAX_DEVICES))
    if count % each:
        raise UserError(
            f"--add {text!r} is no whole number of nodes of {each} devices",
            field="add",
            hint=f"add {count - count % each + each}x{request.type}",
        )
    taken = dict.fromkeys(str(node.name) for node in nodes)
    added: list[NodeSpec] = []
    number = 1
    while len(added) < count // each:
        name = f"new{number}"
        number += 1
        if name not in taken:
            added.append(_like(alike, name, request, each))
    return (*nodes, *added)


def _like(alike: Sequence[NodeSpec], name: str, request: DeviceRequest, each: int) -> NodeSpec:
    model = next((node for node in alike if len(node.devices) == each), None)
    if model is None:
        one = msgspec.structs.replace(request, count=each, count_max=None)
        return make_node(name, one, site=DEFAULT_SITE)
    return msgspec.structs.replace(model, name=NodeName(name), labels={})


def drain_nodes(nodes: Sequence[NodeSpec], text: str) -> tuple[NodeSpec, ...]:
    """Return the cluster without what is named: a node, `n1*`, or a rack, block or other label.

    Raises:
        UserError: nothing is called so, or nothing would be left.
    """
    named = re.compile(re.escape(text).replace(r"\*", ".*"))
    left = tuple(
        node
        for node in nodes
        if not named.fullmatch(node.name) and text not in node.labels.values()
    )
    if len(left) == len(nodes):
        known = [str(node.name) for node in nodes]
        known += [label for node in nodes for label in node.labels.values()]
        raise UserError(
            f"--drain {text!r}: no node, rack or other label is called so",
            field="drain",
            hint=did_you_mean(text, dict.fromkeys(known)) or "nodes may be named by n1*",
        )
    if not left:
        raise UserError(f"--drain {text!r} leaves no node", field="drain")
    return left


def clusters(
    nodes: Sequence[NodeSpec], *, add: Sequence[str], drain: Sequence[str]
) -> list[tuple[str, tuple[NodeSpec, ...]]]:
    """Return the cluster as it is, then the changed one, if any, each with a suffix for its name.

    Raises:
        UserError: as `add_devices` and `drain_nodes`.

    >>> from tercio.formats.cluster import read_cluster
    >>> both = clusters(read_cluster("2x8"), add=["8xH100"], drain=())
    >>> [(name, len(some)) for name, some in both]
    [('', 2), (' +8xH100', 3)]
    """
    changed = tuple(nodes)
    for name in drain:
        changed = drain_nodes(changed, name)
    for text in add:
        changed = add_devices(changed, text)
    change = " ".join([*(f"+{text}" for text in add), *(f"without {name}" for name in drain)])
    return [("", tuple(nodes))] + ([(f" {change}", changed)] if change else [])
