"""`tercio story`."""

from __future__ import annotations

import click

from tercio.cli import details
from tercio.cli.completing import Name
from tercio.cli.names import find_object, suggest
from tercio.cli.output import Listing, Output, output_options, show_list
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client.transport import quote
from tercio.errors import UserError
from tercio.model.views import StoryLine


@click.command(
    cls=Verb,
    examples="""
    tercio story job-00001
    tercio story node/n1 -o wide
    """,
)
@click.argument("name", metavar="[KIND/]NAME", type=Name("job", "node"))
@output_options
@pass_session
def command(session: Session, name: str, output: Output) -> None:
    """Tell everything that happened to a job or node, oldest first."""
    kind, found = find_object(session, name)
    if kind == "queue":
        raise UserError(
            f"'{found}' is a queue: stories are told of jobs and nodes",
            hint=f"see 'tercio queue show {found}' and 'tercio events'",
        )
    try:
        body = session.fetch(f"/v1/{kind}s/{quote(found)}/story")
    except UserError as error:
        known = [node.name for node in session.client.every_node()] if kind == "node" else []
        raise suggest(error, kind, found, known) from None
    columns = details.story_columns(session.now_s())
    listing = Listing(columns, StoryLine, lambda line: str(line.seq), "nothing happened yet")
    show_list(session, output, listing, [body])
