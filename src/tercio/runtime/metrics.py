"""Prometheus metrics of one server, in a registry of its own. Base units, prefix `tercio_`."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from tercio.collect.dcgm import Exported, families
from tercio.core.cluster import Cluster
from tercio.model.resources import WHOLE_DEVICE_MILLI

_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What is counted where it happens. The state itself is read at scrape time, see `watch`."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.entries = Counter(
            "tercio_journal_entries", "Entries written.", ["event"], registry=registry
        )
        self.write_s = Histogram(
            "tercio_journal_write_seconds",
            "Time of one durable transaction.",
            buckets=_SHORT,
            registry=registry,
        )
        self.write_entries = Histogram(
            "tercio_journal_write_entries",
            "Entries in one transaction.",
            buckets=_SIZES,
            registry=registry,
        )
        self.store_errors = Counter(
            "tercio_journal_errors", "Writes that the journal refused.", registry=registry
        )
        self.is_stalled = Gauge(
            "tercio_journal_stalled",
            "1 while the journal takes no writes.",
            registry=registry,
        )
        self.cycle_s = Histogram(
            "tercio_scheduler_cycle_seconds",
            "Time of one scheduling cycle.",
            buckets=_SHORT,
            registry=registry,
        )
        self.refused_plan_parts = Counter(
            "tercio_scheduler_refused_parts",
            "Parts of plans that did not hold; always 0 unless there is a bug.",
            registry=registry,
        )
        self.effects = Counter(
            "tercio_effects",
            "Effects performed, by result: done, refused or timed_out.",
            ["effect", "result"],
            registry=registry,
        )
        self.effect_errors = Counter(
            "tercio_effect_errors",
            "Errors of engines and webhooks, retried ones included.",
            ["engine", "operation"],
            registry=registry,
        )
        self.commands = Counter(
            "tercio_commands",
            "Commands, by result: done, refused or failed.",
            ["command", "result"],
            registry=registry,
        )

    def watch(
        self,
        *,
        cluster: Callable[[], Cluster],
        inbox_depth: Callable[[], int],
        in_flight: Callable[[], int],
    ) -> None:
        """Read the state at every scrape from here."""
        self.registry.register(_StateCollector(cluster, inbox_depth, in_flight))

    def watch_nodes(self, nodes: Callable[[], Iterable[Exported]]) -> None:
        """Export the newest readings of nodes at every scrape, under DCGM's names."""
        self.registry.register(_NodeCollector(nodes))

    def render(self) -> bytes:
        """Return the text format; call it on the event loop, it reads the live state."""
        return generate_latest(self.registry)


class _StateCollector(Collector):
    """Gauges made from the state when asked: O(jobs + nodes)."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        inbox_depth: Callable[[], int],
        in_flight: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._inbox_depth = inbox_depth
        self._in_flight = in_flight

    def describe(self) -> list[GaugeMetricFamily]:
        """Name nothing ahead: the state may not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        cluster = self._cluster()
        yield _gauge("tercio_inbox_depth", "Requests and observations that wait.",
                     self._inbox_depth())  # fmt: skip
        yield _gauge("tercio_effects_in_flight", "Effects under way.", self._in_flight())
        yield _gauge("tercio_epoch", "Number of this server run.", cluster.epoch)
        jobs = Count((job.queue, job.state.value) for job in cluster.jobs.values())
        family = GaugeMetricFamily("tercio_jobs", "Jobs by state.", labels=["queue", "state"])
        for (queue, state), count in sorted(jobs.items()):
            family.add_metric([queue, state], count)
        yield family
        nodes = Count(node.state.value for node in cluster.nodes.values())
        family = GaugeMetricFamily("tercio_nodes", "Nodes by state.", labels=["state"])
        for state, count in sorted(nodes.items()):
            family.add_metric([state], count)
        yield family
        yield from _devices(cluster)
        yield from _start_estimates(cluster)


class _NodeCollector(Collector):
    """Readings as metrics: O(devices of nodes with fresh readings)."""

    def __init__(self, nodes: Callable[[], Iterable[Exported]]) -> None:
        self._nodes = nodes

    def describe(self) -> list[GaugeMetricFamily]:
        """Name nothing ahead: there may be no reading yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        yield from families(self._nodes())


def _devices(cluster: Cluster) -> Iterator[GaugeMetricFamily]:
    total: Count[str] = Count()
    held_milli: Count[str] = Count()
    for node in cluster.nodes.values():
        total.update(device.type for device in node.spec.devices)
    for job in cluster.jobs.values():
        for task in job.live_tasks:
            node_of = cluster.nodes.get(task.placement.node)
            for share in task.placement.devices:
                if node_of is not None and share.index < len(node_of.spec.devices):
                    held_milli[node_of.spec.devices[share.index].type] += share.milli
    family = GaugeMetricFamily("tercio_devices", "Devices by type.", labels=["type"])
    held = GaugeMetricFamily("tercio_devices_allocated", "Devices held by jobs.", labels=["type"])
    for kind in sorted(total):
        family.add_metric([kind], total[kind])
        held.add_metric([kind], held_milli[kind] / WHOLE_DEVICE_MILLI)
    yield family
    yield held


def _start_estimates(cluster: Cluster) -> Iterator[Metric]:
    record = cluster.starts
    yield SummaryMetricFamily(
        "tercio_start_estimate_error_seconds",
        "How far jobs started from what they were told first.",
        count_value=record.count,
        sum_value=record.error_s,
    )
    yield CounterMetricFamily(
        "tercio_start_estimates_inside",
        "Jobs that started inside the band they were told; 80 % is meant.",
        value=record.inside,
    )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
