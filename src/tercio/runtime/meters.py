"""The sums of one task: energy of its devices, and when readings saw it idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tercio.energy.accounting import EnergyReading, EnergySource, energy_between, energy_spans
from tercio.health.goodput import IDLE_MIN_S, IDLE_UTILIZATION_RATIO
from tercio.model.readings import DeviceTelemetry, Measured
from tercio.model.resources import WHOLE_DEVICE_MILLI

_SPANS_KEPT: Final = 2000
"""More spans of one task than that are not kept apart: the oldest go."""
Span = tuple[float, float]


class MeterImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A meter as it is kept on disk."""

    energy_mj: int = 0
    source: EnergySource | None = None
    seen: list[Span] = []
    low: list[Span] = []


class Meter:
    """Adds up; see the module's description."""

    __slots__ = ("_energy_mj", "_low", "_seen", "_source")

    def __init__(self) -> None:
        self._energy_mj = 0
        self._source: EnergySource | None = None
        self._seen: list[Span] = []
        self._low: list[Span] = []

    def image(self) -> MeterImage:
        """Return everything that the meter holds."""
        return MeterImage(
            energy_mj=self._energy_mj,
            source=self._source,
            seen=list(self._seen),
            low=list(self._low),
        )

    @classmethod
    def from_image(cls, image: MeterImage) -> Meter:
        """Return a meter that goes on from an image."""
        meter = cls()
        meter._energy_mj, meter._source = image.energy_mj, image.source
        meter._seen, meter._low = list(image.seen), list(image.low)
        return meter

    def add_energy(
        self,
        before: DeviceTelemetry | None,
        now: DeviceTelemetry,
        *,
        milli: int,
        start_s: float,
        before_s: float,
        now_s: float,
    ) -> None:
        """Add the energy of one device, or of a share of it, from `start_s` to `now_s`."""
        if before is None:
            return
        spans = energy_spans(
            [
                EnergyReading(at_s=before_s, counter_mj=before.energy_mj, power_w=before.power_w),
                EnergyReading(at_s=now_s, counter_mj=now.energy_mj, power_w=now.power_w),
            ]
        )
        energy_mj, source = energy_between(spans, start_s=start_s, end_s=now_s)
        if source is None:
            return
        if milli < WHOLE_DEVICE_MILLI:
            # No hardware meters a share; by allocation it is an estimate, and called one.
            energy_mj, source = energy_mj * milli // WHOLE_DEVICE_MILLI, EnergySource.ESTIMATE
        self._energy_mj += energy_mj
        if self._source is None or source.rank > self._source.rank:
            self._source = source

    def add_span(self, start_s: float, end_s: float, utilization: Sequence[float | None]) -> None:
        """Add a span that readings cover; it is idle where all devices are."""
        known = [ratio for ratio in utilization if ratio is not None]
        if not known:
            return
        _extend(self._seen, start_s, end_s)
        if max(known) < IDLE_UTILIZATION_RATIO:
            _extend(self._low, start_s, end_s)

    def measured(self) -> Measured:
        """Return the sums so far."""
        return Measured(
            energy_mj=self._energy_mj,
            energy_source=self._source.value if self._source is not None else "",
            seen=tuple(self._seen),
            # Shorter spans count for nothing (`health.goodput`), and would only be kept.
            low=tuple(span for span in self._low if span[1] - span[0] >= IDLE_MIN_S),
        )


def _extend(spans: list[Span], start_s: float, end_s: float) -> None:
    if spans and spans[-1][1] >= start_s:
        spans[-1] = (spans[-1][0], end_s)
        return
    spans.append((start_s, end_s))
    if len(spans) > _SPANS_KEPT:
        del spans[0]
