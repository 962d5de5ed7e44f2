"""The shape of the main pages, as assistive technology sees it, against what was agreed.

`TERCIO_RENEW=1` writes the agreed shapes anew: look at the difference before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from browser import settle
from stage import Stage

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]

SHAPES = Path(__file__).parent / "shapes"
PAGES = {
    "overview": "/",
    "jobs": "/jobs?sort=job&state=waiting",
    "explain": "/jobs/job-0000c?tab=explain",
    "nodes": "/nodes",
    "queues": "/queues",
    "topology": "/topology",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A stage of its own: other tests change theirs."""
    with Stage(tmp_path_factory.mktemp("shape") / "state") as running:
        running.fill()
        running.step(40)  # a step of the queues' history in which nothing changes
        yield running


def steady(text: str) -> str:
    """Return a shape without what depends on the moment or on who runs the tests."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "INSTANT", text)
    text = re.sub(r"\b(in )?\d+(\.\d+)?[smhdy](\d+[smhd])?( ago)?\b", "SPAN", text)
    text = re.sub(r"\bSPAN( to SPAN from now)?", "SPAN", text)
    text = re.sub(r"\b\d+(\.\d+)? h\b", "HOURS", text)
    return re.sub(r"tok-\w+", "TOKEN", text)


@pytest.mark.parametrize("name", PAGES)
def test_the_shape_of_a_page_is_as_agreed(visit, stage, name):
    page = visit()
    page.goto(stage.url + PAGES[name])
    settle(page)
    if name == "overview":
        page.get_by_role("link", name=re.compile("^Health")).wait_for()
        # What just changed differs by the order in which the simulated tasks start.
        page.get_by_role("region", name="What just changed").evaluate("each => each.remove()")
    found = steady(page.locator("main").aria_snapshot()) + "\n"
    path = SHAPES / f"{name}.txt"
    if os.environ.get("TERCIO_RENEW"):
        SHAPES.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")
