"""The past under another policy: asked for, waited for, compared, scrubbed, sent as a link."""

from __future__ import annotations

import re

import pytest
from browser import settle
from playwright.sync_api import expect
from stage import Stage

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(240)]

# The answer is of a process that has to start first.
ANSWER_MS = 150_000
HOURS_S = 6 * 3600.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The demo's cluster some hours later: most of its jobs have ended."""
    with Stage(tmp_path_factory.mktemp("twin") / "state") as running:
        running.fill()
        running.step(HOURS_S)
        yield running


def test_the_past_is_replayed_compared_and_scrubbed(visit, stage):
    page = visit("/twin")
    expect(page.get_by_text("Nothing was replayed yet")).to_be_visible()
    page.get_by_label("against").select_option("sjf")
    page.get_by_role("button", name="Replay the past").click()
    figures = page.get_by_role("region", name="comparison")
    expect(figures).to_be_visible(timeout=ANSWER_MS)
    expect(figures.get_by_role("columnheader")).to_have_text(
        ["Figure", "in force", "sjf", "sjf is"]
    )
    expect(figures.get_by_role("row", name=re.compile("^Wait, mean"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("of each policy over time"))).to_be_visible()
    scrub = page.get_by_role("slider", name="instant of the replay")
    moment = page.get_by_role("region", name="in force at that instant")
    scrub.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile(r"run=run-1.*at=\d+"))
    expect(moment).to_contain_text("of 64 devices in use")
    before = moment.text_content()
    page.keyboard.press("End")
    expect(moment).to_contain_text("0 of 64 devices in use, 0 jobs wait")
    assert moment.text_content() != before
    page.reload()
    settle(page)
    expect(figures).to_be_visible()


def test_the_twin_is_for_operators(visit):
    page = visit("/twin", role="user")
    expect(page.get_by_text("The twin is for operators")).to_be_visible()
    expect(page.get_by_role("link", name="Twin")).to_have_count(0)
