"""`tercio restore`."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from typing import Final

import click

from tercio.cli.local_server import running_server, state_dir_of
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.errors import UserError

JOURNAL: Final = "journal.db"
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"


@click.command(
    cls=Verb,
    examples="""
    tercio down && tercio restore tercio-2026-11-30.db && tercio up
    tercio restore tercio.db --state-dir /srv/tercio
    """,
)
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--state-dir", metavar="DIR", help="To restore into; default: TERCIO_STATE_DIR.")
@click.option("-y", "--yes", "is_yes", is_flag=True, help="Do not ask.")
@pass_session
def command(session: Session, *, file: str, state_dir: str | None, is_yes: bool) -> None:
    """Start a state directory from a backup. The server must be stopped.

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
    check_backup(file)
    journal = os.path.join(directory, JOURNAL)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if os.path.exists(journal):
        session.confirm(f"replace {journal}?", is_yes=is_yes)
        kept = f"{journal}.before-restore-{time.strftime('%Y%m%dT%H%M%S')}"
        # The write-ahead log belongs to its journal: kept with it, never read with another.
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(journal + suffix):
                os.replace(journal + suffix, kept + suffix)
        session.note(f"the journal before is kept as {kept}")
    partial = f"{journal}.part"
    shutil.copyfile(file, partial)
    os.chmod(partial, 0o600)
    os.replace(partial, journal)
    session.note(f"restored {directory} from {file}; start it with 'tercio up'")


def check_backup(file: str) -> None:
    """Refuse what is not a whole journal.

    Raises:
        UserError: naming the file and what is wrong with it.
    """
    try:
        with open(file, "rb") as opened:
            magic = opened.read(len(_SQLITE_MAGIC))
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", code="not_found") from None
    hint = "give a file that 'tercio backup' wrote"
    if magic != _SQLITE_MAGIC:
        raise UserError(f"{file} is not a backup of Tercio", hint=hint)
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        (answer,) = connection.execute("PRAGMA quick_check").fetchone()
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.DatabaseError as error:
        raise UserError(f"{file} is damaged: {error}", hint=hint) from None
    finally:
        connection.close()
    if answer != "ok":
        raise UserError(f"{file} is damaged: {answer}", hint=hint)
    if "entries" not in names:
        raise UserError(f"{file} is a database, but not a journal of Tercio", hint=hint)
