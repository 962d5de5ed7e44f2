"""Routes of the twin: what would another policy have made of the past?"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from tercio.api.bodies import NoBody, NoQuery
from tercio.api.table import Call, Route
from tercio.api.twin_bodies import NOW, TwinQuestion, TwinRunBody, TwinRunList, TwinRunView
from tercio.model.identity import Role
from tercio.model.node import NodeSpec

_DAY_S: Final = 86_400.0


async def start(call: Call[NoQuery, TwinRunBody]) -> TwinRunView:
    """Begin a run."""
    context, body = call.context, call.body
    cluster, now_s = context.cluster, context.now()
    nodes = tuple(node.spec for node in cluster.nodes.values())
    arms = await asyncio.to_thread(_arms, body, nodes)
    question = TwinQuestion(
        body=body,
        journal=str(context.journal.path),
        nodes=nodes,
        policy=cluster.policy,
        since_s=None if body.days is None else now_s - body.days * _DAY_S,
    )
    return context.twin_runs.start(
        question,
        lambda run: TwinRunView(
            run=run, state="running", asked_s=now_s, by=call.principal.user,
            arms=arms, days=body.days, add=body.add, drain=body.drain, faults=body.faults,
            whole=len(arms),
        ),
    )  # fmt: skip


def _arms(body: TwinRunBody, nodes: tuple[NodeSpec, ...]) -> tuple[str, ...]:
    """Return the names of all arms; refuses here what the run would refuse later."""
    # The first time they read a package, which takes a moment.
    from tercio.twin.change import clusters
    from tercio.twin.faults import parse_climate

    if body.faults:
        parse_climate(body.faults)
    changed = clusters(nodes, add=body.add, drain=body.drain)
    return tuple(arm.name + suffix for suffix, _ in changed for arm in body.arms)


async def show(call: Call[NoQuery, NoBody]) -> TwinRunView:
    """Return a run."""
    return call.context.twin_runs.run(call.path["run"])


async def runs(call: Call[NoQuery, NoBody]) -> TwinRunList:
    """Return the last runs."""

    def read() -> tuple[str, ...]:
        # The first time it reads a package, which takes a moment.
        from tercio.twin.policies import BUILT_IN

        return (NOW, *BUILT_IN)

    policies = await asyncio.to_thread(read)
    return TwinRunList(
        rows=tuple(
            msgspec.structs.replace(run, answer=None) for run in call.context.twin_runs.rows()
        ),
        policies=policies,
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/twin/runs",
        name="twin_runs",
        summary="List the last runs of the twin, and the policies that can be tried",
        role=Role.OPERATOR,
        perform=runs,
        answer=TwinRunList,
    ),
    Route(
        method="POST",
        path="/v1/twin/runs",
        name="start_twin_run",
        summary="Replay this server's own past: other policies, nodes, faults",
        role=Role.OPERATOR,
        perform=start,
        body=TwinRunBody,
        answer=TwinRunView,
    ),
    Route(
        method="GET",
        path="/v1/twin/runs/{run}",
        name="twin_run",
        summary="Show a run of the twin, with its answer when it is done",
        role=Role.OPERATOR,
        perform=show,
        answer=TwinRunView,
    ),
)
"""Routes of the twin."""
