"""The page of a comparison: complete in itself, safe, and with every plot well formed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from unit_twin import record, result, spans

from tercio.twin.charts import escape, nice_ticks
from tercio.twin.compare import Difference, compare
from tercio.twin.plots import ROWS_MAX, SPANS_MAX, Arm, gantt_window, tone_names
from tercio.twin.report import difference_text, figure_text, interval_text, render
from tercio.twin.stats import measure

EVIL = '<script>alert("x")</script>&'


def arm(name: str, delay_s: float = 0.0, *, queue: str = "a", nodes: int = 2) -> Arm:
    jobs = [
        record(f"{i}{EVIL}", 100.0 * i, 100.0 * i + delay_s, 100.0 * i + delay_s + 400.0,
               devices=1 + i % 4, queue=queue if i % 2 else "b")
        for i in range(20)
    ]  # fmt: skip
    return Arm(
        name=name,
        result=result(jobs, devices=4 * nodes),
        spans=spans(jobs, [i % nodes for i in range(20)]),
        nodes=[f"n{i}" for i in range(nodes)],
        node_devices=[4] * nodes,
    )


def page(*arms: Arm) -> str:
    figures = [[measure(one.result, one.spans, node_devices=one.node_devices)] for one in arms]
    comparison = compare([one.name for one in arms], figures, [one.result for one in arms])
    return render(comparison, arms, title="now against new", notes=["left out 3 rows"])


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "rect", "path"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"rect", "path"}:
            assert self.open.pop() == tag


def test_the_page_loads_nothing_runs_nothing_and_every_tag_is_closed() -> None:
    text = page(arm("now"), arm("new", 50.0, queue=EVIL))
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert not {"src", "href", "onload"} & {name for name, _ in reader.attributes}
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text


def test_every_plot_is_there_and_well_formed() -> None:
    text = page(arm("now"), arm("new", 50.0))
    plots = re.findall(r"<svg.*?</svg>", text)
    labels = [ElementTree.fromstring(plot).attrib["aria-label"] for plot in plots]
    assert labels == [
        "Utilisation over time", "Jobs waiting over time", "Share of jobs by longest wait",
        "Occupancy of now", "Occupancy of new", "Jobs by node of now", "Jobs by node of new",
    ]  # fmt: skip
    gantt = ElementTree.fromstring(plots[-1])
    bars = [one for one in gantt.iter() if "t" in one.attrib.get("class", "")[:1]]
    assert len(bars) >= 20
    for plot in plots:
        for number in re.findall(r' (?:x|y|width|height)="([^"]*)"', plot):
            assert float(number) >= 0


def test_both_palettes_are_there() -> None:
    text = page(arm("now"))
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text


def test_figures_differences_and_notes_are_told() -> None:
    text = page(arm("now"), arm("new", 50.0))
    assert "Wait, mean" in text
    assert "+50s" in text
    assert "worse" in text
    assert "left out 3 rows" in text


def test_a_large_run_shows_its_busiest_stretch_and_its_first_nodes() -> None:
    many = arm("now", nodes=ROWS_MAX + 20)
    assert gantt_window([many]) == (0.0, 2300.0)
    assert f"the first {ROWS_MAX} of {ROWS_MAX + 20} nodes" in page(many)
    jobs = [record(str(i), float(i), float(i), i + 5.0) for i in range(SPANS_MAX + 500)]
    crowded = Arm(
        name="x", result=result(jobs[:50]), spans=spans(jobs, [0] * len(jobs)), nodes=["n0"],
        node_devices=[8],
    )  # fmt: skip
    low, high = gantt_window([crowded])
    assert high - low == SPANS_MAX - 1


def test_colours_stand_for_queues_or_else_for_sizes() -> None:
    assert tone_names([arm("now")])[0] == "queue"
    one_queue = arm("now", queue="b")
    meaning, tones = tone_names([one_queue])
    assert (meaning, list(tones)) == ("size", ["1", "2-4"])


def test_texts() -> None:
    assert escape(EVIL) == "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;"
    assert nice_ticks(0, 7, most=4) == [0, 2, 4, 6]
    assert nice_ticks(3, 3) == [3]
    shown = [
        figure_text(key, value)
        for key, value in (("x_s", 5400.0), ("x_s", -0.25), ("x_ratio", 0.125), ("cost_usd", -9.0),
                           ("lost_device_h", 1.25), ("energy_kwh", 1234.5), ("jobs", 7.0),
                           ("jobs", None))
    ]  # fmt: skip
    assert shown == ["1h30m", "-0.25s", "12.5 %", "-$9", "1.2 h", "1,234 kWh", "7", "-"]


@pytest.mark.parametrize(
    ("key", "mean", "text", "interval"),
    [
        ("mean_wait_s", -60.0, "-1m (-50.0 %)", "-2m to 0s"),
        ("utilization_ratio", 0.05, "+5.0 points", "-12000.0 to +0.0 points"),
        ("mean_wait_s", 0.0, "0", "-2m to 0s"),
    ],
)
def test_differences(key: str, mean: float, text: str, interval: str) -> None:
    difference = Difference(mean=mean, low=-120.0, high=0.0, ratio=-0.5, verdict="unsure")
    assert difference_text(key, difference) == text
    assert interval_text(key, difference) == interval
    assert (difference_text(key, None), interval_text(key, None)) == ("-", "-")
