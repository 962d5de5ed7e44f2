"""Put a backup in the place of the journal. The server must be stopped.

The journal that was there is kept beside it. The restored one gets two floors. Engines refuse
orders of an epoch older than the newest they saw, and the server that wrote the backup is not
the newest: the next epoch is above. Engines know tasks by their job's id, and what the restore
undoes has used some: new jobs are numbered above.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Final

import msgspec

from tercio.errors import StoreError
from tercio.store.failures import mapped
from tercio.store.journal import DIRECTORY_MODE, check, copy, sync_directory
from tercio.store.lock import FileLock
from tercio.store.migrate import migrate, version_of

_UNKNOWN_JOBS: Final = 1_000_000


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: the last entry of the backup, its schema, where the old journal went."""

    last_seq: int
    schema_version: int
    replaced: Path | None


def restore(backup: Path, journal: Path, *, is_plan: bool = False) -> Restored:
    """Check the backup, then swap it in; a plan checks only.

    Raises:
        StoreError: a server runs, or the backup is missing, damaged, or of a newer Tercio;
            the journal is as it was.
    """
    with mapped("restore", journal):
        journal.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    lock = FileLock(journal.with_name(journal.name + ".lock"))
    part = journal.with_name(journal.name + ".restoring")
    try:
        with mapped("read the backup", backup):
            part.unlink(missing_ok=True)
            version = _take(backup, part)
            last = _prepare(part, used=_last_seq(journal))
        if is_plan:
            return Restored(last_seq=last, schema_version=version, replaced=None)
        with mapped("restore", journal):
            replaced = _set_aside(journal)
            os.replace(part, journal)
            sync_directory(journal.parent)
    finally:
        for name in (part.name, part.name + "-journal"):
            part.with_name(name).unlink(missing_ok=True)
        lock.release()
    return Restored(last_seq=last, schema_version=version, replaced=replaced)


def _take(backup: Path, part: Path) -> int:
    """Copy the backup beside the journal, leaving the backup as it is."""
    if not backup.is_file():
        raise StoreError(f"there is no backup {backup}; name a file that `tercio backup` wrote")
    os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    source = sqlite3.connect(f"{backup.resolve().as_uri()}?mode=ro", uri=True)
    try:
        version = version_of(source, backup)
        if version == 0:
            raise StoreError(f"{backup} is empty; name a file that `tercio backup` wrote")
        check(source, backup)
        copy(source, part)
    finally:
        source.close()
    return version


def _prepare(part: Path, *, used: int | None) -> int:
    connection = sqlite3.connect(part, isolation_level=None)
    try:
        copied = migrate(connection, part)
        if copied is not None:
            copied.unlink()  # the backup itself is the copy
        check(connection, part)
        # Seconds since the epoch grow from one restore to the next, and pass every epoch that
        # counted server starts.
        connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('epoch_floor', ?)", (int(time.time()),)
        )
        last = _newest(connection)
        # Every job is an entry, so there were no more jobs than entries.
        floor = max(last, last + _UNKNOWN_JOBS if used is None else used)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('jobs_floor', ?)", (floor,))
        return last
    finally:
        connection.close()


def _last_seq(journal: Path) -> int | None:
    """Return the last entry of the journal that is to be replaced, None when it cannot be read."""
    if not journal.exists():
        return 0
    try:
        connection = sqlite3.connect(journal)
        try:
            return _newest(connection)
        finally:
            connection.close()
    except sqlite3.Error:
        return None


def _newest(connection: sqlite3.Connection) -> int:
    (entry,) = connection.execute("SELECT max(seq) FROM entries").fetchone()
    (checkpoint,) = connection.execute("SELECT max(seq) FROM checkpoints").fetchone()
    return max(entry or 0, checkpoint or 0)


def _set_aside(journal: Path) -> Path | None:
    """Move the journal and what SQLite keeps beside it out of the way, under one new name."""
    if not journal.exists():
        return None
    number = 1
    while (aside := journal.with_name(f"{journal.name}.replaced-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm"):
        beside = journal.with_name(journal.name + suffix)
        if beside.exists():
            os.replace(beside, aside.with_name(aside.name + suffix))
    os.replace(journal, aside)
    return aside
