"""A proxy before a daemon that speaks HTTP or TCP, with faults that a test turns on.

Every fault is an action of the test, not of a clock: what is slow waits for `release`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

_CHUNK: Final = 65_536
_WAIT_S: Final = 60.0
Answer = Callable[[str, bytes], bytes]
"""From the path of a request and the true answer to the bytes that the client gets."""


def cut(path: str, answer: bytes) -> bytes:
    """Half of it, then the end of the connection."""
    return answer[: len(answer) // 2]


def doubled(path: str, answer: bytes) -> bytes:
    """The same answer twice."""
    return answer + answer


def nothing(path: str, answer: bytes) -> bytes:
    """No answer."""
    return b""


def hollow(path: str, answer: bytes) -> bytes:
    """A whole answer of HTTP and JSON that says nothing."""
    return _http(b"{}")


def faulty(path: str, answer: bytes) -> bytes:
    """Good in HTTP, and an error inside, beside empty lists."""
    return _http(b'{"errors": [{"error": "controller is busy"}], "jobs": [], "nodes": []}')


def gateway(path: str, answer: bytes) -> bytes:
    """What a proxy of somebody says when the daemon is away."""
    return b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsorry"


def _http(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


class FaultProxy:
    """Passes requests on to one address, one connection each.

    Attributes:
        url: of the proxy.
        answer: what becomes of a true answer; None passes it on.
        paths: of the requests so far.
    """

    def __init__(self, upstream_url: str) -> None:
        host, _, port = upstream_url.removeprefix("http://").partition(":")
        self._upstream = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.answer: Answer | None = None
        self.paths: list[str] = []
        self._last: dict[str, bytes] = {}
        self._kept: dict[str, bytes] = {}
        self._held = threading.Event()
        self._held.set()
        self._waiting = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def keep(self) -> None:
        """Keep the newest answer to each path, for `old`."""
        self._kept = dict(self._last)

    def old(self, path: str, answer: bytes) -> bytes:
        """The answer that `keep` kept: one that comes after a newer one."""
        return self._kept.get(_without_query(path), answer)

    def hold(self) -> None:
        """Let answers wait in the middle until `release`."""
        self._held.clear()

    def release(self) -> None:
        self._held.set()

    def until_held(self) -> None:
        """Return when an answer waits."""
        assert self._waiting.acquire(timeout=_WAIT_S), "nobody asked"

    def close(self) -> None:
        self.release()
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(_WAIT_S)
            request = _read_request(client)
            path = request.split(b" ", 2)[1].decode()
            self.paths.append(path)
            with socket.create_connection(self._upstream, timeout=_WAIT_S) as upstream:
                upstream.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                true = _read_all(upstream)
            self._last[_without_query(path)] = true
            given = self.answer(path, true) if self.answer is not None else true
            if not self._held.is_set():
                middle = len(given) // 2
                client.sendall(given[:middle])
                self._waiting.release()
                self._held.wait(_WAIT_S)
                given = given[middle:]
            client.sendall(given)


def _without_query(path: str) -> str:
    return path.partition("?")[0]


def _read_request(client: socket.socket) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        request += _some(client)
    head, _, body = request.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += _some(client)
    return head + b"\r\n\r\n" + body


def _some(client: socket.socket) -> bytes:
    chunk = client.recv(_CHUNK)
    if not chunk:
        raise ConnectionError("gone")
    return chunk


def _read_all(upstream: socket.socket) -> bytes:
    parts = []
    while chunk := upstream.recv(_CHUNK):
        parts.append(chunk)
    return b"".join(parts)
