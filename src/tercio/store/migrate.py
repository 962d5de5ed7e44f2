"""Schema versions of the journal, and the steps between them.

| version | layout |
|---|---|
| 1 | `meta`, `entries`, `checkpoints` |
| 2 | adds `subjects`, the index from an object to its entries |

A step runs in the transaction that also writes the new version, so that a crash leaves the
old version whole. Before the first step the file is copied to `NAME.vN.bak`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tercio.errors import StoreError
from tercio.model.events import AnyEvent, subjects
from tercio.store.failures import mapped

SCHEMA_VERSION: Final = 2
APPLICATION_ID: Final = 0x54455243  # "TERC": lets `file` and us tell a journal from any database

_TABLES_V1: Final = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE checkpoints (seq INTEGER PRIMARY KEY, state_hash TEXT NOT NULL,"
    " image BLOB NOT NULL)",
)
_TABLES_V2: Final = (
    "CREATE TABLE subjects (subject TEXT NOT NULL, seq INTEGER NOT NULL,"
    " PRIMARY KEY (subject, seq)) WITHOUT ROWID",
)
_PAGE: Final = 5_000

decode_event = msgspec.msgpack.Decoder(AnyEvent).decode


def create(connection: sqlite3.Connection) -> None:
    """Make the tables of the current version in an empty database."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES_V1 + _TABLES_V2:
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (SCHEMA_VERSION,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version, 0 for an empty database.

    Raises:
        StoreError: the file is a database of something else, or of a newer Tercio.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        return 0
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is a database, but not a journal of Tercio; name another file")
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    version = int(row[0]) if row else 0
    if not 1 <= version <= SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema {version}, this Tercio reads 1 to {SCHEMA_VERSION}: "
            "install the Tercio that wrote it, or a newer one"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> Path | None:
    """Bring the journal to the current version; return the copy made before, or None.

    Raises:
        StoreError: see `version_of`, or the copy or a step failed; the file is as before.
    """
    version = version_of(connection, path)
    if version == 0:
        create(connection)
        return None
    if version == SCHEMA_VERSION:
        return None
    copy = path.with_name(f"{path.name}.v{version}.bak")
    with mapped("back up before the migration of", path):
        target = sqlite3.connect(copy)
        try:
            connection.backup(target)
        finally:
            target.close()
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in range(version, SCHEMA_VERSION):
            _STEPS[step](connection)
        connection.execute(
            "UPDATE meta SET value = ? WHERE key = 'schema_version'", (SCHEMA_VERSION,)
        )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return copy


def _add_subjects(connection: sqlite3.Connection) -> None:
    """Version 1 to 2: index every entry by the objects it belongs to."""
    for statement in _TABLES_V2:
        connection.execute(statement)
    last = 0
    while True:
        page = connection.execute(
            "SELECT seq, body FROM entries WHERE seq > ? ORDER BY seq LIMIT ?", (last, _PAGE)
        ).fetchall()
        if not page:
            return
        connection.executemany(
            "INSERT OR IGNORE INTO subjects VALUES (?, ?)",
            [(s, seq) for seq, body in page for s in subjects(decoded(seq, body))],
        )
        last = page[-1][0]


def decoded(seq: int, body: bytes) -> AnyEvent:
    """Return the event of one entry.

    Raises:
        StoreError: the bytes are not an event that this Tercio knows.
    """
    try:
        return decode_event(body)
    except msgspec.MsgspecError as failure:
        raise StoreError(
            f"entry {seq} of the journal cannot be read ({failure}): it is damaged, or a newer "
            "Tercio wrote it; install that one or restore a backup"
        ) from failure


_STEPS: Final[dict[int, Callable[[sqlite3.Connection], None]]] = {1: _add_subjects}
