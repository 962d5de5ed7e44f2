"""The log of a job as one stream: of all its tasks, and while following of all its attempts."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from tercio.api.sse import closing, frame
from tercio.core.records import Job, Task
from tercio.core.transitions import TaskState
from tercio.engines.base import Engine, LogLine, LogQuery, TaskRef
from tercio.errors import UserError
from tercio.model.events import subjects
from tercio.model.ids import JobId, NodeName
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.model.views import LogView
from tercio.runtime.controller import Controller

_WAITING_LINES: Final = 256

Lines = AsyncIterator[LogLine]


def check_log(job: Job, task: int | None) -> None:
    """Raise unless the job can have such a log."""
    if job.array is not None:
        first = job.spec.array.ranges[0].start if job.spec.array else 0
        raise UserError(
            f"{job.id} is an array; its elements have logs",
            hint=f"ask for one of them, such as {job.id}.{first}",
        )
    count = job.spec.task_count
    if task is not None and job.tasks and task not in {t.placement.task for t in job.tasks}:
        raise UserError(
            f"{job.id} has no task {task}",
            code="not_found",
            hint=f"its tasks are 0 to {count - 1}",
            field="task",
        )


async def job_log(
    controller: Controller, job_id: JobId, *, task: int | None, query: LogQuery
) -> AsyncIterator[bytes]:
    """Yield the lines of the last attempt as events, then `end`.

    While following, the lines of later attempts come after those of the current one, until
    the job has ended; a job that waits is waited for.
    """
    told_attempt = 0
    while True:
        seen_seq = controller.driver.seq
        job = controller.driver.cluster.jobs.get(job_id)
        if job is None:
            break
        if job.tasks and job.attempt > told_attempt:
            first = query if told_attempt == 0 else LogQuery(is_following=True)
            told_attempt = job.attempt
            async for line in _merged(_sources(controller, job, task, first), query):
                yield line
            if query.is_following:
                continue
        if job.state in TERMINAL_JOB_STATES or not query.is_following:
            break
        await _change(controller, job_id, seen_seq)
    yield frame(b"{}", name="end")


async def _change(controller: Controller, job_id: JobId, since: int) -> None:
    """Return when the journal has an event of the job after `since`."""
    async with closing(controller.subscribe(since)) as entries:
        async for entry in entries:
            if job_id in subjects(entry.event):
                return


def _sources(
    controller: Controller, job: Job, task: int | None, query: LogQuery
) -> list[tuple[int, Lines]]:
    found: list[tuple[int, Lines]] = []
    for each in job.tasks:
        place = each.placement
        if task is not None and place.task != task:
            continue
        engine = engine_at(controller, place.node)
        ref = TaskRef(job_id=job.id, attempt=job.attempt, task=place.task, node=place.node)
        found.append((place.task, _lines(controller, engine, ref, query)))
    return found


async def _lines(
    controller: Controller, engine: Engine, ref: TaskRef, query: LogQuery
) -> AsyncIterator[LogLine]:
    """Yield the lines of one task; while following, wait until its launch is decided first.

    An engine knows a task's end only once it began: before the launch there is nothing to
    follow yet, and after a refused one there never is.
    """
    while query.is_following:
        seen_seq = controller.driver.seq
        task = _task(controller, ref)
        if task is None or task.state is not TaskState.LAUNCHING:
            if task is None or task.started_s is None:
                query = msgspec.structs.replace(query, is_following=False)
            break
        await _change(controller, ref.job_id, seen_seq)
    async for line in engine.logs(ref, query):
        yield line


def _task(controller: Controller, ref: TaskRef) -> Task | None:
    """Return the task while its attempt is the job's last one."""
    job = controller.driver.cluster.jobs.get(ref.job_id)
    if job is None or job.attempt != ref.attempt:
        return None
    return next((task for task in job.tasks if task.placement.task == ref.task), None)


def engine_at(controller: Controller, node: NodeName) -> Engine:
    """Return the engine that runs a node's tasks.

    Raises:
        UserError: `unavailable` when the node is gone.
    """
    known = controller.driver.cluster.nodes.get(node)
    if known is None:
        raise UserError(f"node {node} is gone, and the logs on it with it", code="unavailable")
    return controller.engine_of(known.spec.site)


def _merged(sources: Sequence[tuple[int, Lines]], query: LogQuery) -> AsyncIterator[bytes]:
    if len(sources) == 1:
        return _single(*sources[0])
    return _as_they_come(sources) if query.is_following else _by_time(sources)


async def _single(task: int, lines: Lines) -> AsyncIterator[bytes]:
    async for line in lines:
        yield _frame(task, line)


async def _by_time(sources: Sequence[tuple[int, Lines]]) -> AsyncIterator[bytes]:
    """Merge finite logs by time; a task's own lines keep their order. O(log tasks) a line."""
    heap: list[tuple[float, int, LogLine, Lines]] = []
    for task, lines in sources:
        line = await anext(lines, None)
        if line is not None:
            heap.append((line.at_s, task, line, lines))
    heapq.heapify(heap)
    while heap:
        _, task, line, lines = heap[0]
        yield _frame(task, line)
        following = await anext(lines, None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following.at_s, task, following, lines))


async def _as_they_come(sources: Sequence[tuple[int, Lines]]) -> AsyncIterator[bytes]:
    """Merge logs that grow. A slow reader holds the pumps back, not the server's memory."""
    waiting: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(_WAITING_LINES)

    async def pump(task: int, lines: Lines) -> None:
        end: BaseException | None = None
        try:
            async for line in lines:
                await waiting.put(_frame(task, line))
        except Exception as error:  # Raised again by the reader of the queue.
            end = error
        await waiting.put(end)

    pumps = [asyncio.ensure_future(pump(task, lines)) for task, lines in sources]
    try:
        open_count = len(pumps)
        while open_count:
            content = await waiting.get()
            match content:
                case bytes():
                    yield content
                case None:
                    open_count -= 1
                case BaseException():
                    raise content
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _frame(task: int, line: LogLine) -> bytes:
    view = LogView(
        task=task,
        at_s=line.at_s,
        stream=line.stream,
        text=line.text,
        is_partial=line.is_partial,
    )
    return frame(msgspec.json.encode(view))
