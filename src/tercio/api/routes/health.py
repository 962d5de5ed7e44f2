"""Routes of health: readings in, where nodes stand, people's word, the health policy."""

from __future__ import annotations

from typing import Final, Literal

from tercio.api.bodies import (
    HealthPlanBody,
    HealthPolicyBody,
    NoBody,
    NoQuery,
    PageQuery,
    ReasonBody,
    RmaQuery,
)
from tercio.api.routes.fleet import find_node, page
from tercio.api.table import Call, Route
from tercio.api.wire import read_instant_s
from tercio.core.health_views import node_health, plan, policy_view
from tercio.core.rma import rma_report
from tercio.core.views import node_view
from tercio.errors import UserError
from tercio.model.commands import MoveNode, ResetBreaker, SetHealthPolicy
from tercio.model.health import HealthRecord
from tercio.model.health_views import (
    HealthPlanView,
    HealthPolicyView,
    LiveList,
    LiveNode,
    NodeHealthView,
    PowerReport,
    ReadingsAnswer,
    RmaReport,
)
from tercio.model.identity import AGENT_PREFIX, Role
from tercio.model.ids import NodeName
from tercio.model.node import Node
from tercio.model.readings import NodeReading
from tercio.model.views import NodeView
from tercio.runtime.telemetry import holders_of, jobs_by_uuid


async def take_readings(call: Call[NoQuery, NodeReading]) -> ReadingsAnswer:
    """Take what a node's agent read."""
    node = find_node(call.context, call.path["node"])
    asker = call.principal
    if asker.user != f"{AGENT_PREFIX}{node.name}" and not asker.has_role(Role.OPERATOR):
        raise UserError(
            f"{asker.user} may not report for node {node.name}",
            code="forbidden",
            hint=f"make its token: `tercio token create --agent {node.name}`",
        )
    controller = call.context.controller
    found = controller.telemetry.take((node.name,), call.body)
    return ReadingsAnswer(
        faults=found,
        poll_s=call.context.config.health.poll_s,
        caps=controller.powering.orders((node.name,)),
        jobs=jobs_by_uuid(call.context.cluster, (node.name,)),
    )


async def show_health(call: Call[NoQuery, NoBody]) -> NodeHealthView:
    """Return where a node stands, its faults, and what was done."""
    node = find_node(call.context, call.path["node"])
    telemetry = call.context.controller.telemetry
    return node_health(
        call.context.cluster,
        node.name,
        reading=telemetry.latest(node.name),
        devices=dict(telemetry.devices(node.name)),
    )


async def live(call: Call[PageQuery, NoBody]) -> LiveList:
    """Return a page of nodes as they are now."""
    nodes = call.context.cluster.nodes
    rows, following = page(list(nodes.values()), list(nodes), call.query, "live")
    return LiveList(rows=tuple(_live(call, node) for node in rows), next=following)


def _live(call: Call[PageQuery, NoBody], node: Node) -> LiveNode:
    telemetry, cluster = call.context.controller.telemetry, call.context.cluster
    reading = telemetry.latest(node.name)
    held = holders_of(cluster, node.name)
    return LiveNode(
        node=node.name,
        at_s=reading.at_s if reading is not None else 0.0,
        health=cluster.health.records.get(node.name, HealthRecord()).state,
        driver=reading.driver if reading is not None else "",
        devices=dict(telemetry.devices(node.name)),
        jobs={i: tuple(dict.fromkeys(h.job_id for h in holders)) for i, holders in held.items()},
        notes=reading.notes if reading is not None else {},
    )


async def _move(
    call: Call[NoQuery, ReasonBody], to: Literal["quarantine", "probation", "return", "retire"]
) -> NodeView:
    context = call.context
    name = NodeName(call.path["node"])
    await context.controller.execute(
        MoveNode(node=name, to=to, reason=call.body.reason), call.principal
    )
    return node_view(context.controller.driver, find_node(context, name), is_full=True)


async def quarantine(call: Call[NoQuery, ReasonBody]) -> NodeView:
    """Take a node out: its jobs run elsewhere, and nothing new comes."""
    return await _move(call, "quarantine")


async def probation(call: Call[NoQuery, ReasonBody]) -> NodeView:
    """Try a mended node."""
    return await _move(call, "probation")


async def give_back(call: Call[NoQuery, ReasonBody]) -> NodeView:
    """Return a node to service."""
    return await _move(call, "return")


async def retire(call: Call[NoQuery, ReasonBody]) -> NodeView:
    """Take a quarantined node out for good."""
    return await _move(call, "retire")


async def show_policy(call: Call[NoQuery, NoBody]) -> HealthPolicyView:
    """Return the health policy in force."""
    return policy_view(call.context.cluster)


async def set_policy(call: Call[NoQuery, HealthPolicyBody]) -> HealthPolicyView:
    """Change settings of the health policy."""
    command = SetHealthPolicy(settings=call.body.settings, if_version=call.body.if_version)
    await call.context.controller.execute(command, call.principal)
    return policy_view(call.context.cluster)


async def plan_policy(call: Call[NoQuery, HealthPlanBody]) -> HealthPlanView:
    """Return what changed settings would do now; changes nothing."""
    return plan(call.context.cluster, call.body.settings, call.context.now())


async def reset_breaker(call: Call[NoQuery, ReasonBody]) -> HealthPolicyView:
    """Let automation act again."""
    await call.context.controller.execute(ResetBreaker(reason=call.body.reason), call.principal)
    return policy_view(call.context.cluster)


async def power(call: Call[NoQuery, NoBody]) -> PowerReport:
    """Return the power budgets as they are now."""
    return call.context.controller.powering.report()


async def rma(call: Call[RmaQuery, NoBody]) -> RmaReport:
    """Return the devices with faults, those to replace first."""
    since_s = read_instant_s(call.query.since, field="since") or 0.0
    return rma_report(call.context.cluster, since_s=since_s, now_s=call.context.now())


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/nodes/{node}/readings",
        name="readings",
        summary="Report what a node's agent read; for the token of that node, and operators",
        role=Role.VIEWER,
        perform=take_readings,
        body=NodeReading,
        answer=ReadingsAnswer,
    ),
    Route(
        method="GET",
        path="/v1/nodes/{node}/health",
        name="node_health",
        summary="Show where a node stands, its faults, and what was done",
        role=Role.VIEWER,
        perform=show_health,
        answer=NodeHealthView,
    ),
    *(
        Route(
            method="POST",
            path=f"/v1/nodes/{{node}}/{verb}",
            name=name,
            summary=summary,
            role=Role.OPERATOR,
            perform=perform,
            body=ReasonBody,
            answer=NodeView,
        )
        for verb, name, summary, perform in (
            ("quarantine", "quarantine", "Take a node out; its jobs run elsewhere", quarantine),
            ("probation", "probation", "Try a mended node", probation),
            ("return", "return_node", "Return a node to service", give_back),
            ("retire", "retire", "Take a quarantined node out for good", retire),
        )
    ),
    Route(
        method="GET",
        path="/v1/live",
        name="live",
        summary="Show the devices of all nodes as they are now",
        role=Role.VIEWER,
        perform=live,
        query=PageQuery,
        answer=LiveList,
    ),
    Route(
        method="GET",
        path="/v1/power",
        name="power",
        summary="Show the power budgets: what devices below them may draw, and do draw",
        role=Role.VIEWER,
        perform=power,
        answer=PowerReport,
    ),
    Route(
        method="GET",
        path="/v1/rma",
        name="rma",
        summary="Show the fault history of devices by serial number, those to replace first",
        role=Role.OPERATOR,
        perform=rma,
        query=RmaQuery,
        answer=RmaReport,
    ),
    Route(
        method="GET",
        path="/v1/health-policy",
        name="health_policy",
        summary="Show the health policy",
        role=Role.OPERATOR,
        perform=show_policy,
        answer=HealthPolicyView,
    ),
    Route(
        method="PUT",
        path="/v1/health-policy",
        name="set_health_policy",
        summary="Change settings of the health policy",
        role=Role.ADMIN,
        perform=set_policy,
        body=HealthPolicyBody,
        answer=HealthPolicyView,
    ),
    Route(
        method="POST",
        path="/v1/health-policy/plan",
        name="plan_health_policy",
        summary="Show what changed settings would do now",
        role=Role.OPERATOR,
        perform=plan_policy,
        body=HealthPlanBody,
        answer=HealthPlanView,
    ),
    Route(
        method="POST",
        path="/v1/health-policy/reset-breaker",
        name="reset_breaker",
        summary="Let automation act again after the breaker stopped it",
        role=Role.OPERATOR,
        perform=reset_breaker,
        body=ReasonBody,
        answer=HealthPolicyView,
    ),
)
"""Routes of health."""
