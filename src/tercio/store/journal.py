"""The journal: every event, in order, durable before anything acts on it.

One SQLite file in WAL mode with `synchronous=FULL`: a transaction is on the disk when
`append` returns. Bodies are MessagePack, not JSON: what was written is what is read back,
floats and infinities included, at two thirds of the size; `tercio events` shows them as text.
One writer, many readers: `append`, `save_checkpoint` and `prune` exclude each other, `read`
and `backup` go on beside them. Every method may be called from any thread.

The entries from `first_seq` on are whole. Below it, after a `prune`, only the entries of
subjects that were kept remain, so that the story of a long job does not lose its beginning.

    journal = Journal.open(Path("/var/lib/tercio/journal.db"))
    journal.append([Entry(seq=1, event=...)])
    journal.read(since=0, subject="job-00001")
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tercio.errors import StoreError
from tercio.model.events import Entry, subjects
from tercio.store.failures import mapped
from tercio.store.lock import FileLock
from tercio.store.migrate import SCHEMA_VERSION, decoded, migrate

_CHECKPOINTS_KEPT: Final = 2
_PRUNE_MAX: Final = 10_000
DIRECTORY_MODE: Final = 0o711
"""Of the state directory: tasks of other users run below it, but nobody else may list it."""
_encode = msgspec.msgpack.Encoder().encode


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state after entry `seq`: replay goes on from there."""

    seq: int
    digest: str
    image: bytes


class Journal:
    """The open journal of one server. Made by `Journal.open`."""

    def __init__(self, path: Path, lock: FileLock, writer: sqlite3.Connection) -> None:
        self.path = path
        self.migrated_from: Path | None = None
        """The copy of the file from before its migration, when opening migrated it."""
        self._lock = lock
        self._writer = writer
        self._writing = threading.Lock()
        self._reader = writer
        self._reading = threading.Lock()
        self._last_seq = 0
        self._first_seq = 1

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open or create the journal, migrate it, and check that it is whole.

        Raises:
            StoreError: another server holds it, it is damaged, of a newer Tercio, or the
                disk refuses. The text names the file and the fix.
        """
        with mapped("open", path):
            path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
        writer = None
        try:
            with mapped("open", path):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                writer = connect(path)
                journal = cls(path, lock, writer)
                journal.migrated_from = migrate(writer, path)
                check(writer, path)
                journal._reader = connect(path)
                journal._learn()
        except BaseException:
            if writer is not None:
                writer.close()
            lock.release()
            raise
        return journal

    @property
    def first_seq(self) -> int:
        """From here on no entry is missing; `last_seq + 1` when there is none."""
        return self._first_seq

    @property
    def last_seq(self) -> int:
        """Sequence of the last durable entry, 0 when there is none."""
        return self._last_seq

    @property
    def schema_version(self) -> int:
        """Version of the layout, see `store.migrate`."""
        return SCHEMA_VERSION

    @property
    def epoch_floor(self) -> int:
        """The next server epoch must be above this; not 0 only in a restored journal."""
        with self._reading, mapped("read", self.path):
            return meta_number(self._reader, "epoch_floor", 0)

    @property
    def jobs_floor(self) -> int:
        """The next job's number must be above this; not 0 only in a restored journal."""
        with self._reading, mapped("read", self.path):
            return meta_number(self._reader, "jobs_floor", 0)

    def append(self, entries: Sequence[Entry]) -> None:
        """Write the entries in one durable transaction, all or none.

        Raises:
            StoreError: nothing was kept; the journal may be used again.
        """
        if not entries:
            return
        rows = [(entry.seq, _encode(entry.event)) for entry in entries]
        index = [(s, entry.seq) for entry in entries for s in subjects(entry.event)]
        with self._writing, mapped("write", self.path):
            expected = range(self._last_seq + 1, self._last_seq + 1 + len(entries))
            if any(seq != due for (seq, _), due in zip(rows, expected, strict=True)):
                raise StoreError(
                    f"{self.path}: entries {rows[0][0]} to {rows[-1][0]} do not follow "
                    f"entry {self._last_seq}"
                )
            with _Transaction(self._writer) as writer:
                writer.executemany("INSERT INTO entries VALUES (?, ?)", rows)
                # An event may name one object twice (evicted for itself).
                writer.executemany("INSERT OR IGNORE INTO subjects VALUES (?, ?)", index)
            self._last_seq = entries[-1].seq

    def probe(self) -> None:
        """Prove by a durable write that the journal takes entries.

        Raises:
            StoreError: it does not.
        """
        with self._writing, mapped("write", self.path), _Transaction(self._writer) as writer:
            # As large as a turn's entries, so that the last free page does not pass the test.
            writer.execute("INSERT OR REPLACE INTO meta VALUES ('probe', zeroblob(65536))")
            writer.execute("DELETE FROM meta WHERE key = 'probe'")

    def read(self, since: int = 0, limit: int = 1000, subject: str | None = None) -> list[Entry]:
        """Return up to `limit` entries after sequence `since`, of one subject or of all.

        Raises:
            StoreError: the journal cannot be read.
        """
        if subject is None:
            query = "SELECT seq, body FROM entries WHERE seq > ? ORDER BY seq LIMIT ?"
            values: tuple[object, ...] = (since, limit)
        else:
            query = (
                "SELECT seq, body FROM subjects JOIN entries USING (seq)"
                " WHERE subject = ? AND seq > ? ORDER BY seq LIMIT ?"
            )
            values = (subject, since, limit)
        with self._reading, mapped("read", self.path):
            rows = self._reader.execute(query, values).fetchall()
        return [Entry(seq=seq, event=decoded(seq, body)) for seq, body in rows]

    def first_since(self, at_s: float) -> int:
        """Return the first sequence whose event is not older than `at_s`, by bisection.

        `last_seq + 1` when all are older. Relies on time not going backwards in the journal.
        """
        low, high = self._first_seq, self._last_seq + 1
        while low < high:
            middle = (low + high) // 2
            (entry,) = self.read(middle - 1, 1)
            if entry.event.at_s < at_s:
                low = middle + 1
            else:
                high = middle
        return low

    def save_checkpoint(self, seq: int, image: bytes, digest: str) -> None:
        """Keep the state after entry `seq`; the one before it is kept too, older ones go."""
        operation = mapped("write a checkpoint to", self.path)
        with self._writing, operation, _Transaction(self._writer) as writer:
            writer.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (seq, digest, image)
            )
            writer.execute(
                "DELETE FROM checkpoints WHERE seq NOT IN"
                " (SELECT seq FROM checkpoints ORDER BY seq DESC LIMIT ?)",
                (_CHECKPOINTS_KEPT,),
            )

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that are kept, newest first."""
        with self._reading, mapped("read a checkpoint of", self.path):
            rows = self._reader.execute(
                "SELECT seq, state_hash, image FROM checkpoints ORDER BY seq DESC"
            ).fetchall()
        return [Checkpoint(seq=seq, digest=found, image=image) for seq, found, image in rows]

    def latest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None."""
        found = self.checkpoints()
        return found[0] if found else None

    def prune(self, before_seq: int, keep: Collection[str] = ()) -> int:
        """Drop entries before `before_seq`, except those of the subjects in `keep`.

        Never goes past the older checkpoint, which a restart may need. Drops at most 10,000
        entries a call, so that an `append` does not wait long; call again until it returns 0.
        """
        with self._writing, mapped("prune", self.path), _Transaction(self._writer) as writer:
            row = writer.execute("SELECT min(seq) FROM checkpoints").fetchone()
            before_seq = min(before_seq, (row[0] or 0) + 1)
            writer.execute("CREATE TEMP TABLE kept (subject TEXT PRIMARY KEY) WITHOUT ROWID")
            writer.executemany("INSERT OR IGNORE INTO kept VALUES (?)", [(s,) for s in keep])
            rows = writer.execute(
                "SELECT seq, body FROM entries WHERE seq < :before AND seq NOT IN"
                " (SELECT seq FROM kept JOIN subjects USING (subject) WHERE seq < :before)"
                " ORDER BY seq LIMIT :most",
                {"before": before_seq, "most": _PRUNE_MAX},
            ).fetchall()
            writer.execute("DROP TABLE kept")
            if not rows:
                return 0
            writer.executemany("DELETE FROM entries WHERE seq = ?", [(seq,) for seq, _ in rows])
            writer.executemany(
                "DELETE FROM subjects WHERE subject = ? AND seq = ?",
                [(s, seq) for seq, body in rows for s in subjects(decoded(seq, body))],
            )
            first = max(self._first_seq, rows[-1][0] + 1)
            writer.execute("INSERT OR REPLACE INTO meta VALUES ('first_seq', ?)", (first,))
        self._first_seq = first
        return len(rows)

    def backup(self, path: Path) -> None:
        """Copy the journal, while it is written, to one new file of mode 0600.

        Raises:
            StoreError: the copy failed; no file of that name was made or changed.
        """
        with mapped("back up to", path):
            part = path.with_name(path.name + ".part")
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            try:
                source = connect(self.path)
                try:
                    copy(source, part)
                finally:
                    source.close()
                os.replace(part, path)
                sync_directory(path.parent)
            finally:
                part.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and free the lock; again is no error."""
        with self._writing, self._reading, mapped("close", self.path):
            try:
                self._reader.close()
                self._writer.close()
            finally:
                self._lock.release()

    def _learn(self) -> None:
        (last,) = self._writer.execute("SELECT max(seq) FROM entries").fetchone()
        row = self._writer.execute("SELECT max(seq) FROM checkpoints").fetchone()
        self._last_seq = max(last or 0, row[0] or 0)
        self._first_seq = meta_number(self._writer, "first_seq", 1)


class _Transaction:
    """`BEGIN IMMEDIATE`, then `COMMIT`, or `ROLLBACK` on any error."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
            except sqlite3.Error:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        # SQLite has rolled back by itself after some errors, such as a full disk.
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection as the journal needs it: durable commits, any thread."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=5.0, cached_statements=64
    )
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{path}: its file system takes no WAL; keep it on a local disk")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -8192")
    except BaseException:
        connection.close()
        raise
    return connection


def read_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a journal or a backup without becoming its server.

    Reads what is durable when the reading begins; a running server is not disturbed.

    Raises:
        StoreError: the file cannot be read, or is no journal.
    """
    with mapped("read", path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        with mapped("read", path):
            for seq, body in connection.execute("SELECT seq, body FROM entries ORDER BY seq"):
                yield Entry(seq=seq, event=decoded(seq, body))
    finally:
        connection.close()


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreError` unless the pages are sound and no entry is missing.

    Costs one read of the file.
    """
    row = connection.execute("PRAGMA quick_check(1)").fetchone()
    if row[0] != "ok":
        raise StoreError(
            f"{path} is damaged ({row[0]}); stop the server and run `tercio restore BACKUP`"
        )
    start = meta_number(connection, "first_seq", 1)
    count, last = connection.execute(
        "SELECT count(*), max(seq) FROM entries WHERE seq >= ?", (start,)
    ).fetchone()
    newest = connection.execute("SELECT max(seq) FROM checkpoints").fetchone()[0]
    if last is not None and count != last - start + 1:
        missing = last - start + 1 - count
        raise StoreError(f"{path} lacks {missing} of entries {start} to {last}; restore a backup")
    is_behind = (newest or 0) + 1 < start
    is_ahead = last is not None and (newest or 0) > last
    if is_behind or is_ahead:
        raise StoreError(f"{path} has no checkpoint to start from; restore a backup")


def copy(source: sqlite3.Connection, target: Path) -> None:
    """Copy a database, in one read transaction, to a single file that is on the disk after."""
    sink = sqlite3.connect(target, isolation_level=None)
    try:
        source.backup(sink)
        # A copy keeps the WAL mark of its source; one file is easier to carry about.
        sink.execute("PRAGMA journal_mode = DELETE")
    finally:
        sink.close()
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make names created or replaced in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def meta_number(connection: sqlite3.Connection, key: str, default: int) -> int:
    """Return a number that the journal keeps of itself."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return default if row is None else int(row[0])
