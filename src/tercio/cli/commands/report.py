"""`tercio report`."""

from __future__ import annotations

import click
import msgspec

from tercio.cli import use
from tercio.cli.commands.logs import parse_since_s
from tercio.cli.output import Output, output_options, show_list
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session
from tercio.model.report_views import UseReport


@click.group(cls=Noun, default="usage")
def command() -> None:
    """Report where device time, energy and money went. Alone it is the usage report."""


@command.command(
    "usage",
    examples="""
    tercio report usage --by queue --since 7d
    tercio report usage --by job --since 30d -o csv > use.csv   # exact device-milliseconds
    """,
)
@click.option(
    "--by", type=Word("grouping", ("user", "queue", "job")), default="user", help="Whose use."
)
@click.option("--since", default="7d", metavar="WHEN", help="7d (default), or RFC 3339.")
@click.option("--site", metavar="SITE", help="Only what was held at this site.")
@output_options
@pass_session
def usage(session: Session, *, by: str, since: str, site: str | None, output: Output) -> None:
    """Sum device hours allocated, useful and wasted, energy, cost and carbon.

    Allocated time is exactly the sum of its classes; `-o wide` shows all of them.
    """
    body = session.fetch("/v1/report", by=by, since=parse_since_s(session, since), site=site)
    show_list(session, output, use.rows(by), [body])
    if output.is_table:
        use.totals(session, msgspec.json.decode(body, type=UseReport))
