"""The server on this machine: what its state directory says of it, and whether it lives."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import Final

import msgspec

from tercio.cli.session import Session
from tercio.client import Client
from tercio.client.discovery import ServerFile
from tercio.errors import UserError

SERVER_FILE: Final = "server.json"
_POLL_S: Final = 0.05


def read_server_file(state_dir: str) -> ServerFile | None:
    """Return what a server wrote when it started, None where there is no such file."""
    try:
        with open(os.path.join(state_dir, SERVER_FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=ServerFile)
    except (OSError, msgspec.MsgspecError):
        return None


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs; one that ended and waits for its parent does not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    # In a container whose first process reaps nobody, zombies stay for ever.
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def answers(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether a Tercio server answers at `url`."""
    try:
        with Client(url, "", timeout_s=timeout_s) as client:
            return client.health().status == "ok"
    except UserError:
        return False


def running_server(state_dir: str) -> ServerFile | None:
    """Return the server that runs on this state directory and answers, or None."""
    found = read_server_file(state_dir)
    if found is None or not is_alive(found.pid) or not answers(found.url):
        return None
    return found


def lock_holder(state_dir: str) -> int | None:
    """Return the process that holds the journal of this state directory, or None.

    It is what is left to go by when `server.json` was lost or damaged.
    """
    try:
        descriptor = os.open(os.path.join(state_dir, "journal.db.lock"), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).strip()
        return int(holder) if holder.isdigit() else None
    finally:
        os.close(descriptor)
    return None


def wait_until_ready(state_dir: str, *, pid: int, timeout_s: float) -> ServerFile | None:
    """Return the server that process `pid` became, None when it ended or did not in time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        found = read_server_file(state_dir)
        if found is not None and found.pid == pid and answers(found.url):
            return found
        if _has_exited(pid):
            return None
        time.sleep(_POLL_S)
    return None


def stop_server(found: ServerFile, *, timeout_s: float) -> None:
    """Ask the server to stop and wait until its process is gone.

    Raises:
        UserError: `failed` when it still runs after `timeout_s`, `forbidden` when it is
            another user's.
    """
    try:
        os.kill(found.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise UserError(
            f"the server (process {found.pid}) belongs to another user",
            code="forbidden",
            hint="run 'tercio down' as the user who started it",
        ) from None
    deadline_s = time.monotonic() + timeout_s
    while is_alive(found.pid) and not _has_exited(found.pid):
        if time.monotonic() > deadline_s:
            raise UserError(
                f"the server (process {found.pid}) still drains after {timeout_s:.0f}s",
                code="failed",
                hint=f"look at its log, or end it with: kill -9 {found.pid}",
            )
        time.sleep(_POLL_S)


def state_dir_of(session: Session, named: str | None) -> str:
    """Return the state directory: the option's, else the configuration's."""
    from tercio.config import load

    flags: dict[str, object] = {"state_dir": named}
    config, _ = load(flags, session.environment)
    return os.path.abspath(config.state_dir)


def _has_exited(pid: int) -> bool:
    """Whether a child of ours has ended; reaps it."""
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return not is_alive(pid)
    return done == pid
