"""What a policy strands and promises, beside what the cluster is and has."""

from __future__ import annotations

from tercio.core.cluster import Cluster
from tercio.errors import UserError
from tercio.model.job import ACTIVE_JOB_STATES, TERMINAL_JOB_STATES
from tercio.model.queue import Policy, promised, walk_queues
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI, Amounts
from tercio.model.shape import (
    PREFIX,
    Domains,
    domains_of,
    exceeds,
    shape_levels,
    with_shapes,
)
from tercio.sched.words import amount_words


def check_policy(cluster: Cluster, policy: Policy) -> None:
    """Refuse a policy that would strand a job or promise what the cluster does not have.

    Losing nodes never makes the policy in force wrong: only what an edit promises beyond it is
    compared with the capacity.

    Raises:
        UserError: `conflict` or `invalid`.
    """
    queues = walk_queues(policy)
    for job in cluster.jobs.values():
        if job.queue not in queues and job.state not in TERMINAL_JOB_STATES:
            what = "runs" if job.state in ACTIVE_JOB_STATES else "waits"
            raise UserError(
                f"queue '{job.queue}' cannot go: job {job.id} {what} in it",
                code="conflict",
                hint="keep the queue with limit {devices: 0}, or cancel its jobs first",
                field="queues",
            )
    for each in cluster.reservations.values():
        if each.queue is not None and each.queue not in queues:
            raise UserError(
                f"queue '{each.queue}' cannot go: reservation {each.name} is for it",
                code="conflict",
                hint=f"keep the queue, or `tercio reserve remove {each.name}` first",
                field="queues",
            )
    if not policy.overcommit and cluster.nodes:
        _check_promised(cluster, policy)


def _check_promised(cluster: Cluster, policy: Policy) -> None:
    excess = promised_excess(cluster, policy)
    if excess is None:
        return
    resource, total, have = excess
    raise UserError(
        f"queues: guarantees of {amount_words(resource, total)}, but the cluster has "
        f"{amount_words(resource, have)}",
        hint="lower them, or allow it by overcommit: true (--overcommit)",
        field="queues",
    )


def promised_excess(cluster: Cluster, policy: Policy) -> tuple[str, int, int] | None:
    """Return what a policy guarantees beyond the cluster and beyond the policy in force, or None.

    The answer is (resource, guaranteed, there is); a resource may be a count of whole domains.
    """
    domains = installed_domains(cluster, policy)
    excess = exceeds(policy.queues, installed(cluster), domains)
    if excess is None:
        return None
    resource, total, _ = excess
    before = cluster.policy.queues
    if resource.startswith(PREFIX):
        level = resource.removeprefix(PREFIX)
        kept = sum(q.guarantee_shape.get(level, 0) for q in before.values()) * WHOLE_DEVICE_MILLI
    else:
        kept = promised(with_shapes(before, domains)).get(resource, 0)
    return excess if total > kept else None


def installed_domains(cluster: Cluster, policy: Policy) -> Domains:
    """Return what the domains have of which a policy guarantees some, up or not."""
    levels = dict.fromkeys((*shape_levels(policy.queues), *shape_levels(cluster.policy.queues)))
    return domains_of((node.spec for node in cluster.nodes.values()), levels)


def installed(cluster: Cluster) -> Amounts:
    """Return everything that the known nodes have, up or not: what a policy may promise."""
    total: Amounts = {CPUS: 0, MEMORY: 0, DEVICES: 0}
    for node in cluster.nodes.values():
        total[CPUS] += node.spec.cpus_milli
        total[MEMORY] += node.spec.memory_bytes
        for device in node.spec.devices:
            total[device.type] = total.get(device.type, 0) + WHOLE_DEVICE_MILLI
            total[DEVICES] += WHOLE_DEVICE_MILLI
    return total
