"""What job classes were measured to need at each power limit, and which limit that asks for.

A class is what `forecast` tells jobs apart by (who, queue, name, size), on one device type. Limits
are tried from the default downwards on running jobs, and the one with the least energy within the
slowdown that the policy allows is kept. Nothing below the lowest measured limit is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tercio.core.cluster import Cluster
from tercio.core.records import Job, kind_of
from tercio.energy.caps import CapPoint, best_cap, next_probe_w
from tercio.health.policy import HealthPolicy
from tercio.model.ids import JobId
from tercio.model.job import JobState
from tercio.model.resources import WHOLE_DEVICE_MILLI


def class_of(cluster: Cluster, job: Job) -> str | None:
    """Return the class that a running job's curve is kept under, None where it has none.

    Jobs with shared devices, or with devices of several types, have no curve of their own.
    """
    types: dict[str, None] = {}
    for task in job.live_tasks:
        node = cluster.nodes.get(task.placement.node)
        for share in task.placement.devices:
            if node is None or share.milli != WHOLE_DEVICE_MILLI:
                return None
            types[node.spec.devices[share.index].type] = None
    if len(types) != 1:
        return None
    return "/".join((*(str(part) for part in kind_of(job)), *types))


def wanted_limits(
    cluster: Cluster, policy: HealthPolicy, *, bounds_w: Mapping[JobId, tuple[int, int]]
) -> dict[JobId, int]:
    """Return the limit that each running job should have: the next one to try, or the best known.

    Args:
        cluster: the state.
        policy: says how much longer steps may take.
        bounds_w: floor and default of the devices of each job that marks its steps.
    """
    found: dict[JobId, int] = {}
    slowdown = policy.power_slowdown_ratio
    for job_id, (floor_w, default_w) in bounds_w.items() if slowdown else ():
        job = cluster.jobs[job_id]
        key = class_of(cluster, job)
        if key is None or job.state is not JobState.RUNNING or job.spec.time.deadline_s is not None:
            continue
        points = [
            CapPoint(limit_w=p.limit_w, step_s=p.step_s, step_energy_j=p.step_energy_j)
            for p in cluster.health.curves.get(key, ())
        ]
        limit_w = next_probe_w(
            points, limit_min_w=floor_w, limit_max_w=default_w, slowdown_max_ratio=slowdown
        )
        best = best_cap(points, slowdown_max_ratio=slowdown)
        found[job_id] = limit_w or (best.limit_w if best else default_w)
    return found
