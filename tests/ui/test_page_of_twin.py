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
    page.get_by_role("combobox", name=re.compile("^against")).select_option("sjf")
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
    expect(page).to_have_url(re.compile(r"run=run-\d.*at=\d+"))
    expect(moment).to_contain_text("of 64 devices in use")
    before = moment.text_content()
    page.keyboard.press("End")
    expect(moment).to_contain_text("0 of 64 devices in use, 0 jobs wait")
    assert moment.text_content() != before
    page.reload()
    settle(page)
    expect(figures).to_be_visible()


def test_devices_more_and_faults_are_compared_and_kept_in_the_link(visit, stage):
    page = visit("/twin?one=fifo&other=fifo", expected=("400",))
    page.get_by_label("With devices more").fill("17xH100")
    page.get_by_label("With devices more").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no whole number of nodes")
    page.get_by_label("With devices more").fill("16xH100")
    page.get_by_label("Nodes fail").fill("mean=30d,repair=2h")
    expect(page).to_have_url(re.compile("add=16xH100&faults=mean"))
    page.get_by_role("button", name="Replay the past").click()
    figures = page.get_by_role("region", name="comparison")
    heads = ["Figure", "fifo", "fifo +16xH100", "fifo +16xH100 is"]
    expect(figures.get_by_role("columnheader")).to_have_text(heads, timeout=ANSWER_MS)
    more = page.get_by_role("region", name="fifo +16xH100 at that instant")
    expect(more).to_contain_text("of 80 devices")
    expect(page.get_by_text("Nodes fail in every arm alike")).to_be_visible()
    expect(page.get_by_label("equivalent command")).to_have_text(
        "tercio twin compare journal.db --cluster cluster.yaml --policy fifo "
        "--add 16xH100 --faults mean=30d,repair=2h"
    )


def test_the_twin_is_for_operators(visit):
    page = visit("/twin", role="user")
    expect(page.get_by_text("The twin is for operators")).to_be_visible()
    expect(page.get_by_role("link", name="Twin")).to_have_count(0)
