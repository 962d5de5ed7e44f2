"""One machine as several nodes: each declared node has some of its devices.

For a machine that is partitioned by hand, and to try on one machine what takes several: a spare,
a quarantine, a gang that moves.

>>> [(n.name, n.devices, n.labels) for n in parse_nodes("n1=0-1 rack=r1; n2=2 spare")]
[('n1', (0, 1), {'rack': 'r1'}), ('n2', (2,), {'spare': 'true'})]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tercio.errors import UserError
from tercio.model.ids import NodeName
from tercio.model.node import NodeSpec

_NODE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=([0-9][0-9,-]*)((?: +(?:spare|[^ =]+=[^ =]+))*)")
_FIELD = "local.nodes"
_HINT = "write NAME=DEVICES LABEL=VALUE for each, such as `n1=0-3 rack=r1; n2=4-6; n3=7 spare`"


class DeclaredNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the machine: which devices, by index, and its labels (a spare's is one)."""

    name: str
    devices: tuple[int, ...]
    labels: Mapping[str, str] = {}


def parse_nodes(text: str) -> tuple[DeclaredNode, ...]:
    """Read the declaration of `local.nodes`.

    Raises:
        UserError: it makes no sense, or a name or device stands in it twice.
    """
    found: list[DeclaredNode] = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        match = _NODE.fullmatch(part)
        if match is None:
            raise UserError(f"{_FIELD}: '{part}' is not a node", field=_FIELD, hint=_HINT)
        devices = _indexes(match[2])
        words = (word.partition("=") for word in match[3].split())
        labels = {name: value or "true" for name, _, value in words}
        found.append(DeclaredNode(name=match[1], devices=devices, labels=labels))
    names = [node.name for node in found]
    taken = [index for node in found for index in node.devices]
    for what, twice in (("node", _twice(names)), ("device", _twice(taken))):
        if twice is not None:
            raise UserError(f"{_FIELD}: {what} {twice} stands twice", field=_FIELD, hint=_HINT)
    if not found:
        raise UserError(f"{_FIELD}: no node in '{text}'", field=_FIELD, hint=_HINT)
    return tuple(found)


def _twice(many: Sequence[object]) -> object:
    return next((each for each in many if many.count(each) > 1), None)


def _indexes(text: str) -> tuple[int, ...]:
    indexes: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        end = last if dash else first
        if not first.isdigit() or not end.isdigit() or int(end) < int(first):
            raise UserError(f"{_FIELD}: '{text}' are no devices", field=_FIELD, hint=_HINT)
        indexes += range(int(first), int(end) + 1)
    return tuple(indexes)


class SeveralNodes:
    """Reads the machine once and shares its devices, cores and memory out to its nodes.

    Cores and memory are shared evenly. A declared device that the machine lacks is left out.
    """

    def __init__(
        self, read: Callable[[Callable[[int], bool]], NodeSpec], nodes: Sequence[DeclaredNode]
    ) -> None:
        self._read = read
        self._nodes = tuple(nodes)

    def __call__(self, is_ours: Callable[[int], bool]) -> tuple[NodeSpec, ...]:
        """Read the machine; see `inventory.MachineReader`."""
        machine = self._read(is_ours)
        return tuple(self._part(machine, node) for node in self._nodes)

    def _part(self, machine: NodeSpec, node: DeclaredNode) -> NodeSpec:
        there = [i for i in node.devices if i < len(machine.devices)]
        devices = [machine.devices[index] for index in there]
        return msgspec.structs.replace(
            machine,
            name=NodeName(node.name),
            devices=tuple(
                msgspec.structs.replace(device, index=place) for place, device in enumerate(devices)
            ),
            cpus_milli=machine.cpus_milli // len(self._nodes),
            memory_bytes=machine.memory_bytes // len(self._nodes),
            labels={**machine.labels, **node.labels},
            pool=devices[0].type if devices else machine.pool,
            foreign_devices=tuple(
                place for place, index in enumerate(there) if index in machine.foreign_devices
            ),
        )
