from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from test_journal import entries, held
from test_migrate import write_v1

from tercio.errors import StoreError
from tercio.store.journal import Journal
from tercio.store.restore import restore


def test_backup_replaces_the_journal_and_the_old_one_is_kept(path: Path, tmp_path: Path) -> None:
    journal = Journal.open(path)
    journal.append(entries(held(1)))
    assert journal.epoch_floor == 0
    journal.backup(tmp_path / "b.db")
    journal.append(entries(held(2), first=2))
    journal.close()
    before = (tmp_path / "b.db").read_bytes()
    done = restore(tmp_path / "b.db", path)
    assert (done.last_seq, done.schema_version) == (1, 2)
    assert (tmp_path / "b.db").read_bytes() == before
    journal = Journal.open(path)
    assert journal.last_seq == 1
    assert journal.epoch_floor > 1_700_000_000, "orders of a restored server must not be fenced"
    assert journal.jobs_floor == 2, "numbers of undone jobs must not be used again"
    journal.close()
    assert done.replaced is not None
    old = Journal.open(done.replaced)
    assert old.last_seq == 2
    old.close()
    assert restore(tmp_path / "b.db", path).replaced != done.replaced


def test_restore_into_an_empty_place_and_from_version_1(path: Path, tmp_path: Path) -> None:
    write_v1(tmp_path / "old" / "b.db")
    done = restore(tmp_path / "old" / "b.db", path)
    assert (done.last_seq, done.schema_version, done.replaced) == (3, 1, None)
    assert sorted(p.name for p in path.parent.iterdir()) == ["journal.db", "journal.db.lock"]
    journal = Journal.open(path)
    assert len(journal.read(subject="job-00001")) == 2
    journal.close()


def test_restore_over_a_damaged_journal_leaves_room_for_its_jobs(
    path: Path, tmp_path: Path
) -> None:
    journal = Journal.open(path)
    journal.append(entries(held(1)))
    journal.backup(tmp_path / "b.db")
    journal.close()
    path.write_bytes(b"no database any more" * 100)
    restore(tmp_path / "b.db", path)
    journal = Journal.open(path)
    assert (journal.last_seq, journal.jobs_floor) == (1, 1_000_001)
    journal.close()


def test_restore_is_refused_while_a_server_runs(journal: Journal, tmp_path: Path) -> None:
    journal.backup(tmp_path / "b.db")
    with pytest.raises(StoreError, match="another server"):
        restore(tmp_path / "b.db", journal.path)


def test_bad_backups_change_nothing(path: Path, tmp_path: Path) -> None:
    journal = Journal.open(path)
    journal.append(entries(*(held(n, by="x" * 500) for n in range(100))))
    journal.backup(tmp_path / "good.db")
    journal.close()
    good = (tmp_path / "good.db").read_bytes()
    (tmp_path / "torn.db").write_bytes(good[: len(good) // 2])
    (tmp_path / "text.db").write_bytes(b"not a database, just some text" * 99)
    (tmp_path / "empty.db").write_bytes(b"")
    (tmp_path / "newer.db").write_bytes(good)
    connection = sqlite3.connect(tmp_path / "newer.db")
    connection.execute("UPDATE meta SET value = 3 WHERE key = 'schema_version'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    for name, told in [
        ("torn.db", "damaged"),
        ("text.db", "not a journal"),
        ("empty.db", "is empty"),
        ("newer.db", "has schema 3, this Tercio reads 1 to 2"),
        ("absent.db", "there is no backup"),
    ]:
        with pytest.raises(StoreError, match=told):
            restore(tmp_path / name, path)
    assert path.read_bytes() == before
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == ["journal.db", "journal.db.lock"]
