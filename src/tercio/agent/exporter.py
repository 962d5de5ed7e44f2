"""The agent's own Prometheus endpoint, for a node that is scraped directly as dcgm-exporter is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tercio.collect.dcgm import Exported, families
from tercio.model.readings import NodeReading

STALE_POLLS: Final = 3


class NodeCollector(Collector):
    """The newest reading as metrics; nothing when it is too old."""

    def __init__(
        self, hostname: str, newest: Callable[[], NodeReading | None], *, stale_s: float
    ) -> None:
        self._hostname = hostname
        self._newest = newest
        self._stale_s = stale_s

    def describe(self) -> list[GaugeMetricFamily]:
        """Name nothing ahead: there may be no reading yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        reading = self._newest()
        if reading is None or time.time() - reading.at_s > self._stale_s:
            return
        devices = {device.index: device for device in reading.devices}
        yield from families([Exported(hostname=self._hostname, reading=reading, devices=devices)])


def serve(collector: Collector, *, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve `/metrics`; return the port and a function that ends it. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(port, addr=host, registry=registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_address[1]), close
