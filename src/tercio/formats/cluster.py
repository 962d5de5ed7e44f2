"""The cluster file: nodes for the twin, demos and tests. `8x8` is 8 nodes of 8 H100 each.

>>> [node.name for node in read_cluster("nodes: [{name: 'n[1-2]', devices: 'H100:8'}]")]
['n1', 'n2']
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tercio.errors import UserError
from tercio.formats.cards import GB, find_card
from tercio.formats.cursor import NAME, Cursor
from tercio.formats.devices import parse_device
from tercio.formats.document import read_documents
from tercio.formats.parts import LABEL
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import DeviceSpec, Links, MigSpec, NodeSpec
from tercio.model.queue import DefaultShare
from tercio.model.resources import NO_DEVICE, DeviceRequest

DEFAULT_TYPE: Final = "H100"
DEFAULT_SITE: Final = SiteName("sim")
MAX_NODES: Final = 200_000
MAX_DEVICES: Final = 1024
NODE_KEYS: Final = (
    "name", "count", "devices", "cpus", "memory", "slots", "links", "labels", "pool", "site",
    "mig",
)  # fmt: skip
CLUSTER_SHAPE: Final = re.compile(r"\s*(\d{1,6})\s*x\s*(\d{1,4})\s*", re.ASCII)
CUT_TYPES: Final = ("A30", "A100", "H100", "H200", "B200")
"""Types of card that can be cut into slices."""
_RANGES: Final = re.compile(r"^([A-Za-z0-9._-]*)\[([0-9,-]{1,256})\]([A-Za-z0-9._-]*)$", re.ASCII)
_PLAIN: Final = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$", re.ASCII)
_SPAN: Final = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$", re.ASCII)


class MigMode(StrEnum):
    """What a cluster file says about the cards of a node: never cut, whole at first, or cut."""

    NONE = "none"
    OFF = "off"
    ON = "on"


def read_cluster(
    text: str, *, source: str = "cluster", site: SiteName = DEFAULT_SITE
) -> tuple[NodeSpec, ...]:
    """Read a cluster file, or the short form `NODESxDEVICES`.

    What a node does not say: cores and memory are the default share of each device (and of
    at least one), the pool is named after the device type, links are NVSwitch.

    Raises:
        UserError: naming line, field, value and fix.
    """
    short = CLUSTER_SHAPE.fullmatch(text)
    if short:
        return _short(int(short.group(1)), int(short.group(2)), text.strip(), site)
    documents = read_documents(text, source=source)
    if not documents:
        raise UserError(f"{source}: no cluster", hint="write 8x8, or nodes: [...]")
    fields = Cursor(source, "", documents[0]).fields(("nodes",))
    fix = "write nodes: [{name: n[1-8], devices: H100:8}]"
    rows = fields.need("nodes", lambda at: at.rows(fix, most=10_000), fix)
    nodes: dict[NodeName, NodeSpec] = {}
    for row in rows:
        for node in _read_row(row, site, len(nodes)):
            if node.name in nodes:
                raise row.fault(f"node '{node.name}' stands twice", "give each its own name")
            nodes[node.name] = node
            if len(nodes) > MAX_NODES:
                raise row.fault("too many nodes", f"write at most {MAX_NODES}")
    if not nodes:
        raise Cursor(source, "nodes", documents[0]).fault("no node", fix)
    return tuple(nodes.values())


def _short(count: int, devices: int, text: str, site: SiteName) -> tuple[NodeSpec, ...]:
    if not 1 <= count <= MAX_NODES or devices > MAX_DEVICES:
        fix = f"write from 1x1 to {MAX_NODES}x{MAX_DEVICES}, such as 8x8"
        raise UserError(f"cluster '{text}' is out of bounds", hint=fix, field="cluster")
    request = DeviceRequest(type=DEFAULT_TYPE, count=devices) if devices else NO_DEVICE
    first = make_node("n1", request, site=site)
    return tuple(
        msgspec.structs.replace(first, name=NodeName(f"n{number}"))
        for number in range(1, count + 1)
    )


def make_node(
    name: str, request: DeviceRequest, *, site: SiteName, links: Links = Links.NVSWITCH
) -> NodeSpec:
    """Return a node with the devices of one request and defaults for everything else."""
    devices = make_devices(request, links)
    share = DefaultShare()
    return NodeSpec(
        name=NodeName(name),
        site=site,
        devices=devices,
        cpus_milli=share.cpus_milli_per_device * max(len(devices), 1),
        memory_bytes=share.memory_bytes_per_device * max(len(devices), 1),
        links=links,
        pool=devices[0].type if devices else "cpu",
    )


def make_devices(request: DeviceRequest, links: Links) -> tuple[DeviceSpec, ...]:
    """Return devices 0 to count - 1 of the requested type, in islands as the links say."""
    device_type = request.type or DEFAULT_TYPE
    card = find_card(device_type)
    size = request.card_bytes
    if size is None:
        size = card.sizes_gb[0] * GB if card and card.sizes_gb else 0
    width = {Links.NVSWITCH: request.count, Links.PAIRS: 2, Links.NONE: 1}[links]
    return tuple(
        DeviceSpec(
            type=device_type,
            index=index,
            vendor=card.vendor if card else "nvidia",
            card_bytes=size,
            memory_bytes=size,
            island=index // width,
            mig=MigSpec() if device_type in CUT_TYPES else None,
        )
        for index in range(request.count)
    )


def _read_row(at: Cursor, site: SiteName, before: int) -> list[NodeSpec]:
    fields = at.fields(NODE_KEYS, moved={"gpus": "write devices: H100:8"})
    if fields.has("name") and fields.has("count"):
        raise at.fault("both name and count", "write name: n[1-8], or count: 8")
    names = fields.read("name", _names, None)
    if names is None:
        fix = "write name: n1, name: n[1-8], or count: 8"
        count = fields.need("count", lambda a: a.integer(1, MAX_NODES), fix)
        names = [f"n{number}" for number in range(before + 1, before + count + 1)]
    mig = fields.read("mig", lambda a: a.choice(MigMode), MigMode.OFF)
    links = fields.read("links", lambda a: a.choice(Links), Links.NVSWITCH)
    request = fields.read("devices", _devices, NO_DEVICE)
    named_site = fields.read("site", lambda a: a.word("write a name", pattern=NAME), site)
    first = make_node(names[0], request, site=SiteName(named_site), links=links)
    first = msgspec.structs.replace(
        first,
        cpus_milli=fields.read("cpus", Cursor.cores_milli, first.cpus_milli),
        memory_bytes=fields.read("memory", Cursor.memory_bytes, first.memory_bytes),
        slots=fields.read("slots", lambda a: a.integer(1, 1_000_000), None),
        labels=fields.read("labels", _labels, _NO_LABELS),
        pool=fields.read("pool", lambda a: a.word("write a name", pattern=NAME), first.pool),
    )
    first = msgspec.structs.replace(first, devices=_in_mode(first.devices, mig))
    return [msgspec.structs.replace(first, name=NodeName(name)) for name in names]


def _in_mode(devices: tuple[DeviceSpec, ...], mode: MigMode) -> tuple[DeviceSpec, ...]:
    """Give those that can be cut the mode that a file names."""
    spec = {MigMode.NONE: None, MigMode.OFF: MigSpec(), MigMode.ON: MigSpec(is_on=True)}[mode]
    return tuple(
        msgspec.structs.replace(device, mig=spec) if device.mig is not None else device
        for device in devices
    )


_NO_LABELS: Final[Mapping[str, str]] = {}


def _devices(at: Cursor) -> DeviceRequest:
    fix = "write one type and a count, such as H100:8, CPU:2 or none"
    request = at.parsed(parse_device, fix)
    if request.is_shared or request.count_max is not None or request.card_at_least:
        raise at.fault(f"{at.shown()} is no number of whole devices", fix)
    if not request.is_none and request.type is None:
        raise at.fault(f"{at.shown()} names no type", fix)
    if request.count > MAX_DEVICES:
        raise at.fault(f"{at.shown()} is out of bounds", f"write at most {MAX_DEVICES} devices")
    return request


def _names(at: Cursor) -> list[str]:
    fix = "write a name such as n1, or a range such as n[1-8] or rack[01-04]-a"
    text = at.word(fix)
    if _PLAIN.match(text) and not text.endswith("\n"):
        return [text]
    found = _RANGES.match(text)
    if not found:
        raise at.wrong("a node name", fix)
    head, inside, tail = found.groups()
    names: list[str] = []
    for piece in inside.split(","):
        span = _SPAN.match(piece)
        if not span:
            raise at.wrong("a range of names", fix)
        first, last = span.group(1), span.group(2) or span.group(1)
        if int(last) < int(first):
            raise at.fault(f"'{piece}' runs backwards", f"write {last}-{first}")
        if int(last) - int(first) >= MAX_NODES:
            raise at.fault(f"'{piece}' is too large", f"write at most {MAX_NODES} nodes")
        width = len(first)
        names += [f"{head}{n:0{width}d}{tail}" for n in range(int(first), int(last) + 1)]
    return names


def _labels(at: Cursor) -> dict[str, str]:
    labels: dict[str, str] = {}
    for key, inner in at.mapping("write a mapping such as {rack: r1, block: b1}"):
        if not re.fullmatch(LABEL, key, re.ASCII):
            raise inner.fault(f"'{key[:80]}' is not a label's name", "write letters and digits")
        labels[key] = inner.word("write one value as text", most=256)
    return labels
