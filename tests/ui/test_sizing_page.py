"""How many devices? Asked and answered on the page, with sources, and shared as a link."""

from __future__ import annotations

import re

import pytest
from browser import settle
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]

# The answer is of a process that has to start first.
ANSWER_MS = 90_000


def test_a_training_run_is_sized_ranked_and_drawn(visit):
    page = visit("/sizing")
    expect(page.get_by_role("region", name="Parts that can be sized")).to_contain_text("H100-SXM5")
    page.get_by_label("Model").fill("llama-3-8b")
    page.get_by_label("Tokens to train on").fill("100B")
    page.get_by_label("Device counts").fill("8,32")
    page.get_by_label("Device types").fill("H100,H200")
    expect(page.get_by_label("equivalent command")).to_contain_text(
        "tercio size train --model llama-3-8b --gpus H100,H200 --tokens 100B"
    )
    page.get_by_role("button", name="Size it").click()
    page.get_by_role("button", name="Size it").wait_for(timeout=ANSWER_MS)
    table = page.get_by_role("region", name=re.compile("^sizing-train, 4 rows"))
    expect(table.get_by_role("row").nth(1)).to_contain_text("★")
    expect(table).to_contain_text(re.compile("32 . H200"))
    expect(page.get_by_role("img", name=re.compile("cost against time of 4"))).to_be_visible()
    sources = page.get_by_role("region", name="Assumed, and from where")
    expect(sources).to_contain_text("a device-hour")
    expect(sources).to_contain_text(re.compile("catalogue 20.*calibration 20"))
    link = page.url
    assert "model=llama-3-8b" in link
    page.goto(link)
    expect(table).to_be_visible(timeout=ANSWER_MS)
    settle(page)


def test_a_model_that_is_not_known_is_refused_with_a_hint(visit):
    page = visit("/sizing?for=fit", expected=("/v1/size/fit",))
    page.get_by_label("Model").fill("llama-9")
    page.get_by_role("button", name="Size it").click()
    page.get_by_role("button", name="Size it").wait_for(timeout=ANSWER_MS)
    expect(page.get_by_role("alert")).to_contain_text("llama-9")


def test_a_viewer_reads_the_catalogue_and_asks_nothing(visit):
    page = visit("/sizing?for=serve", role="viewer")
    expect(page.get_by_text("A viewer may look, not ask.")).to_be_visible()
    expect(page.get_by_role("button", name="Size it")).to_be_disabled()
