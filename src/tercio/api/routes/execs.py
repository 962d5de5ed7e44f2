"""Routes of commands inside running tasks."""

from __future__ import annotations

from typing import Final

from tercio.api import sse
from tercio.api.bodies import ExecBody, NoBody, NoQuery, ResizeBody
from tercio.api.logs import engine_at
from tercio.api.table import Call, Done, Route, Stream
from tercio.core.commands import check_may_manage
from tercio.core.records import Job, Task
from tercio.core.transitions import TaskState
from tercio.engines.base import ExecRequest, TaskRef
from tercio.errors import UserError
from tercio.model.identity import Role
from tercio.model.views import ExecView


async def start(call: Call[NoQuery, ExecBody]) -> ExecView:
    """Start a command inside a running task."""
    context, asker, body = call.context, call.principal, call.body
    job = context.job(call.path["job"], asker)
    check_may_manage(context.cluster, job, asker)
    task = _running_task(job, body.task)
    engine = engine_at(context.controller, task.placement.node)
    if not engine.capabilities.executes:
        note = engine.capabilities.notes.get("executes", "")
        raise UserError(
            f"site {engine.site} cannot run commands inside tasks" + (f": {note}" if note else ""),
            code="unsupported",
        )
    if any("\0" in word for word in body.argv) or not body.argv[0]:
        raise UserError(
            "argv: words may not hold NUL characters, and the first names a program",
            field="argv",
        )
    context.execs.check_room(asker)
    ref = TaskRef(job_id=job.id, attempt=job.attempt, task=body.task, node=task.placement.node)
    session = await engine.execute(
        ref,
        ExecRequest(
            argv=body.argv, has_terminal=body.terminal, rows=body.rows, columns=body.columns
        ),
    )
    return ExecView(exec=context.execs.add(session, asker))


def _running_task(job: Job, index: int) -> Task:
    for task in job.tasks:
        if task.placement.task != index:
            continue
        if task.state is TaskState.RUNNING:
            return task
        raise UserError(
            f"task {index} of {job.id} is {task.state.value}, not running",
            code="conflict",
            hint="commands run inside running tasks only",
        )
    if not job.tasks:
        raise UserError(
            f"{job.id} is {job.state.value} and has no running task",
            code="conflict",
            hint=f"`tercio wait {job.id} --for running` waits for its start",
        )
    raise UserError(
        f"{job.id} has no task {index}",
        code="not_found",
        field="task",
        hint=f"its tasks are 0 to {len(job.tasks) - 1}",
    )


async def output(call: Call[NoQuery, NoBody]) -> Stream:
    """Send what a command writes, then its exit code."""
    name, execs = call.path["exec"], call.context.execs
    session = execs.claim_output(name, call.principal)
    chunks = call.context.stream(execs.output(name, session))
    return Stream(chunks=chunks, media_type=sse.MEDIA_TYPE)


async def give_input(call: Call[NoQuery, NoBody]) -> Done:
    """Give bytes to a command's input; an empty body closes it."""
    session = call.context.execs.get(call.path["exec"], call.principal)
    await session.write(await call.upload_all())
    return Done()


async def resize(call: Call[NoQuery, ResizeBody]) -> Done:
    """Tell a command's terminal its new size."""
    session = call.context.execs.get(call.path["exec"], call.principal)
    await session.resize(rows=call.body.rows, columns=call.body.columns)
    return Done()


async def close(call: Call[NoQuery, NoBody]) -> Done:
    """End a command."""
    name = call.path["exec"]
    call.context.execs.get(name, call.principal)
    await call.context.execs.close(name)
    return Done()


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/jobs/{job}/exec",
        name="execute",
        summary="Start a command inside a running task",
        role=Role.USER,
        perform=start,
        body=ExecBody,
        answer=ExecView,
    ),
    Route(
        method="GET",
        path="/v1/exec/{exec}/output",
        name="exec_output",
        summary="Stream the output as base64 events, then `exit` with the code",
        role=Role.USER,
        perform=output,
        media_types=(sse.MEDIA_TYPE,),
    ),
    Route(
        method="POST",
        path="/v1/exec/{exec}/input",
        name="exec_input",
        summary="Give bytes to the command's input; an empty body closes it",
        role=Role.USER,
        perform=give_input,
        upload="application/octet-stream",
    ),
    Route(
        method="POST",
        path="/v1/exec/{exec}/resize",
        name="exec_resize",
        summary="Tell the command's terminal its new size",
        role=Role.USER,
        perform=resize,
        body=ResizeBody,
    ),
    Route(
        method="DELETE",
        path="/v1/exec/{exec}",
        name="exec_close",
        summary="End the command",
        role=Role.USER,
        perform=close,
    ),
)
"""Routes of commands inside tasks."""
