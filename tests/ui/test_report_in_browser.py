"""The page of `tercio twin compare --html` in a real browser, light and dark, wide and narrow."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Watch, new_page

from tercio.cli.main import run


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    line = "{n} {at} 0 {run} {size} -1 -1 {size} 9000 -1 {state} {user} 1 -1 {queue} -1 -1 -1\n"
    (folder / "log.swf").write_text(
        "".join(
            line.format(n=n + 1, at=120 * n, run=300 + 97 * (n % 11), size=(1, 2, 8, 4)[n % 4],
                        state=n % 2, user=n % 3, queue=n % 2)
            for n in range(60)
        )
    )  # fmt: skip
    page = folder / "report.html"
    words = ["--policy", "fifo", "--policy", "easy", "--html", str(page), "-o", "json"]
    assert run(["twin", "compare", str(folder / "log.swf"), "--cluster", "2x8", *words]) == 0
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_reads_well_and_loads_nothing(browser, report, theme):
    for width in (1280, 400):
        page = new_page(browser, width=width, theme=theme)
        watch = Watch(page)
        page.goto(report.as_uri())
        assert page.get_by_role("heading", level=1).inner_text() == "fifo against easy"
        for words in ("Wait by gang size, in devices", "Where jobs ran", "Notes"):
            assert page.get_by_role("heading", name=words).is_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        empty = "[...document.querySelectorAll('svg')].filter(each => !each.children.length).length"
        assert page.evaluate("document.querySelectorAll('svg').length") == 7
        assert page.evaluate(empty) == 0
        text = page.evaluate("getComputedStyle(document.body).color")
        watch.check()
        page.context.close()
        brightness = sum(int(part) for part in text.removeprefix("rgb(").rstrip(")").split(","))
        assert (brightness > 380) is (theme == "dark"), text
