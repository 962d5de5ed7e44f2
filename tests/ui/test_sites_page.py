"""Two sites: each list shows one of them when it is asked to, and links keep the choice."""

from __future__ import annotations

import re

import pytest
from browser import settle
from playwright.sync_api import expect
from stage import Stage

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]

HERE = """
nodes:
  - {name: "n[1-2]", devices: "H100:8", cpus: 96, memory: 1TiB, labels: {rack: r1}}
"""
THERE = """
nodes:
  - {name: "w[1-3]", devices: "A100:4", cpus: 96, memory: 1TiB, labels: {rack: r9}}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A job runs at each site, one waits for the second, one is held and may go anywhere."""
    path = tmp_path_factory.mktemp("sites")
    (path / "here.yaml").write_text(HERE)
    (path / "there.yaml").write_text(THERE)
    sites = {"cluster": str(path / "here.yaml"), "more": {"west": str(path / "there.yaml")}}
    with Stage(path / "state", **sites) as running, running.client() as client:
        running.until(lambda: len(client.nodes().rows) == 5)
        jobs = [("at-sim", "H100:8", 1, "sim"), ("at-west", "A100:4", 2, "west")]
        for name, devices, tasks, site in [*jobs, ("waits-west", "A100:4", 2, "west")]:
            job = {"name": name, "run": "x", "per_task": {"devices": devices}, "tasks": tasks}
            running.submit({**job, "sites": [site]})
            running.until(lambda: all(job.nodes or job.reason for job in client.jobs().rows))
        running.submit({"name": "anywhere", "run": "x"}, hold=True)
        yield running


def names(page):
    """The jobs that a list shows, in order."""
    cells = page.get_by_role("table").get_by_role("row").all()[1:]
    return sorted(cell.get_by_role("link").first.inner_text().split()[-1] for cell in cells)


def test_jobs_of_one_site(visit, stage):
    page = visit("/jobs")
    expect(page.get_by_text("4 rows", exact=True)).to_be_visible()
    page.get_by_label("Site").select_option("west")
    expect(page.get_by_text("3 rows", exact=True)).to_be_visible()
    expect(page).to_have_url(f"{stage.url}/jobs?site=west")
    assert names(page) == ["anywhere", "at-west", "waits-west"]
    expect(page.get_by_text("tercio ps --site west")).to_be_visible()
    page.reload()
    settle(page)
    assert names(page) == ["anywhere", "at-west", "waits-west"]
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Nodes").click()
    expect(page).to_have_url(f"{stage.url}/nodes?site=west")
    expect(page.get_by_text("3 rows", exact=True)).to_be_visible()


def test_devices_of_one_site(visit, stage):
    page = visit("/topology")
    expect(page.get_by_role("img", name=re.compile("^map of 5 nodes"))).to_be_visible()
    page.get_by_label("Site").select_option("west")
    expect(page.get_by_role("img", name=re.compile("^map of 3 nodes"))).to_be_visible()
    gangs = page.get_by_role("region", name="Largest gang that fits now")
    expect(gangs).not_to_contain_text("H100")
    expect(gangs.get_by_role("row", name=re.compile("^node A100 1 4"))).to_be_visible()
    expect(gangs.get_by_label("equivalent command")).to_have_text("tercio topo --site west")


def test_the_overview_counts_one_site_and_links_to_its_lists(visit, stage):
    page = visit("/?site=west")
    expect(page.get_by_role("link", name=re.compile("^Devices in use 8 of 12"))).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("^Nodes ready 3 of 3"))).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("^Health 3 of 3 ok"))).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("^Jobs waiting 2"))).to_be_visible()
    page.get_by_role("link", name=re.compile("^Jobs running 1")).click()
    expect(page).to_have_url(f"{stage.url}/jobs?state=active&site=west")
    expect(page.get_by_text("1 row", exact=True)).to_be_visible()
    assert names(page) == ["at-west"]


def test_queues_of_one_site_say_what_is_used_there_and_elsewhere(visit, stage):
    page = visit("/queues?site=west")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="default", exact=True))
    bar = row.get_by_role("img", name=re.compile("8 used here.*8 used elsewhere.*8 wanted"))
    expect(bar).to_be_visible()
    expect(row).to_contain_text("1 run, 2 wait")
    expect(page.get_by_text("those of site west")).to_be_visible()
    expect(page.get_by_text("tercio queue list --site west")).to_be_visible()
    row.get_by_role("link", name="default", exact=True).click()
    expect(page).to_have_url(re.compile("/jobs[?]queue=default&site=west"))
    page.go_back()
    page.get_by_label("Site").select_option("")
    expect(row).to_contain_text("2 run, 2 wait")
    expect(page.get_by_text("those of site west")).to_be_hidden()


def test_usage_and_gaps_of_one_site(visit, stage):
    with stage.client() as client:
        client.add_reservation(
            "later",
            queue="default",
            gpus="12",
            start=str(stage.clock.now_s() + 9000),
            duration="1h",
        )
    page = visit("/usage?of=job")
    expect(page.get_by_text("2 rows", exact=True)).to_be_visible()
    page.get_by_label("Site").select_option("west")
    expect(page.get_by_text("1 row", exact=True)).to_be_visible()
    expect(page.get_by_text("tercio report usage --by job --site west")).to_be_visible()
    page.goto(f"{stage.url}/reservations?site=west")
    gaps = page.get_by_role("region", name="Gaps", exact=True)
    expect(gaps.get_by_label("equivalent command")).to_have_text("tercio reserve gaps --site west")
    expect(gaps).not_to_contain_text("H100")


def test_a_link_to_a_site_that_is_gone_says_so(visit, stage):
    page = visit("/topology", expected=("404",))
    page.goto(f"{stage.url}/topology?site=east")
    expect(page.get_by_role("alert")).to_contain_text("there is no site 'east'")
    expect(page.get_by_role("alert")).to_contain_text("west")
