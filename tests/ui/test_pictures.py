"""Main pages as they were last looked at: `make screenshots` renews the pictures.

Each picture is compared with what the page shows now, both shrunk: a layout that broke, a
colour that is gone or a chart that is empty differs; a minute more on a clock does not.
"""

from __future__ import annotations

import base64
from contextlib import closing
from pathlib import Path

import pytest
from browser import new_page, settle
from look import SHOTS, THEMES, prepare, visits
from stage import Stage

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
NAMES = ("overview", "jobs", "explain", "metrics", "topology")
DIFFERENT_RATIO_MAX = 0.05
COMPARE = """
async ([one, other]) => {
  const [width, height] = [256, 160];
  const spots = async (text) => {
    const image = new Image();
    image.src = `data:image/png;base64,${text}`;
    await image.decode();
    const canvas = new OffscreenCanvas(width, height);
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(image, 0, 0, width, height);
    return pen.getImageData(0, 0, width, height).data;
  };
  const [a, b] = [await spots(one), await spots(other)];
  let different = 0;
  for (let at = 0; at < a.length; at += 4) {
    if (Math.max(...[0, 1, 2].map((c) => Math.abs(a[at + c] - b[at + c]))) > 40) different += 1;
  }
  return different / (width * height);
}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The evening of the pictures."""
    with Stage(tmp_path_factory.mktemp("pictures") / "state") as running:
        prepare(running)
        yield running


@pytest.mark.parametrize("theme", THEMES)
def test_pages_look_as_they_were_last_looked_at(browser, stage, theme):
    with closing(new_page(browser, theme=theme)) as page, closing(new_page(browser)) as judge:
        page.goto(stage.link())
        settle(page)
        ratios = {}
        for name in visits(stage, page, {name: SHOTS[name] for name in NAMES}):
            known = (IMAGES / f"{name}-{theme}.png").read_bytes()
            both = [base64.b64encode(each).decode() for each in (known, page.screenshot())]
            ratios[name] = judge.evaluate(COMPARE, both)
        assert {name: ratio for name, ratio in ratios.items() if ratio > DIFFERENT_RATIO_MAX} == {}
