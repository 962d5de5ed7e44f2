"""`limits` of the policy file: what users and tenants may have, over all queues."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.formats import quota
from tercio.formats.cursor import Cursor
from tercio.formats.document import Json
from tercio.formats.quota import QuotaContext
from tercio.model.limits import DAY_S, HOUR_MS, MAX_WINDOW_DAYS, DeviceTime, Limits, OwnerLimit

LIMITS_KEYS: Final = ("per_user", "per_tenant", "users", "tenants")
DEVICE_HOURS: Final = "device_hours"
MAX_HOURS: Final = 10**10
_BUDGET: Final = "write a budget such as {amount: 1000, per: 7d}"
_NONE: Final[dict[str, OwnerLimit]] = {}
_MOVED: Final = {
    "user": "did you mean 'per_user'?",
    "tenant": "did you mean 'per_tenant'?",
    "groups": "write limits of a group as those of a queue that it submits to",
}


def read_limits(at: Cursor, context: QuotaContext) -> Limits:
    """Read `limits`."""
    fields = at.fields(LIMITS_KEYS, moved=_MOVED)
    return Limits(
        per_user=fields.read("per_user", lambda a: _limit(a, context), OwnerLimit()),
        per_tenant=fields.read("per_tenant", lambda a: _limit(a, context), OwnerLimit()),
        users=fields.read("users", lambda a: _named(a, context, "ana"), _NONE),
        tenants=fields.read("tenants", lambda a: _named(a, context, "acme"), _NONE),
    )


def _named(at: Cursor, context: QuotaContext, example: str) -> dict[str, OwnerLimit]:
    fix = f"write limits by name, such as {{{example}: {{devices: 32}}}}"
    found: dict[str, OwnerLimit] = {}
    for name, inner in at.mapping(fix):
        if not name or len(name) > 128 or any(c.isspace() or c == "," for c in name):
            raise inner.fault(f"'{name[:80]}' is no name", "write 1 to 128 characters, no spaces")
        found[name] = OwnerLimit() if inner.node.value is None else _limit(inner, context)
    return found


def _limit(at: Cursor, context: QuotaContext) -> OwnerLimit:
    if not isinstance(at.node.value, dict):
        raise at.wrong("a mapping", "write limits such as {devices: 16, running_jobs: 20}")
    rest = {key: node for key, node in at.node.value.items() if key != DEVICE_HOURS}
    amounts = quota.read_amounts(
        Cursor(at.source, at.path, msgspec.structs.replace(at.node, value=rest)),
        context, of_user=True,
    )  # fmt: skip
    node = at.node.value.get(DEVICE_HOURS)
    if node is None or node.value is None:
        return OwnerLimit(amounts=amounts)
    return OwnerLimit(amounts=amounts, device_time=_budget(at.child(DEVICE_HOURS, node)))


def _budget(at: Cursor) -> DeviceTime:
    if not isinstance(at.node.value, dict):
        raise at.wrong("an amount with a period", _BUDGET)
    fields = at.fields(("amount", "per"))
    hours = fields.need("amount", lambda a: a.number(0, MAX_HOURS), _BUDGET)
    days = fields.need("per", _days, _BUDGET)
    return DeviceTime(amount_ms=round(hours * HOUR_MS), days=days)


def _days(at: Cursor) -> int:
    """Windows are whole days, since they begin and end at midnight UTC."""
    period_s = at.duration_s()
    if period_s < DAY_S or period_s % DAY_S:
        raise at.fault(f"{at.shown()} is no number of whole days", "write a period such as 7d")
    if period_s > MAX_WINDOW_DAYS * DAY_S:
        raise at.fault(f"{at.shown()} is too long", f"write at most {MAX_WINDOW_DAYS}d")
    return int(period_s // DAY_S)


def limits_tree(limits: Limits) -> dict[str, Json]:
    """Return limits in the form of the file, without what is not limited."""
    tree: dict[str, Json] = {}
    for key, limit in (("per_user", limits.per_user), ("per_tenant", limits.per_tenant)):
        if limit != OwnerLimit():
            tree[key] = _limit_tree(limit)
    for key, named in (("users", limits.users), ("tenants", limits.tenants)):
        if named:
            tree[key] = {name: _limit_tree(limit) for name, limit in named.items()}
    return tree


def _limit_tree(limit: OwnerLimit) -> dict[str, Json]:
    tree = quota.amounts_tree(limit.amounts)
    if limit.device_time is not None:
        hours = limit.device_time.amount_ms / HOUR_MS
        amount: Json = int(hours) if hours.is_integer() else hours
        tree[DEVICE_HOURS] = {"amount": amount, "per": f"{limit.device_time.days}d"}
    return tree
