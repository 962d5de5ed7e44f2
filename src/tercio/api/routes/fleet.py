"""Routes of nodes, queues and use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from tercio.api.bodies import (
    NoBody,
    NodesQuery,
    NoQuery,
    PageQuery,
    ReasonBody,
    SitePageQuery,
    SiteQuery,
    UsageQuery,
)
from tercio.api.context import ApiContext
from tercio.api.stories import read_story
from tercio.api.table import Call, Route
from tercio.api.wire import make_cursor, read_cursor, read_instant_s
from tercio.core.shares import queue_views
from tercio.core.views import node_view, usage_rows
from tercio.errors import UserError, did_you_mean
from tercio.model.commands import CordonNode, DrainNode, UncordonNode
from tercio.model.identity import Principal, Role
from tercio.model.ids import NodeName
from tercio.model.node import Node
from tercio.model.views import (
    NodeList,
    NodeView,
    QueueList,
    QueueView,
    Story,
    UsageList,
)

T = TypeVar("T")


def page(
    rows: Sequence[T], names: Sequence[str], query: PageQuery, kind: str
) -> tuple[tuple[T, ...], str | None]:
    """Return the rows of one page and the cursor of the next; `names` are the rows' keys."""
    start = 0
    after = read_cursor(kind, query.after)
    if after is not None:
        if after not in names:
            raise UserError(
                f"after: the page's last row, {after}, is gone",
                code="resync",
                field="after",
                hint="start again with the first page",
            )
        start = names.index(after) + 1
    stop = start + query.limit
    return tuple(rows[start:stop]), make_cursor(kind, names[stop - 1]) if stop < len(rows) else None


async def list_nodes(call: Call[NodesQuery, NoBody]) -> NodeList:
    """Return a page of nodes, in order of first report."""
    query = call.query
    call.context.check_site(query.site)
    nodes = [
        node
        for node in call.context.cluster.nodes.values()
        if query.site is None or node.spec.site == query.site
    ]
    rows, following = page(nodes, [node.name for node in nodes], query, "nodes")
    driver = call.context.controller.driver
    views = tuple(node_view(driver, node, is_full=query.devices) for node in rows)
    return NodeList(rows=views, next=following)


def find_node(context: ApiContext, name: str) -> Node:
    """Return a node by name.

    Raises:
        UserError: `not_found`, with the nearest names.
    """
    nodes = context.cluster.nodes
    node = nodes.get(NodeName(name))
    if node is None:
        raise UserError(
            f"there is no node {name!r}",
            code="not_found",
            hint=did_you_mean(name, nodes) or "`tercio node list` lists nodes",
        )
    return node


async def show_node(call: Call[NoQuery, NoBody]) -> NodeView:
    """Return one node with its devices."""
    node = find_node(call.context, call.path["node"])
    return node_view(call.context.controller.driver, node, is_full=True)


async def node_story(call: Call[NoQuery, NoBody]) -> Story:
    """Return everything that happened to a node, oldest first."""
    node = find_node(call.context, call.path["node"])
    return await read_story(call.context, f"node/{node.name}", call.principal)


async def cordon(call: Call[NoQuery, ReasonBody]) -> NodeView:
    """Keep new work off a node."""
    name = NodeName(call.path["node"])
    return await _node_command(call, CordonNode(node=name, reason=call.body.reason))


async def uncordon(call: Call[NoQuery, ReasonBody]) -> NodeView:
    """Let new work go to a node again."""
    return await _node_command(call, UncordonNode(node=NodeName(call.path["node"])))


async def drain(call: Call[NoQuery, ReasonBody]) -> NodeView:
    """Empty a node: stop its jobs with grace and requeue them."""
    name = NodeName(call.path["node"])
    return await _node_command(call, DrainNode(node=name, reason=call.body.reason))


async def _node_command(
    call: Call[NoQuery, ReasonBody], command: CordonNode | UncordonNode | DrainNode
) -> NodeView:
    context = call.context
    await context.controller.execute(command, call.principal)
    node = find_node(context, command.node)
    return node_view(context.controller.driver, node, is_full=True)


async def list_queues(call: Call[SitePageQuery, NoBody]) -> QueueList:
    """Return a page of queues, parents before children."""
    site = call.query.site
    call.context.check_site(site)
    views = queue_views(call.context.controller.driver, call.context.now(), site=site)
    rows, following = page(views, [view.path for view in views], call.query, "queues")
    return QueueList(rows=rows, next=following)


async def show_queue(call: Call[SiteQuery, NoBody]) -> QueueView:
    """Return one queue."""
    path, site = call.path["queue"], call.query.site
    call.context.check_site(site)
    found = queue_views(call.context.controller.driver, call.context.now(), site=site)
    views = {view.path: view for view in found}
    if path not in views:
        raise UserError(
            f"there is no queue {path!r}",
            code="not_found",
            hint=did_you_mean(path, views) or f"queues: {', '.join(list(views)[:8])}",
        )
    return views[path]


async def usage(call: Call[UsageQuery, NoBody]) -> UsageList:
    """Return device time by user or queue."""
    query, context = call.query, call.context
    since_s = read_instant_s(query.since, field="since")
    driver = context.controller.driver
    rows = usage_rows(driver, by=query.by, now_s=context.now(), since_s=since_s)
    if query.by == "user" and not call.principal.has_role(Role.OPERATOR):
        colleagues = _users_of(context, call.principal)
        rows = [row for row in rows if row.key in colleagues]
    shown, following = page(rows, [row.key for row in rows], query, "usage")
    return UsageList(by=query.by, rows=shown, next=following)


def _users_of(context: ApiContext, reader: Principal) -> set[str]:
    """Return the users of the reader's tenant, as far as jobs and tokens tell."""
    cluster, tenant = context.cluster, reader.tenant
    by_jobs = {job.user for job in cluster.jobs.values() if job.tenant == tenant}
    owners = (token.principal for token in cluster.tokens.values())
    return {reader.user, *by_jobs, *(owner.user for owner in owners if owner.tenant == tenant)}


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/nodes",
        name="nodes",
        summary="List nodes, in order of first report",
        role=Role.VIEWER,
        perform=list_nodes,
        query=NodesQuery,
        answer=NodeList,
    ),
    Route(
        method="GET",
        path="/v1/nodes/{node}",
        name="node",
        summary="Show one node with its devices",
        role=Role.VIEWER,
        perform=show_node,
        answer=NodeView,
    ),
    Route(
        method="GET",
        path="/v1/nodes/{node}/story",
        name="node_story",
        summary="Tell everything that happened to a node",
        role=Role.VIEWER,
        perform=node_story,
        answer=Story,
    ),
    *(
        Route(
            method="POST",
            path=f"/v1/nodes/{{node}}/{verb}",
            name=verb,
            summary=summary,
            role=Role.OPERATOR,
            perform=perform,
            body=ReasonBody,
            answer=NodeView,
        )
        for verb, summary, perform in (
            ("cordon", "Keep new work off a node", cordon),
            ("uncordon", "Let new work go to a node again", uncordon),
            ("drain", "Empty a node with grace", drain),
        )
    ),
    Route(
        method="GET",
        path="/v1/queues",
        name="queues",
        summary="List queues, parents before children",
        role=Role.VIEWER,
        perform=list_queues,
        query=SitePageQuery,
        answer=QueueList,
    ),
    Route(
        method="GET",
        path="/v1/queues/{queue+}",
        name="queue",
        summary="Show one queue by its path",
        role=Role.VIEWER,
        perform=show_queue,
        query=SiteQuery,
        answer=QueueView,
    ),
    Route(
        method="GET",
        path="/v1/usage",
        name="usage",
        summary="Show device time by user or queue",
        role=Role.VIEWER,
        perform=usage,
        query=UsageQuery,
        answer=UsageList,
    ),
)
"""Routes of nodes, queues and use."""
