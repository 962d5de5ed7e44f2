"""Writes `journal_v1.sql`: a journal of schema 1, as the first release wrote it.

The committed file is the fixture and must not change; this script says how it came to be.

    PYTHONPATH=src python tests/unit/store/make_journal_v1.py > tests/unit/store/journal_v1.sql
"""

from __future__ import annotations

import sqlite3

import msgspec

from tercio.model.events import AnyEvent, JobCancelRequested, JobSubmitted, NodeReported
from tercio.model.ids import JobId, NodeName, QueuePath, SiteName
from tercio.model.job import JobSpec
from tercio.model.node import NodeSpec

EVENTS: tuple[AnyEvent, ...] = (
    NodeReported(at_s=1.0, spec=NodeSpec(name=NodeName("n1"), site=SiteName("local"))),
    JobSubmitted(
        at_s=2.0,
        job_id=JobId("job-00001"),
        spec=JobSpec(name="a", run="true"),
        queue=QueuePath("default"),
        user="ann",
        tenant="default",
    ),
    JobCancelRequested(at_s=3.5, job_id=JobId("job-00001"), by="ann"),
)


def main() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(
        """
        CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
        CREATE TABLE entries (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
        CREATE TABLE checkpoints (seq INTEGER PRIMARY KEY, state_hash TEXT NOT NULL,
                                  image BLOB NOT NULL);
        INSERT INTO meta VALUES ('schema_version', 1);
        """
    )
    for seq, event in enumerate(EVENTS, start=1):
        body = msgspec.msgpack.encode(event)
        connection.execute("INSERT INTO entries VALUES (?, ?)", (seq, body))
    print("PRAGMA application_id = 0x54455243;")
    print("\n".join(connection.iterdump()))


if __name__ == "__main__":
    main()
