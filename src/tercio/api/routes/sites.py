"""Routes of sites."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from tercio.api.bodies import NoBody, NoQuery
from tercio.api.context import ApiContext
from tercio.api.table import Call, Route
from tercio.core.views import node_view
from tercio.engines.base import Engine
from tercio.errors import EngineError
from tercio.model.identity import Role
from tercio.model.ids import SiteName
from tercio.model.site_views import SiteList, SiteView


async def sites(call: Call[NoQuery, NoBody]) -> SiteList:
    """Return the sites of this server."""
    context = call.context
    return SiteList(rows=tuple(_view(context, name) for name in context.controller.sites))


def _view(context: ApiContext, name: SiteName) -> SiteView:
    engine = context.controller.engine_of(name)
    can, notes = _capabilities(engine)
    nodes = [node for node in context.cluster.nodes.values() if node.spec.site == name]
    names = {node.name for node in nodes}
    driver = context.controller.driver
    return SiteView(
        name=name,
        kind=engine.kind,
        error=context.controller.site_errors.get(name, ""),
        can=can,
        notes=notes,
        nodes=len(nodes),
        nodes_ready=sum(node_view(driver, node).state == "ready" for node in nodes),
        devices=dict(Counter(device.type for node in nodes for device in node.spec.devices)),
        tasks=sum(
            task.placement.node in names
            for job in context.cluster.jobs.values()
            for task in job.live_tasks
        ),
    )


def _capabilities(engine: Engine) -> tuple[dict[str, bool], tuple[str, ...]]:
    """Return what works on a site; nothing while it is not open."""
    try:
        found = engine.capabilities
    except EngineError:
        return {}, ()
    values = msgspec.structs.asdict(found)
    return (
        {name: value for name, value in values.items() if isinstance(value, bool)},
        tuple(found.notes.values()),
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/sites",
        name="sites",
        summary="List the sites of this server and what works there",
        role=Role.VIEWER,
        perform=sites,
        answer=SiteList,
    ),
)
"""Routes of sites."""
