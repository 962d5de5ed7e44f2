"""`tercio restore`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from tercio.cli.local_server import running_server, state_dir_of
from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.errors import StoreError, UserError

JOURNAL: Final = "journal.db"


@click.command(
    cls=Verb,
    examples="""
    tercio down && tercio restore tercio-2026-11-30.db && tercio up
    tercio restore tercio.db --plan                  # only check it
    tercio restore tercio.db --state-dir /srv/tercio
    """,
)
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--state-dir", metavar="DIR", help="To restore into; default: TERCIO_STATE_DIR.")
@click.option("--plan", "is_plan", is_flag=True, help="Only check the backup and say what it is.")
@click.option("-y", "--yes", "is_yes", is_flag=True, help="Do not ask.")
@pass_session
def command(
    session: Session, *, file: str, state_dir: str | None, is_plan: bool, is_yes: bool
) -> None:
    """Put a backup in the place of the journal. The server must be stopped.

    The journal that was there is kept beside the new one.
    """
    directory = state_dir_of(session, state_dir)
    found = running_server(directory)
    if found is not None:
        raise UserError(
            f"a server runs on {directory} (process {found.pid})",
            code="conflict",
            hint="stop it with 'tercio down'",
        )
    if not os.path.isfile(file):
        raise UserError(
            f"there is no file {file}", code="not_found", hint="name one of 'tercio backup'"
        )
    journal = Path(directory) / JOURNAL
    if journal.exists() and not is_plan:
        session.confirm(f"replace {journal}?", is_yes=is_yes)
    from tercio.store.restore import restore

    try:
        done = restore(Path(file), journal, is_plan=is_plan)
    except StoreError as error:
        # Nothing was changed: the file is at fault, or a server took the journal meanwhile.
        raise UserError(str(error), hint="give a file that 'tercio backup' wrote") from error
    if is_plan:
        kept = f"; {journal} would be kept beside it" if journal.exists() else ""
        write(f"would restore {directory} up to entry {done.last_seq} of {file}{kept}")
        return
    if done.replaced is not None:
        session.note(f"the journal before is kept as {done.replaced}")
    session.note(
        f"restored {directory} up to entry {done.last_seq} of {file}; start it with 'tercio up'"
    )
