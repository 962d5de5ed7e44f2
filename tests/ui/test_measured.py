"""What nodes measure, as it is shown: by rank, by node, over the fleet, and in the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import settle, until
from look import XID
from playwright.sync_api import expect
from stage import Stage

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The demo's cluster with readings of its devices; n2's device 5 is slow."""
    with Stage(tmp_path_factory.mktemp("measured") / "state") as running:
        running.fill()
        running.measure(6)
        yield running


def test_the_slow_rank_of_a_job_is_named_first(visit, stage):
    stage.measure(1)
    page = visit("/jobs/job-00001?tab=metrics")
    chart = page.get_by_role("img", name=re.compile("utilisation of 24 devices over time"))
    expect(chart.locator("canvas")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("of each device over time"))).to_be_visible()
    row = page.get_by_role("region", name="Furthest from the others").get_by_role("row").nth(1)
    expect(row).to_contain_text("rank 1 · n2:5")
    expect(row).to_contain_text(re.compile("! .3[0-9]%"))
    page.get_by_label("Show").select_option("power_w")
    expect(page).to_have_url(re.compile("metric=power_w"))
    expect(row).to_contain_text("n2:5")
    expect(row).to_contain_text(" W")


def test_the_steps_of_a_job_show_which_rank_is_slow_and_since_when(visit, stage):
    stage.step(400)
    stage.measure(1)
    page = visit("/jobs/job-00001?tab=metrics", expected=("willReadFrequently",))
    steps = page.get_by_role("region", name="Steps by rank")
    expect(steps).to_contain_text("! rank 1 on n2 is slower than the others")
    expect(
        steps.get_by_role("img", name=re.compile("^own time of 3 ranks in steps 1 to"))
    ).to_be_visible()
    row = page.get_by_role("region", name="Slowest ranks").get_by_role("row").nth(1)
    expect(row).to_contain_text("rank 1")
    expect(row).to_contain_text(re.compile(r"! \+2[12]"))
    command = steps.get_by_label("equivalent command")
    expect(command).to_have_text("tercio show job-00001 --steps")
    until(
        page,
        """() => {
          const pen = document.querySelector(".heat canvas").getContext("2d");
          return pen.getImageData(2, 2, 1, 1).data[3] === 255;
        }""",
    )
    # The middle row begins like the others and turns to another colour; they stay as they are.
    colours = page.evaluate(
        """() => {
          const canvas = document.querySelector(".heat canvas");
          const pen = canvas.getContext("2d");
          const middle = row => (row + 0.5) * canvas.height / 3;
          const at = (x, row) => pen.getImageData(x, middle(row), 1, 1).data.join();
          return [0, 1, 2].map(row => [at(2, row), at(canvas.width - 3, row)]);
        }"""
    )
    (quick, other), (before, after), _ = colours
    assert before != after
    assert other != after
    assert quick.split(",")[3] == "255"
    page.goto(stage.url + "/jobs/job-00002?tab=metrics")
    expect(page.get_by_text("It has marked no step")).to_be_visible()


def test_a_job_shows_where_its_device_time_went(visit, stage):
    page = visit("/jobs/job-00001?tab=goodput")
    fall = page.get_by_role("region", name="Where its device time went")
    expect(fall.get_by_role("row").filter(has_text="useful")).to_contain_text("100%")
    expect(page.get_by_role("region", name="Sums")).to_contain_text("kWh (power)")


def test_an_ill_node_is_told_taken_out_and_returned(visit, stage):
    stage.measure(1)
    stage.read("n4", XID)
    page = visit("/nodes/n4")
    page.get_by_role("link", name="! 1 fault stands").click()
    faults = page.get_by_role("region", name="Faults", exact=True)
    expect(faults.get_by_role("row").nth(1)).to_contain_text("16503n45")
    expect(faults).to_contain_text("contained ECC error")
    page.get_by_role("button", name="Quarantine").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("is stopped and requeued")
    expect(dialog.get_by_role("listitem").first).to_contain_text("holds H100")
    dialog.get_by_label("Reason").fill("swap GPU 5")
    expect(dialog).to_contain_text("tercio node quarantine n4 --reason 'swap GPU 5'")
    dialog.get_by_role("button", name="Quarantine n4").click()
    done = page.get_by_role("region", name="What was done")
    expect(done).to_contain_text("quarantined by root: swap GPU 5")
    page.get_by_role("button", name="Return").click()
    dialog.get_by_role("button", name="Return n4").click()
    expect(done).to_contain_text(re.compile("quarantined → ok"))


def test_the_overview_tells_health_and_power_and_the_map_shows_heat(visit, stage):
    stage.measure(1)
    page = visit("/", expected=("willReadFrequently",))
    expect(page.get_by_role("link", name=re.compile("^Health"))).to_contain_text("of 8 ok")
    power = page.get_by_role("link", name=re.compile("^Power"))
    expect(power).to_contain_text("kW")
    expect(power).to_contain_text("hottest 85 °C")
    power.click()
    expect(page.get_by_label("Colour by")).to_have_value("power_w")
    canvas = page.get_by_role("img", name=re.compile("map of 8 nodes"))
    page.get_by_label("Colour by").select_option("temperature_c")
    expect(page.get_by_text("90 °C")).to_be_visible()
    until(
        page,
        """() => {
          const canvas = document.querySelector(".map canvas");
          const spots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const colours = new Set();
          for (let at = 0; at < spots.data.length; at += 4) {
            colours.add(spots.data.slice(at, at + 3).join());
          }
          return colours.size > 10;
        }""",
    )
    assert canvas.count() == 1


def test_the_report_sums_up_and_is_saved(visit, stage):
    page = visit("/usage")
    sums = page.get_by_role("region", name="Sums")
    expect(sums).to_contain_text(re.compile("[0-9.]+ kWh"))
    settle(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    head, *rows = text.splitlines()
    assert head.startswith(
        "Queue,goodput_ratio,allocated_h,Of all,Goodput,wasted_h,queued_h,useful_h"
    )
    assert head.endswith("energy_kwh,cost_usd,carbon_kg,Jobs")
    assert sorted(row.partition(",")[0] for row in rows) == ["production", "research", "students"]
    names = head.split(",")
    for row in rows:
        found = dict(zip(names, row.split(","), strict=True))
        parts = [float(found[name]) for name in names[7:16] if found[name] != "unknown"]
        assert sum(parts) == pytest.approx(float(found["allocated_h"]))


def test_queues_over_time_are_drawn_and_saved(visit, stage):
    stage.measure(2)
    page = visit("/queues")
    past = page.get_by_role("region", name="History")
    chart = past.get_by_role("img", name=re.compile("^devices used by each queue over time, 3"))
    expect(chart.locator("canvas")).to_be_visible()
    expect(past.get_by_role("region", name="Devices used, by queue")).to_contain_text("students")
    past.get_by_role("combobox", name=re.compile("^Queue")).select_option("research")
    expect(page).to_have_url(re.compile("of=research"))
    expect(
        past.get_by_role("img", name=re.compile("^devices of research over time, 3"))
    ).to_be_visible()
    expect(past.get_by_label("equivalent command")).to_have_text(
        "tercio queue history research --since 1h"
    )
    with page.expect_download() as saved:
        past.get_by_role("button", name="CSV").click()
    head, *rows = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
    assert head == "at,queue,used,entitled,wanted,decayed_use,running,waiting"
    assert float(rows[-1].split(",")[2]) > 30
    past.get_by_role("combobox", name=re.compile("^Since")).select_option("7d")
    expect(past).to_contain_text("means of 1h")
