"""Servers that kill themselves at a point, forked from one process that has imported it all.

Run as a program, it reads one JSON line for each server it is to start: `env`, `log`, `points`
(a file that gets the name of every point passed) and `kill_at`, the number of the point at
which the server sends itself SIGKILL, or null. It answers with the process id.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tercio.api.serve import run_server
from tercio.config import load
from tercio.runtime.faults import NoFaults, Point


class KillAt(NoFaults):
    """Writes down every point, and dies at one of them as by `kill -9`."""

    def __init__(self, points: str, kill_at: int | None) -> None:
        self._points = os.open(points, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._kill_at = kill_at
        self._count = 0

    def reach(self, point: Point) -> None:
        os.write(self._points, f"{point.value}\n".encode())
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1


def serve(order: Mapping[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(order["env"])
    config, _ = load()
    run_server(config, faults=KillAt(order["points"], order["kill_at"]))


@contextmanager
def started() -> Iterator[subprocess.Popen[str]]:
    """Run this file as a program, and see it end well."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(str(root / part) for part in ("src", "tests"))
    child = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    try:
        yield child
    finally:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.close()
        assert child.wait(30) == 0


def main() -> None:
    # Dead servers are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                serve(order)
                code = 0
            finally:
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
