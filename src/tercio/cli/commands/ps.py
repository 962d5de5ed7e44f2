"""`tercio ps`."""

from __future__ import annotations

import click

from tercio.cli import tables
from tercio.cli.commands.show import fetch_queue
from tercio.cli.completing import Name
from tercio.cli.output import Output, has_rows, output_options, show_list
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, Word, pass_session
from tercio.model.job import JobState

STATES = tuple(str(state) for state in JobState)


@click.command(
    cls=Verb,
    examples="""
    tercio ps                             # what runs and what waits
    tercio ps --all --user ana            # ended jobs of ana too
    tercio ps --state queued -o wide
    tercio ps -q -o name --state failed | xargs tercio requeue
    """,
)
@click.option("-a", "--all", "is_all", is_flag=True, help="Ended jobs too.")
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    type=Word("job state", STATES),
    metavar="STATE",
    help=f"Only in this state: {', '.join(STATES)}.",
)
@click.option("--queue", metavar="QUEUE", type=Name("queue"), help="Only this queue.")
@click.option("-u", "--user", metavar="USER", help="Only this user.")
@click.option("--site", metavar="SITE", help="Only what runs at this site or may start there.")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="At most this many, newest.")
@output_options
@pass_session
def command(
    session: Session,
    *,
    is_all: bool,
    states: tuple[str, ...],
    queue: str | None,
    user: str | None,
    site: str | None,
    limit: int | None,
    output: Output,
) -> None:
    """List jobs: what runs, what waits and why."""
    query = {"state": states or None, "queue": queue, "user": user, "all": is_all or None}
    pages = session.fetch_pages("/v1/jobs", limit=limit, site=site, **query)
    if queue is not None and not has_rows(pages[0]):
        fetch_queue(session, queue)
    show_list(session, output, tables.jobs(session), pages)
