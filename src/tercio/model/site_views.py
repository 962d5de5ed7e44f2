"""Bodies of sites: what a cluster behind this server is, and what works there."""

from __future__ import annotations

import msgspec

from tercio.model.views import View


class SiteView(msgspec.Struct, frozen=True, kw_only=True):
    """One site.

    Attributes:
        kind: of its engine, such as `slurm`.
        error: why it is not connected, empty where it is.
        can: what works there, by name; empty while it is not open.
        notes: why something does not, a line each.
        nodes, nodes_ready: known, and taking work.
        devices: of the nodes that are known, by type.
        tasks: of ours that run there.
    """

    name: str
    kind: str
    error: str = ""
    can: dict[str, bool] = {}
    notes: tuple[str, ...] = ()
    nodes: int = 0
    nodes_ready: int = 0
    devices: dict[str, int] = {}
    tasks: int = 0


class SiteList(View, frozen=True, kw_only=True):
    """All sites of this server."""

    kind: str = "SiteList"
    rows: tuple[SiteView, ...]
