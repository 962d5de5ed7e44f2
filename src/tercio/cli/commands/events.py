"""`tercio events`."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from tercio.cli import human
from tercio.cli.output import Column, Listing, Output, output_options, show_list, write, write_body
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session

_LAST: Final = 50
_SUBJECTS: Final = ("job_id", "node", "name", "token_id", "site")


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """One journal entry, its event not taken apart: newer servers may know more kinds."""

    seq: int
    event: dict[str, Any]


@click.command(
    cls=Verb,
    examples="""
    tercio events                 # the last 50
    tercio events -f
    tercio events --since 1200 -o jsonl
    """,
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens.")
@click.option("--since", type=click.IntRange(0), metavar="SEQ", help="After this sequence number.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N, then end.")
@output_options
@pass_session
def command(
    session: Session, *, follow: bool, since: int | None, limit: int | None, output: Output
) -> None:
    """Show what changed, from the journal, oldest first."""
    if since is None:
        since = max(0, session.client.server().seq - (limit or _LAST))
    if follow:
        _follow(session, since, limit, output)
        return
    pages = session.fetch_pages("/v1/events", since=since, limit=limit)
    show_list(session, output, LISTING, pages)


def _follow(session: Session, since: int, limit: int | None, output: Output) -> None:
    import sys

    for count, view in enumerate(session.client.follow_events(since=since), start=1):
        body = msgspec.json.encode(view)
        if output.is_table:
            row = msgspec.json.decode(body, type=EventRow)
            write("  ".join((str(row.seq), _time(row), _kind(row), subject(row), rest(row))))
        else:
            write_body(body)
        sys.stdout.flush()
        if count == limit:
            return


def subject(row: EventRow) -> str:
    """Return what the event is about."""
    for name in _SUBJECTS:
        if isinstance(row.event.get(name), str):
            return str(row.event[name])
    spec = row.event.get("spec")
    return str(spec.get("name", human.NOTHING)) if isinstance(spec, dict) else human.NOTHING


def rest(row: EventRow) -> str:
    """Return the plain facts of the event, as `name=value`."""
    left_out = {"type", "at_s", *_SUBJECTS}
    facts = (
        f"{name}={value}"
        for name, value in row.event.items()
        if name not in left_out and isinstance(value, (str, int, float)) and value != ""
    )
    return " ".join(facts)


def _time(row: EventRow) -> str:
    at_s = row.event.get("at_s")
    return human.local_time(at_s) if isinstance(at_s, (int, float)) else human.NOTHING


def _kind(row: EventRow) -> str:
    return str(row.event.get("type", human.NOTHING))


LISTING: Final[Listing[EventRow]] = Listing(
    (
        Column("SEQ", "seq", lambda row: str(row.seq), is_right=True),
        Column("TIME", "event.at_s", _time),
        Column("EVENT", "event.type", _kind),
        Column("SUBJECT", "event.job_id", subject),
        Column("FACTS", "event", rest, is_flexible=True),
    ),
    EventRow,
    lambda row: str(row.seq),
    "no events since then",
)
