"""The metrics of `/metrics`, pushed to an OpenTelemetry collector (the extra `tercio[otel]`).

What a scrape would show is read and sent as it is: same names, labels as attributes. Nothing is
kept for a collector that is away: old values are not sent as new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Metric

from tercio.errors import UserError
from tercio.logs import facts
from tercio.runtime.periodic import Periodic, every

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric as OtelMetric
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData

_NS: Final = 1_000_000_000
log = logging.getLogger(__name__)


def make_exporter(endpoint: str, *, timeout_s: float = 10.0) -> MetricExporter:
    """Return what sends to a collector, such as `http://collector:4318/v1/metrics`.

    Raises:
        UserError: the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as failure:
        raise UserError(
            f"health.otlp is set, and OpenTelemetry is not installed: {failure}",
            code="unavailable",
            hint="pip install 'tercio[otel]', or leave health.otlp empty",
            field="health.otlp",
        ) from None
    return OTLPMetricExporter(endpoint=endpoint, timeout=timeout_s)


class Pusher:
    """Sends a registry's metrics again and again, in a thread; reads them on the event loop."""

    def __init__(
        self,
        exporter: MetricExporter,
        registry: CollectorRegistry,
        *,
        now: Callable[[], float],
        every_s: float,
        resource: Mapping[str, str],
    ) -> None:
        """Choose what to send where.

        Args:
            exporter: sends.
            registry: what is sent.
            now: seconds since the epoch.
            every_s: between two sendings.
            resource: attributes of the sender, such as `service.name`.
        """
        self._exporter = exporter
        self._registry = registry
        self._now = now
        self._resource = dict(resource)
        self._start_s = now()
        self._loop = Periodic("otlp", self.push, pause=every(every_s))
        self._is_away = False

    def start(self) -> None:
        """Begin to send."""
        self._loop.start()

    async def stop(self) -> None:
        """Send no more."""
        if self._loop.is_started:
            await self._loop.stop()
            await asyncio.to_thread(self._exporter.shutdown)

    async def push(self) -> bool:
        """Send once; return whether the collector took it."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        told = metrics_of(
            self._registry.collect(),
            start_s=self._start_s, now_s=self._now(), resource=self._resource,
        )  # fmt: skip
        result = await asyncio.to_thread(self._exporter.export, told)
        is_away = result is not MetricExportResult.SUCCESS
        if is_away != self._is_away:
            log.warning("otlp_away" if is_away else "otlp_back", extra=facts(result=str(result)))
        self._is_away = is_away
        return not is_away


def metrics_of(
    families: Iterable[Metric], *, start_s: float, now_s: float, resource: Mapping[str, str]
) -> MetricsData:
    """Return Prometheus families as OpenTelemetry's metrics: gauges, and sums since the start.

    Buckets, counts and sums of histograms and summaries are sums of their own, named as in the
    text format: dashboards written for Prometheus find them.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    span = (int(start_s * _NS), int(now_s * _NS))
    metrics = [metric for family in families for metric in _metrics(family, span)]
    scope = ScopeMetrics(scope=InstrumentationScope("tercio"), metrics=metrics, schema_url="")
    of_us = ResourceMetrics(resource=Resource(resource), scope_metrics=[scope], schema_url="")
    return MetricsData(resource_metrics=[of_us])


def _metrics(family: Metric, span: tuple[int, int]) -> Iterable[OtelMetric]:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, NumberDataPoint, Sum
    from opentelemetry.sdk.metrics.export import Metric as OtelMetric

    points: dict[str, list[NumberDataPoint]] = {}
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        point = NumberDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=span[0],
            time_unix_nano=span[1],
            value=float(sample.value),
        )
        points.setdefault(sample.name, []).append(point)
    for name, found in points.items():
        gauge = Gauge(data_points=found)
        total = Sum(
            data_points=found,
            aggregation_temporality=AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        )
        told = gauge if family.type in ("gauge", "unknown") else total
        yield OtelMetric(name=name, description=family.documentation, unit="", data=told)
