"""One HTML page of a comparison: complete in itself, light and dark, for a desk and a phone.

The page loads nothing and runs no script. Numbers in the table are the JSON's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tercio.model.units import format_duration
from tercio.twin.charts import escape
from tercio.twin.compare import Comparison, Difference, Row
from tercio.twin.plots import (
    POINTS,
    ROWS_MAX,
    Arm,
    gantt_plot,
    gantt_window,
    occupancy_plot,
    queue_plot,
    time_text,
    tone_names,
    utilisation_plot,
    wait_plot,
)
from tercio.twin.report_style import STYLE
from tercio.twin.stats import Waits, window_s

_MARKS: Final = {
    "better": "better",
    "worse": "worse",
    "unsure": "not sure",
    "neutral": "other capacity",
}
_LEAD: Final = ("mean_wait_s", "p99_wait_s", "makespan_s", "utilization_ratio")


def figure_text(key: str, value: float | None) -> str:
    """Return a figure for people, by the unit at the end of its key.

    >>> figure_text("makespan_s", 5400.0), figure_text("utilization_ratio", 0.5)
    ('1h30m', '50.0 %')
    """
    if value is None:
        return "-"
    unit = key.rpartition("_")[2]
    if unit == "s":
        sign = "-" if value < 0 else ""
        size = abs(value)
        return sign + (f"{size:.3g}s" if 0 < size < 10 else format_duration(size))
    if unit == "ratio":
        return f"{value * 100:.1f} %"
    if unit == "usd":
        return f"{'-' if value < 0 else ''}${abs(value):,.0f}"
    if unit == "kwh":
        return f"{value:,.0f} kWh"
    if unit == "h":
        return f"{value:,.1f} h"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def difference_text(key: str, difference: Difference | None) -> str:
    """Return a difference with its part of the baseline, such as `-12m (-8.1 %)`."""
    if difference is None:
        return "-"
    if difference.mean == 0:
        return "0"
    if key.endswith("_ratio"):
        return f"{difference.mean * 100:+.1f} points"
    text = figure_text(key, difference.mean)
    text = text if text.startswith("-") else f"+{text}"
    part = "" if difference.ratio is None else f" ({difference.ratio * 100:+.1f} %)"
    return text + part


def judged_text(key: str, difference: Difference | None) -> str:
    """Return a difference and, where it has an interval, what that says."""
    text = difference_text(key, difference)
    if difference is None or difference.low is None or difference.verdict == "same":
        return text
    return f"{text}, {_MARKS[difference.verdict]}"


def interval_text(key: str, difference: Difference | None) -> str:
    """Return the confidence interval, or a dash where there is none."""
    if difference is None or difference.low is None or difference.high is None:
        return "-"
    if difference.verdict == "same":
        return "-"
    if key.endswith("_ratio"):
        return f"{difference.low * 100:+.1f} to {difference.high * 100:+.1f} points"
    return f"{figure_text(key, difference.low)} to {figure_text(key, difference.high)}"


def render(
    comparison: Comparison, arms: Sequence[Arm], *, title: str, notes: Sequence[str] = ()
) -> str:
    """Return the page.

    Args:
        comparison: figures and differences.
        arms: runs of the first seed, in the order of the comparison.
        title: heading.
        notes: what was guessed or left out, one sentence each.
    """
    first = arms[0].result
    start_s, end_s = window_s(first)
    source = escape(first.source.rpartition("/")[2])
    lead = (
        f"{len(first.jobs):,} jobs of {source}, from the first submit to the last end"
        f" {format_duration(end_s - start_s)}; {comparison.seeds}"
        f" {'workload' if comparison.seeds == 1 else 'workloads'} for each arm."
    )
    which = "" if comparison.seeds == 1 else f", mean of {comparison.seeds} workloads"
    means = f"means over {format_duration((end_s - start_s) / POINTS)}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{lead}</p>',
        _legend(comparison, arms),
        _cards(comparison),
        _metrics(comparison),
        '<section class="charts three">',
        _figure("Utilisation", utilisation_plot(arms), f"Devices held; {means}."),
        _figure("Queue", queue_plot(arms), f"Jobs that wait; {means}."),
        _figure(
            "Waiting time", wait_plot(arms),
            "Share of jobs that waited at most so long. Time is logarithmic from one second on.",
        ),
        "</section>",
        _waits(f"Wait by gang size, in devices{which}", comparison.waits_by_size, comparison.arms),
        _waits(f"Wait by queue{which}", comparison.waits_by_queue, comparison.arms),
        *_places(arms),
        _notes(comparison, notes),
    ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        + "".join(body)
        + "</main></body></html>\n"
    )


def _legend(comparison: Comparison, arms: Sequence[Arm]) -> str:
    marks = []
    for number, (name, arm) in enumerate(zip(comparison.arms, arms, strict=True)):
        role = " <small>baseline</small>" if number == 0 and len(arms) > 1 else ""
        result = arm.result
        marks.append(
            f'<li><i class="key k{number % 4}"></i><b>{escape(name)}</b>{role}'
            f" <small>{result.devices:,} devices on {result.nodes:,} nodes</small></li>"
        )
    return f'<ul class="legend">{"".join(marks)}</ul>'


def _cards(comparison: Comparison) -> str:
    rows = {row.key: row for row in comparison.rows}
    cards = []
    for key in _LEAD:
        row = rows.get(key)
        if row is None:
            continue
        values = "".join(
            f'<span><i class="key k{n % 4}"></i>{figure_text(key, value)}</span>'
            for n, value in enumerate(row.values)
        )
        cards.append(f"<div><h3>{escape(row.title)}</h3>{values}</div>")
    return f'<section class="cards">{"".join(cards)}</section>'


def _metrics(comparison: Comparison) -> str:
    head = "".join(f"<th>{escape(arm)}</th>" for arm in comparison.arms)
    rows = "".join(_metric(row) for row in comparison.rows)
    return (
        '<h2>Figures</h2><div class="scroll"><table><thead><tr><th>Figure</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _metric(row: Row) -> str:
    cells = ""
    for value, difference in zip(row.values, row.differences, strict=True):
        gap = "" if difference is None else _gap(row.key, difference)
        cells += f"<td>{figure_text(row.key, value)}{gap}</td>"
    return f'<tr><th scope="row">{escape(row.title)}</th>{cells}</tr>'


def _gap(key: str, difference: Difference) -> str:
    """Return the second line of a cell: the difference, and how sure it is."""
    if difference.verdict == "same":
        return ""
    text = judged_text(key, difference)
    if difference.low is None:
        return f'<span class="gap">{text}</span>'
    return (
        f'<span class="gap {difference.verdict}">{text}</span>'
        f'<span class="gap">95 %: {interval_text(key, difference)}</span>'
    )


def _waits(title: str, classes: Mapping[str, tuple[Waits | None, ...]], arms: Sequence[str]) -> str:
    if len(classes) < 2:
        return ""
    rows = []
    for name, waits in classes.items():
        for number, (arm, one) in enumerate(zip(arms, waits, strict=True)):
            head = f'<th scope="row">{escape(name) if number == 0 else ""}</th>'
            values = () if one is None else (one.mean_s, one.p50_s, one.p95_s, one.p99_s)
            cells = "".join(f"<td>{figure_text('_s', value)}</td>" for value in values)
            count = "-" if one is None else f"{one.jobs:,}"
            key = f'<i class="key k{number % 4}"></i>{escape(arm)}'
            first = ' class="first"' if number == 0 else ""
            rows.append(f'<tr{first}>{head}<td class="arm">{key}</td><td>{count}</td>{cells}</tr>')
    heads = "".join(f"<th>{word}</th>" for word in ("jobs", "mean", "median", "p95", "p99"))
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table class="grouped"><thead><tr>'
        f'<th>Class</th><th class="arm">Arm</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _places(arms: Sequence[Arm]) -> list[str]:
    """Return the plots of nodes, where the runs kept who held what."""
    shown = [arm for arm in arms if arm.spans and arm.nodes]
    if not shown:
        return []
    parts = ['<h2>Where jobs ran</h2><section class="charts">']
    windows = [window_s(arm.result) for arm in shown]
    span_s = max(last_s - first_s for first_s, last_s in windows)
    for arm in shown:
        by = "rack" if any(arm.domains) else "node"
        parts.append(
            _figure(
                f"Occupancy: {arm.name}", occupancy_plot(arm, span_s),
                f"Stronger colour is fuller; a row is a {by}, or several where there are many.",
            )
        )  # fmt: skip
    meaning, tones = tone_names(shown)
    window = gantt_window(shown)
    first_s = min(window_s(arm.result)[0] for arm in shown)
    stretch = (
        f"from {time_text(window[0] - first_s)} to {time_text(window[1] - first_s)}"
        if window[1] - window[0] < 0.98 * (window_s(shown[0].result)[1] - first_s)
        else "the whole run"
    )
    for arm in shown:
        cut = (
            f"; the first {ROWS_MAX} of {len(arm.nodes)} nodes" if len(arm.nodes) > ROWS_MAX else ""
        )
        parts.append(
            _figure(
                f"Jobs by node: {arm.name}",
                gantt_plot(arm, meaning, tones, window=window),
                f"A lane for each device, a bar for each job; {stretch}{cut}.",
            )
        )
    parts.append("</section>")
    keys = "".join(
        f'<li><i class="key t{tone}"></i>{escape(name or "-")}</li>'
        for name, tone in list(tones.items())[:8]
    )
    more = "" if len(tones) <= 8 else f"<li>and {len(tones) - 8} more in the last colour</li>"
    word = "Queue" if meaning == "queue" else "Devices of the job"
    parts.append(f'<ul class="legend small"><li><b>{word}</b></li>{keys}{more}</ul>')
    return parts


def _figure(title: str, svg: str, caption: str) -> str:
    return (
        f"<figure><h3>{escape(title)}</h3>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _notes(comparison: Comparison, notes: Sequence[str]) -> str:
    how = (
        "Differences are paired: every arm saw the same workloads."
        " The interval is Student's over the workloads."
        if comparison.seeds > 1
        else "One workload: intervals are bootstrapped over its jobs, and exist for means of jobs"
        " only. More seeds say how another month might go."
    )
    points = "".join(f"<li>{escape(note)}</li>" for note in (how, *notes))
    return f'<h2>Notes</h2><ul class="notes">{points}</ul>'
