"""The commit whose code this is, and a run of the command with the code of another commit.

A seed names a run of the twin together with the code that plays it: what a seed found on one commit
is played again, exactly, with the code of that commit.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tercio
from tercio.errors import UserError


class SourceCommit(NamedTuple):
    """A commit, shortened; `has_changes` when files of the package differ from it."""

    name: str
    has_changes: bool


def source_commit() -> SourceCommit | None:
    """Return the commit of the checkout that the package runs from; None when it is installed."""
    name = _git("rev-parse", "--short=12", "HEAD") if _is_checkout() else None
    if name is None:
        return None
    return SourceCommit(name, has_changes=bool(_git("status", "--porcelain", "--", "src/tercio")))


def run_with_commit(commit: str, arguments: Sequence[str]) -> int:
    """Run `tercio ARGUMENTS` with the package as it was at a commit; return the exit code.

    The Python and the libraries are those of this installation.

    Raises:
        UserError: there is no checkout, or it knows no such commit.
    """
    if not _is_checkout():
        raise UserError(
            f"--commit {commit}: this tercio {tercio.__version__} is installed, not a checkout",
            field="commit",
            hint="run it in a git clone of Tercio (`make venv` there, then .venv/bin/tercio)",
        )
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if found is None:
        raise UserError(
            f"--commit {commit}: the checkout has no such commit",
            field="commit",
            hint="`git log --oneline` lists the commits; `git fetch` brings newer ones",
        )
    packed = subprocess.run(
        ["git", "-C", str(_root()), "archive", "--format=tar", found, "src/tercio"],
        stdin=subprocess.DEVNULL, capture_output=True, check=True,
    ).stdout  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tercio-commit-") as room:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(room, filter="data")
        environment = {**os.environ, "PYTHONPATH": str(Path(room) / "src")}
        command = [sys.executable, "-m", "tercio", *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


def _root() -> Path:
    return Path(tercio.__file__).resolve().parents[2]


def _is_checkout() -> bool:
    """Whether the package lies where a checkout of Tercio has it, and git knows the place."""
    top = _git("rev-parse", "--show-toplevel")
    return top is not None and Path(top).resolve() == _root() and (_root() / "src/tercio").is_dir()


def _git(*arguments: str) -> str | None:
    """What git says in the folder of the package; None when it refuses or is not there."""
    command = ["git", "-C", str(_root()), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
