"""The server as a process: one on a state directory, orderly ends, and disks that refuse."""

from __future__ import annotations

import http.client
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from .room import DEADLINE_S, TERCIO, Room, until

pytestmark = pytest.mark.e2e


def test_a_second_server_on_a_state_directory_is_refused(live: Room) -> None:
    assert live.server is not None
    told = live.error("up", "--port", "0", code=4)
    assert f"process {live.server.pid}" in told
    assert "tercio down" in told
    # Started in the same moment it does not know of the first yet; the journal's lock does.
    (live.state / "server.json").rename(live.path / "hidden")
    told = live.error("up", "--port", "0", code=6)
    assert f"another server (pid {live.server.pid}) uses {live.state}" in told
    assert "Traceback" not in told
    (live.path / "hidden").rename(live.state / "server.json")
    assert "ok" in live.cli("doctor", code=None)
    live.cli("ps")


def test_a_port_in_use_is_told(live: Room, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Room(tmp_path_factory.mktemp("other"))
    port = str(urlsplit(str(live.told()["url"])).port)  # type: ignore[index]
    told = other.error("up", "--port", port, code=6)
    assert f"port {port}" in told
    assert "--port" in told


def test_sigterm_ends_requests_first_and_leaves_jobs(live: Room) -> None:
    assert live.server is not None
    job_id = live.submit("echo begun; exec sleep 600")
    live.reached(job_id, ["running"])
    before = live.task_pids()
    assert before
    # A request is under way: half of its body has arrived.
    token = (live.state / "token").read_text(encoding="utf-8").strip()
    url = urlsplit(str(live.told()["url"]))  # type: ignore[index]
    body = make_archive(live)
    with live.following("logs", "-f", job_id) as log:
        log.until("begun")
        asked = http.client.HTTPConnection(url.hostname or "", url.port, timeout=DEADLINE_S)
        asked.putrequest("POST", "/v1/workdirs")
        asked.putheader("Authorization", f"Bearer {token}")
        asked.putheader("Content-Type", "application/gzip")
        asked.putheader("Content-Length", str(len(body)))
        asked.endheaders(body[:100])
        live.client().health()  # an answer that came after it
        live.server.send_signal(signal.SIGTERM)
        until(lambda: not is_listening(live), "the server to take no more")
        assert live.server.poll() is None
        asked.send(body[100:])
        answer = asked.getresponse()
        assert (answer.status, b'"workdir"' in answer.read()) == (200, True)
        asked.close()
        assert live.server.wait(DEADLINE_S) == 0
    assert live.told() is None
    assert live.task_pids() == before
    live.up()
    view = live.job(job_id)
    assert (view.state, view.attempt) == ("running", 1)
    assert live.task_pids() == before


def make_archive(room: Room) -> bytes:
    source = room.path / "source"
    source.mkdir()
    (source / "noise").write_bytes(os.urandom(4096))
    packed = subprocess.run(
        ["tar", "cz", "-C", str(source), "."], capture_output=True, check=True
    ).stdout
    assert len(packed) > 1000
    return packed


def is_listening(room: Room) -> bool:
    url = urlsplit(f"http://127.0.0.1:{room.port}")
    probe = http.client.HTTPConnection("127.0.0.1", url.port, timeout=5)
    try:
        probe.connect()
    except OSError:
        return False
    finally:
        probe.close()
    return True


def test_down_leaves_jobs_unless_told_to_stop_them(live: Room) -> None:
    assert live.server is not None
    job_id = live.submit("trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done")
    live.reached(job_id, ["running"])
    waiting = live.submit("true", "--hold")
    live.cli("down")
    assert live.server.wait(DEADLINE_S) == 0
    assert live.task_pids()
    live.cli("ps", code=6)
    live.up()
    assert live.job(job_id).state == "running"
    told = live.run("down", "--stop-jobs", "--yes")
    assert told.returncode == 0, told.stderr
    assert "cancelled 2 jobs" in told.stderr
    assert live.server.wait(DEADLINE_S) == 0
    until(lambda: not live.task_pids(), "the supervisor to be gone", timeout_s=5.0)
    live.up()
    assert [live.job(each).state for each in (job_id, waiting)] == ["cancelled", "cancelled"]
    assert {"begun", "saved"} <= set(live.cli("logs", job_id).split())


def test_down_finds_a_server_whose_file_was_lost(live: Room) -> None:
    assert live.server is not None
    (live.state / "server.json").write_text("{", encoding="utf-8")
    refused = live.run("down", "--stop-jobs", "--yes")
    assert refused.returncode == 6
    assert str(live.server.pid) in refused.stderr
    live.cli("down")
    assert live.server.wait(DEADLINE_S) == 0


@contextmanager
def full_disk(room: Room) -> Iterator[None]:
    """No file of the server may grow beyond 4 KiB."""
    assert room.server is not None
    soft, hard = resource.prlimit(room.server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(room.server.pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.prlimit(room.server.pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_keeps_nothing_and_passes(live: Room) -> None:
    assert live.server is not None
    first = live.submit("true", "--hold")
    seq = live.client().server().seq
    with full_disk(live):
        told = live.error("submit", "--", "true", code=6)
        assert "cannot write" in told
        assert str(live.state) in told
        assert "Traceback" not in told
        told = live.error("cancel", first, code=6)
        assert "cannot write" in told
        # What is there can be read, and nothing half done is there.
        rows = live.cli("ps", "-o", "jsonl").splitlines()
        assert len(rows) == 1
        assert live.job(first).state == "held"
        assert live.client().server().seq == seq
        assert "no change is accepted" in live.cli("doctor", code=None)
    until(lambda: live.run("submit", "--hold", "--", "true").returncode == 0, "room on the disk")
    live.cli("cancel", first)
    rows = live.cli("ps", "-a", "-o", "jsonl").splitlines()
    assert len(rows) == 2


def test_a_read_only_state_directory_is_told(room: Room) -> None:
    room.up()
    room.kill(signal.SIGTERM)
    script = (
        f"mount --bind {room.state} {room.state} && mount -o remount,bind,ro {room.state}"
        ' || exit 77; exec "$@"'
    )
    wrapped = ["unshare", "--mount", "sh", "-c", script, "sh", *TERCIO, "up", "--port", "0"]
    done = subprocess.run(wrapped, env=room.env, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode in (1, 77) and "tercio" not in done.stderr and "error:" not in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    assert done.returncode == 6, done.stderr
    assert "read-only" in done.stderr
    assert str(room.state) in done.stderr
    assert "Traceback" not in done.stderr
    room.up()
    room.cli("ps")


def test_a_damaged_journal_is_told(room: Room) -> None:
    room.up()
    room.kill(signal.SIGTERM)
    content = room.journal.read_bytes()
    room.journal.write_bytes(b"\0" * 512 + content[512:])
    told = room.error("up", "--port", "0", code=6)
    assert "tercio restore" in told
    assert "Traceback" not in told
    assert sys.executable not in told
    room.journal.write_bytes(content)
    room.up()
