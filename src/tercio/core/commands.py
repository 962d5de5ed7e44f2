"""From a command to events: who may ask, and whether it makes sense now.

A refused command raises `UserError` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tercio.core import health_commands, prices, reserving
from tercio.core.cluster import Cluster
from tercio.core.fitting import refuse_never
from tercio.core.members import check_profile, check_repair
from tercio.core.promises import check_policy
from tercio.core.records import Job, may_retry
from tercio.errors import UserError, did_you_mean
from tercio.formats.support import FEATURES, unsupported
from tercio.model.commands import (
    AddReservation,
    AnyCommand,
    CancelJob,
    CordonNode,
    CreateToken,
    DrainNode,
    HoldJob,
    MoveNode,
    ReleaseJob,
    RemoveReservation,
    RequeueJob,
    ResetBreaker,
    ResumeJob,
    RevokeToken,
    SendPrices,
    SetHealthPolicy,
    SetPolicy,
    SubmitJob,
    SuspendJob,
    UncordonNode,
)
from tercio.model.events import (
    AnyEvent,
    JobCancelRequested,
    JobHeld,
    JobReleased,
    JobRequeueRequested,
    JobResumeRequested,
    JobSubmitted,
    JobSuspendRequested,
    NodeCordoned,
    NodeDrainRequested,
    NodeUncordoned,
    PolicyChanged,
    PricesRead,
    TokenCreated,
    TokenRevoked,
)
from tercio.model.health import SPARE_OWNER
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId, NodeName, QueuePath, array_parent, job_id
from tercio.model.job import TERMINAL_JOB_STATES, EndCause, JobSpec, JobState
from tercio.model.node import Cordon
from tercio.model.queue import Policy, walk_queues
from tercio.model.resources import Request
from tercio.model.units import format_instant
from tercio.sched.owners import owner

NOT_YET: Final = frozenset(
    {
        "devices.auto",  # answered by sizing before a job reaches the core
    }
)
"""Features of the job file that nothing gives behaviour to yet: refused, never ignored."""


def to_events(
    cluster: Cluster, command: AnyCommand, principal: Principal, now_s: float
) -> list[AnyEvent]:
    """Return the events that an allowed command makes; none when there is nothing to do.

    Raises:
        UserError: `forbidden`, `not_found`, `conflict` or `invalid`, with a hint.
    """
    match command:
        case SubmitJob():
            return _submit(cluster, command, principal, now_s)
        case HoldJob() | ReleaseJob() | CancelJob() | RequeueJob() | SuspendJob() | ResumeJob():
            return _job_command(cluster, command, principal, now_s)
        case CordonNode() | UncordonNode() | DrainNode():
            return _node_command(cluster, command, principal, now_s)
        case MoveNode():
            _require(principal, Role.OPERATOR, "change nodes")
            _known(command.node, cluster.nodes, "node")
            return health_commands.move_node(cluster, command, principal, now_s)
        case SetHealthPolicy():
            _require(principal, Role.ADMIN, "change the health policy")
            return health_commands.set_policy(cluster, command, principal, now_s)
        case ResetBreaker():
            _require(principal, Role.OPERATOR, "reset the breaker")
            return health_commands.reset_breaker(cluster, command, principal, now_s)
        case SetPolicy():
            return _set_policy(cluster, command, principal, now_s)
        case SendPrices(series=series):
            _require(principal, Role.OPERATOR, "send prices")
            known = prices.joined(cluster.prices.series, series)
            kept = prices.window(known, now_s)
            return [PricesRead(at_s=now_s, series=kept, by=principal.user)]
        case AddReservation():
            _require(principal, Role.OPERATOR, "reserve capacity")
            return reserving.add(cluster, command, principal, now_s)
        case RemoveReservation():
            _require(principal, Role.OPERATOR, "remove reservations")
            return reserving.remove(cluster, command, principal, now_s)
        case CreateToken():
            _require(principal, Role.ADMIN, "create tokens")
            if command.token.token_id in cluster.tokens:
                raise UserError(f"token '{command.token.token_id}' exists", code="conflict")
            return [TokenCreated(at_s=now_s, token=command.token, by=principal.user)]
        case RevokeToken():
            _require(principal, Role.ADMIN, "revoke tokens")
            _known(command.token_id, cluster.tokens, "token")
            return [TokenRevoked(at_s=now_s, token_id=command.token_id, by=principal.user)]


def _require(principal: Principal, role: Role, what: str) -> None:
    if not principal.has_role(role):
        raise UserError(
            f"{principal.user} has role '{principal.role.value}' and may not {what}",
            code="forbidden",
            hint=f"ask an admin for a token with role '{role.value}'",
        )


def _known(name: str, known: Iterable[str], kind: str) -> None:
    known = list(known)
    if name not in known:
        hint = did_you_mean(name, known) or f"see the list with `tercio {kind} list`"
        raise UserError(f"no {kind} '{name}'", code="not_found", hint=hint)


def queue_of(policy: Policy, spec: JobSpec) -> QueuePath:
    """Return the queue a job goes to.

    Raises:
        UserError: there is no such queue.
    """
    path = QueuePath(spec.queue or policy.default_queue)
    queues = walk_queues(policy)
    if path not in queues:
        hint = did_you_mean(path, queues) or f"queues: {', '.join(list(queues)[:8])}"
        raise UserError(f"no queue '{path}'", code="not_found", hint=hint, field="queue")
    return path


def _matches(principal: Principal, rules: tuple[str, ...]) -> bool:
    names = {f"user:{principal.user}", *(f"group:{group}" for group in principal.groups)}
    return any(rule in names for rule in rules)


def _rules(policy: Policy, path: QueuePath, kind: str) -> tuple[str, ...]:
    """Return the nearest `submit` or `admin` rules on the way from the queue to the top."""
    queues = walk_queues(policy)
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        queue = queues.get(QueuePath("/".join(parts[:length])))
        rules = () if queue is None else (queue.submit if kind == "submit" else queue.admin)
        if rules:
            return rules
    return ()


def check_submit(cluster: Cluster, spec: JobSpec, principal: Principal) -> QueuePath:
    """Return the job's queue if this principal may submit this job now.

    Raises:
        UserError: otherwise.
    """
    _require(principal, Role.USER, "submit jobs")
    refused = unsupported(spec, frozenset(FEATURES) - NOT_YET)
    if refused:
        raise refused[0]
    check_repair(spec)
    check_profile(spec, is_elastic=cluster.policy.elastic is not None)
    path = queue_of(cluster.policy, spec)
    rules = _rules(cluster.policy, path, "submit")
    is_free = not rules or principal.has_role(Role.ADMIN)
    if not is_free and not _matches(principal, rules):
        raise UserError(
            f"{principal.user} may not submit to queue '{path}'",
            code="forbidden",
            hint=f"allowed are: {', '.join(rules)}",
            field="queue",
        )
    if spec.reservation is not None:
        reserving.check_use(cluster, spec.reservation, path, principal)
    for position, dependency in enumerate(spec.depends_on):
        other = cluster.jobs.get(dependency.job)
        # One of another tenant is not found either: its end is not theirs to know.
        is_seen = other is not None and (
            other.tenant == principal.tenant or principal.has_role(Role.OPERATOR)
        )
        if not is_seen:
            raise UserError(
                f"depends_on[{position}].job: no job '{dependency.job}'",
                code="not_found",
                hint="see `tercio ps --all` for job ids",
                field=f"depends_on[{position}].job",
            )
    return path


def _submit(
    cluster: Cluster, command: SubmitJob, principal: Principal, now_s: float
) -> list[AnyEvent]:
    if command.submit_key is not None:
        known = cluster.job_by_submit_key(principal.tenant, principal.user, command.submit_key)
        if known is not None:
            _check_same(cluster.jobs[known], command.spec)
            return []
    path = check_submit(cluster, command.spec, principal)
    deadline_s = command.spec.time.deadline_s
    if deadline_s is not None and deadline_s <= now_s:
        raise UserError(
            f"time.deadline: {format_instant(deadline_s)} has passed",
            code="invalid",
            hint="write a later deadline, or none",
            field="time.deadline",
        )
    if not command.spec.wait_for_capacity:
        refusal = cluster.fitting.refusal(
            command.spec, path, owner(principal.user, principal.tenant, command.spec)
        )
        if refusal is not None:
            raise refuse_never(refusal)
    return [
        JobSubmitted(
            at_s=now_s,
            job_id=job_id(cluster.jobs_submitted + 1),
            spec=command.spec,
            queue=path,
            user=principal.user,
            tenant=principal.tenant,
            submit_key=command.submit_key,
            is_held=command.is_held,
        )
    ]


def _as_asked(spec: JobSpec) -> JobSpec:
    """Return the spec without what sizing chose: a repeated submit may be sized differently."""
    if spec.sized is None:
        return spec
    group = spec.groups[0]
    asked = msgspec.structs.replace(group, tasks=1, per_task=Request())
    time = msgspec.structs.replace(spec.time, expected_s=None)
    return msgspec.structs.replace(spec, groups=(asked,), time=time, speed={}, sized=None)


def _check_same(job: Job, spec: JobSpec) -> None:
    """Refuse a key that stood for another job: the asker would take that job for this one."""
    if _as_asked(job.spec) != _as_asked(spec):
        raise UserError(
            f"Idempotency-Key: it was used for {job.id}, which is another job",
            code="conflict",
            hint="use a fresh random value for every new submit",
            field="Idempotency-Key",
        )


def find_job(cluster: Cluster, name: JobId) -> Job:
    """Return a job by id.

    Raises:
        UserError: `not_found`, with the nearest id.
    """
    job = cluster.jobs.get(name)
    if job is None:
        hint = did_you_mean(name, list(cluster.jobs)[-500:]) or "see `tercio ps --all` for job ids"
        raise UserError(f"no job '{name}'", code="not_found", hint=hint)
    return job


def check_may_manage(cluster: Cluster, job: Job, principal: Principal) -> None:
    """Allow the owner, the queue's admins, operators and admins.

    Raises:
        UserError: `forbidden` for anybody else.
    """
    if principal.has_role(Role.OPERATOR):
        return
    _require(principal, Role.USER, "change jobs")
    is_owner = job.user == principal.user and job.tenant == principal.tenant
    if not is_owner and not _matches(principal, _rules(cluster.policy, job.queue, "admin")):
        raise UserError(
            f"job {job.id} belongs to {job.user}",
            code="forbidden",
            hint="its owner, an admin of its queue, or an operator may change it",
        )


def waiting_array(cluster: Cluster, name: JobId) -> Job | None:
    """Return the array whose element of this id has not started, None for any other id.

    Such an element has no record of its own yet.
    """
    parent = cluster.jobs.get(array_parent(name) or name)
    if name in cluster.jobs or parent is None or parent.array is None:
        return None
    index = name.rpartition(".")[2]
    is_there = index.isdigit() and str(int(index)) == index
    rows = parent.array.pending if is_there else ()
    found = any(int(index) in range(row.start, row.stop, row.step) for row in rows)
    return parent if found else None


JobCommands = HoldJob | ReleaseJob | CancelJob | RequeueJob | SuspendJob | ResumeJob


def _job_command(
    cluster: Cluster, command: JobCommands, principal: Principal, now_s: float
) -> list[AnyEvent]:
    by = principal.user
    array = waiting_array(cluster, command.job_id) if isinstance(command, CancelJob) else None
    if array is not None and isinstance(command, CancelJob):
        check_may_manage(cluster, array, principal)
        name, reason = command.job_id, command.reason
        return [JobCancelRequested(at_s=now_s, job_id=name, by=by, reason=reason)]
    job = find_job(cluster, command.job_id)
    check_may_manage(cluster, job, principal)
    is_over = job.state in TERMINAL_JOB_STATES
    match command:
        case CancelJob():
            if is_over:
                raise _conflict(job, "cannot be cancelled", "it has ended already")
            if job.stop_cause is not None and job.stop_cause.value == "cancelled":
                return []
            return [JobCancelRequested(at_s=now_s, job_id=job.id, by=by, reason=command.reason)]
        case HoldJob():
            if job.is_held:
                return []
            waits = job.state is JobState.QUEUED or (job.array is not None and not is_over)
            if not waits:
                hint = "`tercio suspend` pauses a running job, `tercio requeue` stops it"
                raise _conflict(job, "cannot be held", hint)
            return [JobHeld(at_s=now_s, job_id=job.id, by=by)]
        case ReleaseJob():
            if is_over:
                raise _conflict(job, "cannot be released", "only a held job can")
            return [JobReleased(at_s=now_s, job_id=job.id, by=by)] if job.is_held else []
        case RequeueJob():
            if _check_requeue(cluster, job):
                return []
            return [JobRequeueRequested(at_s=now_s, job_id=job.id, by=by)]
        case SuspendJob():
            if job.state is not JobState.RUNNING or job.array is not None:
                raise _conflict(job, "cannot be suspended", "only a running job can")
            return [JobSuspendRequested(at_s=now_s, job_id=job.id, by=by)]
        case ResumeJob():
            if job.state is not JobState.SUSPENDED:
                raise _conflict(job, "cannot be resumed", "only a suspended job can")
            return [JobResumeRequested(at_s=now_s, job_id=job.id, by=by)]


def _check_requeue(cluster: Cluster, job: Job) -> bool:
    """Refuse what could not run again; return whether it is on its way back already."""
    if job.array is not None:
        first = job.spec.array.ranges[0].start if job.spec.array else 0
        hint = f"requeue its elements one by one, such as {job.id}.{first}"
        raise _conflict(job, "is an array and cannot be requeued whole", hint)
    if job.state in (JobState.QUEUED, JobState.HELD):
        raise _conflict(job, "cannot be requeued", "it waits already")
    if job.stop_cause is not None:
        if may_retry(job.spec.retry, job.stop_cause, job.retries):
            return True
        hint = f"it ends for good ({job.stop_cause.value}); requeue it when it has"
        raise _conflict(job, "cannot be requeued now", hint)
    if job.parent is not None:
        parent = cluster.jobs.get(job.parent)
        is_going_on = parent is not None and parent.state not in TERMINAL_JOB_STATES
        if not is_going_on or (parent is not None and parent.cause is EndCause.CANCELLED):
            hint = f"its array {job.parent} has ended or was cancelled; submit anew"
            raise _conflict(job, "cannot be requeued", hint)
    if job.state in TERMINAL_JOB_STATES:
        _check_places(cluster, job)
    return False


def _check_places(cluster: Cluster, job: Job) -> None:
    """Refuse to wake a job whose queue or reservation has gone since it ended."""
    if job.queue not in walk_queues(cluster.policy):
        hint = "submit it anew, to a queue that `tercio queue list` shows"
        raise _conflict(job, f"cannot be requeued: its queue '{job.queue}' is gone", hint)
    name = job.spec.reservation
    if name is not None and name not in cluster.reservations:
        hint = "submit it anew, without `reservation`"
        raise _conflict(job, f"cannot be requeued: its reservation '{name}' is gone", hint)


def _conflict(job: Job, what: str, hint: str) -> UserError:
    return UserError(f"job {job.id} is {job.state.value} and {what}", code="conflict", hint=hint)


def _node_command(
    cluster: Cluster,
    command: CordonNode | UncordonNode | DrainNode,
    principal: Principal,
    now_s: float,
) -> list[AnyEvent]:
    _require(principal, Role.OPERATOR, "change nodes")
    _known(command.node, cluster.nodes, "node")
    node = cluster.nodes[NodeName(command.node)]
    owner = f"user:{principal.user}"
    match command:
        case UncordonNode():
            by_people = [c.owner for c in node.cordons if c.owner.startswith("user:")]
            if owner not in by_people and principal.has_role(Role.ADMIN) and by_people:
                owner = by_people[0]
            if not by_people and any(c.owner == SPARE_OWNER for c in node.cordons):
                owner = SPARE_OWNER  # a spare put to work: an operator's choice
            elif owner not in by_people:
                if not node.cordons:
                    return []
                owners = ", ".join(cordon.owner for cordon in node.cordons)
                raise UserError(
                    f"node {node.name} is cordoned by {owners}",
                    code="conflict",
                    hint="only the owner of a cordon lifts it; an admin lifts those of people",
                )
            return [NodeUncordoned(at_s=now_s, node=node.name, owner=owner)]
        case CordonNode():
            cordon = Cordon(owner=owner, reason=command.reason, since_s=now_s)
            return [NodeCordoned(at_s=now_s, node=node.name, cordon=cordon)]
        case DrainNode():
            cordon = Cordon(owner=owner, reason=command.reason, since_s=now_s)
            return [NodeDrainRequested(at_s=now_s, node=node.name, cordon=cordon)]


def _set_policy(
    cluster: Cluster, command: SetPolicy, principal: Principal, now_s: float
) -> list[AnyEvent]:
    _require(principal, Role.ADMIN, "change the policy")
    version = cluster.policy_version
    if command.if_version is not None and command.if_version != version:
        raise UserError(
            f"the policy is at version {version}, not {command.if_version}",
            code="conflict",
            hint="read the new version, and apply your change to it",
        )
    check_policy(cluster, command.policy)
    policy, by = command.policy, principal.user
    return [PolicyChanged(at_s=now_s, version=version + 1, policy=policy, by=by)]
