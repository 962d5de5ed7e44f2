"""Files of a task's control directory, shared by the engine and the supervisor.

| file | holds |
|---|---|
| `lock` | flock, held by the supervisor for its whole life: free means that none is alive |
| `begun` | written once, before the first process of the task starts; it forbids a start |
| `exit` | how the task ended; it forbids a start, too |
| `control` | socket of the supervisor |
| `logs/` | output, see `tasklog` |
| `task/` | the task's own directory, `TERCIO_TASK_DIR` |

A start is therefore done once at every crash point: whoever holds the lock and sees neither
`begun` nor `exit` may start the task, and nobody else. Imports nothing heavy (see the package).
"""

from __future__ import annotations

import fcntl
import os

LOCK = "lock"
BEGUN = "begun"
EXIT = "exit"
CONTROL = "control"
LOGS = "logs"
TASK = "task"

_RECORD_BYTES = 4096

Record = dict[str, str]


def write_record(directory: str, name: str, fields: Record) -> None:
    """Write a record so that it is there whole or not at all, also after a power cut.

    Room that `reserve` took for it is used, so that a full disk cannot refuse it.
    """
    text = "".join(f"{key}={_escape(value)}\n" for key, value in fields.items())
    path = f"{directory}/{name}"
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, os.write(fd, text.encode(errors="surrogateescape")))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(path + ".new", path)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def reserve(directory: str, name: str) -> None:
    """Take room on the disk for a record that must not fail later. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(f"{directory}/{name}.new", flags, 0o600)
    try:
        os.posix_fallocate(fd, 0, _RECORD_BYTES)
    finally:
        os.close(fd)


def read_record(directory: str, name: str) -> Record | None:
    """Return the fields of a record, or None when it was never written."""
    try:
        fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        text = os.read(fd, 1 << 20).decode(errors="surrogateescape")
    finally:
        os.close(fd)
    pairs = (line.partition("=") for line in text.split("\n") if line)
    return {key: _unescape(value) for key, _, value in pairs}


def claim(directory: str) -> int | None:
    """Take the lock; return its descriptor, or None when a supervisor holds it.

    Closing the descriptor gives the lock back. Raises FileNotFoundError without a directory.
    """
    fd = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def boot_id() -> str:
    """Return the identity of this boot of the machine."""
    fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).decode().strip()
    finally:
        os.close(fd)


def start_ticks(pid: int) -> str | None:
    """Return when a process started, in ticks since the boot, or None when there is none.

    With the boot id it tells a process from a later one that got the same number.
    """
    fields = stat_fields(pid)
    return fields[19] if fields else None


def stat_fields(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on (proc(5), fields 3 and later)."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096).decode(errors="replace")
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    # The command in parentheses may itself hold spaces and parentheses.
    return text[text.rfind(")") + 2 :].split()


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _unescape(value: str) -> str:
    return value.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\")
