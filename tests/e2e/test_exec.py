"""Commands inside running tasks, and secrets that stay secret."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from .room import DEADLINE_S, TERCIO, Room

pytestmark = pytest.mark.e2e

SECRET = "hunter2-correct-horse"


def test_a_command_runs_inside_the_task(live: Room) -> None:
    job_id = live.submit("touch here; exec sleep 600", tasks=2, per_task={"cpus": 0.1})
    live.reached(job_id, ["running"])
    for task in ("0", "1"):
        told = live.cli("exec", "--task", task, job_id, "--", "sh", "-c", "echo $TERCIO_TASK; ls")
        assert told.split() == [task, "here"]
    done = live.run("exec", job_id, "--", "sh", "-c", "echo to-out; echo to-err >&2; exit 3")
    assert done.returncode == 3
    assert "to-out" in done.stdout
    told = live.error("exec", "--task", "7", job_id, "--", "true", code=3)
    assert "task 7" in told
    # What was given on standard input arrives, and its end too.
    piped = subprocess.run(
        [*TERCIO, "exec", job_id, "--", "wc", "-c"], input="x" * 100_000, env=live.env,
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert piped.stdout.strip() == "100000", piped.stderr
    live.cli("cancel", job_id)
    live.ended(job_id)
    assert live.error("exec", job_id, "--", "true", code=4)


def test_a_terminal_goes_all_the_way(live: Room) -> None:
    job_id = live.submit("exec sleep 600", per_task={"cpus": 0.1})
    live.reached(job_id, ["running"])
    master, terminal = pty.openpty()
    command = (
        "sh",
        "-c",
        "tty >/dev/null && echo is-a-terminal; read word; echo got $word; exit 5",
    )
    program = subprocess.Popen(
        [*TERCIO, "exec", job_id, "--", *command], env=live.env,
        stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    seen = b""
    try:
        seen += read_until(master, b"is-a-terminal")
        os.write(master, b"typed\n")
        seen += read_until(master, b"got typed")
        assert program.wait(DEADLINE_S) == 5, seen
    finally:
        program.kill()
        program.wait()
        os.close(master)


def read_until(descriptor: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        assert select.select([descriptor], [], [], DEADLINE_S)[0], seen
        try:
            seen += os.read(descriptor, 4096)
        except OSError:
            raise AssertionError(f"the terminal ended after {seen!r}") from None
    return seen


def test_secrets_reach_the_task_and_nothing_else(live: Room) -> None:
    live.env["HF_TOKEN"] = SECRET
    run = '[ "$HF_TOKEN" = "' + SECRET[:7] + '-correct-horse" ] && echo has-it; exec sleep 600'
    # The value is put together by the shell, so that the script does not hold it.
    run = run.replace(SECRET, SECRET[:7] + '"-"' + "correct-horse")
    job_id = live.submit(run, secrets=["HF_TOKEN"], per_task={"cpus": 0.1})
    with live.following("logs", "-f", job_id) as log:
        log.until("has-it")
    told = [
        live.cli("show", job_id, "-o", "json"),
        live.cli("story", job_id, "-o", "json"),
        live.cli("events", "--since", "0", "-o", "jsonl"),
        live.cli("logs", job_id),
        live.cli("ps", "-a", "-o", "json"),
        live.cli("explain", job_id, "-o", "json", code=None),
        live.client().metrics(),
        json.dumps(live.client().schema()),
        live.server_log(),
    ]
    assert not [text for text in told if SECRET in text]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                assert SECRET.encode() not in (entry / "cmdline").read_bytes()
    live.cli("backup", str(live.path / "backup.db"))
    holders = []
    for path in [live.path / "backup.db", *live.state.rglob("*")]:
        with suppress(OSError):
            if path.is_file() and SECRET.encode() in path.read_bytes():
                holders.append(path)
    assert [path.parent.name for path in holders] == ["secrets"]
    assert holders[0].stat().st_mode & 0o077 == 0
    # They survive a requeue and a restart, and go with the job.
    live.kill()
    live.up()
    live.cli("requeue", job_id)
    live.reached(job_id, ["running"])
    with live.following("logs", "-f", job_id) as log:
        log.until("has-it")
    assert live.job(job_id).attempt == 2
