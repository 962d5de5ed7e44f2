"""Stories as their reader may see them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tercio.api.context import ApiContext
from tercio.api.redact import redact_entry
from tercio.core.story import tell
from tercio.model.events import (
    SERVER,
    Entry,
    JobPlaced,
    JobSubmitted,
    NodeDrainRequested,
    NodeFenced,
    NodeLost,
    TaskExited,
    TaskLaunchFailed,
    subjects,
)
from tercio.model.identity import Principal
from tercio.model.ids import JobId, array_parent
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.model.views import Story, StoryLine
from tercio.store.journal import Journal

_PAGE = 1000


async def read_story(context: ApiContext, subject: str, reader: Principal) -> Story:
    """Return the story of a subject such as `job-00001` or `node/n1`, oldest first.

    A job's story also tells of the restarts of the server that it lived through, of its
    nodes' drains and losses while it was on them, and at last how it ended.
    """
    entries = await asyncio.to_thread(_read_all, context.journal, subject)
    job = context.cluster.jobs.get(JobId(subject))
    if job is not None and entries:
        runs = await asyncio.to_thread(_read_all, context.journal, SERVER)
        last = entries[-1].seq if job.state in TERMINAL_JOB_STATES else runs[-1].seq + 1
        lived_through = [run for run in runs if entries[0].seq < run.seq < last]
        struck = await asyncio.to_thread(_fates_of_nodes, context.journal, entries)
        entries = sorted([*entries, *lived_through, *struck], key=lambda entry: entry.seq)
    seen = [redact_for(context, entry, reader) for entry in entries]
    rows = tell(seen, subject)
    if job is not None and rows and job.state in TERMINAL_JOB_STATES and job.ended_s is not None:
        end, why = job.state.value, job.message
        text = why if why.startswith(end) else f"{end}: {why}" if why else end
        rows.append(StoryLine(seq=rows[-1].seq, at_s=job.ended_s, kind="JobEnded", text=text))
    return Story(subject=subject, rows=tuple(rows))


def _fates_of_nodes(journal: Journal, entries: list[Entry]) -> list[Entry]:
    """Return the drains and losses of a job's nodes that fell into one of its attempts."""
    found: dict[int, Entry] = {}
    for start, end in _attempts(entries):
        assert isinstance(start.event, JobPlaced)
        for node in dict.fromkeys(task.node for task in start.event.tasks):
            for entry in _read(journal, f"node/{node}", after=start.seq):
                if end is not None and entry.seq >= end:
                    break
                if isinstance(entry.event, NodeDrainRequested | NodeLost | NodeFenced):
                    found[entry.seq] = entry
    return list(found.values())


def _attempts(entries: list[Entry]) -> Iterator[tuple[Entry, int | None]]:
    """Yield the placing entry of each attempt, and where its last task ended; None: not yet."""
    placed: Entry | None = None
    left = 0
    for entry in entries:
        match entry.event:
            case JobPlaced(tasks=tasks):
                if placed is not None:
                    yield placed, entry.seq
                placed, left = entry, len(tasks)
            case TaskExited() | TaskLaunchFailed() if placed is not None:
                left -= 1
                if left <= 0:
                    yield placed, entry.seq
                    placed = None
            case _:
                pass
    if placed is not None:
        yield placed, None


def redact_for(context: ApiContext, entry: Entry, reader: Principal) -> Entry:
    """Return an entry as the reader may see it."""
    return redact_entry(entry, reader, tenant_of(context, entry))


def tenant_of(context: ApiContext, entry: Entry) -> str | None:
    """Return the tenant of the job that an entry concerns; None when it is not known any more."""
    if isinstance(entry.event, JobSubmitted):
        return entry.event.tenant
    for subject in subjects(entry.event)[:1]:
        jobs = context.cluster.jobs
        job = jobs.get(JobId(subject))
        if job is None:
            parent = array_parent(JobId(subject))
            job = jobs.get(parent) if parent is not None else None
        return None if job is None else job.tenant
    return None


def _read_all(journal: Journal, subject: str) -> list[Entry]:
    return list(_read(journal, subject))


def _read(journal: Journal, subject: str, *, after: int = 0) -> Iterator[Entry]:
    while True:
        page = journal.read(after, _PAGE, subject)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].seq
