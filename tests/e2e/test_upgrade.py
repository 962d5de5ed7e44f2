"""A new server on what the first release left: its journal is migrated, its task goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from .room import Room

pytestmark = pytest.mark.e2e

V1 = Path(__file__).parents[1] / "unit" / "store" / "journal_v1.sql"


def write_as_version_1(journal: Path) -> None:
    """Write the entries again in the layout of schema 1, with nothing but them."""
    with closing(sqlite3.connect(journal)) as now:
        entries = now.execute("SELECT seq, body FROM entries ORDER BY seq").fetchall()
    for path in journal.parent.glob("journal.db*"):
        path.unlink()
    with closing(sqlite3.connect(journal)) as old:
        old.executescript(V1.read_text(encoding="utf-8"))
        old.execute("DELETE FROM entries")
        old.executemany("INSERT INTO entries VALUES (?, ?)", entries)
        old.commit()
        assert version_of(old) == 1


def version_of(connection: sqlite3.Connection) -> int:
    query = "SELECT value FROM meta WHERE key = 'schema_version'"
    return int(connection.execute(query).fetchone()[0])


def test_an_old_state_directory_with_a_running_task_is_taken_over(room: Room) -> None:
    room.up()
    go = room.work / "go"
    run = f"echo begun; until [ -e {go} ]; do sleep 0.02; done; echo ended"
    job_id = room.submit(run, per_task={"cpus": 0.1})
    waiting = room.submit("true", "--hold")
    with room.following("logs", "-f", job_id) as log:
        log.until("begun")
    pids = room.task_pids()
    story = room.story(job_id)
    room.kill()
    write_as_version_1(room.journal)

    room.up()
    backup = room.journal.with_name("journal.db.v1.bak")
    with closing(sqlite3.connect(backup)) as kept, closing(sqlite3.connect(room.journal)) as new:
        assert (version_of(kept), version_of(new)) == (1, 2)
        assert kept.execute("SELECT count(*) FROM entries").fetchone()[0] >= len(story)
    assert pids[0] in room.task_pids()
    view = room.job(job_id)
    assert (view.state, view.attempt) == ("running", 1)
    assert room.job(waiting).state == "held"
    assert room.story(job_id)[: len(story)] == story
    go.touch()
    assert room.ended(job_id).state == "succeeded"
    assert room.cli("logs", job_id).split() == ["begun", "ended"]
    # The next start has nothing to migrate.
    room.kill()
    before = backup.stat().st_mtime_ns
    room.up()
    assert backup.stat().st_mtime_ns == before
    assert room.job(job_id).state == "succeeded"
