"""`tercio web`."""

from __future__ import annotations

import click

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.signing_in import fresh_link
from tercio.cli.verbs import Verb, pass_session


@click.command(
    cls=Verb,
    examples="""
    tercio web                   # print a link that signs in once
    tercio web --open            # open it in a browser here
    """,
)
@click.option("--open", "is_opening", is_flag=True, help="Open it in this machine's browser.")
@pass_session
def command(session: Session, *, is_opening: bool) -> None:
    """Print a link to the web page that signs a browser in as you.

    It works once, for ten minutes; the page then stays signed in for seven days. The page may do
    what your token may do.
    """
    link = fresh_link(session)
    write(link)
    if not session.client.has_page():
        session.warn(
            "the page is not built there, so the link shows nothing yet: run `make ui` in the "
            "checkout that the server runs from, or `pip install .` again with npm on PATH"
        )
        return
    if is_opening:
        import webbrowser

        if not webbrowser.open(link):
            session.warn("no browser could be started here; open the link yourself")
