"""Somebody who sees the page for the first time."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]


def test_find_why_a_job_waits_and_what_would_start_it(visit):
    """From a cold start, by what is on the screen: four clicks and one question."""
    page = visit()
    page.get_by_role("region", name="Why jobs wait").get_by_role("link", name="QueueLimit").click()
    page.get_by_role("link", name=re.compile("thesis-run")).first.click()
    page.get_by_role("link", name="Explain").click()
    why = page.get_by_role("region", name="Why it waits")
    expect(why).to_contain_text("queue students may hold 8 H100")
    expect(why).to_contain_text("Would help")
    expect(why).to_contain_text("raise the limit to")
    expect(why).to_contain_text("Who holds it")
    expect(why).to_contain_text("tercio explain job-0000a")
    page.get_by_label("Devices per task").fill("2")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_text(re.compile("It would (start now|wait)"))).to_be_visible()
    expect(page.get_by_text("--what-if gpus=2")).to_be_visible()
