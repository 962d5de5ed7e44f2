"""A newer Tercio starts on the state of an older one while a job runs."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tercio
from tercio.store.migrate import SCHEMA_VERSION

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("server")]
SOURCE = Path(tercio.__file__).parents[1]
WAITS = "echo before; while [ ! -e {0}/go ]; do sleep 0.05; done; echo after"
Call = Callable[..., str]


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that a job of any system user reaches."""
    with tempfile.TemporaryDirectory(prefix="tercio-upgrade-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def call(open_dir: Path) -> Iterator[Call]:
    kept = {k: v for k, v in os.environ.items() if not re.match(r"_?TERCIO|XDG_", k)}
    environment = {
        **kept, "HOME": str(open_dir), "TERCIO_STATE_DIR": str(open_dir / "state"),
        "PYTHONPATH": str(SOURCE), "TERCIO_LOCAL__CPU_DEVICES": "2",
        "TERCIO_LOCAL__RUN_AS": "nobody" if os.geteuid() == 0 else "",
    }  # fmt: skip

    def run(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tercio", *argv], env=environment, cwd=open_dir,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    run("up", "--background", "--port", "0")
    yield run
    run("down", "--stop-jobs", "--yes")


def make_older(journal: Path) -> None:
    """Leave the journal as schema 1 had it: without the index of subjects."""
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("DROP TABLE subjects")
        connection.execute("UPDATE meta SET value = 1 WHERE key = 'schema_version'")
        connection.commit()


def test_a_running_job_survives_an_upgrade_over_a_schema_version(call: Call, open_dir: Path):
    journal = open_dir / "state" / "journal.db"
    text = WAITS.format(open_dir)
    job = call("submit", "-q", "--no-workdir", "--gpus", "CPU:1", "--", text).strip()
    while "before" not in call("logs", job):
        pass
    call("down")
    make_older(journal)
    call("up", "--background", "--port", "0")
    copy = journal.with_name("journal.db.v1.bak")
    assert copy.is_file()
    with closing(sqlite3.connect(journal)) as connection:
        (version,) = connection.execute(
            "SELECT value FROM meta WHERE key = 'schema_version'"
        ).fetchone()
    assert version == SCHEMA_VERSION
    (open_dir / "go").touch()
    call("wait", "--timeout", "30s", job)
    shown = json.loads(call("show", job, "-o", "json"))
    assert (shown["state"], shown["attempt"]) == ("succeeded", 1)
    assert re.findall(r"\b(before|after)\b", call("logs", job)) == ["before", "after"]
    assert "submitted" in call("story", job)
