"""What open web pages cost the server: 200 of them while ten things happen a second."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Final, NamedTuple

from bench.served import Server
from bench.table import Row
from tercio.client import Client, JobRequest

PAGES: Final = 200
EVENTS_PER_S: Final = 10.0
FOR_S: Final = 10.0
SIMULATED: Final = {"TERCIO_SIM__CLUSTER": "8x8", "TERCIO_LOCAL__ENABLED": "false"}


class Cost(NamedTuple):
    """Shares of a core without and with the pages, and what one page reads for a change."""

    alone_ratio: float
    together_ratio: float
    bytes_per_change: float


class Readers:
    """Open pages: connections that read all that comes."""

    def __init__(self, server: Server, since: int, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets = []
        self.read_bytes = 0
        for _ in range(count):
            opened = socket.create_connection(("127.0.0.1", server.port))
            opened.sendall(
                f"GET /v1/events?views=true&pause_s=0.25&since={since} HTTP/1.1\r\n"
                f"Host: 127.0.0.1:{server.port}\r\nAccept: text/event-stream\r\n"
                f"Authorization: Bearer {server.secret}\r\n\r\n".encode()
            )
            opened.setblocking(False)
            self._selector.register(opened, selectors.EVENT_READ)
            self._sockets.append(opened)

    def read(self, until_s: float) -> None:
        """Read until an instant of the steady clock."""
        while (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left_s, 0.05)):
                self.read_bytes += len(key.fileobj.recv(1 << 16))  # type: ignore[union-attr]

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._selector.close()


def busy_ratio(server: Server, client: Client, count: int) -> tuple[float, float]:
    """Return the share of a core that the server uses, and the bytes that one page read."""
    readers = Readers(server, client.server().seq, count)
    job = client.submit(JobRequest(job={"name": "held", "run": "x"}, hold=True)).ids[0]
    readers.read(time.monotonic() + 1)
    readers.read_bytes = 0
    start_s, before_s = time.monotonic(), server.cpu_s()
    for number in range(int(FOR_S * EVENTS_PER_S)):
        (client.release if number % 2 == 0 else client.hold)(job)
        readers.read(start_s + (number + 1) / EVENTS_PER_S)
    spent_s, passed_s = server.cpu_s() - before_s, time.monotonic() - start_s
    readers.close()
    client.cancel(job)
    return spent_s / passed_s, readers.read_bytes / max(count, 1)


def measure() -> Cost:
    with Server(SIMULATED) as server, server_client(server) as client:
        while len(client.nodes().rows) < 8:
            time.sleep(0.05)
        # All devices are held, so that a job that is released is looked at and waits.
        client.submit(
            JobRequest(job={"name": "all", "run": "x", "tasks": 8, "per_task": {"devices": 8}})
        )
        alone_ratio, _ = busy_ratio(server, client, 0)
        together_ratio, read_bytes = busy_ratio(server, client, PAGES)
    return Cost(alone_ratio, together_ratio, read_bytes / (FOR_S * EVENTS_PER_S))


def server_client(server: Server) -> Client:
    return Client(f"http://127.0.0.1:{server.port}", server.secret)


def tables() -> list[tuple[str, list[Row], str]]:
    cost = measure()
    return [
        (
            "Web pages",
            [
                Row(
                    f"{PAGES} open pages, {EVENTS_PER_S:.0f} changes/s: CPU that they add",
                    f"{cost.together_ratio - cost.alone_ratio:.0%} of a core "
                    f"({cost.together_ratio:.0%} with them, {cost.alone_ratio:.0%} without)",
                    "20%",
                ),
                Row("bytes that one page reads for a change", f"{cost.bytes_per_change:.0f}"),
            ],
            "Changes are holds and releases of a waiting job, each with its scheduling cycle.",
        )
    ]
