"""Power limits of devices: kept here, planned from readings outside, safe at every instant.

A device in use counts for its ceiling: the highest limit that may be in force. Limits are lowered
first and confirmed by the node's own reading; only then do others rise, and only into what is
free. So the ceilings of the devices in use below a budget never add up to more than it, whatever
order, answer or node is late. Free devices wait at their floor, ready to start there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.records import Job, wanted_milli
from tercio.energy.caps import CapClass
from tercio.energy.control import BudgetShare, ControlledDevice, ControlPlan, plan_limits
from tercio.health.policy import HealthPolicy, Power
from tercio.model.events import PowerCapped
from tercio.model.ids import JobId, NodeName
from tercio.model.node import Node
from tercio.model.power import CapOrders, DeviceCap, NodeCaps
from tercio.model.queue import Policy, PowerBudget
from tercio.model.readings import DeviceTelemetry
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.model.snapshot import RunningJob
from tercio.model.topology import domain_of

ENDED: Final = "power is not controlled any more"


class Seen(NamedTuple):
    """What a node said last, while that is fresh: its devices by position."""

    caps_revision: int
    devices: Mapping[int, DeviceTelemetry]


class Asked(NamedTuple):
    """What jobs ask of power: those that wait for it first come first, and limits by job."""

    waiting: Sequence[JobId] = ()
    wanted_w: Mapping[JobId, int] = {}


class View(NamedTuple):
    """Every device under control, and the budgets over them, with the plan for both."""

    devices: Mapping[str, ControlledDevice]
    places: Mapping[str, tuple[NodeName, int]]
    budgets: Sequence[BudgetShare]
    plan: ControlPlan


def look(
    cluster: Cluster, seen: Mapping[NodeName, Seen], *, policy: HealthPolicy, asked: Asked
) -> View:
    """Return the devices below the budgets of the policy, and the limits that are due."""
    in_use = devices_in_use(cluster.snapshot().running)
    devices: dict[str, ControlledDevice] = {}
    places: dict[str, tuple[NodeName, int]] = {}
    domains: dict[str, list[str]] = {budget.domain: [] for budget in cluster.policy.budgets}
    learned: list[str] = []
    for node in cluster.nodes.values():
        over = budgets_over(node, cluster.policy)
        if not over and not policy.power_slowdown_ratio:
            continue
        held = in_use.get(node.name, {})
        for spec in node.spec.devices:
            job = cluster.jobs.get(held[spec.index]) if spec.index in held else None
            found = _device(
                cluster, node, spec.index,
                seen=seen.get(node.name), job=job, policy=policy, asked=asked,
            )  # fmt: skip
            if found is None:
                continue
            devices[found.device] = found
            places[found.device] = (node.name, spec.index)
            for budget in over:
                domains[budget.domain].append(found.device)
            if not over:
                learned.append(found.device)
    budgets = [
        _budget(budget, [devices[name] for name in domains[budget.domain]], cluster, asked)
        for budget in cluster.policy.budgets
    ]
    if learned:
        # Below no budget: each gets what its job wants.
        most_w = sum(devices[name].default_w for name in learned)
        budgets.append(BudgetShare(domain="", budget_w=most_w, devices=tuple(learned)))
    return View(devices, places, budgets, plan_limits(devices, budgets))


def _device(
    cluster: Cluster,
    node: Node,
    index: int,
    *,
    seen: Seen | None,
    job: Job | None,
    policy: HealthPolicy,
    asked: Asked,
) -> ControlledDevice | None:
    """Return a device as it is controlled; None for one whose limits nobody knows."""
    spec, told = node.spec.devices[index], None if seen is None else seen.devices.get(index)
    cap = None if node.caps is None else node.caps.of(index)
    bounds = None if told is None else told.power_range
    default_w = bounds.default_w if bounds else cap.default_w if cap else spec.power_w
    if not default_w:
        return None
    floor_w = min(default_w, max(math.ceil(policy.power_floor_ratio * default_w), 1))
    if bounds is not None:
        floor_w = max(floor_w, bounds.min_w)
    in_force_w = None
    if told is not None and told.power_limit_w is not None:
        in_force_w = round(told.power_limit_w)
    is_heard = in_force_w is not None and bounds is not None and bool(spec.uuid)
    if cap is None:
        limit_w = ceiling_w = default_w if in_force_w is None else in_force_w
    else:
        limit_w, ceiling_w = cap.limit_w, cap.ceiling_w
        assert node.caps is not None
        if is_heard and seen is not None and seen.caps_revision >= node.caps.revision:
            ceiling_w = limit_w
        ceiling_w = max(ceiling_w, in_force_w or 0)
    return ControlledDevice(
        device=f"{node.name}/{index}",
        job=None if job is None else job.id,
        cap_class=CapClass.NORMAL if job is None else _class_of(cluster, job),
        limit_w=limit_w,
        ceiling_w=ceiling_w,
        floor_w=floor_w,
        default_w=default_w,
        wanted_w=default_w if job is None else asked.wanted_w.get(job.id, default_w),
        is_heard=is_heard,
    )


def _class_of(cluster: Cluster, job: Job) -> CapClass:
    """Return whose power goes first: that of jobs that may be evicted; deadlines come last."""
    if job.spec.time.deadline_s is not None:
        return CapClass.PROTECTED
    running = cluster.snapshot().running.get(job.id)
    is_preemptible = running is not None and running.is_preemptible
    return CapClass.PREEMPTIBLE if is_preemptible else CapClass.NORMAL


def _budget(
    budget: PowerBudget, members: Sequence[ControlledDevice], cluster: Cluster, asked: Asked
) -> BudgetShare:
    """Return a budget with the power that the first job that waits for it would start with."""
    free = [device for device in members if device.job is None]
    wanted = 0
    for job_id in asked.waiting[:1]:
        groups = cluster.jobs[job_id].spec.groups
        wanted = -(-wanted_milli(groups) // WHOLE_DEVICE_MILLI)
    return BudgetShare(
        domain=budget.domain,
        budget_w=budget.power_w,
        devices=tuple(device.device for device in members),
        demand_w=sum(sorted(device.floor_w for device in free)[:wanted]),
    )


def power_events(
    cluster: Cluster,
    seen: Mapping[NodeName, Seen],
    *,
    policy: HealthPolicy,
    asked: Asked,
    revision: int,
    now_s: float,
) -> list[PowerCapped]:
    """Return what is ordered, confirmed and given up now, one event a node.

    Args:
        cluster: the state.
        seen: fresh readings by node.
        policy: of health, which says whether power is controlled.
        asked: what jobs ask of power.
        revision: of the orders made now; more than that of any before.
        now_s: seconds since the epoch.
    """
    if policy.power is not Power.ACT:
        return _given_up(cluster, {}, now_s)
    view = look(cluster, seen, policy=policy, asked=asked)
    by_node: dict[NodeName, dict[int, ControlledDevice]] = {}
    for name, (node_name, index) in view.places.items():
        by_node.setdefault(node_name, {})[index] = view.devices[name]
    events = _given_up(cluster, by_node, now_s)
    stops = _stops(cluster, view)
    for node_name, devices in by_node.items():
        node = cluster.nodes[node_name]
        caps = _caps(node, devices, view.plan.limits_w, revision)
        stop = stops.get(node_name, ())
        if (caps is not None and caps != node.caps) or stop:
            reason = _reason(node, cluster.policy, is_short=bool(stop))
            events.append(
                PowerCapped(
                    at_s=now_s, node=node_name, caps=caps or node.caps, reason=reason, stop=stop
                )
            )
    return events


def _given_up(
    cluster: Cluster, controlled: Mapping[NodeName, object], now_s: float
) -> list[PowerCapped]:
    return [
        PowerCapped(at_s=now_s, node=node.name, reason=ENDED)
        for node in cluster.nodes.values()
        if node.caps is not None and node.name not in controlled
    ]


def _caps(
    node: Node,
    devices: Mapping[int, ControlledDevice],
    limits_w: Mapping[str, int],
    revision: int,
) -> NodeCaps | None:
    """Return the limits of a node from now on; None where nothing was ever ordered."""
    is_changed = any(device.device in limits_w for device in devices.values())
    if node.caps is None and not is_changed:
        return None
    caps = []
    for index, device in sorted(devices.items()):
        limit_w = limits_w.get(device.device, device.limit_w)
        caps.append(
            DeviceCap(
                index=index,
                uuid=node.spec.devices[index].uuid,
                limit_w=limit_w,
                ceiling_w=max(device.ceiling_w, limit_w),
                floor_w=device.floor_w,
                default_w=device.default_w,
            )
        )
    kept = revision if is_changed or node.caps is None else node.caps.revision
    return NodeCaps(revision=kept, devices=tuple(caps))


def _stops(cluster: Cluster, view: View) -> dict[NodeName, tuple[JobId, ...]]:
    """Return the jobs to stop, on the first node of each; only those that may be evicted."""
    found: dict[NodeName, tuple[JobId, ...]] = {}
    for name in view.plan.stop:
        job = cluster.snapshot().running.get(JobId(name))
        if job is not None and job.is_preemptible and not job.is_stopping:
            node = job.tasks[0].node
            found[node] = (*found.get(node, ()), job.job_id)
    return found


def _reason(node: Node, policy: Policy, *, is_short: bool) -> str:
    budgets = budgets_over(node, policy)
    if not budgets:
        return "to save energy"
    told = ", ".join(f"{budget.power_w} W of {budget.domain}" for budget in budgets)
    if is_short:
        return f"not even the lowest power limits fit the budget of {told}"
    return f"to keep the power budget of {told}"


def orders_of(nodes: Sequence[Node]) -> CapOrders | None:
    """Return the limits that a machine of one node, or several, is to keep; None for none."""
    capped = [node.caps for node in nodes if node.caps is not None]
    if not capped:
        return None
    return CapOrders(
        revision=max(caps.revision for caps in capped),
        limits={cap.uuid: cap.limit_w for caps in capped for cap in caps.devices if cap.uuid},
    )


def is_news(cluster: Cluster, event: PowerCapped) -> bool:
    """Whether an order of limits changes anything, and passes no budget.

    What started between the plan and its order may have taken what was free then.
    """
    node = cluster.nodes.get(event.node)
    if node is None:
        return False
    stops = any(
        job_id in cluster.jobs and cluster.jobs[job_id].stop_cause is None for job_id in event.stop
    )
    if node.caps == event.caps:
        return stops
    if node.caps is not None and event.caps is not None and _is_stale(node.caps, event.caps):
        return False
    if event.caps is None or not _raises(node.caps, event.caps):
        return True
    changed = msgspec.structs.replace(node, caps=event.caps)
    in_use = devices_in_use(cluster.snapshot().running)
    return all(
        budget.power_w >= _used_w(cluster, in_use, budget, changed)
        for budget in budgets_over(node, cluster.policy)
    )


def _is_stale(known: NodeCaps, said: NodeCaps) -> bool:
    """Whether limits were made without knowledge of a later order, which may be in force."""
    if said.revision != known.revision:
        return said.revision < known.revision
    same = {cap.index: cap.limit_w for cap in known.devices}
    return same != {cap.index: cap.limit_w for cap in said.devices}


def _used_w(
    cluster: Cluster,
    in_use: Mapping[NodeName, Mapping[int, JobId]],
    budget: PowerBudget,
    changed: Node,
) -> int:
    """Return the ceilings of the devices in use below a budget, once a node has changed."""
    used_w = 0
    for name, indexes in in_use.items():
        node = changed if name == changed.name else cluster.nodes.get(name)
        if node is not None and is_in(node, budget.domain, cluster.policy):
            used_w += sum(node.ceiling_w(index) for index in indexes)
    return used_w


def _raises(before: NodeCaps | None, after: NodeCaps) -> bool:
    known = {} if before is None else {cap.index: cap.ceiling_w for cap in before.devices}
    return any(cap.ceiling_w > known.get(cap.index, cap.default_w) for cap in after.devices)


def devices_in_use(running: Mapping[JobId, RunningJob]) -> dict[NodeName, dict[int, JobId]]:
    """Return the devices that tasks hold, each with the first job on it; O(running tasks)."""
    found: dict[NodeName, dict[int, JobId]] = {}
    for job in running.values():
        for placement in job.tasks:
            held = found.setdefault(placement.node, {})
            for share in placement.devices:
                held.setdefault(share.index, job.job_id)
    return found


def budgets_over(node: Node, policy: Policy) -> Sequence[PowerBudget]:
    """Return the budgets whose domain holds a node."""
    return [budget for budget in policy.budgets if is_in(node, budget.domain, policy)]


def is_in(node: Node, domain: str, policy: Policy) -> bool:
    """Whether a node belongs to a domain, at whatever level that is a name."""
    return any(domain_of(node.spec, level) == domain for level in policy.topology)
