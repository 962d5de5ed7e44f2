"""Stories as their reader may see them."""

from __future__ import annotations

import asyncio

from tercio.api.context import ApiContext
from tercio.api.redact import redact_entry
from tercio.core.story import tell
from tercio.model.events import SERVER, Entry, JobSubmitted, subjects
from tercio.model.identity import Principal
from tercio.model.ids import JobId, array_parent
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.model.views import Story
from tercio.store.journal import Journal

_PAGE = 1000


async def read_story(context: ApiContext, subject: str, reader: Principal) -> Story:
    """Return the story of a subject such as `job-00001` or `node/n1`, oldest first.

    A job's story also tells of the restarts of the server that it lived through.
    """
    entries = await asyncio.to_thread(_read_all, context.journal, subject)
    job = context.cluster.jobs.get(JobId(subject))
    if job is not None and entries:
        runs = await asyncio.to_thread(_read_all, context.journal, SERVER)
        last = entries[-1].seq if job.state in TERMINAL_JOB_STATES else runs[-1].seq + 1
        lived_through = [run for run in runs if entries[0].seq < run.seq < last]
        entries = sorted([*entries, *lived_through], key=lambda entry: entry.seq)
    seen = [redact_for(context, entry, reader) for entry in entries]
    return Story(subject=subject, rows=tuple(tell(seen, subject)))


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
    found: list[Entry] = []
    while True:
        page = journal.read(found[-1].seq if found else 0, _PAGE, subject)
        found.extend(page)
        if len(page) < _PAGE:
            return found
