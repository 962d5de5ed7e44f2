"""The command line against a real server process with the simulated engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

for module in ("tercio.sched.cycle", "tercio.engines.sim", "tercio.launch", "tercio.api.serve"):
    pytest.importorskip(module, reason="the server is not whole without it")

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("server")]
SOURCE = Path(__import__("tercio").__file__).parents[1]


class Result(NamedTuple):
    code: int
    out: str
    err: str


def environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not re.match(r"_?TERCIO|XDG_", k)}
    return {
        **kept, "HOME": str(home), "TERCIO_STATE_DIR": str(home / "state"),
        "PYTHONPATH": str(SOURCE), "TMPDIR": str(home),
    }  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def tercio(home: Path) -> Iterator[Callable[..., Result]]:
    """Run a command line as a process, against one server of this module."""

    def call(*argv: str, stdin: str = "") -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "tercio", *argv], env=environment(home), cwd=home,
            input=stdin, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    started = call("up", "--background", "--port", "0", "--sim", "8x8")
    assert started.code == 0, started.err
    yield call
    stopped = call("down", "--stop-jobs", "--yes")
    assert stopped.code == 0, stopped.err
    assert call("ps").code == 6


@pytest.fixture(autouse=True)
def empty_cluster(tercio: Callable[..., Result]) -> None:
    """Every test begins with no living job."""
    ids = tercio("ps", "-o", "name").out.split()
    if ids:
        assert tercio("cancel", *ids).code == 0
        tercio("wait", "--timeout", "30s", *ids)


def submit(tercio: Callable[..., Result], *options: str) -> str:
    done = tercio("submit", "-q", "--no-workdir", *options, "--", "true")
    assert done.code == 0, done.err
    return done.out.strip()


def test_a_second_server_is_refused_and_names_the_first(tercio):
    code, _, err = tercio("up", "--background", "--port", "0")
    assert code == 4
    assert "runs already at http://127.0.0.1:" in err


def test_doctor_is_content(tercio):
    found = [json.loads(line) for line in tercio("doctor", "-o", "jsonl").out.splitlines()]
    assert {"python", "state dir", "server", "token", "clock"} <= {row["name"] for row in found}
    assert not [row for row in found if row["status"] == "fail"]


def test_a_job_waits_for_a_reason_and_is_explained(tercio):
    running = submit(tercio, "--gpus", "H100:8", "--nodes", "8", "--time", "8h")
    waiting = submit(tercio, "--gpus", "H100:8", "--nodes", "2", "--name", "second")
    body = json.loads(tercio("show", waiting, "-o", "json").out)
    assert (body["state"], body["name"]) == ("queued", "second")
    assert body["reason"] in tercio("ps").out
    explained = tercio("explain", "second").out
    assert "needs 16 H100" in explained
    assert running in explained
    assert tercio("plan", "--gpus", "H100:8", "--", "true").code == 7
    assert "would be cancelled" in tercio("cancel", "--plan", running).err
    assert tercio("cancel", running, "--reason", "test").code == 0
    assert tercio("wait", running).code == 1
    assert "signal 15" in tercio("story", running).out
    assert tercio("cancel", waiting).code == 0
    assert tercio("plan", "--gpus", "H100:8", "--", "true").code == 0


def test_a_secret_is_passed_and_never_shown(tercio, home):
    (home / "job.yaml").write_text("run: 'true'\nname: with-secret\n", encoding="utf-8")
    argv = ("submit", "-q", "job.yaml", "--secret-stdin", "HF_TOKEN")
    done = tercio(*argv, stdin="hunter2\n")
    assert done.code == 0, done.err
    job = done.out.strip()
    for verb in (("show", job, "-o", "json"), ("story", job), ("events", "-o", "jsonl")):
        shown = tercio(*verb)
        assert shown.code == 0
        assert "hunter2" not in shown.out + shown.err
    assert "HF_TOKEN" in tercio("show", job, "-o", "json").out
    for path in (home / "state").glob("journal.db*"):
        assert b"hunter2" not in path.read_bytes()


def test_hold_release_and_requeue(tercio):
    job = submit(tercio, "--gpus", "H100:1", "--hold", "--time", "1h")
    assert json.loads(tercio("show", job, "-o", "json").out)["state"] == "held"
    assert tercio("release", job).code == 0
    assert tercio("suspend", job).code in (0, 2, 4)
    assert tercio("cancel", job).code == 0
    assert tercio("hold", job).code == 4
    assert tercio("requeue", job).code == 0
    assert tercio("cancel", job).code == 0


def test_nodes_are_cordoned_and_drained(tercio):
    names = tercio("node", "-o", "name").out.split()
    assert len(names) == 8
    assert tercio("node", "cordon", names[0], "--reason", "fan").code == 0
    assert "fan" in tercio("node", "show", names[0]).out
    assert tercio("node", "uncordon", names[0]).code == 0
    drained = tercio("node", "drain", names[1], "--yes")
    assert drained.code == 0, drained.err
    assert tercio("node", "uncordon", names[1]).code == 0
    code, _, err = tercio("node", "show", names[0] + "x")
    assert code == 3
    assert "did you mean" in err


def test_queues_change_by_version(tercio):
    assert tercio("queue", "set", "research", "--create", "--weight", "3").code == 0
    assert "research" in tercio("queue", "-o", "name").out.split()
    shown = tercio("policy", "show")
    assert "weight: 3" in shown.out
    assert "nothing was changed" in tercio("policy", "set", "-", stdin=shown.out).err
    assert tercio("queue", "set", "research", "--weight", "4", "--if-version", "0").code == 4
    code, _, err = tercio("submit", "--no-workdir", "--queue", "reserch", "--", "true")
    assert code in (2, 3)
    assert "research" in err


def test_tokens_limit_what_their_owner_may_do(tercio, home):
    made = tercio("token", "create", "--user", "ana", "--role", "viewer")
    assert made.code == 0, made.err
    secret = made.out.strip()
    token_id = re.search(r"token (\S+) of ana", made.err)
    assert token_id is not None
    listed = tercio("token", "-o", "json").out
    assert token_id.group(1) in listed
    assert secret not in listed
    (home / "ana").write_text(secret, encoding="utf-8")
    as_ana = ("--token-file", str(home / "ana"))
    assert tercio("ps", *as_ana).code == 0
    assert tercio("submit", "--no-workdir", *as_ana, "--", "true").code == 5
    assert tercio("token", "revoke", token_id.group(1)).code == 0
    assert tercio("ps", *as_ana).code == 5


def test_machine_formats_of_every_list(tercio):
    submit(tercio, "--gpus", "H100:1", "--time", "1h")
    for argv in (("ps",), ("node",), ("queue",), ("usage",), ("events", "--since", "0")):
        body = json.loads(tercio(*argv, "-o", "json").out)
        assert body["schema"] == "tercio/v1"
        rows = [json.loads(line) for line in tercio(*argv, "-o", "jsonl").out.splitlines()]
        assert rows, argv
        assert tercio(*argv, "-o", "csv").code == 0


def test_events_and_top_and_usage_read_well(tercio):
    submit(tercio, "--gpus", "H100:1", "--time", "1h")
    assert "JobSubmitted" in tercio("events").out
    assert len(tercio("events", "-f", "--since", "0", "--limit", "3").out.splitlines()) == 3
    assert "/64" in tercio("top", "--count", "1").out
    assert "H100" in tercio("usage", "--by", "queue").out


def test_a_backup_restores_into_another_directory(tercio, home):
    job = submit(tercio, "--gpus", "H100:1", "--time", "1h")
    assert tercio("backup", "b.db").code == 0
    refused = tercio("restore", "b.db", "--yes")
    assert refused.code == 4
    other = str(home / "other")
    plan = tercio("restore", "b.db", "--state-dir", other, "--plan")
    assert "would restore" in plan.out
    assert not (home / "other" / "journal.db").exists()
    assert tercio("restore", "b.db", "--state-dir", other).code == 0
    up = tercio("up", "--background", "--port", "0", "--sim", "8x8", "--state-dir", other)
    assert up.code == 0, up.err
    try:
        token = str(home / "other" / "token")
        shown = tercio("show", job, "--url", up.out.strip(), "--token-file", token, "-o", "name")
        assert shown.out.strip() == job
    finally:
        plan = tercio("down", "--state-dir", other, "--plan", "--stop-jobs")
        assert "would be stopped: the server" in plan.out
        assert tercio("down", "--state-dir", other).code == 0
    (home / "bad.db").write_text("x", encoding="utf-8")
    assert tercio("restore", "bad.db", "--yes", "--state-dir", other).code == 2


def test_the_demo_shows_jobs_that_wait_for_different_reasons(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tercio", "demo", "--exit"], env=environment(tmp_path),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    queued = [line for line in done.stdout.splitlines() if " queued " in line]
    reasons = {match.group(1) for line in queued if (match := re.search(r"  (\w+): ", line))}
    assert len(reasons) >= 4, done.stdout
    assert "another terminal" not in done.stdout
    assert not list(tmp_path.glob("tercio-demo-*"))


def test_the_demo_leaves_nothing_behind_when_it_is_ended(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-m", "tercio", "demo"], env=environment(tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert "A simulated cluster" in child.stdout.readline()
    (directory,) = tmp_path.glob("tercio-demo-*")
    server = json.loads((directory / "server.json").read_text(encoding="utf-8"))["pid"]
    while (line := child.stdout.readline()) != f"  export TERCIO_STATE_DIR={directory}\n":
        assert line, "it ended before it said where it is"
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert not directory.exists()
    deadline_s = time.monotonic() + 10
    while Path(f"/proc/{server}").exists() and time.monotonic() < deadline_s:
        pass
    assert not Path(f"/proc/{server}").exists()
