from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from make_journal_v1 import EVENTS

from tercio.errors import StoreError
from tercio.store.journal import Journal

V1 = Path(__file__).with_name("journal_v1.sql")


def write_v1(path: Path) -> None:
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.executescript(V1.read_text(encoding="utf-8"))
    connection.close()


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("SELECT value FROM meta WHERE key='schema_version'").fetchone()
    connection.close()
    return int(found)


def test_version_1_is_migrated_and_a_copy_is_kept(path: Path) -> None:
    write_v1(path)
    journal = Journal.open(path)
    assert [e.event for e in journal.read()] == list(EVENTS)
    assert [e.seq for e in journal.read(subject="job-00001")] == [2, 3]
    assert [e.seq for e in journal.read(subject="node/n1")] == [1]
    assert journal.migrated_from == path.with_name("journal.db.v1.bak")
    journal.close()
    assert (version(path), version(path.with_name("journal.db.v1.bak"))) == (2, 1)
    journal = Journal.open(path)
    assert journal.migrated_from is None
    journal.close()


def test_failed_step_leaves_version_1_whole(path: Path) -> None:
    write_v1(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE entries SET body = X'00' WHERE seq = 3")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="entry 3 of the journal cannot be read"):
        Journal.open(path)
    assert version(path) == 1
    connection = sqlite3.connect(path)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "subjects" not in names
