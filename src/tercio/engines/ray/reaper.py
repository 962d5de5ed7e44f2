"""Ends the tasks of a node when its raylet has gone: `python -m ... RAYLET_PID ROOT`.

Ray gives the devices of a node that came back to others at once, so that nothing of ours may
hold them for longer than its grace. Each supervisor is told to end, as an operator would tell
it: its task gets its signal and its grace, then the kill, and its record says that the task was
lost. No server is needed for that.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path


def end_tasks(root: Path) -> int:
    """Tell the supervisor of every task under `root` to end; return how many were told."""
    # The engines know each other by their contracts alone; this is the record of the one that
    # runs the tasks of this node.
    records = importlib.import_module("tercio.engines.local.records")
    told = 0
    for path in sorted(root.glob(f"tasks/*/*/*/{records.BEGUN}")):
        begun = records.read_record(str(path.parent), records.BEGUN)
        if not begun or records.read_record(str(path.parent), records.EXIT):
            continue
        pid = int(begun["pid"])
        if records.start_ticks(pid) == begun["start_ticks"]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                told += 1
    return told


def main(arguments: list[str]) -> None:
    """Wait for the end of the raylet, then end the tasks; one such process per raylet."""
    raylet, root = int(arguments[0]), Path(arguments[1])
    path = root / f"reaper-{raylet}.lock"
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    try:
        pidfd = os.pidfd_open(raylet)
    except ProcessLookupError:
        pidfd = -1
    if pidfd >= 0:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
    end_tasks(root)
    path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
