"""`tercio backup`."""

from __future__ import annotations

import os
import sys

import click

from tercio.cli.progress import Progress
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.errors import UserError
from tercio.model.units import format_memory


@click.command(
    cls=Verb,
    examples="""
    tercio backup tercio-$(date +%F).db
    tercio backup - | ssh store 'cat > tercio.db'
    """,
)
@click.argument("file", metavar="FILE|-", type=click.Path())
@click.option("-y", "--yes", "is_yes", is_flag=True, help="Overwrite without asking.")
@pass_session
def command(session: Session, file: str, *, is_yes: bool) -> None:
    """Write the journal to a file while the server runs. Secrets of jobs are not in it."""
    if file == "-":
        if sys.stdout.isatty():
            raise UserError("a backup is not text for a terminal", hint="name a file, or pipe it")
        session.client.backup(sys.stdout.buffer)
        return
    if os.path.exists(file):
        session.confirm(f"overwrite {file}?", is_yes=is_yes)
    # Written beside and renamed: a broken transfer never replaces a good backup.
    partial = f"{file}.part"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with Progress(session, "writing the backup"), os.fdopen(descriptor, "wb") as target:
            size_bytes = session.client.backup(target)
            target.flush()
            os.fsync(target.fileno())
        os.replace(partial, file)
    except BaseException:
        os.unlink(partial)
        raise
    session.note(f"wrote {file}, {format_memory(size_bytes)}; 'tercio restore {file}' takes it")
