from __future__ import annotations

import math
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tercio
from tercio.errors import StoreError
from tercio.model.events import (
    AnyEvent,
    Entry,
    JobEvicted,
    JobHeld,
    JobSubmitted,
    NodeLost,
    PromisesChanged,
    ServerStarted,
)
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import EndCause, JobSpec
from tercio.store.journal import Journal


def held(job: int, at_s: float = 1.0, by: str = "ann") -> JobHeld:
    return JobHeld(at_s=at_s, job_id=JobId(f"job-{job:05}"), by=by)


def entries(*events: AnyEvent, first: int = 1) -> list[Entry]:
    return [Entry(seq=seq, event=event) for seq, event in enumerate(events, start=first)]


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond the size: as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_appended_is_read_back_after_a_reopen(path: Path) -> None:
    written = entries(
        ServerStarted(at_s=1.25, epoch=1, version="0.1"),
        JobSubmitted(
            at_s=2.0,
            job_id=JobId("job-00001"),
            spec=JobSpec(name="a", run="echo ü", env={"A": "\x00"}),
            queue=QueuePath("default"),
            user="ann",
            tenant="t",
        ),
        held(1, at_s=math.inf),
    )
    journal = Journal.open(path)
    assert (journal.first_seq, journal.last_seq) == (1, 0)
    journal.append(written)
    journal.close()
    journal = Journal.open(path)
    assert journal.read() == written
    assert (journal.first_seq, journal.last_seq) == (1, 3)
    journal.close()
    journal.close()


def test_only_the_owner_can_read_the_file_and_list_its_directory(journal: Journal) -> None:
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert journal.path.parent.stat().st_mode & 0o777 == 0o711


def test_story_of_a_subject_and_pages(journal: Journal) -> None:
    journal.append(
        entries(
            held(1),
            NodeLost(at_s=1.0, node=NodeName("n1"), reason="x"),
            JobEvicted(
                at_s=1.0,
                job_id=JobId("job-00001"),
                cause=EndCause.PREEMPTED,
                for_job=JobId("job-00002"),
            ),
            held(2),
            JobEvicted(
                at_s=1.0,
                job_id=JobId("job-00002"),
                cause=EndCause.PREEMPTED,
                for_job=JobId("job-00002"),
            ),
        )
    )
    assert [e.seq for e in journal.read(subject="job-00001")] == [1, 3]
    assert [e.seq for e in journal.read(subject="job-00002")] == [3, 4, 5]
    assert [e.seq for e in journal.read(subject="node/n1")] == [2]
    assert [e.seq for e in journal.read(since=1, limit=2)] == [2, 3]
    assert [e.seq for e in journal.read(since=3, subject="job-00002", limit=1)] == [4]
    assert journal.read(since=5) == []


def test_entries_that_do_not_follow_are_refused_whole(journal: Journal) -> None:
    journal.append(entries(held(1)))
    for wrong in (entries(held(2)), entries(held(2), first=3), [*entries(held(2), held(3))[::-1]]):
        with pytest.raises(StoreError, match="do not follow entry 1"):
            journal.append(wrong)
    journal.append([])
    assert journal.last_seq == 1


def test_full_disk_keeps_nothing_of_the_write_and_says_what_to_do(journal: Journal) -> None:
    journal.append(entries(held(1)))
    large = entries(*(held(n, by="x" * 10_000) for n in range(2, 300)), first=2)
    with file_size_limit(256 * 1024):
        with pytest.raises(StoreError) as caught:
            journal.append(large)
        with pytest.raises(StoreError):
            journal.save_checkpoint(1, b"x" * 2**20, "h")
        assert journal.read() == entries(held(1))
    assert "cannot write" in str(caught.value)
    assert str(journal.path) in str(caught.value)
    assert "quota" in str(caught.value)
    assert journal.last_seq == 1
    # The disk has space again: the same journal goes on.
    journal.probe()
    journal.append(large)
    assert journal.last_seq == len(journal.read()) == 299


def test_failed_backup_leaves_no_file(journal: Journal) -> None:
    journal.append(entries(held(1, by="x" * 100_000)))
    with file_size_limit(32 * 1024), pytest.raises(StoreError, match="cannot back up to"):
        journal.backup(journal.path.with_name("copy"))
    assert not [p for p in journal.path.parent.iterdir() if p.name.startswith("copy")]


def test_probe_fails_on_a_full_disk(journal: Journal) -> None:
    journal.append(entries(held(1, by="x" * 100_000)))
    with file_size_limit(64 * 1024), pytest.raises(StoreError):
        journal.probe()
    assert len(journal.read()) == 1


def test_full_database_is_told_as_a_full_disk(journal: Journal) -> None:
    # SQLite's own limit gives the same result code as ENOSPC.
    journal._writer.execute("PRAGMA max_page_count = 16")
    with pytest.raises(StoreError, match=r"the disk is full; free space in .*state"):
        journal.append(entries(*(held(n, by="x" * 10_000) for n in range(20))))
    assert journal.read() == []


def test_second_server_is_refused_with_the_pid_of_the_first(journal: Journal) -> None:
    with pytest.raises(StoreError, match=rf"another server \(pid {os.getpid()}\)"):
        Journal.open(journal.path)


def test_lock_ends_with_a_killed_holder(path: Path) -> None:
    program = (
        "import sys, signal; from pathlib import Path\n"
        "from tercio.store.journal import Journal\n"
        "journal = Journal.open(Path(sys.argv[1])); print('open', flush=True); signal.pause()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(tercio.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=rf"pid {child.pid}\)"):
            Journal.open(path)
        child.kill()
        child.wait()
    Journal.open(path).close()


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everywhere: become somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_read_only_directory_and_file_are_told(path: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    # The directories that pytest makes are of mode 0700.
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    Journal.open(path).close()
    path.parent.chmod(0o555)
    path.chmod(0o444)
    with unprivileged(), pytest.raises(StoreError) as caught:
        Journal.open(path)
    path.parent.chmod(0o700)
    assert str(path.parent) in str(caught.value)
    assert "owner and mode" in str(caught.value)
    path.chmod(0o600)
    Journal.open(path).close()


def test_damaged_file_is_refused_with_the_fix(path: Path) -> None:
    journal = Journal.open(path)
    journal.append(entries(*(held(n, by="x" * 500) for n in range(200))))
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:20_000] + b"\xff" * 9000 + whole[29_000:])
    with pytest.raises(StoreError, match="tercio restore BACKUP"):
        Journal.open(path)
    path.write_bytes(b"this is a text file, not a database at all" * 100)
    with pytest.raises(StoreError, match="not a journal"):
        Journal.open(path)
    path.write_bytes(whole)
    Journal.open(path).close()


def test_other_database_newer_schema_and_missing_entries_are_refused(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE x (y)")
    other.close()
    with pytest.raises(StoreError, match="not a journal of Tercio"):
        Journal.open(path)
    path.unlink()
    journal = Journal.open(path)
    journal.append(entries(held(1), held(2), held(3)))
    journal.close()
    edit(path, "DELETE FROM entries WHERE seq = 2")
    with pytest.raises(StoreError, match="lacks 1 of entries 1 to 3"):
        Journal.open(path)
    edit(path, "UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    with pytest.raises(StoreError, match="has schema 99, this Tercio reads 1 to 2"):
        Journal.open(path)


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_entry_of_an_unknown_kind_is_told_by_its_sequence(path: Path) -> None:
    journal = Journal.open(path)
    journal.append(entries(held(1)))
    journal.close()
    edit(path, "UPDATE entries SET body = X'81A474797065A3466F6F'")
    journal = Journal.open(path)
    with pytest.raises(StoreError, match="entry 1 of the journal cannot be read"):
        journal.read()
    journal.close()


def test_two_newest_checkpoints_are_kept(journal: Journal) -> None:
    assert journal.latest_checkpoint() is None
    journal.append(entries(*(held(n) for n in range(1, 10))))
    for seq in (2, 4, 6):
        journal.save_checkpoint(seq, b"image%d" % seq, f"hash{seq}")
    assert [(c.seq, c.image, c.digest) for c in journal.checkpoints()] == [
        (6, b"image6", "hash6"),
        (4, b"image4", "hash4"),
    ]


def test_prune_stops_at_the_older_checkpoint_and_keeps_living_stories(path: Path) -> None:
    journal = Journal.open(path)
    journal.append(entries(*(held(1 + n % 3) for n in range(30))))
    assert journal.prune(31) == 0, "without a checkpoint a restart needs every entry"
    journal.save_checkpoint(12, b"", "")
    journal.save_checkpoint(20, b"", "")
    assert journal.prune(31, keep=["job-00002"]) == 8
    assert journal.first_seq == 13
    assert [e.seq for e in journal.read(subject="job-00002")][:5] == [2, 5, 8, 11, 14]
    assert [e.seq for e in journal.read(subject="job-00001")][:2] == [13, 16]
    journal.close()
    journal = Journal.open(path)
    assert (journal.first_seq, journal.last_seq) == (13, 30)
    assert journal.prune(31) == 4, "the kept job has ended: its beginning goes too"
    assert journal.read(limit=1)[0].seq == journal.first_seq == 13
    assert journal.prune(31) == 0
    journal.close()


def test_journal_whose_entries_are_all_behind_a_checkpoint_goes_on(path: Path) -> None:
    journal = Journal.open(path)
    journal.append(entries(held(1), held(1)))
    journal.save_checkpoint(1, b"", "")
    journal.save_checkpoint(2, b"", "")
    assert journal.prune(3) == 1
    journal.close()
    edit(path, "DELETE FROM checkpoints WHERE seq = 1")
    journal = Journal.open(path)
    assert journal.prune(3) == 1
    journal.close()
    journal = Journal.open(path)
    assert (journal.first_seq, journal.last_seq) == (3, 2)
    journal.append(entries(held(1), first=3))
    journal.close()
    edit(path, "DELETE FROM checkpoints")
    with pytest.raises(StoreError, match="no checkpoint to start from"):
        Journal.open(path)


def test_first_since_finds_the_first_entry_of_an_age(journal: Journal) -> None:
    assert journal.first_since(5.0) == 1
    journal.append(entries(*(held(1, at_s=float(n // 2)) for n in range(20))))
    assert journal.first_since(-1.0) == 1
    assert journal.first_since(4.0) == 9
    assert journal.first_since(4.5) == 11
    assert journal.first_since(99.0) == 21


def test_reads_and_backup_go_on_beside_a_writer(journal: Journal, tmp_path: Path) -> None:
    failures: list[BaseException] = []
    is_done = threading.Event()

    def reads() -> None:
        try:
            while not is_done.is_set():
                seqs = [e.seq for e in journal.read(limit=10_000)]
                assert seqs == list(range(1, len(seqs) + 1))
        except BaseException as failure:
            failures.append(failure)

    reader = threading.Thread(target=reads)
    reader.start()
    for turn in range(20):
        journal.append(entries(*(held(1) for _ in range(50)), first=1 + turn * 50))
        if turn == 10:
            journal.backup(tmp_path / "copy.db")
    is_done.set()
    reader.join()
    assert not failures
    assert journal.last_seq == 1000
    copy = Journal.open(tmp_path / "copy.db")
    assert copy.last_seq == 550
    copy.close()


def test_event_without_a_subject_is_kept(journal: Journal) -> None:
    journal.append(entries(PromisesChanged(at_s=1.0, promises=())))
    assert len(journal.read()) == 1
