"""`tercio snapshot`."""

from __future__ import annotations

import os
import sys
import time

import click

from tercio.cli.progress import Progress
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.model.units import format_memory


@click.group("snapshot")
def command() -> None:
    """Save queue and nodes of the server, to ask the twin what happens next."""


@command.command(
    "save",
    cls=Verb,
    examples="""
    tercio snapshot save now.json
    tercio snapshot save - | ssh desk 'cat > now.json'
    tercio twin run --from now.json --add 16xH100
    """,
)
@click.argument("file", metavar="[FILE|-]", required=False, type=click.Path())
@click.option("-y", "--yes", "is_yes", is_flag=True, help="Overwrite without asking.")
@pass_session
def save(session: Session, file: str | None, *, is_yes: bool) -> None:
    """Write policy, nodes, waiting and running jobs with their times to a file.

    Not in it: commands, environments, secrets, tokens, past use by user, and ended jobs. Names
    of jobs, users, queues and nodes are. Needs the role operator.
    """
    if file == "-":
        session.client.snapshot(sys.stdout.buffer)
        return
    file = file or time.strftime("tercio-%Y-%m-%d-%H%M%S.json")
    if os.path.exists(file):
        session.confirm(f"overwrite {file}?", is_yes=is_yes)
    # Written beside and renamed: a broken transfer never replaces a good snapshot.
    partial = f"{file}.part"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with Progress(session, "saving"), os.fdopen(descriptor, "wb") as target:
            size_bytes = session.client.snapshot(target)
        os.replace(partial, file)
    except BaseException:
        os.unlink(partial)
        raise
    session.note(
        f"wrote {file}, {format_memory(size_bytes)}; 'tercio twin run --from {file}' plays it on"
    )
