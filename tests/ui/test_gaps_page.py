"""What is kept, the gaps before it, and the way from a gap to a job that fits in it."""

from __future__ import annotations

import re

import pytest
from browser import settle
from playwright.sync_api import expect
from stage import Stage

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]

X = "\N{MULTIPLICATION SIGN}"
CLUSTER = """
nodes:
  - {name: "n[1-2]", devices: "H100:8", cpus: 96, memory: 1TiB}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """One node is full for two hours; a job that needs both is promised them after that."""
    path = tmp_path_factory.mktemp("gaps")
    (path / "cluster.yaml").write_text(CLUSTER)
    with Stage(path / "state", cluster=str(path / "cluster.yaml")) as running:
        long = {"name": "long", "run": "x", "per_task": {"devices": "H100:8"}}
        first = running.submit({**long, "time": {"limit": "2h"}})
        with running.client() as client:
            running.until(lambda: client.job(first).state == "running")
            running.submit({**long, "name": "head", "tasks": 2, "time": {"limit": "1h"}})
            running.until(lambda: bool(client.gaps().rows))
        yield running


def test_a_gap_leads_to_a_job_that_fits_in_it(visit, stage):
    page = visit("/reservations")
    gaps = page.get_by_role("region", name="Gaps", exact=True)
    row = gaps.get_by_role("row").nth(1)
    expect(row).to_contain_text(f"8 {X} H100 on n2")
    expect(row).to_contain_text("head")
    calendar = page.get_by_role("img", name=re.compile("what is kept and what is free before it"))
    expect(calendar).to_contain_text(f"8 {X} H100")
    page.get_by_label("Show").select_option("7")
    expect(page.get_by_role("region", name="The next 7 days")).to_be_visible()
    expect(page).to_have_url(re.compile("days=7"))
    row.get_by_role("link", name=re.compile(f"8 {X} H100 for up to 1h5")).click()
    editor = page.get_by_role("textbox", name="job file")
    expect(editor).to_have_value(re.compile(r'devices: "H100:8"\ntime: \{limit: 1h5\dm\}'))
    expect(page).to_have_url(f"{stage.url}/plan")
    page.get_by_role("button", name="Review").click()
    expect(page.get_by_text("It would start now")).to_be_visible()
    expect(page.get_by_text("n2").first).to_be_visible()
    page.go_back()
    settle(page)
    expect(row).to_contain_text(f"8 {X} H100 on n2")


def test_a_reservation_has_gaps_before_it_and_tells_them_like_the_command(visit, stage):
    page = visit("/reservations")
    page.get_by_label("Name", exact=True).fill("demo-day")
    page.get_by_label("Queue").select_option("default")
    page.get_by_label("Devices").fill("H100:16")
    page.get_by_label(re.compile("^Start")).fill("2026-09-23T09:00")
    page.get_by_role("button", name="Reserve").click()
    gaps = page.get_by_role("region", name="Gaps", exact=True)
    late = gaps.get_by_role("row").filter(has_text="reservation demo-day")
    expect(late).to_contain_text(f"16 {X} H100 on n1, n2")
    expect(late).to_contain_text(f"2 tasks of 8 {X} H100 for up to")
    expect(gaps.get_by_label("equivalent command")).to_have_text("tercio reserve gaps")
    with stage.client() as client:
        told = [row.devices for row in client.gaps().rows]
        client.remove_reservation("demo-day")
    assert told == [8, 16]
