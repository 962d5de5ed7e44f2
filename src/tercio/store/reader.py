"""The journal of a running server, read by another process; the server is not disturbed.

Between two reads nothing is locked and no transaction is open, so that the server's own
clean-up of its write-ahead log is not held back.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tercio.model.events import Entry
from tercio.store.failures import mapped
from tercio.store.journal import Checkpoint, meta_number
from tercio.store.migrate import decoded


class JournalReader:
    """An open journal that is only read.

    Raises:
        StoreError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with mapped("read", path):
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    @property
    def first_seq(self) -> int:
        """From here on no entry is missing."""
        with mapped("read", self.path):
            return meta_number(self._connection, "first_seq", 1)

    @property
    def last_seq(self) -> int:
        """Sequence of the last durable entry, 0 when there is none."""
        with mapped("read", self.path):
            (last,) = self._connection.execute("SELECT max(seq) FROM entries").fetchone()
        return last or 0

    def read(self, since: int, limit: int) -> list[Entry]:
        """Return up to `limit` durable entries after sequence `since`."""
        query = "SELECT seq, body FROM entries WHERE seq > ? ORDER BY seq LIMIT ?"
        with mapped("read", self.path):
            rows = self._connection.execute(query, (since, limit)).fetchall()
        return [Entry(seq=seq, event=decoded(seq, body)) for seq, body in rows]

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that are kept, newest first."""
        with mapped("read a checkpoint of", self.path):
            rows = self._connection.execute(
                "SELECT seq, state_hash, image FROM checkpoints ORDER BY seq DESC"
            ).fetchall()
        return [Checkpoint(seq=seq, digest=found, image=image) for seq, found, image in rows]

    def close(self) -> None:
        """Close it."""
        self._connection.close()
