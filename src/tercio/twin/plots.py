"""The five plots of a comparison, from twin results: what to draw, not how."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from tercio.model.units import format_duration
from tercio.twin.charts import Bar, Line, bar_chart, line_chart, nice_ticks
from tercio.twin.result import TwinResult
from tercio.twin.spans import Span
from tercio.twin.stats import size_class, window_s

Floats = npt.NDArray[np.float64]
POINTS: Final = 240
BUCKETS: Final = 72
ROWS_MAX: Final = 48
SPANS_MAX: Final = 2500
TONES: Final = 8
_TIMES_S: Final = (
    60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0, 172800.0, 432000.0,
    604800.0, 1209600.0, 2592000.0,
)  # fmt: skip


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One run as the report draws it.

    Attributes:
        name: of the arm.
        result: what it came to.
        spans: who held what.
        nodes: names, in the order of the cluster.
        node_devices: devices of each.
        domains: rack, or whatever groups nodes, of each; empty names group by node.
    """

    name: str
    result: TwinResult
    spans: Sequence[Span] = ()
    nodes: Sequence[str] = ()
    node_devices: Sequence[int] = ()
    domains: Sequence[str] = ()


def time_text(seconds: float) -> str:
    """Return an instant of the axis, counted from the first submit."""
    return "0" if seconds == 0 else format_duration(seconds)


def time_ticks(low_s: float, high_s: float) -> list[float]:
    """Return round times."""
    return nice_ticks(low_s, high_s, units=_TIMES_S)


def utilisation_plot(arms: Sequence[Arm]) -> str:
    """Return devices held over devices of the cluster, in time."""
    end_s = _longest_s(arms)
    lines = [
        Line(
            number=i,
            points=_course(arm, arm.result.course.devices_used / arm.result.devices, end_s),
        )
        for i, arm in enumerate(arms)
        if arm.result.devices
    ]
    return line_chart(
        lines, label="Utilisation over time", x_range=(0, end_s), y_range=(0, 1),
        x_text=time_text, y_text=lambda y: f"{y * 100:.0f} %",
        x_ticks=time_ticks(0, end_s), y_ticks=(0, 0.25, 0.5, 0.75, 1),
    )  # fmt: skip


def queue_plot(arms: Sequence[Arm]) -> str:
    """Return how many jobs wait, in time."""
    end_s = _longest_s(arms)
    lines = [
        Line(number=i, points=_course(arm, arm.result.course.waiting.astype(np.float64), end_s))
        for i, arm in enumerate(arms)
    ]
    most = max((y for line in lines for _, y in line.points), default=0.0)
    return line_chart(
        lines, label="Jobs waiting over time", x_range=(0, end_s), y_range=(0, max(most, 1) * 1.05),
        x_text=time_text, y_text=lambda y: f"{y:,.0f}" if y >= 1 or y == 0 else f"{y:g}",
        x_ticks=time_ticks(0, end_s), y_ticks=nice_ticks(0, max(most, 1), most=4),
    )  # fmt: skip


_WAITS_S: Final = (0.0, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0, 86400.0, 604800.0, 2592000.0)


def wait_plot(arms: Sequence[Arm]) -> str:
    """Return the share of jobs that waited at most so long; time is logarithmic from 1 s on."""
    waits = [_waits(arm.result) for arm in arms]
    longest_s = max((float(found[-1]) for found in waits if len(found)), default=1.0)
    end_s = next((t for t in _WAITS_S[2:] if t >= longest_s), longest_s)
    lowest = min((float((found <= 1.0).mean()) for found in waits if len(found)), default=0.0)
    base = math.floor(min(lowest, 0.999) * 4) / 4
    lines = []
    for number, found in enumerate(waits):
        if not len(found):
            continue
        ranks = np.unique(np.linspace(0, len(found) - 1, min(len(found), POINTS)).astype(int))
        points = [(_log(found[rank]), (rank + 1) / len(found)) for rank in ranks]
        start = (0.0, float((found <= 1.0).mean()))
        points = [start, *(p for p in points if p[0] > 0 and p[1] >= start[1]), (_log(end_s), 1.0)]
        lines.append(Line(number=number, points=points, is_stepped=True))
    names = {
        _log(t): format_duration(t) if t > 1 else "\N{LESS-THAN OR EQUAL TO} 1s" for t in _WAITS_S
    }
    return line_chart(
        lines, label="Share of jobs by longest wait", x_range=(0, _log(end_s)), y_range=(base, 1),
        x_text=lambda x: names.get(x, ""), y_text=lambda y: f"{y * 100:.0f} %",
        x_ticks=[_log(t) for t in _WAITS_S[1:] if t <= end_s],
        y_ticks=nice_ticks(base, 1),
    )  # fmt: skip


def occupancy_plot(arm: Arm, span_s: float) -> str:
    """Return how full each domain was in time: a row for each rack, or for each node or so.

    `span_s` is the length of the axis, the same for all arms that stand beside each other.
    """
    start_s, _ = window_s(arm.result)
    end_s = start_s + span_s
    names, row_of = _rows(arm)
    sizes = np.zeros(len(names))
    for node, row in enumerate(row_of):
        sizes[row] += arm.node_devices[node]
    used = _buckets(arm, row_of, len(names), start_s, end_s)
    width = (end_s - start_s) / BUCKETS
    ratios = used / np.maximum(sizes[:, None] * width, 1e-9)
    bars = [
        Bar(
            x=b * width, y=row, width=width, height=0.92, tone="heat",
            strength=min(float(ratios[row, b]), 0.999),
            tip=f"{names[row]}, from {time_text(b * width)}: {ratios[row, b] * 100:.0f} % used",
        )
        for row in range(len(names))
        for b in range(BUCKETS)
        if ratios[row, b] > 0.005
    ]  # fmt: skip
    return bar_chart(
        bars, label=f"Occupancy of {arm.name}", rows=names, row_height=_row_height(len(names)),
        x_range=(0, end_s - start_s), x_text=time_text, x_ticks=time_ticks(0, end_s - start_s),
    )  # fmt: skip


def gantt_plot(
    arm: Arm, meaning: str, tones: Mapping[str, int], *, window: tuple[float, float]
) -> str:
    """Return who ran where: a row for each node, a lane in it for each device."""
    first_s, _ = window_s(arm.result)
    from_s, to_s = window
    shown = min(len(arm.nodes), ROWS_MAX)
    bars: list[Bar] = []
    lanes = [[-math.inf] * max(count, 1) for count in arm.node_devices[:shown]]
    for span in arm.spans:
        if not 0 <= span.node < shown or span.end_s <= from_s or span.start_s >= to_s:
            continue
        job = arm.result.jobs[span.job]
        name = job.queue if meaning == "queue" else size_class(job.devices)
        tone = f"t{tones.get(name, 0)}"
        tip = (
            f"{job.id}: {job.devices:g} devices, queue {job.queue or '-'},"
            f" {format_duration(span.end_s - span.start_s)}"
        )
        for lane, count in _lanes(lanes[span.node], span):
            bars.append(
                Bar(
                    x=span.start_s - first_s, width=span.end_s - span.start_s,
                    y=span.node + 0.96 * lane / len(lanes[span.node]),
                    height=0.96 * count / len(lanes[span.node]), tone=tone, tip=tip,
                )
            )  # fmt: skip
    return bar_chart(
        bars, label=f"Jobs by node of {arm.name}", rows=list(arm.nodes[:shown]),
        row_height=_row_height(shown), x_range=(from_s - first_s, to_s - first_s),
        x_text=time_text, x_ticks=time_ticks(from_s - first_s, to_s - first_s),
    )  # fmt: skip


def gantt_window(arms: Sequence[Arm]) -> tuple[float, float]:
    """Return the stretch to draw: all, or the busiest one that holds few enough spans."""
    starts = [window_s(arm.result) for arm in arms]
    from_s, to_s = min(s for s, _ in starts), max(e for _, e in starts)
    crowded = max(arms, key=lambda arm: len(arm.spans))
    begins = [span.start_s for span in crowded.spans if span.node < ROWS_MAX]
    if len(begins) <= SPANS_MAX:
        return from_s, to_s
    course = arms[0].result.course
    peak_s = float(course.at_s[int(np.argmax(course.waiting))]) if len(course.at_s) else from_s
    at = bisect.bisect_left(begins, peak_s)
    low = max(0, min(at - SPANS_MAX // 2, len(begins) - SPANS_MAX))
    return begins[low], begins[low + SPANS_MAX - 1]


def tone_names(arms: Sequence[Arm]) -> tuple[str, dict[str, int]]:
    """Return what colours mean (`queue` or `size`) and the number of each name's colour."""
    queues: dict[str, float] = {}
    for job in arms[0].result.jobs:
        queues[job.queue] = queues.get(job.queue, 0.0) + job.devices * job.run_s
    if len(queues) > 1:
        largest = sorted(queues, key=lambda name: -queues[name])
        return "queue", {name: min(i, TONES - 1) for i, name in enumerate(largest)}
    sizes = dict.fromkeys(size_class(job.devices) for job in arms[0].result.jobs)
    order = sorted(sizes, key=lambda name: int(name.rstrip("+").partition("-")[0]))
    return "size", {name: min(i, TONES - 1) for i, name in enumerate(order)}


def _lanes(free_s: list[float], span: Span) -> list[tuple[int, int]]:
    """Take the lowest free lanes and return them as runs of (first, count)."""
    wanted = max(1, round(span.devices))
    taken = [lane for lane, end_s in enumerate(free_s) if end_s <= span.start_s + 1e-6][:wanted]
    runs: list[tuple[int, int]] = []
    for lane in taken or [0]:
        free_s[lane] = span.end_s
        if runs and runs[-1][0] + runs[-1][1] == lane:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((lane, 1))
    return runs


def _rows(arm: Arm) -> tuple[list[str], list[int]]:
    """Return the names of the rows, and the row of each node."""
    names = list(arm.domains) if any(arm.domains) else list(arm.nodes)
    order = {name: row for row, name in enumerate(dict.fromkeys(names))}
    rows = [order[name] for name in names]
    if len(order) <= ROWS_MAX:
        return list(order), rows
    each = math.ceil(len(order) / ROWS_MAX)
    return list(order)[::each], [row // each for row in rows]


def _buckets(arm: Arm, row_of: Sequence[int], rows: int, start_s: float, end_s: float) -> Floats:
    """Return device seconds held by row and bucket."""
    used = np.zeros((rows, BUCKETS))
    width = max((end_s - start_s) / BUCKETS, 1e-9)
    for span in arm.spans:
        if not 0 <= span.node < len(row_of):
            continue
        low, high = (span.start_s - start_s) / width, (span.end_s - start_s) / width
        first, last = max(int(low), 0), min(int(high), BUCKETS - 1)
        row = used[row_of[span.node]]
        if first == last:
            row[first] += (high - low) * width * span.devices
            continue
        row[first] += (first + 1 - low) * width * span.devices
        row[first + 1 : last] += width * span.devices
        row[last] += (high - last) * width * span.devices
    return used


def _row_height(rows: int) -> float:
    return max(7.0, min(26.0, 300.0 / max(rows, 1)))


def _longest_s(arms: Sequence[Arm]) -> float:
    return max((end - start for start, end in (window_s(arm.result) for arm in arms)), default=1.0)


def _course(arm: Arm, values: Floats, end_s: float) -> list[tuple[float, float]]:
    """Return means of a step function over equal stretches of time."""
    course = arm.result.course
    if not len(course.at_s) or end_s <= 0:
        return []
    start_s = window_s(arm.result)[0]
    edges = start_s + np.linspace(0, end_s, POINTS + 1)
    sums = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(course.at_s))])
    at = np.clip(np.searchsorted(course.at_s, edges, side="right") - 1, 0, len(values) - 1)
    reached = sums[at] + values[at] * np.maximum(edges - course.at_s[at], 0.0)
    means = np.diff(reached) / np.diff(edges)
    middles = (edges[:-1] + edges[1:]) / 2 - start_s
    return [(float(x), max(float(y), 0.0)) for x, y in zip(middles, means, strict=True)]


def _used_ratio(result: TwinResult) -> Floats:
    ratios: Floats = result.course.devices_used / result.devices
    return ratios


def _waits(result: TwinResult) -> Floats:
    found = [job.wait_s for job in result.jobs if job.wait_s is not None]
    return np.sort(np.maximum(np.array(found, np.float64), 0.0))


def _log(seconds: float) -> float:
    return math.log10(max(float(seconds), 1.0))
