"""Routes of jobs: submit, look, command, follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, cast

import msgspec

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
    WhatIfBody,
)
from tercio.api.context import ApiContext
from tercio.api.redact import redact_job, sees_tenant
from tercio.api.sizing import sized
from tercio.api.stories import read_story
from tercio.api.submit import check_workdirs, read_submits, reading_of, submit_key, to_commands
from tercio.api.table import Call, Route, Stream
from tercio.api.wire import make_cursor, read_cursor, read_instant_s
from tercio.core.commands import waiting_array
from tercio.core.driver import Driver
from tercio.core.plans import far_start, plan_job, what_if
from tercio.core.records import Job
from tercio.core.views import is_at, job_view
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
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId
from tercio.model.job import TERMINAL_JOB_STATES, JobState
from tercio.model.reasons import Decision, Outcome, Reason
from tercio.model.views import (
    DecisionView,
    JobList,
    JobView,
    LogView,
    PlanView,
    Story,
    SubmitAnswer,
)

KEY_HEADER: Final = "Idempotency-Key"
_KEY_MEANING: Final = "a repeated key returns the first answer again; with other jobs, a conflict"


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
    reading = reading_of(call.context)
    read = await call.read(lambda: read_submits(bodies, reading, is_batch=is_batch))
    site = call.context.config.sizing.site
    accepted = await sized(read, call.context.cluster, site=site)
    commands = to_commands(accepted, key)
    secrets = [each.secrets for each in accepted for _ in each.specs]
    outcome = await call.context.controller.execute_many(commands, call.principal, secrets=secrets)
    warnings = dict.fromkeys(w for each in accepted for w in each.warnings)
    return SubmitAnswer(ids=tuple(outcome.job_ids), warnings=tuple(warnings))


async def plan(call: Call[NoQuery, SubmitBody]) -> PlanView:
    """Say what would happen to a job; changes nothing."""
    context = call.context
    check_workdirs(context, (call.body,))
    reading = reading_of(context)
    read = await call.read(lambda: read_submits((call.body,), reading, is_batch=False))
    (found,) = await sized(read, context.cluster, site=context.config.sizing.site)
    if len(found.specs) != 1:
        raise UserError(
            f"a plan is made for one job; the file has {len(found.specs)}",
            field="file",
            hint="plan its jobs one by one",
        )
    driver = context.controller.driver
    view = plan_job(driver, found.specs[0], call.principal, context.now())
    return msgspec.structs.replace(
        view, warnings=(*found.warnings, *view.warnings), sized=found.specs[0].sized
    )


async def change_trial(call: Call[NoQuery, WhatIfBody]) -> PlanView:
    """Say what would happen to a waiting job with some things changed; changes nothing."""
    context = call.context
    job = context.job(call.path["job"], call.principal)
    driver = context.controller.driver
    return what_if(driver, job, call.body.changes, call.principal, context.now())


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
    call.context.check_site(query.site)
    driver = call.context.controller.driver
    rows: list[JobView] = []
    last: str | None = None
    for job in _found(call):
        if len(rows) == query.limit:
            last = rows[-1].id
            break
        rows.append(job_view(driver, job))
    return JobList(rows=tuple(rows), next=make_cursor("jobs", last) if last else None)


def _found(call: Call[JobsQuery, NoBody]) -> Iterator[Job]:
    """Yield the jobs that the query and the reader's tenant allow, newest first."""
    query, reader = call.query, call.principal
    states = query.states
    below = f"{query.queue}/" if query.queue is not None else ""
    jobs = cast("dict[JobId, Job]", call.context.cluster.jobs)
    after = read_cursor("jobs", query.after)
    if after is not None and after not in jobs:
        raise UserError(
            f"after: the page's last job, {after}, is gone",
            code="resync",
            field="after",
            hint="start again with the first page",
        )
    for job in reversed(jobs.values()):
        if after is not None:
            if job.id == after:
                after = None
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
        if query.site is not None and not is_at(call.context.cluster, job, query.site):
            continue
        if sees_tenant(reader, job.tenant):
            yield job


async def show(call: Call[NoQuery, NoBody]) -> JobView:
    """Return one job with its spec and tasks."""
    return _view(call.context, call.context.job(call.path["job"], call.principal), call.principal)


def _view(context: ApiContext, job: Job, reader: Principal) -> JobView:
    return redact_job(job_view(context.controller.driver, job, is_full=True), reader)


async def decision(call: Call[NoQuery, NoBody]) -> DecisionView:
    """Return why a job waits, or was placed."""
    context = call.context
    job, driver = context.job(call.path["job"], call.principal), context.controller.driver
    found = _decision(driver, job)
    if found.outcome is Outcome.WAITING and job.state is JobState.QUEUED:
        snapshot = context.cluster.snapshot()
        start = far_start(driver, snapshot, job.id, found, context.now())
        found = msgspec.structs.replace(found, start=start)
    return DecisionView(decision=found)


def _decision(driver: Driver, job: Job) -> Decision:
    """Return the last cycle's decision of a job that waits, else what became of it."""
    view = job_view(driver, job)
    made = driver.decisions.get(job.id)
    if job.state is JobState.QUEUED or (job.array is not None and job.array.pending):
        return made or Decision(
            job=job.id,
            outcome=Outcome.WAITING,
            reason=job.waited or Reason.READY,
            message=job.waited_message or "waits for the next scheduling cycle",
            wanted=view.devices,
        )
    where = f" on {', '.join(view.nodes)}" if view.nodes else ""
    told = view.message or view.reason
    if not told or told == job.state.value:
        message = f"{job.state.value}{where}"
    elif told.startswith(job.state.value):
        message = told
    else:
        message = f"{job.state.value}{where}: {told}"
    has_run = job.attempt > 0
    return Decision(
        job=job.id,
        outcome=Outcome.PLACED if has_run else Outcome.WAITING,
        reason=Reason.HELD if job.state is JobState.HELD else Reason.READY,
        message=message,
        wanted=view.devices,
        nodes=view.nodes,
    )


async def story(call: Call[NoQuery, NoBody]) -> Story:
    """Return everything that happened to a job, oldest first."""
    job = call.context.job(call.path["job"], call.principal)
    return await read_story(call.context, job.id, call.principal)


async def log(call: Call[LogsQuery, NoBody]) -> Stream:
    """Send the lines of a job's log."""
    job = call.context.job(call.path["job"], call.principal)
    query = call.query
    logs.check_log(job, query.task)
    since_s = read_instant_s(query.since, field="since")
    lines = logs.job_log(
        call.context.controller,
        job.id,
        task=query.task,
        query=LogQuery(tail=query.tail, since_s=since_s, is_following=query.follow),
    )
    return Stream(chunks=call.context.stream(lines), media_type=sse.MEDIA_TYPE)


async def cancel(call: Call[NoQuery, ReasonBody]) -> JobView:
    """Stop a job for good; also one element of an array that has not started."""
    reason, context, asker = call.body.reason, call.context, call.principal
    name = JobId(call.path["job"])
    array = waiting_array(context.cluster, name)
    if array is None:
        return await _command(call, lambda job: CancelJob(job_id=job, reason=reason))
    context.job(array.id, asker)  # whoever may not see the array finds no element either
    await context.controller.execute(CancelJob(job_id=name, reason=reason), asker)
    return _view(context, context.job(name, asker), asker)


async def hold(call: Call[NoQuery, ReasonBody]) -> JobView:
    """Keep a waiting job from starting."""
    return await _command(call, lambda job: HoldJob(job_id=job))


async def release(call: Call[NoQuery, ReasonBody]) -> JobView:
    """Let a held job start."""
    return await _command(call, lambda job: ReleaseJob(job_id=job))


async def requeue(call: Call[NoQuery, ReasonBody]) -> JobView:
    """Stop a job, or take an ended one, and run it again from the queue."""
    return await _command(call, lambda job: RequeueJob(job_id=job))


async def suspend(call: Call[NoQuery, ReasonBody]) -> JobView:
    """Pause a running job; it keeps what it holds."""
    return await _command(call, lambda job: SuspendJob(job_id=job))


async def resume(call: Call[NoQuery, ReasonBody]) -> JobView:
    """Let a paused job go on."""
    return await _command(call, lambda job: ResumeJob(job_id=job))


async def _command(call: Call[NoQuery, ReasonBody], make: Callable[[JobId], AnyCommand]) -> JobView:
    context, asker = call.context, call.principal
    job = context.job(call.path["job"], asker)
    await context.controller.execute(make(job.id), asker)
    # Looked up again: the state is another object after the journal refused a write.
    return _view(context, context.job(job.id, asker), asker)


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/jobs",
        name="submit",
        summary="Submit the jobs of one file",
        role=Role.USER,
        perform=submit,
        body=SubmitBody,
        answer=SubmitAnswer,
        headers={KEY_HEADER: _KEY_MEANING},
    ),
    Route(
        method="POST",
        path="/v1/jobs/batch",
        name="submit_batch",
        summary="Submit up to 1,000 files, all or none",
        role=Role.USER,
        perform=submit_batch,
        body=BatchBody,
        answer=SubmitAnswer,
        headers={KEY_HEADER: _KEY_MEANING},
    ),
    Route(
        method="POST",
        path="/v1/plan",
        name="plan",
        summary="Say what would happen to a job",
        role=Role.USER,
        perform=plan,
        body=SubmitBody,
        answer=PlanView,
    ),
    Route(
        method="GET",
        path="/v1/jobs",
        name="jobs",
        summary="List jobs, newest first",
        role=Role.VIEWER,
        perform=list_jobs,
        query=JobsQuery,
        answer=JobList,
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}",
        name="job",
        summary="Show one job with its spec and tasks",
        role=Role.VIEWER,
        perform=show,
        answer=JobView,
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/decision",
        name="decision",
        summary="Say why a job waits, or was placed",
        role=Role.VIEWER,
        perform=decision,
        answer=DecisionView,
    ),
    Route(
        method="POST",
        path="/v1/jobs/{job}/what-if",
        name="what_if",
        summary="Say what would happen to a waiting job with some things changed",
        role=Role.USER,
        perform=change_trial,
        body=WhatIfBody,
        answer=PlanView,
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/story",
        name="story",
        summary="Tell everything that happened to a job",
        role=Role.VIEWER,
        perform=story,
        answer=Story,
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/logs",
        name="logs",
        summary="Stream the lines of a job's log, then an `end` event",
        role=Role.VIEWER,
        perform=log,
        query=LogsQuery,
        answer=LogView,
        media_types=(sse.MEDIA_TYPE,),
    ),
    *(
        Route(
            method="POST",
            path=f"/v1/jobs/{{job}}/{verb}",
            name=verb,
            summary=summary,
            role=Role.USER,
            perform=perform,
            body=ReasonBody,
            answer=JobView,
        )
        for verb, summary, perform in (
            ("cancel", "Stop a job for good", cancel),
            ("hold", "Keep a waiting job from starting", hold),
            ("release", "Let a held job start", release),
            ("requeue", "Stop a job and run it again from the queue", requeue),
            ("suspend", "Pause a running job", suspend),
            ("resume", "Let a paused job go on", resume),
        )
    ),
)
"""Routes of jobs."""
