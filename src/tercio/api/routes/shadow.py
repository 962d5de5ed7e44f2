"""Routes of the policy that runs in shadow."""

from __future__ import annotations

from typing import Final

from tercio.api.bodies import NoBody, NoQuery, ShadowBody
from tercio.api.routes.sharing import read_body
from tercio.api.shadow_bodies import LAG_S
from tercio.api.table import Call, Done, Route
from tercio.core.promises import check_policy
from tercio.model.identity import Role
from tercio.model.shadow_views import PolicyShadowView
from tercio.model.units import parse_duration_s


async def start(call: Call[NoQuery, ShadowBody]) -> PolicyShadowView:
    """Begin to run a policy in shadow, in the place of one that does."""
    context, body = call.context, call.body
    lag_s = LAG_S if body.lag is None else parse_duration_s(body.lag, field="lag")
    policy, _ = await read_body(call)
    check_policy(context.cluster, policy)
    shadow = context.policy_shadow
    await shadow.start(
        body.file,
        source=body.source or "policy",
        by=call.principal.user,
        at_s=context.now(),
        lag_s=lag_s,
        overcommit=body.overcommit,
    )
    return await shadow.view(context.journal.last_seq)


async def show(call: Call[NoQuery, NoBody]) -> PolicyShadowView:
    """Return what the policy in shadow came to so far."""
    return await call.context.policy_shadow.view(call.context.journal.last_seq)


async def stop(call: Call[NoQuery, NoBody]) -> Done:
    """End it."""
    await call.context.policy_shadow.stop()
    return Done()


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/policy/shadow",
        name="policy_shadow",
        summary="Show where the policy in shadow decides differently",
        role=Role.OPERATOR,
        perform=show,
        answer=PolicyShadowView,
    ),
    Route(
        method="PUT",
        path="/v1/policy/shadow",
        name="start_policy_shadow",
        summary="Run the policy of a policy file in shadow, beside the one in force",
        role=Role.OPERATOR,
        perform=start,
        body=ShadowBody,
        answer=PolicyShadowView,
    ),
    Route(
        method="DELETE",
        path="/v1/policy/shadow",
        name="stop_policy_shadow",
        summary="End the policy in shadow and forget what it came to",
        role=Role.OPERATOR,
        perform=stop,
    ),
)
"""Routes of the policy in shadow."""
