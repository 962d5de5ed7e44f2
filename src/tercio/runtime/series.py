"""Readings over time, kept in memory: a bounded ring per node, and columns cut out of it.

A ring keeps one reading of every step, the first that comes in it: a page shows the last hour of
a job without a database of metrics. 1,250 nodes of 8 devices take about 30 MB.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from tercio.model.readings import DeviceTelemetry
from tercio.model.series_views import METRICS, Metric

POINTS: Final = 180
"""Most readings that a ring keeps of a node."""


class Want(msgspec.Struct, frozen=True):
    """A device and the time of interest: seconds since the epoch, both ends included."""

    node: str
    device: int
    since_s: float
    until_s: float


class Rings:
    """The rings of all nodes. `keep_s` is how far they reach back."""

    def __init__(self, *, keep_s: float, poll_s: float) -> None:
        self.step_s = max(keep_s / POINTS, poll_s)
        self._most = max(2, math.ceil(keep_s / self.step_s))
        self._rings: dict[str, deque[tuple[int, array[float]]]] = {}

    def add(
        self,
        node: str,
        at_s: float,
        devices: Mapping[int, DeviceTelemetry],
        *,
        known: Container[str],
    ) -> None:
        """Keep a reading, unless one of the same step is kept; forget nodes no longer `known`."""
        slot = int(at_s // self.step_s)
        ring = self._rings.get(node)
        if ring is None:
            for name in [name for name in self._rings if name not in known]:
                del self._rings[name]
            ring = self._rings[node] = deque(maxlen=self._most)
        if ring and ring[-1][0] >= slot:
            return
        values = array("f")
        for index in range(max(devices, default=-1) + 1):
            found = devices.get(index)
            for name in METRICS:
                value = getattr(found, name) if found is not None else None
                values.append(math.nan if value is None else float(value))
        ring.append((slot, values))

    def cut(
        self, wants: Sequence[Want], metric: Metric
    ) -> tuple[tuple[float, ...], list[tuple[float | None, ...]]]:
        """Return instants and, for each device, its values at them; None where there is none."""
        offset, width = METRICS.index(metric), len(METRICS)
        kept = [self._rings.get(want.node, ()) for want in wants]
        slots = sorted(
            {
                slot
                for want, ring in zip(wants, kept, strict=True)
                for slot, _ in ring
                if self._is_in(slot, want)
            }
        )
        place = {slot: number for number, slot in enumerate(slots)}
        rows: list[tuple[float | None, ...]] = []
        for want, ring in zip(wants, kept, strict=True):
            row: list[float | None] = [None] * len(slots)
            at = want.device * width + offset
            for slot, values in ring:
                if self._is_in(slot, want) and at < len(values) and not math.isnan(values[at]):
                    row[place[slot]] = float(f"{values[at]:.6g}")
            rows.append(tuple(row))
        return tuple(slot * self.step_s for slot in slots), rows

    def _is_in(self, slot: int, want: Want) -> bool:
        return want.since_s <= (slot + 1) * self.step_s and slot * self.step_s <= want.until_s
