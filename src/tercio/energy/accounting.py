"""Energy per job from the counters of devices, split fairly where a device is shared.

Counters are preferred: power readings of A100 and H100 cover a quarter of the time
(arXiv 2312.02741). Every figure says which source it came from. Energy is kept in integer
millijoules, the unit of the counter, so that the parts of a device add up to the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec


class EnergySource(StrEnum):
    """Where a figure came from, from best to worst; a sum carries the worst of its parts."""

    COUNTER = "counter"
    POWER = "power"
    ESTIMATE = "estimate"

    @property
    def rank(self) -> int:
        """Position from best to worst."""
        return _SOURCES.index(self)


_SOURCES = list(EnergySource)


class EnergyReading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one device.

    Attributes:
        at_s: seconds since the epoch.
        counter_mj: energy since the driver was loaded, None where the device has no counter.
        power_w: draw at that time, None where not read.
    """

    at_s: float
    counter_mj: int | None = None
    power_w: float | None = None


class EnergySpan(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of one device over one span between two readings."""

    start_s: float
    end_s: float
    energy_mj: int
    source: EnergySource


class Sharer(msgspec.Struct, frozen=True, kw_only=True):
    """One job's part of a device.

    Attributes:
        job: the job, or None for the unallocated rest.
        allocation: its share of the device in thousandths (of the SMs for a MIG slice).
        activity: its dynamic use in any one unit (SM activity times time), or None where not
            measured.
    """

    job: str | None
    allocation: int
    activity: float | None = None


class EnergyShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one sharer used."""

    job: str | None
    energy_mj: int
    source: EnergySource


def energy_spans(readings: Sequence[EnergyReading]) -> tuple[EnergySpan, ...]:
    """Return the energy between consecutive readings of one device.

    A counter that fell was reset by a driver reload: that span is integrated from power if power
    was read, and left out if not, since a guess would be neither. Power is integrated by the
    trapezoidal rule.

    Args:
        readings: readings of one device in order of time.
    """
    spans = []
    for before, after in itertools.pairwise(readings):
        if after.at_s <= before.at_s:
            continue
        metered = _counted(before, after) or _integrated(before, after)
        if metered is not None:
            energy_mj, source = metered
            spans.append(
                EnergySpan(
                    start_s=before.at_s, end_s=after.at_s, energy_mj=energy_mj, source=source
                )
            )
    return tuple(spans)


def _counted(before: EnergyReading, after: EnergyReading) -> tuple[int, EnergySource] | None:
    if before.counter_mj is None or after.counter_mj is None:
        return None
    if after.counter_mj < before.counter_mj:
        return None
    return after.counter_mj - before.counter_mj, EnergySource.COUNTER


def _integrated(before: EnergyReading, after: EnergyReading) -> tuple[int, EnergySource] | None:
    if before.power_w is None or after.power_w is None:
        return None
    mean_w = (before.power_w + after.power_w) / 2
    return round(mean_w * (after.at_s - before.at_s) * 1000), EnergySource.POWER


def energy_between(
    spans: Sequence[EnergySpan], *, start_s: float, end_s: float
) -> tuple[int, EnergySource | None]:
    """Return the energy of a device over a job's span, and its source.

    A reading span that a job's edge cuts counts in proportion to time. The cut is made on the
    running total, so that the parts of adjoining jobs add up to the whole.

    Args:
        spans: the device's spans, in order and disjoint.
        start_s: begin of the job's span.
        end_s: end of the job's span.
    """
    total = 0
    source: EnergySource | None = None
    for span in spans:
        left, right = max(span.start_s, start_s), min(span.end_s, end_s)
        if left >= right:
            continue
        total += _until(span, right) - _until(span, left)
        if source is None or span.source.rank > source.rank:
            source = span.source
    return total, source


def _until(span: EnergySpan, at_s: float) -> int:
    """Return the energy from the start of a span to an instant inside it."""
    if at_s >= span.end_s:
        return span.energy_mj
    return int(span.energy_mj * (at_s - span.start_s) / (span.end_s - span.start_s))


def split_shared(
    energy_mj: int, sharers: Sequence[Sharer], *, idle_mj: int, source: EnergySource
) -> tuple[EnergyShare, ...]:
    """Split the energy of a shared or partitioned device among those who hold it.

    Idle energy goes by allocation, the rest by activity; without activity all goes by allocation.
    A device that is held whole by one job is not split, and keeps its source; every other figure
    is an estimate, since the hardware meters no slice (zeus#109).

    Args:
        energy_mj: energy of the device over the span.
        sharers: the holders; allocations may leave a rest, which goes to job None.
        idle_mj: what the device draws over the span when nothing runs.
        source: where `energy_mj` came from.

    Returns:
        One share per sharer, in order, and one for the rest if there is one. They add up to
        `energy_mj` exactly.

    Raises:
        ValueError: more than the whole device is allocated.
    """
    held = sum(s.allocation for s in sharers)
    if held > 1000:
        raise ValueError(f"{held} thousandths of one device are allocated")
    holders = list(sharers)
    if held < 1000:
        holders.append(Sharer(job=None, allocation=1000 - held, activity=0.0))
    if len(holders) == 1:
        return (EnergyShare(job=holders[0].job, energy_mj=energy_mj, source=source),)
    idle = min(max(idle_mj, 0), energy_mj)
    by_allocation = [float(h.allocation) for h in holders]
    measured = [h.activity for h in holders]
    activities = [a for a in measured if a is not None]
    if len(activities) == len(holders) and sum(activities) > 0:
        dynamic = apportion(energy_mj - idle, activities)
    else:
        # An unallocated part runs nothing: it carries idle energy only, where anyone runs.
        running = [0.0 if h.job is None else float(h.allocation) for h in holders]
        dynamic = apportion(energy_mj - idle, running if sum(running) > 0 else by_allocation)
    base = apportion(idle, by_allocation)
    return tuple(
        EnergyShare(job=h.job, energy_mj=b + d, source=EnergySource.ESTIMATE)
        for h, b, d in zip(holders, base, dynamic, strict=True)
    )


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split an integer by weights into integers that add up to it (largest remainder).

    Ties go to the earlier part.

    Raises:
        ValueError: no weight is positive, or one is negative.
    """
    weight_sum = sum(weights)
    if weight_sum <= 0 or min(weights) < 0:
        raise ValueError("weights must not be negative, and one must be positive")
    exact = [total * w / weight_sum for w in weights]
    whole = [min(int(e), total) for e in exact]
    order = sorted(range(len(weights)), key=lambda i: whole[i] - exact[i])
    short = total - sum(whole)
    # Floating point may leave a unit or two on either side; each goes to one part in turn.
    for step in range(abs(short)):
        part = order[step % len(order)] if short > 0 else max(order, key=lambda i: whole[i])
        whole[part] += 1 if short > 0 else -1
    return whole


class JobEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of one job over all its devices."""

    job: str
    energy_mj: int
    source: EnergySource


def energy_by_job(shares: Sequence[EnergyShare]) -> Mapping[str, JobEnergy]:
    """Return the sum per job, with the worst source of its parts; unallocated energy is left."""
    totals: dict[str, JobEnergy] = {}
    for share in shares:
        if share.job is None:
            continue
        known = totals.get(share.job)
        energy_mj = share.energy_mj + (known.energy_mj if known else 0)
        source = share.source
        if known is not None and known.source.rank > source.rank:
            source = known.source
        totals[share.job] = JobEnergy(job=share.job, energy_mj=energy_mj, source=source)
    return totals
