"""Metrics pushed to an OpenTelemetry collector: a small receiver decodes what it really gets."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tercio.errors import UserError
from tercio.runtime.otlp import Pusher, make_exporter

NOW_S = 1_700_000_060.0


class Collector:
    """Takes OTLP over HTTP on the loopback, as a collector does."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    @contextmanager
    def serve(self) -> Iterator[str]:
        ours = self

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                is_packed = self.headers.get("Content-Encoding") == "gzip"
                ours.bodies.append(gzip.decompress(body) if is_packed else body)
                ours.paths.append(self.path)
                self.send_response(ours.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        with HTTPServer(("127.0.0.1", 0), Receiver) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/v1/metrics"
            finally:
                server.shutdown()
                thread.join()


def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    gauge = Gauge("tercio_nodes", "Nodes by state.", ["state"], registry=found)
    gauge.labels("ready").set(3)
    Counter("tercio_jobs_ended", "Jobs that ended.", registry=found).inc(5)
    Histogram("tercio_cycle_seconds", "Cycles.", buckets=(1.0,), registry=found).observe(0.5)
    return found


def push(url: str, metrics: CollectorRegistry) -> bool:
    clock = iter((NOW_S - 60.0, NOW_S))
    pusher = Pusher(
        make_exporter(url, timeout_s=0.5), metrics,
        now=lambda: next(clock), every_s=60.0, resource={"service.name": "tercio"},
    )  # fmt: skip
    return asyncio.run(pusher.push())


def test_a_collector_gets_names_attributes_and_values() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs tercio[otel]")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    collector = Collector()
    with collector.serve() as url:
        assert push(url, registry())
    assert collector.paths == ["/v1/metrics"]
    request = ExportMetricsServiceRequest.FromString(collector.bodies[0])
    (resource,) = request.resource_metrics
    sender = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert sender["service.name"] == "tercio"
    metrics = {each.name: each for each in resource.scope_metrics[0].metrics}
    (nodes,) = metrics["tercio_nodes"].gauge.data_points
    assert nodes.as_double == 3.0
    assert [(a.key, a.value.string_value) for a in nodes.attributes] == [("state", "ready")]
    assert nodes.time_unix_nano == int(NOW_S * 1e9)
    ended = metrics["tercio_jobs_ended_total"].sum
    assert (ended.is_monotonic, ended.data_points[0].as_double) == (True, 5.0)
    assert ended.data_points[0].start_time_unix_nano == int((NOW_S - 60.0) * 1e9)
    assert metrics["tercio_cycle_seconds_count"].sum.data_points[0].as_double == 1.0
    assert not [name for name in metrics if name.endswith("_created")]


def test_a_collector_that_refuses_costs_nothing_but_a_line() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs tercio[otel]")
    collector = Collector(status=400)
    with collector.serve() as url:
        assert not push(url, registry())


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="not installed") as caught:
        make_exporter("http://127.0.0.1:4318/v1/metrics")
    assert caught.value.hint is not None
    assert "tercio[otel]" in caught.value.hint
