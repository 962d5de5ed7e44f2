"""Topology: named levels from the device island up to the site, and what a job asks of them."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.node import NodeSpec

ISLAND: Final = "island"
NODE: Final = "node"
SITE: Final = "site"
DEFAULT_LEVELS: Final = (ISLAND, NODE, "rack", "block", "zone", SITE)


class SliceRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every `tasks` consecutive tasks share one domain of level `same`."""

    tasks: int
    same: str


class TopologyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the tasks of a group, or of a whole job, may stand to each other.

    Attributes:
        same: level whose one domain must hold all tasks, or None.
        prefer: level to stay inside if possible, or None.
        spread: level over which tasks are spread, or None.
        slice: consecutive tasks kept together, or None.
        leader: name of the group whose task 0 stands in the same domain, or None.
    """

    same: str | None = None
    prefer: str | None = None
    spread: str | None = None
    slice: SliceRequest | None = None
    leader: str | None = None


def domain_of(node: NodeSpec, level: str) -> str | None:
    """Return the domain of `level` that holds the node, or None when the node has no such label.

    The node is its own domain of level `node`, the site that of level `site`; an island is
    smaller than a node, so its domain here is the node.
    """
    if level in (NODE, ISLAND):
        return node.name
    if level == SITE:
        return node.site
    return node.labels.get(level)
