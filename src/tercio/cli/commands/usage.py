"""`tercio usage`."""

from __future__ import annotations

import click

from tercio.cli import tables
from tercio.cli.commands.logs import parse_since_s
from tercio.cli.output import Output, output_options, show_list
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, Word, pass_session


@click.command(
    cls=Verb,
    examples="""
    tercio usage --by queue --since 30d
    tercio usage -o csv > usage.csv        # exact device-milliseconds
    """,
)
@click.option(
    "--by", type=Word("grouping", ("user", "queue")), default="user", help="Whose use is summed."
)
@click.option("--since", metavar="WHEN", help="Only since then: 7d, or an RFC 3339 instant.")
@output_options
@pass_session
def command(session: Session, by: str, since: str | None, output: Output) -> None:
    """Sum device hours by user or queue, over all sites.

    It counts jobs that are forgotten by now too. Where the time went, and at which site, says
    `tercio report usage --site`.
    """
    since_s = None if since is None else parse_since_s(session, since)
    body = session.fetch("/v1/usage", by=by, since=since_s)
    show_list(session, output, tables.usage(by), [body])
