"""Dry runs: of a job, of a change to a waiting job, of a policy. They change nothing.

Every dry run is the scheduler itself on the snapshot that the next cycle would see, so that what
it says is what would happen, as long as nothing else happens first.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.commands import check_submit
from tercio.core.driver import Driver
from tercio.core.fitting import NEVER
from tercio.core.promises import check_policy
from tercio.core.records import Job, is_preemptible
from tercio.core.whatif import Variation, vary
from tercio.errors import UserError
from tercio.model.identity import Principal
from tercio.model.ids import JobId, QueuePath
from tercio.model.job import TERMINAL_JOB_STATES, JobSpec
from tercio.model.queue import Policy, walk_queues
from tercio.model.reasons import Decision, Outcome, StartEstimate
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.model.sharing_views import EvictionRow, PolicyPlanView, ShareRow, StartRow
from tercio.model.snapshot import Snapshot, WaitingJob
from tercio.model.units import format_duration
from tercio.model.views import PlanView
from tercio.sched.owners import owner
from tercio.sched.plan import Plan

_PLANNED: Final = JobId("job-planned")
_FAR_WAITING: Final = 1000
_FAR_NODES: Final = 2000
"""Waiting jobs and nodes up to which a start is worked out for a job beyond the reservation
depth: it is another cycle, from nothing, while the server waits."""


def plan_job(driver: Driver, spec: JobSpec, principal: Principal, now_s: float) -> PlanView:
    """Return what would happen if the job were submitted now.

    Raises:
        UserError: the submit would be refused, for another reason than that it can never fit.
    """
    cluster = driver.cluster
    path = check_submit(cluster, spec, principal)
    submitted_s = max(now_s, cluster.now_s)
    job = WaitingJob(
        job_id=_PLANNED,
        spec=spec,
        queue=path,
        user=principal.user,
        tenant=principal.tenant,
        priority=spec.priority,
        is_preemptible=is_preemptible(cluster.policy, path, spec),
        submitted_s=submitted_s,
        sequence=cluster.jobs_submitted + 1,
        not_before_s=spec.time.earliest_s,
        pending=spec.array.ranges if spec.array else None,
        blocked_on=tuple(
            dependency.job
            for dependency in spec.depends_on
            if cluster.jobs[dependency.job].state not in TERMINAL_JOB_STATES
        ),
        cheaper=cluster.prices.cheaper(cluster.policy, spec, submitted_s=submitted_s),
    )
    view = _plan_view(driver, cluster.snapshot(), job, now_s)
    if view.outcome != "never":
        return view
    refusal = cluster.fitting.refusal(spec, path, owner(principal.user, principal.tenant, spec))
    note = "a submit is accepted, and waits until there is more capacity"
    if refusal is not None and not spec.wait_for_capacity:
        note = "a submit is refused without --wait-for-capacity"
    return msgspec.structs.replace(view, warnings=(note,))


def what_if(
    driver: Driver,
    job: Job,
    changes: Mapping[str, str],
    principal: Principal,
    now_s: float,
) -> PlanView:
    """Return what would happen to a waiting job if it had been submitted with changes.

    Raises:
        UserError: `conflict` for a job that does not wait, `invalid` for a change that makes no
            sense, with the field.
    """
    cluster = driver.cluster
    snapshot = cluster.snapshot()
    waiting = snapshot.waiting.get(job.id)
    if waiting is None:
        raise UserError(
            f"job {job.id} is {job.state.value}: there is nothing to change about its start",
            code="conflict",
            hint=f"ask for a new one: tercio plan; `tercio explain {job.id}` says where it is",
        )
    made: Variation = vary(cluster, waiting, changes)
    check_submit(cluster, made.job.spec, principal)
    running, others = dict(snapshot.running), dict(snapshot.waiting)
    notes = []
    if made.ended is not None:
        gone = running.pop(made.ended, None)
        others.pop(made.ended, None)
        notes.append(_ending(made.ended, None if gone is None else gone.ends_s, now_s))
    snapshot = msgspec.structs.replace(snapshot, running=running, waiting=others)
    view = _plan_view(driver, snapshot, made.job, now_s)
    return msgspec.structs.replace(view, warnings=(*view.warnings, *notes), changes=dict(changes))


def _ending(job_id: JobId, ends_s: float | None, now_s: float) -> str:
    if ends_s is None:
        return f"counted as ended: {job_id}; nothing says when it will be"
    left = format_duration(max(0.0, ends_s - now_s))
    return f"counted as ended: {job_id}; its time limit ends it in {left} at the latest"


def _plan_view(driver: Driver, snapshot: Snapshot, job: WaitingJob, now_s: float) -> PlanView:
    """Dry-run a snapshot with the job in it."""
    others = {other: each for other, each in snapshot.waiting.items() if other != job.job_id}
    trial = msgspec.structs.replace(snapshot, waiting={**others, job.job_id: job}, changes=None)
    plan = driver.dry_run(trial, now_s)
    started = [s.job_id for s in plan.starts if _is_of(s.job_id, job.job_id)]
    decision = plan.decisions[started[0] if started else job.job_id]
    evicts = tuple(
        e.job_id for e in plan.evictions if e.for_job is not None and _is_of(e.for_job, job.job_id)
    )
    if decision.outcome is Outcome.WAITING and decision.start is None:
        start = far_start(driver, trial, job.job_id, decision, now_s)
        decision = msgspec.structs.replace(decision, start=start)
    outcome = "now" if started else "never" if decision.reason in NEVER else "later"
    return PlanView(
        outcome=outcome,
        decision=msgspec.structs.replace(decision, job=job.job_id),
        evicts=evicts,
    )


def _is_of(job_id: JobId, whole: JobId) -> bool:
    """Whether an id is the job's, or that of an element of it."""
    return job_id == whole or job_id.startswith(f"{whole}.")


def far_start(
    driver: Driver, trial: Snapshot, job_id: JobId, decision: Decision, now_s: float
) -> StartEstimate | None:
    """Return an estimate for a job that no promise is kept for: as if every blocked job had one.

    That is when it would start at the latest if nobody else came; others may pass it meanwhile.
    """
    is_large = len(trial.waiting) > _FAR_WAITING or len(trial.nodes) > _FAR_NODES
    has_all = driver.cluster.policy.reservation_depth is None
    if decision.reason in NEVER or decision.start is not None or is_large or has_all:
        return decision.start
    policy = msgspec.structs.replace(driver.cluster.policy, reservation_depth=None)
    plan = driver.dry_run(trial, now_s, policy=policy)
    found = plan.decisions.get(job_id)
    return None if found is None or found.outcome is not Outcome.WAITING else found.start


# A policy.


def plan_policy(driver: Driver, policy: Policy, now_s: float) -> PolicyPlanView:
    """Return what putting another policy in force would do to the jobs there are.

    Raises:
        UserError: the policy would be refused.
    """
    cluster = driver.cluster
    check_policy(cluster, policy)
    snapshot = msgspec.structs.replace(cluster.snapshot(), changes=None)
    before = driver.dry_run(snapshot, now_s)
    trial = _under(cluster, snapshot, policy)
    after = driver.dry_run(trial, now_s, policy=policy)
    return PolicyPlanView(
        version=cluster.policy_version,
        evicts=_evictions(driver, before, after),
        starts=_starts(driver, before, after),
        queues=_shares(driver, snapshot, trial, policy),
    )


def _under(cluster: Cluster, snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The snapshot as another policy sees it: who may be evicted, and who waits for cheap power."""
    running = {
        job_id: msgspec.structs.replace(
            job, is_preemptible=is_preemptible(policy, job.queue, job.spec)
        )
        for job_id, job in snapshot.running.items()
    }
    waiting = {
        job_id: msgspec.structs.replace(
            job,
            is_preemptible=is_preemptible(policy, job.queue, job.spec),
            cheaper=None
            if job.is_repair
            else cluster.prices.cheaper(
                policy, job.spec, submitted_s=job.submitted_s, predicted_s=job.predicted_s
            ),
        )
        for job_id, job in snapshot.waiting.items()
    }
    return msgspec.structs.replace(snapshot, running=running, waiting=waiting)


def _evictions(driver: Driver, before: Plan, after: Plan) -> tuple[EvictionRow, ...]:
    anyway = {eviction.job_id for eviction in before.evictions}
    jobs = driver.cluster.jobs
    return tuple(
        EvictionRow(
            job=e.job_id,
            name=jobs[e.job_id].spec.name,
            queue=jobs[e.job_id].queue,
            user=jobs[e.job_id].user,
            for_job=e.for_job,
            message=e.message,
        )
        for e in after.evictions
        if e.job_id not in anyway
    )


def _starts(driver: Driver, before: Plan, after: Plan) -> tuple[StartRow, ...]:
    """Jobs that would start now, or as soon as those stopped for them are gone."""
    anyway = {start.job_id for start in before.starts}
    anyway |= {e.for_job for e in before.evictions if e.for_job is not None}
    found: dict[JobId, bool] = {s.job_id: True for s in after.starts if s.job_id not in anyway}
    for eviction in after.evictions:
        if eviction.for_job is not None and eviction.for_job not in anyway:
            found.setdefault(eviction.for_job, False)
    rows = []
    for job_id, is_now in found.items():
        job = driver.cluster.jobs[_whole(driver, job_id)]
        rows.append(
            StartRow(
                job=job_id,
                name=job.spec.name,
                queue=job.queue,
                user=job.user,
                when="now" if is_now else "after evictions",
                nodes=after.decisions[job_id].nodes if is_now else (),
            )
        )
    return tuple(rows)


def _whole(driver: Driver, job_id: JobId) -> JobId:
    """The job itself, or the array that a waiting element belongs to."""
    return job_id if job_id in driver.cluster.jobs else JobId(job_id.rpartition(".")[0])


def _shares(
    driver: Driver, snapshot: Snapshot, trial: Snapshot, policy: Policy
) -> tuple[ShareRow, ...]:
    """Entitlement of each queue under both policies."""
    old = driver.entitlements(snapshot)
    new = driver.entitlements(trial, policy=policy)
    paths = dict.fromkeys((*walk_queues(driver.cluster.policy), *walk_queues(policy)))
    return tuple(
        ShareRow(path=path, before=_plain(old, path), after=_plain(new, path)) for path in paths
    )


def _plain(
    shares: Mapping[QueuePath, Mapping[str, Fraction]], path: QueuePath
) -> dict[str, float] | None:
    found = shares.get(path)
    if found is None:
        return None
    return {kind: float(share) / WHOLE_DEVICE_MILLI for kind, share in found.items()}
