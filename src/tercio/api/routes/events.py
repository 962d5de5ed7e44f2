"""The route of events: a page of them, or a stream that goes on."""

from __future__ import annotations

import asyncio
from typing import Final

from tercio.api import sse
from tercio.api.bodies import EventsQuery, NoBody
from tercio.api.context import ApiContext
from tercio.api.following import follow
from tercio.api.stories import redact_for
from tercio.api.table import JSON, Call, Route, Stream
from tercio.api.wire import make_cursor, read_cursor
from tercio.errors import UserError
from tercio.model.events import Entry
from tercio.model.identity import Principal, Role
from tercio.model.views import EventList, EventView

LAST_HEADER: Final = "Last-Event-ID"
SEQ_MAX: Final = 2**53


async def events(call: Call[EventsQuery, NoBody]) -> EventList | Stream:
    """Return a page of events, or stream them when the reader accepts that."""
    if sse.MEDIA_TYPE in (call.header("Accept") or ""):
        since = _seen(call.header(LAST_HEADER), call.query.since)
        check_kept(call.context, since)
        stream = follow(
            call.context,
            since,
            call.principal,
            has_views=call.query.views,
            pause_s=call.query.pause_s,
        )
        return Stream(chunks=call.context.stream(stream), media_type=sse.MEDIA_TYPE)
    query, context = call.query, call.context
    after = read_cursor("events", query.after)
    since = _seen(after, query.since)
    check_kept(context, since)
    entries = await asyncio.to_thread(context.journal.read, since, query.limit)
    is_last = len(entries) < query.limit or entries[-1].seq >= context.journal.last_seq
    return EventList(
        rows=tuple(_view(context, entry, call.principal) for entry in entries),
        next=None if is_last else make_cursor("events", str(entries[-1].seq)),
    )


def _seen(text: str | None, since: int) -> int:
    """Return the sequence number that a reader saw last: the header's, or the query's."""
    if text is None:
        return since
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > SEQ_MAX:
        raise UserError(
            f"{LAST_HEADER}: {text[:40]!r} is not a sequence number",
            field=LAST_HEADER,
            hint="send the `id` of the last event that was read",
        )
    return int(text)


def check_kept(context: ApiContext, since: int) -> None:
    """Raise `resync` when events after `since` are not kept any more.

    Raises:
        UserError: `resync`, also for a number that this journal has not reached.
    """
    journal = context.journal
    if since + 1 < journal.first_seq:
        raise UserError(
            f"events before {journal.first_seq} are not kept any more",
            code="resync",
            hint=f"read the lists again, then follow with since={journal.last_seq}",
        )
    if since > max(journal.last_seq, context.controller.driver.seq):
        raise UserError(
            f"the newest event is {journal.last_seq}, before {since}: this is another journal",
            code="resync",
            hint="read the lists again; the server may have been restored from a backup",
        )


def _view(context: ApiContext, entry: Entry, reader: Principal) -> EventView:
    seen = redact_for(context, entry, reader)
    return EventView(seq=seen.seq, event=seen.event)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/events",
        name="events",
        summary="A page of events, or with `Accept: text/event-stream` a stream that goes on",
        role=Role.VIEWER,
        perform=events,
        query=EventsQuery,
        answer=EventList,
        media_types=(JSON, sse.MEDIA_TYPE),
        headers={LAST_HEADER: "sequence number of the last event that was read"},
    ),
)
"""Routes of events."""
