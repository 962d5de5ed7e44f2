"""Routes of the policy, of reservations and of the topology: who shares what, and where."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from tercio.api.bodies import (
    NoBody,
    NoQuery,
    PageQuery,
    PolicyBody,
    PolicyQuery,
    ReservationBody,
    SitePageQuery,
    TopologyQuery,
)
from tercio.api.context import ApiContext
from tercio.api.table import Call, Done, Route
from tercio.api.wire import make_cursor, read_cursor, read_instant_s
from tercio.core import reserving
from tercio.core.accuracy import start_accuracy
from tercio.core.gaps import gap_rows
from tercio.core.history import changed
from tercio.core.owner_limits import owner_limit_rows
from tercio.core.plans import plan_policy
from tercio.core.prices import lacking
from tercio.core.promises import installed, installed_domains, promised_excess
from tercio.core.topo import topology_view
from tercio.errors import UserError
from tercio.formats.devices import parse_devices
from tercio.formats.policy import read_policy, write_policy
from tercio.model.commands import AddReservation, RemoveReservation, SetPolicy
from tercio.model.events import PolicyChanged
from tercio.model.identity import Role
from tercio.model.ids import NodeName, QueuePath
from tercio.model.queue import Policy
from tercio.model.reservation import Reservation
from tercio.model.resources import DeviceRequest
from tercio.model.shape import exceeds
from tercio.model.sharing_views import (
    GapList,
    OwnerLimitList,
    PolicyHistory,
    PolicyPlanView,
    PolicyVersion,
    ReservationList,
    ReservationView,
    StartAccuracy,
    TopologyView,
)
from tercio.model.units import parse_duration_s
from tercio.model.views import PolicyView
from tercio.sched.words import amount_words

VERSION_HEADER: Final = "If-Match"
POLICY_BYTES_MAX: Final = 1024 * 1024
P = TypeVar("P", bound=PolicyBody)


async def show_policy(call: Call[PolicyQuery, NoBody]) -> PolicyView:
    """Return the policy in force, or an earlier version of it."""
    view = await _version(call.context, call.query.version)
    if not call.query.text:
        return view
    return msgspec.structs.replace(view, file=write_policy(view.policy))


async def _version(context: ApiContext, version: int | None) -> PolicyView:
    cluster = context.cluster
    if version is None or version == cluster.policy_version:
        return PolicyView(version=cluster.policy_version, policy=cluster.policy)
    if version == 0:
        return PolicyView(version=0, policy=Policy())
    events = await asyncio.to_thread(_policy_events, context)
    for event in events:
        if event.version == version:
            return PolicyView(version=version, policy=event.policy)
    kept = [event.version for event in events]
    raise UserError(
        f"there is no version {version} of the policy",
        code="not_found",
        field="version",
        hint=f"the newest is {cluster.policy_version}, the oldest kept {min(kept, default=0)}",
    )


def _policy_events(context: ApiContext) -> list[PolicyChanged]:
    """Return every edit that the journal still has, oldest first."""
    found: list[PolicyChanged] = []
    since = 0
    while entries := context.journal.read(since, 1000, "policy"):
        found += [entry.event for entry in entries if isinstance(entry.event, PolicyChanged)]
        since = entries[-1].seq
    return found


async def policy_history(call: Call[PageQuery, NoBody]) -> PolicyHistory:
    """Return the versions of the policy, newest first, with what each changed."""
    events = await asyncio.to_thread(_policy_events, call.context)
    rows: list[PolicyVersion] = []
    before: Policy | None = Policy()
    for event in events:
        is_next = before is not None and (event.version == 1 or bool(rows))
        rows.append(
            PolicyVersion(
                version=event.version,
                at_s=event.at_s,
                by=event.by,
                changed=changed(before, event.policy) if before is not None and is_next else (),
            )
        )
        before = event.policy
    rows.reverse()
    after = read_cursor("policies", call.query.after)
    if after is not None:
        rows = [row for row in rows if row.version < int(after)]
    shown = rows[: call.query.limit]
    more = len(rows) > len(shown)
    return PolicyHistory(
        rows=tuple(shown),
        next=make_cursor("policies", str(shown[-1].version)) if more else None,
    )


async def read_body(call: Call[NoQuery, P]) -> tuple[Policy, tuple[str, ...]]:
    """Read the policy of a body, with warnings; guarantees above capacity are refused."""
    body, cluster = call.body, call.context.cluster
    if len(body.file) > POLICY_BYTES_MAX:
        raise UserError("file: the policy is too long", code="too_large", field="file")
    source = body.source or "policy"
    policy = await call.read(
        lambda: read_policy(body.file, source=source, overcommit=body.overcommit)
    )
    unpriced = lacking(cluster.prices.series, policy.flexible, call.context.now())
    warnings = (unpriced,) if unpriced else ()
    if not cluster.nodes:
        return policy, warnings
    capacity, domains = installed(cluster), installed_domains(cluster, policy)
    excess = exceeds(policy.queues, capacity, domains)
    if excess is None:
        return policy, warnings
    resource, total, have = excess
    if policy.overcommit:
        return policy, (
            *warnings,
            f"guarantees of {amount_words(resource, total)} are more than the "
            f"{amount_words(resource, have)} of the cluster: they cannot all be kept at once",
        )
    if promised_excess(cluster, policy) is not None:
        await call.read(
            lambda: read_policy(body.file, source=source, capacity=capacity, domains=domains)
        )
    return policy, warnings


async def set_policy(call: Call[NoQuery, PolicyBody]) -> PolicyView:
    """Put the policy of a policy file in force."""
    version = _if_version(call.header(VERSION_HEADER))
    policy, warnings = await read_body(call)
    command = SetPolicy(policy=policy, if_version=version)
    await call.context.controller.execute(command, call.principal)
    cluster = call.context.cluster
    return PolicyView(version=cluster.policy_version, policy=cluster.policy, warnings=warnings)


async def policy_plan(call: Call[NoQuery, PolicyBody]) -> PolicyPlanView:
    """Say what a policy would do to the jobs there are; changes nothing."""
    policy, warnings = await read_body(call)
    context = call.context
    view = plan_policy(context.controller.driver, policy, context.now())
    return PolicyPlanView(
        version=view.version,
        evicts=view.evicts,
        starts=view.starts,
        queues=view.queues,
        warnings=warnings,
    )


def _if_version(header: str | None) -> int:
    text = (header or "").strip().strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UserError(
            "If-Match: send the version of the policy that the edit started from",
            field=VERSION_HEADER,
            hint="GET /v1/policy says it; `tercio queue set` does this by itself",
        )
    return int(text)


async def topology(call: Call[TopologyQuery, NoBody]) -> TopologyView:
    """Return free capacity by domain and the largest gangs that fit."""
    query = call.query
    call.context.check_site(query.site)
    return topology_view(
        call.context.controller.driver,
        devices=query.devices,
        has_nodes=query.nodes,
        site=query.site,
    )


# Reservations.


async def list_reservations(call: Call[PageQuery, NoBody]) -> ReservationList:
    """Return the reservations, in order of addition."""
    now_s = call.context.now()
    every = list(call.context.cluster.reservations.values())
    after = read_cursor("reservations", call.query.after)
    names = [each.name for each in every]
    start = names.index(after) + 1 if after in names else 0
    shown = every[start : start + call.query.limit]
    more = start + len(shown) < len(every)
    return ReservationList(
        rows=tuple(reservation_view(each, now_s) for each in shown),
        next=make_cursor("reservations", shown[-1].name) if more else None,
    )


def reservation_view(reservation: Reservation, now_s: float) -> ReservationView:
    """Return how a reservation is shown."""
    window = next(iter(reservation.windows(now_s)), None)
    return ReservationView(
        name=reservation.name,
        queue=reservation.queue,
        user=reservation.user,
        type=reservation.type,
        devices=reservation.devices,
        shape=reservation.shape,
        from_s=reservation.from_s,
        duration_s=reservation.duration_s,
        every_s=reservation.every_s,
        until_s=reservation.until_s,
        nodes=reservation.nodes,
        reason=reservation.reason,
        is_open=window is not None and window.from_s <= now_s,
        window=None if window is None else (window.from_s, window.until_s),
    )


async def add_reservation(call: Call[NoQuery, ReservationBody]) -> ReservationView:
    """Keep capacity for a queue or a user."""
    context = call.context
    wanted = _wanted(call.body, context.now())
    await context.controller.execute(AddReservation(reservation=wanted), call.principal)
    now_s = context.now()
    view = reservation_view(reserving.find(context.cluster, wanted.name), now_s)
    warning = reserving.overbooked(context.cluster, wanted, now_s)
    return view if warning is None else msgspec.structs.replace(view, warnings=(warning,))


def _wanted(body: ReservationBody, now_s: float) -> Reservation:
    """Read the amounts and times of a body."""
    request = _request(body.gpus) if body.gpus is not None else DeviceRequest()
    from_s = read_instant_s(body.start, field="start")
    until_s = read_instant_s(body.until, field="until")
    every_s = None if body.every is None else parse_duration_s(body.every, field="every")
    return Reservation(
        name=body.name,
        from_s=now_s if from_s is None else from_s,
        duration_s=parse_duration_s(body.duration, field="duration"),
        queue=None if body.queue is None else QueuePath(body.queue),
        user=body.user,
        type=request.type or body.type,
        devices=request.count,
        shape=body.shape,
        every_s=every_s or None,
        until_s=until_s,
        nodes=tuple(dict.fromkeys(NodeName(node) for node in body.nodes)),
        reason=body.reason,
    )


def _request(text: str) -> DeviceRequest:
    found = parse_devices(text, field="gpus")
    first = found[0]
    is_plain = first.vendor is None and first.card_bytes is None and first.count_max is None
    if len(found) > 1 or first.is_shared or not first.count or not is_plain:
        raise UserError(
            f"gpus: '{text}' is not a count of one device type",
            field="gpus",
            hint="write H100:16, or 16 for devices of any type",
        )
    return first


async def remove_reservation(call: Call[NoQuery, NoBody]) -> Done:
    """End a reservation. What runs in it goes on."""
    command = RemoveReservation(name=call.path["reservation"])
    await call.context.controller.execute(command, call.principal)
    return Done()


async def gaps(call: Call[SitePageQuery, NoBody]) -> GapList:
    """Return where a short job would be let in before what is promised or reserved."""
    site = call.query.site
    call.context.check_site(site)
    rows = gap_rows(call.context.controller.driver, call.context.now(), site=site)
    after = read_cursor("gaps", call.query.after)
    start = int(after) if after is not None and after.isdecimal() else 0
    shown = rows[start : start + call.query.limit]
    more = start + len(shown) < len(rows)
    return GapList(rows=shown, next=make_cursor("gaps", str(start + len(shown))) if more else None)


async def accuracy(call: Call[NoQuery, NoBody]) -> StartAccuracy:
    """Return how the last start estimates came out."""
    return start_accuracy(call.context.cluster.starts)


async def limits(call: Call[NoQuery, NoBody]) -> OwnerLimitList:
    """Return limits of users and tenants; without the role of an operator, only one's own."""
    rows = owner_limit_rows(call.context.cluster, call.context.now())
    reader = call.principal
    if not reader.has_role(Role.OPERATOR):
        own = {("user", reader.user), ("tenant", reader.tenant)}
        rows = [row for row in rows if (row.kind, row.name) in own]
    return OwnerLimitList(rows=tuple(rows))


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/policy",
        name="policy",
        summary="Show the policy in force, or an earlier version",
        role=Role.VIEWER,
        perform=show_policy,
        query=PolicyQuery,
        answer=PolicyView,
    ),
    Route(
        method="PUT",
        path="/v1/policy",
        name="set_policy",
        summary="Put the policy of a policy file in force",
        role=Role.ADMIN,
        perform=set_policy,
        body=PolicyBody,
        answer=PolicyView,
        headers={VERSION_HEADER: "version that the edit started from"},
    ),
    Route(
        method="POST",
        path="/v1/policy/plan",
        name="policy_plan",
        summary="Say what a policy would do to the jobs there are",
        role=Role.OPERATOR,
        perform=policy_plan,
        body=PolicyBody,
        answer=PolicyPlanView,
    ),
    Route(
        method="GET",
        path="/v1/policy/history",
        name="policy_history",
        summary="List the versions of the policy, newest first",
        role=Role.VIEWER,
        perform=policy_history,
        query=PageQuery,
        answer=PolicyHistory,
    ),
    Route(
        method="GET",
        path="/v1/topology",
        name="topology",
        summary="Show free capacity by domain and the largest gangs that fit",
        role=Role.VIEWER,
        perform=topology,
        query=TopologyQuery,
        answer=TopologyView,
    ),
    Route(
        method="GET",
        path="/v1/limits",
        name="limits",
        summary="Show limits of users and tenants, and what counts against them",
        role=Role.VIEWER,
        perform=limits,
        answer=OwnerLimitList,
    ),
    Route(
        method="GET",
        path="/v1/start-accuracy",
        name="start_accuracy",
        summary="Show how the last start estimates came out",
        role=Role.VIEWER,
        perform=accuracy,
        answer=StartAccuracy,
    ),
    Route(
        method="GET",
        path="/v1/reservations",
        name="reservations",
        summary="List reservations",
        role=Role.VIEWER,
        perform=list_reservations,
        query=PageQuery,
        answer=ReservationList,
    ),
    Route(
        method="GET",
        path="/v1/gaps",
        name="gaps",
        summary="List devices that are free until a promise or a reservation begins",
        role=Role.VIEWER,
        perform=gaps,
        query=SitePageQuery,
        answer=GapList,
    ),
    Route(
        method="POST",
        path="/v1/reservations",
        name="add_reservation",
        summary="Keep capacity for a queue or a user",
        role=Role.OPERATOR,
        perform=add_reservation,
        body=ReservationBody,
        answer=ReservationView,
    ),
    Route(
        method="DELETE",
        path="/v1/reservations/{reservation}",
        name="remove_reservation",
        summary="End a reservation",
        role=Role.OPERATOR,
        perform=remove_reservation,
    ),
)
"""Routes of the policy, of reservations and of the topology."""
