"""Routes of jobs: submit, look, command, follow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from tercio.api import logs, sse
from tercio.api.bodies import (
    JOB_STATES,
    BatchBody,
    JobsQuery,
    LogsQuery,
    NoBody,
    NoQuery,
    ReasonBody,
    SubmitBody,
)
from tercio.api.redact import redact_entry, redact_job, sees_tenant
from tercio.api.submit import check_workdirs, read_submits, submit_key, to_commands
from tercio.api.table import Call, Route, Stream
from tercio.api.wire import make_cursor, read_cursor
from tercio.core.records import Job
from tercio.core.story import tell
from tercio.core.views import job_view
from tercio.engines.base import LogQuery
from tercio.errors import UserError, did_you_mean
from tercio.model.commands import (
    AnyCommand,
    CancelJob,
    HoldJob,
    ReleaseJob,
    RequeueJob,
    ResumeJob,
    SuspendJob,
)
from tercio.model.identity import Role
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.model.units import parse_instant
from tercio.model.views import (
    DecisionView,
    JobList,
    JobView,
    PlanView,
    Story,
    SubmitAnswer,
)

KEY_HEADER: Final = "Idempotency-Key"
_IN_LOOP_JOBS: Final = 4


async def submit(call: Call[NoQuery, SubmitBody]) -> SubmitAnswer:
    """Accept the jobs of one file, all or none."""
    return await _submit(call, (call.body,), is_batch=False)


async def submit_batch(call: Call[NoQuery, BatchBody]) -> SubmitAnswer:
    """Accept the jobs of several bodies, all or none."""
    return await _submit(call, call.body.jobs, is_batch=True)


async def _submit(
    call: Call[NoQuery, SubmitBody] | Call[NoQuery, BatchBody],
    bodies: tuple[SubmitBody, ...],
    *,
    is_batch: bool,
) -> SubmitAnswer:
    key = submit_key(call.header(KEY_HEADER))
    check_workdirs(call.context, bodies)
    policy = call.context.cluster.policy
    if len(bodies) <= _IN_LOOP_JOBS:
        accepted = read_submits(bodies, policy=policy, is_batch=is_batch)
    else:
        accepted = await asyncio.to_thread(read_submits, bodies, policy=policy, is_batch=is_batch)
    commands = to_commands(accepted, key)
    secrets = [each.secrets for each in accepted for _ in each.specs]
    outcome = await call.context.controller.execute_many(
        commands, call.principal, secrets=secrets
    )
    warnings = dict.fromkeys(w for each in accepted for w in each.warnings)
    return SubmitAnswer(ids=tuple(outcome.job_ids), warnings=tuple(warnings))


async def plan(call: Call[NoQuery, SubmitBody]) -> PlanView:
    """Say what would happen to a job; changes nothing."""
    context = call.context
    check_workdirs(context, (call.body,))
    (found,) = read_submits((call.body,), policy=context.cluster.policy, is_batch=False)
    if len(found.specs) != 1:
        raise UserError(
            f"a plan is made for one job; the file has {len(found.specs)}",
            field="file",
            hint="plan its jobs one by one",
        )
    view = context.controller.driver.dry_run(found.specs[0], call.principal, context.now())
    return view


async def list_jobs(call: Call[JobsQuery, NoBody]) -> JobList:
    """Return a page of jobs, newest first."""
    query = call.query
    for state in query.states:
        if state not in JOB_STATES:
            raise UserError(
                f"state: {state!r} is not a state of a job",
                field="state",
                hint=did_you_mean(state, JOB_STATES) or f"one of {', '.join(JOB_STATES)}",
            )
    driver = call.context.controller.driver
    rows: list[JobView] = []
    last: str | None = None
    for job in _found(call):
        if len(rows) == query.limit:
            last = rows[-1].id
            break
        rows.append(job_view(driver, job.id, is_full=False))
    return JobList(rows=tuple(rows), next=make_cursor("jobs", last) if last else None)


def _found(call: Call[JobsQuery, NoBody]) -> Iterator[Job]:
    """Yield the jobs that the query and the reader's tenant allow, newest first."""
    query, reader = call.query, call.principal
    states = query.states
    below = f"{query.queue}/" if query.queue is not None else ""
    after = read_cursor("jobs", query.after)
    jobs = call.context.cluster.jobs
    before_sequence = None
    if after is not None:
        before_sequence = _sequence(after)
    for job in reversed(jobs.values()):
        if before_sequence is not None and job.sequence >= before_sequence:
            continue
        if states:
            if job.state.value not in states:
                continue
        elif not query.all and job.state in TERMINAL_JOB_STATES:
            continue
        if query.queue is not None and job.queue != query.queue and not job.queue.startswith(below):
            continue
        if query.user is not None and job.user != query.user:
            continue
        if sees_tenant(reader, job.tenant):
            yield job


async def show(call: Call[NoQuery, NoBody]) -> JobView:
    """Return one job with its spec and tasks."""
    return _view(call)


async def decision(call: Call[NoQuery, NoBody]) -> DecisionView:
    """Return why a job waits, or was placed."""
    job = call.context.job(call.path["job"], call.principal)
    return decision_view(call.context.controller.driver, job.id)


async def story(call: Call[NoQuery, NoBody]) -> Story:
    """Return everything that happened to a job, oldest first."""
    job = call.context.job(call.path["job"], call.principal)
    entries = await asyncio.to_thread(read_all, call.context.journal, job.id)
    seen = [redact_entry(entry, call.principal, job.tenant) for entry in entries]
    return Story(subject=job.id, rows=tuple(tell(seen, job.id)))


async def log(call: Call[LogsQuery, NoBody]) -> Stream:
    """Send the lines of a job's log."""
    job = call.context.job(call.path["job"], call.principal)
    query = call.query
    logs.check_log(job, query.task)
    since_s = None if query.since is None else parse_instant(query.since, field="since")
    lines = logs.job_log(
        call.context.controller,
        job.id,
        task=query.task,
        query=LogQuery(tail=query.tail, since_s=since_s, is_following=query.follow),
    )
    return Stream(chunks=sse.alive(lines), media_type=sse.MEDIA_TYPE)
