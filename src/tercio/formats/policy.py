"""The policy file: YAML with human units to `Policy`, and back.

What people write in a guarantee, a limit or a user limit is `{H100: 64, devices: 80, cpus: 512,
memory: 4TiB}`; inside, devices and cores are counted in thousandths and memory in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import yaml

from tercio.errors import UserError, did_you_mean
from tercio.formats import quota
from tercio.formats.cursor import NAME, Cursor, Fields
from tercio.formats.devices import exact_memory
from tercio.formats.document import Json, Node, from_json, read_documents
from tercio.formats.limits import limits_tree, read_limits
from tercio.formats.quota import QuotaContext
from tercio.model.ids import QueuePath
from tercio.model.queue import (
    AcrossQueues,
    DefaultShare,
    ElasticPolicy,
    Flexible,
    PlacementPolicy,
    Policy,
    PowerBudget,
    Predict,
    PreemptionPolicy,
    QueueOrder,
    QueueSpec,
    WithinQueue,
    walk_queues,
)
from tercio.model.resources import Amounts
from tercio.model.shape import Domains
from tercio.model.topology import ISLAND, NODE, SITE
from tercio.model.units import format_milli

POLICY_KEYS: Final = (
    "default_queue", "half_life", "reservation_depth", "max_overtake", "fence_after", "topology",
    "preemption", "placement", "default_share", "queues", "budgets", "limits", "overcommit",
    "predict", "elastic", "flexible",
)  # fmt: skip
PREEMPTION_KEYS: Final = (
    "within_queue", "across_queues", "grace", "min_runtime", "max_evictions_per_job_per_hour",
)  # fmt: skip
QUEUE_KEYS: Final = (
    "guarantee", "limit", "weight", "lend_limit", "borrow_limit", "order", "preemptible",
    "submit", "admin", "user_limit", "children",
)  # fmt: skip
PACKING: Final = ("fragmentation", "bestfit", "spread")
MAX_WEIGHT: Final = 1_000_000
MAX_QUEUE_DEPTH: Final = 10
_WHO: Final = r"^(user|group):[^\s,]{1,128}$"

_MOVED: Final = {
    "max": "did you mean 'limit'?",
    "quota": "did you mean 'guarantee'?",
    "parent": "write the queue below children of its parent",
}


def read_policy(
    text: str,
    *,
    source: str = "policy",
    capacity: Amounts | None = None,
    domains: Domains | None = None,
    overcommit: bool = False,
    types: tuple[str, ...] = (),
) -> Policy:
    """Read a policy.

    Args:
        text: the file.
        source: its name, for messages.
        capacity: what the cluster has; top-level guarantees above it are refused unless the
            policy says `overcommit: true`. None checks nothing.
        domains: the domains of its topology levels, for guarantees by shape; None leaves those
            unchecked.
        overcommit: as if the file said so.
        types: device types of the cluster beside those of the packaged table.

    Raises:
        UserError: naming line, field, value and fix.
    """
    documents = read_documents(text, source=source)
    if len(documents) > 1:
        raise UserError(f"{source}: {len(documents)} documents", hint="write one policy")
    node = documents[0] if documents else Node(value={})
    return _read_policy(
        Cursor(source, "", node), capacity, types, domains=domains, overcommit=overcommit
    )


def read_policy_object(
    policy: Json,
    *,
    source: str = "policy",
    capacity: Amounts | None = None,
    overcommit: bool = False,
    types: tuple[str, ...] = (),
) -> Policy:
    """Read a policy that is already parsed JSON; otherwise as `read_policy`."""
    at = Cursor(source, "", from_json(policy))
    return _read_policy(at, capacity, types, overcommit=overcommit)


def _read_policy(
    at: Cursor,
    capacity: Amounts | None,
    types: tuple[str, ...],
    *,
    domains: Domains | None = None,
    overcommit: bool,
) -> Policy:
    fields = at.fields(POLICY_KEYS)
    default = Policy()
    levels = fields.read("topology", _levels, default.topology)
    context = QuotaContext(levels=levels, types=(*types, *(capacity or {})))
    queues = fields.read("queues", lambda a: _queues(a, context, depth=0), default.queues)
    policy = Policy(
        default_queue=fields.read("default_queue", _path, _first_queue(queues)),
        half_life_s=fields.read("half_life", Cursor.duration_s, default.half_life_s),
        reservation_depth=fields.read("reservation_depth", _depth, default.reservation_depth),
        max_overtake_s=fields.read("max_overtake", Cursor.duration_s, default.max_overtake_s),
        fence_after_s=fields.read("fence_after", Cursor.duration_s, default.fence_after_s),
        topology=levels,
        preemption=fields.read("preemption", _preemption, default.preemption),
        placement=fields.read("placement", _placement, default.placement),
        default_share=fields.read("default_share", _default_share, default.default_share),
        queues=queues,
        budgets=fields.read("budgets", _budgets, ()),
        limits=fields.read("limits", lambda a: read_limits(a, context), default.limits),
        overcommit=fields.read("overcommit", Cursor.boolean, False) or overcommit,
        predict=fields.read("predict", lambda a: a.choice(Predict), default.predict),
        elastic=fields.read("elastic", _elastic, None),
        flexible=fields.read("flexible", lambda a: a.choice(Flexible), default.flexible),
    )
    known = walk_queues(policy)
    if policy.default_queue not in known:
        named = fields.find("default_queue") or at.child("default_queue", at.node)
        fix = did_you_mean(policy.default_queue, known) or f"queues: {', '.join(known)}"[:400]
        raise named.fault(f"'{policy.default_queue}' is no queue of this policy", fix)
    top = fields.find("queues")
    if top is not None:
        quota.check_tree(top, queues)
        if capacity is not None and not policy.overcommit:
            quota.check_capacity(top, queues, capacity, domains)
    return policy


def _first_queue(queues: Mapping[str, QueueSpec]) -> QueuePath:
    """Return `default`, or the only queue of the file where it has just one."""
    names = list(queues)
    return QueuePath(names[0]) if len(names) == 1 else Policy().default_queue


def _path(at: Cursor) -> QueuePath:
    return QueuePath(at.word("write the path of a queue, such as research/nlp", most=255))


def _levels(at: Cursor) -> tuple[str, ...]:
    fix = "write levels from small to large, such as [island, node, rack, block, zone, site]"
    levels: list[str] = []
    for row in at.rows(fix, most=16):
        level = row.word(fix, pattern=NAME)
        if level in levels:
            raise row.fault(f"'{level}' stands twice", "remove one of them")
        levels.append(level)
    if NODE not in levels:
        raise at.fault("the level 'node' is missing", fix)
    if ISLAND in levels and levels.index(ISLAND) > levels.index(NODE):
        raise at.fault("'island' is larger than 'node'", "write island before node")
    if SITE in levels and levels[-1] != SITE:
        raise at.fault("'site' is not the largest level", "write site last")
    return tuple(levels)


def _depth(at: Cursor) -> int | None:
    if at.node.value == "all":
        return None
    return at.integer(0, 1_000_000, "a number of jobs, or all")


def _preemption(at: Cursor) -> PreemptionPolicy:
    fields = at.fields(PREEMPTION_KEYS)
    default = PreemptionPolicy()
    return PreemptionPolicy(
        within_queue=fields.read(
            "within_queue", lambda a: a.choice(WithinQueue), default.within_queue
        ),
        across_queues=fields.read(
            "across_queues", lambda a: a.choice(AcrossQueues), default.across_queues
        ),
        grace_s=fields.read("grace", Cursor.duration_s, default.grace_s),
        min_runtime_s=fields.read("min_runtime", Cursor.duration_s, default.min_runtime_s),
        max_evictions_per_job_per_hour=fields.read(
            "max_evictions_per_job_per_hour", _evictions, default.max_evictions_per_job_per_hour
        ),
    )


def _evictions(at: Cursor) -> int | None:
    return None if at.node.value == "all" else at.integer(0, 3600, "a number, or all for no bound")


def _placement(at: Cursor) -> PlacementPolicy:
    fields = at.fields(("pack", "defragment"))
    return PlacementPolicy(
        pack=fields.read("pack", lambda a: a.option(PACKING), PlacementPolicy().pack),
        defragment=fields.read("defragment", lambda a: a.option(("off", "on")), "off") == "on",
    )


def _elastic(at: Cursor) -> ElasticPolicy | None:
    if at.node.value == "goodput":
        return ElasticPolicy()
    if at.node.value in (None, False, "off"):
        return None
    fields = at.fields(("fairness", "restart", "period", "turn"))
    default = ElasticPolicy()
    return ElasticPolicy(
        fairness=fields.read("fairness", _fairness, default.fairness),
        restart_s=fields.read("restart", Cursor.duration_s, default.restart_s),
        period_s=fields.read("period", _period_s, default.period_s),
        turn_s=fields.read("turn", _turn_s, default.turn_s),
    )


def _fairness(at: Cursor) -> float:
    fairness = at.number(-4, 1)
    if fairness == 0:
        fix = "write a number below 0 for more even shares, or up to 1 for more in total"
        raise at.fault("0 tells no rates apart", fix)
    return fairness


def _period_s(at: Cursor) -> float:
    period_s = at.duration_s()
    if period_s < 1:
        raise at.fault("it is below a second", "write a time such as 1m")
    return period_s


def _turn_s(at: Cursor) -> float | None:
    return None if at.node.value in (None, False, "off") else _period_s(at)


def _elastic_tree(elastic: ElasticPolicy | None) -> Json:
    if elastic is None:
        return "off"
    return {
        "fairness": elastic.fairness,
        "restart": _seconds(elastic.restart_s),
        "period": _seconds(elastic.period_s),
        "turn": "off" if elastic.turn_s is None else _seconds(elastic.turn_s),
    }


def _default_share(at: Cursor) -> DefaultShare:
    fields = at.fields(("cpus_per_device", "memory_per_device"))
    default = DefaultShare()
    return DefaultShare(
        cpus_milli_per_device=fields.read(
            "cpus_per_device", Cursor.cores_milli, default.cpus_milli_per_device
        ),
        memory_bytes_per_device=fields.read(
            "memory_per_device", Cursor.memory_bytes, default.memory_bytes_per_device
        ),
    )


def _budgets(at: Cursor) -> tuple[PowerBudget, ...]:
    budgets: list[PowerBudget] = []
    for row in at.rows("write a list such as [{domain: row-a, power: 400kW}]"):
        fields = row.fields(("domain", "power"))
        budget = PowerBudget(
            domain=fields.need(
                "domain", lambda a: a.word("write a name", pattern=NAME), "write a domain's name"
            ),
            power_w=fields.need("power", Cursor.power_w, "write a power such as 400kW"),
        )
        if any(budget.domain == other.domain for other in budgets):
            raise row.fault(f"'{budget.domain}' stands twice", "write one budget per domain")
        budgets.append(budget)
    return tuple(budgets)


def _queues(at: Cursor, context: QuotaContext, *, depth: int) -> dict[str, QueueSpec]:
    fix = "write a mapping of queue names, such as queues: {research: {weight: 2}}"
    if depth > MAX_QUEUE_DEPTH:
        raise at.fault("too deeply nested", f"nest queues at most {MAX_QUEUE_DEPTH} deep")
    queues: dict[str, QueueSpec] = {}
    for name, inner in at.mapping(fix):
        if "/" in name:
            head = name.split("/")[0]
            raise inner.fault(f"'{name}' is a path", f"write {head}: {{children: {{...}}}}")
        if not _is_name(name):
            hint = "write 1 to 63 letters, digits and . _ -"
            raise inner.fault(f"'{name[:80]}' is not a queue name", hint)
        queues[name] = _queue(inner, context, depth)
    if not queues and depth == 0:
        raise at.fault("no queue", fix)
    return queues


def _is_name(name: str) -> bool:
    return name.replace(".", "").replace("_", "").replace("-", "").isalnum() and (
        name.isascii() and len(name) <= 63 and name[0].isalnum()
    )


def _queue(at: Cursor, context: QuotaContext, depth: int) -> QueueSpec:
    if at.node.value is None:
        return QueueSpec()
    fields = at.fields(QUEUE_KEYS, moved=_MOVED)
    guarantee, shape = fields.read(
        "guarantee", lambda a: quota.read_guarantee(a, context), _NOTHING
    )

    def amounts(key: str) -> Amounts:
        return fields.read(key, lambda a: quota.read_amounts(a, context), _NO_AMOUNTS)

    return QueueSpec(
        guarantee=guarantee,
        guarantee_shape=shape,
        limit=amounts("limit"),
        weight=fields.read("weight", lambda a: a.integer(0, MAX_WEIGHT, "a whole weight"), 1),
        lend_limit=amounts("lend_limit"),
        borrow_limit=amounts("borrow_limit"),
        order=fields.read("order", lambda a: a.choice(QueueOrder), QueueOrder.BACKFILL),
        preemptible=fields.read("preemptible", Cursor.boolean, True),
        submit=_who(fields, "submit"),
        admin=_who(fields, "admin"),
        user_limit=fields.read(
            "user_limit", lambda a: quota.read_amounts(a, context, of_user=True), _NO_AMOUNTS
        ),
        children=fields.read(
            "children", lambda a: _queues(a, context, depth=depth + 1), _NO_QUEUES
        ),
    )


_NO_AMOUNTS: Final[Amounts] = {}
_NO_QUEUES: Final[dict[str, QueueSpec]] = {}
_NOTHING: Final[tuple[Amounts, dict[str, int]]] = ({}, {})


def _who(fields: Fields, key: str) -> tuple[str, ...]:
    fix = "write a list such as [group:nlp, user:ana]"

    def read(at: Cursor) -> tuple[str, ...]:
        names = [row.word(fix, pattern=_WHO) for row in at.rows(fix)]
        return tuple(dict.fromkeys(names))

    return fields.read(key, read, ())


def write_policy(policy: Policy) -> str:
    """Print a policy as YAML that `read_policy` reads back to the same policy.

    Rules are always written, so that the file shows what is in force; of a queue, only what
    differs from the default.
    """
    tree = {
        "default_queue": policy.default_queue,
        "half_life": _seconds(policy.half_life_s),
        "reservation_depth": "all"
        if policy.reservation_depth is None
        else policy.reservation_depth,
        "max_overtake": _seconds(policy.max_overtake_s),
        "fence_after": _seconds(policy.fence_after_s),
        "topology": list(policy.topology),
        "preemption": _preemption_tree(policy.preemption),
        "placement": {
            "pack": policy.placement.pack,
            "defragment": "on" if policy.placement.defragment else "off",
        },
        "default_share": {
            "cpus_per_device": _number(policy.default_share.cpus_milli_per_device),
            "memory_per_device": exact_memory(policy.default_share.memory_bytes_per_device),
        },
        "queues": {name: _queue_tree(queue) for name, queue in policy.queues.items()},
        "budgets": [{"domain": b.domain, "power": _power(b.power_w)} for b in policy.budgets],
        "limits": limits_tree(policy.limits),
        "overcommit": policy.overcommit,
        "predict": policy.predict.value,
        "elastic": _elastic_tree(policy.elastic),
        "flexible": policy.flexible.value,
    }
    return yaml.safe_dump(tree, sort_keys=False, width=100, default_flow_style=None)


def _preemption_tree(preemption: PreemptionPolicy) -> dict[str, Json]:
    most = preemption.max_evictions_per_job_per_hour
    return {
        "within_queue": preemption.within_queue.value,
        "across_queues": preemption.across_queues.value,
        "grace": _seconds(preemption.grace_s),
        "min_runtime": _seconds(preemption.min_runtime_s),
        "max_evictions_per_job_per_hour": "all" if most is None else most,
    }


def _queue_tree(queue: QueueSpec) -> dict[str, Json]:
    tree: dict[str, Json] = {}
    guarantee = quota.amounts_tree(queue.guarantee)
    if queue.guarantee_shape:
        guarantee["shape"] = dict(queue.guarantee_shape)
    for key, amounts in (
        ("guarantee", guarantee),
        ("limit", quota.amounts_tree(queue.limit)),
        ("lend_limit", quota.amounts_tree(queue.lend_limit)),
        ("borrow_limit", quota.amounts_tree(queue.borrow_limit)),
        ("user_limit", quota.amounts_tree(queue.user_limit)),
    ):
        if amounts:
            tree[key] = amounts
    if queue.weight != 1:
        tree["weight"] = queue.weight
    if queue.order is not QueueOrder.BACKFILL:
        tree["order"] = queue.order.value
    if not queue.preemptible:
        tree["preemptible"] = False
    for key, names in (("submit", queue.submit), ("admin", queue.admin)):
        if names:
            tree[key] = list(names)
    if queue.children:
        tree["children"] = {name: _queue_tree(child) for name, child in queue.children.items()}
    return tree


def _seconds(seconds: float) -> str | int | float:
    """Print a duration exactly: in the largest unit that divides it, or in seconds."""
    if seconds == 0:
        return 0
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return seconds


def _number(milli: int) -> int | float:
    return milli // 1000 if milli % 1000 == 0 else float(format_milli(milli))


def _power(power_w: int) -> str:
    return f"{power_w // 1000}kW" if power_w and power_w % 1000 == 0 else f"{power_w}W"
