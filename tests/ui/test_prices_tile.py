"""The overview says what power costs, until when, and what is lacking for the policy."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]


def test_the_price_of_power_is_on_the_overview_where_it_matters(visit, stage):
    page = visit("/")
    expect(page.get_by_role("link", name=re.compile("^Devices in use"))).to_be_visible()
    expect(page.get_by_text("Price of power")).to_be_hidden()
    with stage.client() as client:
        policy = client.policy()
        file = stage.policy_file() + "flexible: price\n"
        client.set_policy(file, if_version=policy.version)
        page.reload()
        tile = page.get_by_role("link", name=re.compile("^Price of power"))
        expect(tile).to_contain_text("not known")
        expect(tile).to_contain_text("the policy orders flexible jobs by it")
        hour_s = stage.clock.now_s() // 3600 * 3600
        rows = [f"{hour_s + at * 3600:.0f},0.31" for at in range(30)]
        client.send_prices("\n".join(["hour,usd_per_kwh", *rows]))
    expect(page.get_by_text(re.compile("30 hours, up to 2026-09-2[0-9]"))).to_be_visible()
    page.reload()
    expect(tile).to_contain_text("0.31 USD/kWh")
    expect(tile).to_contain_text(re.compile("known until 2026-09-2[0-9]"))
