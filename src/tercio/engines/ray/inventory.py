"""From what Ray says to nodes in our terms; computes, and asks nobody.

Ray counts what is asked for, not what is used: work that asked for no GPU is not seen.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Final

from tercio.engines.ray.messages import DECOY, Facts, RayNode
from tercio.formats import cards
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import CONTAINERS_LABEL, NO_CONTAINERS, DeviceSpec, Links, NodeSpec

_MILLI: Final = 1000
_TYPE_LABEL: Final = "ray.io/accelerator-type"
_TYPE_RESOURCE: Final = "accelerator_type:"
_GROUP: Final = re.compile(r"(?P<resource>\w+?)_group_(?:\d+_)?(?P<group>[0-9a-f]{8,})")
_SIZE: Final = re.compile(r"-(\d+)G$")


class Foreign:
    """What others hold of one node.

    Attributes:
        devices: slots of accelerators that are in use.
        unplaced: accelerators that a group holds and no worker uses yet: any of the others.
        cpus, memory_bytes: amounts.
    """

    def __init__(self) -> None:
        self.devices: set[int] = set()
        self.unplaced = 0.0
        self.cpus = 0.0
        self.memory_bytes = 0.0


def node_names(nodes: Iterable[RayNode], *, site: SiteName) -> dict[str, NodeName]:
    """Return our name of each node by Ray's id: the site, then Ray's name of the node.

    A node that was started again has a new id and keeps its name. Of several living nodes with
    one name the later ones get a part of their id.
    """
    names: dict[str, NodeName] = {}
    taken: set[str] = set()
    for node in sorted(nodes, key=lambda node: node.id):
        if node.is_alive:
            name = f"{site}-{re.sub(r'[^A-Za-z0-9._-]', '-', node.name)}"
            if name in taken:
                name = f"{name}-{node.id[:6]}"
            taken.add(name)
            names[node.id] = NodeName(name)
    return names


def can_run(node: RayNode) -> bool:
    """Whether a task can be placed there: a head without cores takes none."""
    return node.is_alive and (
        node.resources.get("CPU", 0) > 0 or math.floor(node.resources.get("GPU", 0)) > 0
    )


def foreign_use(facts: Facts, *, prefix: str) -> dict[str, Foreign]:
    """Return what others hold by node; groups whose name begins with `prefix` are ours."""
    found = {node.id: Foreign() for node in facts.nodes}
    ours = {bundle.group_id for bundle in facts.bundles if bundle.name.startswith(prefix)}
    placed: Counter[tuple[str, str]] = Counter()
    for use in facts.uses:
        seen = found.get(use.node_id)
        if seen is None:
            continue
        counted: set[tuple[str, int]] = set()
        for resource, slots in sorted(use.slots.items()):
            match = _GROUP.fullmatch(resource)
            amount = sum(slots.values())
            if match is None:
                seen.cpus += amount if resource == "CPU" else 0
                seen.memory_bytes += amount if resource == "memory" else 0
                if resource == "GPU":
                    seen.devices.update(slots)
            elif match["resource"] == "GPU" and match["group"] not in ours:
                seen.devices.update(slots)
                # A worker in a group uses it twice over: by the group's and the bundle's name.
                for slot, part in slots.items():
                    if (match["group"], slot) not in counted:
                        counted.add((match["group"], slot))
                        placed[use.node_id, match["group"]] += math.ceil(part)
    for bundle in facts.bundles:
        seen = found.get(bundle.node_id)
        if seen is not None and bundle.group_id not in ours:
            seen.cpus += bundle.resources.get("CPU", 0)
            seen.memory_bytes += bundle.resources.get("memory", 0)
            seen.unplaced += bundle.resources.get("GPU", 0)
    for (node_id, _), count in placed.items():
        found[node_id].unplaced = max(0.0, found[node_id].unplaced - count)
    return found


def held_for_nobody(
    facts: Facts, *, prefix: str, live: Container[str], settled: Container[str]
) -> tuple[str, ...]:
    """Return what to give back, by the names of our groups without `prefix`.

    Args:
        facts: what Ray says.
        prefix: what the names of our groups begin with.
        live: keys of tasks that run, may run, or are being launched.
        settled: nodes by Ray's id that have said which tasks run there.
    """
    # A group that was never placed has no task anywhere, and one of a dead node holds nothing
    # and never will: it would only stand in Ray as a wish that scales the cluster up.
    names = [bundle.name for bundle in facts.bundles if bundle.node_id in settled]
    found = [name for name in (*names, *facts.waiting) if name.removeprefix(prefix) not in live]
    ours = [name for name in (*found, *facts.stranded) if name.startswith(prefix)]
    keys = dict.fromkeys(name.removeprefix(prefix) for name in ours)
    return tuple(key for key in keys if not key.startswith(DECOY))


def node_spec(
    node: RayNode,
    *,
    name: NodeName,
    site: SiteName,
    ids: tuple[str, ...],
    foreign: Foreign,
    held: frozenset[int],
    device_type: str,
) -> NodeSpec:
    """Return a node in our terms.

    Args:
        node: as Ray tells it.
        name: our name.
        site: our site.
        ids: names of its accelerators, empty for 0, 1, ...
        foreign: what others hold of it.
        held: slots that our own tasks hold.
        device_type: type of accelerators that Ray does not name.
    """
    devices = tuple(devices_of(node, ids=ids, device_type=device_type))
    taken = {slot for slot in foreign.devices if slot < len(devices)}
    # Ray gives the lowest free numbers: where nobody works yet, those are the likeliest.
    free = [index for index in range(len(devices)) if index not in taken and index not in held]
    taken.update(free[: math.ceil(foreign.unplaced)])
    cpus = max(0.0, node.resources.get("CPU", 0) - foreign.cpus)
    memory = max(0.0, node.resources.get("memory", 0) - foreign.memory_bytes)
    return NodeSpec(
        name=name,
        site=site,
        devices=devices,
        cpus_milli=int(cpus * _MILLI),
        memory_bytes=int(memory),
        links=Links.NVSWITCH if len(devices) > 1 else Links.NONE,
        pool=devices[0].type if devices else "",
        labels={
            **{key: value for key, value in sorted(node.labels.items()) if "/" not in key},
            # Tasks are plain processes of Ray's nodes: a job with an image goes elsewhere.
            CONTAINERS_LABEL: NO_CONTAINERS,
        },
        address=node.address,
        foreign_devices=tuple(sorted(taken)),
    )


def devices_of(
    node: RayNode, *, ids: tuple[str, ...] = (), device_type: str = ""
) -> Iterable[DeviceSpec]:
    """Yield the accelerators that Ray counts as its resource `GPU`, in the order of its slots."""
    marketing = _SIZE.sub(r"-\1GB", _type_of(node.labels, node.resources) or device_type)
    kind = cards.canonical_type(marketing)
    for index in range(math.floor(node.resources.get("GPU", 0))):
        yield DeviceSpec(
            type=kind,
            index=index,
            uuid=ids[index] if index < len(ids) else "",
            vendor=cards.vendor_of(kind) or "nvidia",
            card_bytes=cards.card_bytes(marketing),
        )


def _type_of(labels: Mapping[str, str], resources: Mapping[str, float]) -> str:
    if _TYPE_LABEL in labels:
        return labels[_TYPE_LABEL]
    for resource in sorted(resources):
        if resource.startswith(_TYPE_RESOURCE):
            return resource.removeprefix(_TYPE_RESOURCE)
    return ""
