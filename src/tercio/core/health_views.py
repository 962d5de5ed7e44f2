"""What people are shown of health."""

from __future__ import annotations

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.healing import book_of, noted, policy_of
from tercio.core.health_commands import SETTINGS, check_settings
from tercio.core.powering import View as PowerView
from tercio.energy.control import BudgetShare
from tercio.health.machine import NodeState
from tercio.model.health import HealthRecord, HealthSettings
from tercio.model.health_views import (
    HealthDecision,
    HealthPlanView,
    HealthPolicyView,
    NodeHealthView,
    PowerReport,
    PowerRow,
)
from tercio.model.ids import NodeName
from tercio.model.readings import DeviceTelemetry, NodeReading

_FAULTS_SHOWN = 50


def node_health(
    cluster: Cluster,
    name: NodeName,
    *,
    reading: NodeReading | None = None,
    devices: dict[int, DeviceTelemetry] | None = None,
) -> NodeHealthView:
    """Return the health of a node, with what its devices say now."""
    record = cluster.health.records.get(name, HealthRecord())
    return NodeHealthView(
        node=name,
        state=record.state,
        since_s=record.since_s,
        reason=record.reason,
        said=_words(record.said),
        replaced_by=record.replaced_by or "",
        faults=tuple(cluster.health.faults.get(name, ())[-_FAULTS_SHOWN:]),
        moves=record.moves,
        repairs=record.repairs,
        driver=reading.driver if reading is not None else "",
        agent=reading.version if reading is not None else "",
        devices=devices or {},
        notes=reading.notes if reading is not None else {},
        caps=cluster.nodes[name].caps if name in cluster.nodes else None,
    )


def power_report(cluster: Cluster, view: PowerView, *, drawn_w: dict[str, float]) -> PowerReport:
    """Return the power budgets with what devices below them may draw.

    Args:
        cluster: the state.
        view: of the power control.
        drawn_w: what devices draw now, by their names in the view.
    """
    return PowerReport(
        mode=policy_of(cluster.health.settings).power.value,
        rows=tuple(_power_row(view, budget, drawn_w) for budget in view.budgets if budget.domain),
    )


def _power_row(view: PowerView, budget: BudgetShare, drawn_w: dict[str, float]) -> PowerRow:
    devices = [view.devices[name] for name in budget.devices]
    in_use = [device for device in devices if device.job is not None]
    limits = [device.limit_w for device in in_use]
    drawn = [drawn_w[name] for name in budget.devices if name in drawn_w]
    return PowerRow(
        domain=budget.domain,
        budget_w=budget.budget_w,
        ceiling_w=sum(device.ceiling_w for device in in_use),
        drawn_w=sum(drawn) if drawn else None,
        in_use=len(in_use),
        devices=len(devices),
        limit_least_w=min(limits, default=None),
        limit_most_w=max(limits, default=None),
        demand_w=budget.demand_w,
        due=sum(1 for device in devices if device.device in view.plan.limits_w),
        silent=sum(1 for device in devices if not device.is_heard),
    )


def _words(said: str) -> str:
    """Say a decision's key in words."""
    if said.count("|") < 4:
        return ""
    order, action, reason, _, held_by = said.split("|", 4)
    what = order.replace("_", " ") + (f" ({action})" if action != "none" else "")
    return f"{what}: {reason}" + (f"; held by: {held_by}" if held_by else "")


def policy_view(cluster: Cluster) -> HealthPolicyView:
    """Return the health policy in force."""
    health = cluster.health
    policy = msgspec.to_builtins(policy_of(health.settings))
    return HealthPolicyView(
        version=health.version,
        settings=health.settings,
        effective={name: policy[name] for name in SETTINGS},
        breaker_open_s=health.breaker_open_s,
    )


def plan(cluster: Cluster, settings: HealthSettings, now_s: float) -> HealthPlanView:
    """Return what the policy with these changes would do now; changes nothing.

    Raises:
        UserError: a setting makes no sense.
    """
    changed = {**cluster.health.settings, **settings}
    policy = check_settings(changed)
    book = book_of(cluster, now_s, policy=policy)
    for name in noted(cluster):
        node = book.record(name)
        node.said = ""
        if node.state is NodeState.SUSPECT:
            # Suspect is what a brake made of it: the plan asks what is due without that brake.
            node.state = NodeState.OK
    decisions = book.decide(now_s)
    return HealthPlanView(
        settings=changed,
        rows=tuple(
            HealthDecision(
                node=decision.node,
                order=decision.order.value,
                action=decision.action.value,
                reason=decision.reason,
                held_by=decision.held_by.value if decision.held_by else "",
            )
            for decision in decisions
        ),
    )
