"""A real server process for the bench, what it costs, and clients that cost next to nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tercio

SOURCE = Path(tercio.__file__).parents[1]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
READY_S = 60.0


class Server:
    """`tercio up` on a state directory of its own. `settings` are its environment variables."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="tercio-bench-"))
        self.state.chmod(0o711)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TERCIO_")
        }
        self.environment |= {
            "PYTHONPATH": str(SOURCE),
            "TERCIO_STATE_DIR": str(self.state),
            "TERCIO_SERVER__PORT": "0",
            "TERCIO_LOG__LEVEL": "warning",
            **settings,
        }
        self.port = 0
        self.secret = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)
        shutil.rmtree(self.state, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it; return the seconds from the start of the process to the first answer."""
        begun_s = time.perf_counter()
        with open(self.state / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tercio", "up"],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        while time.perf_counter() < begun_s + READY_S:
            if self._is_ready():
                return time.perf_counter() - begun_s
            if self._process.poll() is not None:
                break
            time.sleep(0.005)
        log_text = (self.state / "server.log").read_text(encoding="utf-8")
        raise RuntimeError(f"the server did not start:\n{log_text[-2000:]}")

    def _is_ready(self) -> bool:
        try:
            found = json.loads((self.state / "server.json").read_bytes())
            if found["pid"] != self.pid:
                return False
            self.port = int(found["url"].rpartition(":")[2])
            self.secret = (self.state / "token").read_text(encoding="utf-8").strip()
            with Connection(self) as connection:
                return connection.get("/v1/health").status == 200
        except (OSError, ValueError, KeyError):
            return False

    def end(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(READY_S)

    def cpu_s(self) -> float:
        """CPU that the process has used, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def memory_mib(self, kind: str) -> float:
        """`Pss` or `Rss` of the process and its children, in MiB."""
        total = 0
        for pid in (self.pid, *_children(self.pid)):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(f"{kind}:"):
                    total += int(line.split()[1])
        return total / 1024


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


class Reply(NamedTuple):
    status: int
    body: bytes


class Connection:
    """One kept-alive HTTP connection on a bare socket."""

    def __init__(self, server: Server) -> None:
        self._head = (
            f"Host: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.secret}\r\n"
        ).encode()
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=READY_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def get(self, path: str) -> Reply:
        return self.send(b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), self._head))

    def post(self, path: str, body: object) -> Reply:
        raw = json.dumps(body).encode()
        head = b"POST %s HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return self.send(head % (path.encode(), self._head, len(raw)) + raw)

    def send(self, request: bytes) -> Reply:
        self._socket.sendall(request)
        answer = b""
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._receive()
        head = answer[:end].lower()
        at = head.index(b"content-length:") + 15
        length = int(head[at:].split(b"\r\n", 1)[0])
        while len(answer) < end + 4 + length:
            answer += self._receive()
        return Reply(int(head[9:12]), answer[end + 4 :])

    def _receive(self) -> bytes:
        chunk = self._socket.recv(1 << 18)
        if not chunk:
            raise OSError("the server closed the connection")
        return chunk


class Rate(NamedTuple):
    """`cpu_s` is what the server used for the whole."""

    count: int
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.count / self.wall_s

    @property
    def cpu_ms_each(self) -> float:
        return 1000 * self.cpu_s / self.count


def load(server: Server, clients: int, work: Callable[[Connection, int], int]) -> Rate:
    """Let clients work side by side; `work` returns how much one has done."""
    counts = [0] * clients

    def run(number: int) -> None:
        with Connection(server) as connection:
            counts[number] = work(connection, number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    cpu_s, begun_s = server.cpu_s(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Rate(sum(counts), time.perf_counter() - begun_s, server.cpu_s() - cpu_s)


def submit(connection: Connection, path: str, body: object) -> list[str]:
    """Return the ids of the new jobs."""
    reply = connection.post(path, body)
    if reply.status != 200:
        raise RuntimeError(f"{path}: {reply.status} {reply.body[:500]!r}")
    ids: list[str] = json.loads(reply.body)["ids"]
    return ids


def all_jobs(server: Server) -> list[dict[str, Any]]:
    """Return every job, by pages."""
    found: list[dict[str, Any]] = []
    with Connection(server) as connection:
        path = "/v1/jobs?all=true&limit=1000"
        while True:
            page = json.loads(connection.get(path).body)
            found += page["rows"]
            if not page.get("next"):
                return found
            path = f"/v1/jobs?all=true&limit=1000&after={page['next']}"


def command_cpu_s(argv: Sequence[str], environment: Mapping[str, str], times: int = 7) -> float:
    """Return the median CPU seconds, user and system, of a command; the first run is dropped."""
    spent = []
    for _ in range(times + 1):
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stderr.close()
        if process.returncode != 0:
            raise RuntimeError(f"{argv}: {errors.decode()}")
        spent.append(usage.ru_utime + usage.ru_stime)
    return statistics.median(spent[1:])
