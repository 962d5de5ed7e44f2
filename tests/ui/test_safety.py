"""What users write is text, and every page is usable by everyone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import settle
from look import VIEWS
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS_PX = (390, 1280, 2560)
NASTY = (
    "<img src=x onerror=window.broken=1>",
    "<script>window.broken=1</script>",
    "\"'><svg onload=window.broken=1>",
    "javascript:window.broken=1",
    "{{constructor.constructor('window.broken=1')()}}",
    "\u202egnp.exe\u0000\u001b[31m\u001b]0;x\u0007",
)


def test_every_page_passes_axe(visit, stage):
    page = visit()
    found = {}
    for name, path in VIEWS.items():
        stage.measure(1)
        page.goto(stage.url + path)
        settle(page)
        # As a developer would paste it: a page of ours may load no script but its own.
        page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            answer = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            for violation in answer["violations"]:
                targets = [str(node["target"]) for node in violation["nodes"][:3]]
                found.setdefault(violation["id"], []).append((name, theme, targets))
    assert found == {}


TABLES_WITHOUT_CSV = """
() => [...document.querySelectorAll("main table")].filter((table) => {
  const part = table.closest(".card, .table-frame");
  const isSummary = part.querySelector("header a[href]") || !table.tHead;
  const buttons = [...part.querySelectorAll("button")].map((each) => each.textContent);
  return !isSummary && !buttons.includes("CSV");
}).map((table) => table.textContent.slice(0, 60))
"""


def test_every_page_fits_the_screen_and_every_table_can_be_saved(visit, stage):
    """A table on a summary links to the list that it sums up, and that one can be saved."""
    page = visit()
    wide, unsaved = [], {}
    for name, path in VIEWS.items():
        stage.measure(1)
        page.goto(stage.url + path)
        settle(page)
        if found := page.evaluate(TABLES_WITHOUT_CSV):
            unsaved[name] = found
        for width in WIDTHS_PX:
            page.set_viewport_size({"width": width, "height": 800})
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => done(true)))")
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wide.append((name, width))
    assert (wide, unsaved) == ([], {})


def test_what_users_write_is_shown_as_text(visit, stage):
    lines = [*NASTY, "plain"]
    env = {"TERCIO_SIM": json.dumps({"duration_s": 1e9, "lines": lines, "line_every_s": 0})}
    labels = {"project": NASTY[0][:60]}
    nasty = NASTY[0] + NASTY[2]
    job = stage.submit(
        {
            "name": "nasty", "run": nasty, "env": env, "labels": labels,
            "per_task": {"devices": "none"},
        }
    )  # fmt: skip
    held = stage.submit({"name": "nasty2", "run": nasty, "queue": "students"}, hold=True)
    with stage.client() as client:
        client.cordon("n3", reason=nasty)
        client.cancel(held, reason=nasty)
    page = visit()
    paths = [
        "/", "/jobs?state=any", f"/jobs/{job}", f"/jobs/{job}?tab=spec", f"/jobs/{job}?tab=logs",
        f"/jobs/{held}?tab=story", "/nodes", "/nodes/n3", "/nodes/n3?tab=story", "/events",
        f"/jobs?q={NASTY[1]}", f"/jobs/{NASTY[3]}",
    ]  # fmt: skip
    for path in paths[:-1]:
        page.goto(stage.url + path)
        settle(page)
        assert page.evaluate("window.broken") is None, path
        assert page.locator("main img, main script, main svg").count() == 0, path
    page.goto(stage.url + f"/jobs/{job}?tab=logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text("<img src=x onerror=window.broken=1>")
    expect(log).to_contain_text("␀")
    assert "\u202e" not in (log.text_content() or "")
    assert "\u001b" not in (log.text_content() or "")
    page.goto(stage.url + "/nodes/n3")
    expect(page.get_by_text("onerror=window.broken").first).to_be_visible()
    with stage.client() as client:
        client.uncordon("n3")


PARAMETERS = (
    "q", "tab", "by", "level", "sort", "of", "since", "run", "metric", "job", "state", "queue",
    "site", "days", "at", "one", "other", "add", "drain", "faults", "for", "model", "gpus", "task",
)  # fmt: skip


def test_nothing_in_an_address_is_run(visit, stage):
    """Links come from anywhere: no word of one may become anything but text."""
    page = visit(expected=("status of 4", "/v1/"))
    for number, (name, path) in enumerate(VIEWS.items()):
        text = quote(NASTY[number % len(NASTY)])
        mark = "&" if "?" in path else "?"
        chosen = [each for each in PARAMETERS if f"{each}=" not in path]
        page.goto(stage.url + path + mark + "&".join(f"{each}={text}" for each in chosen))
        page.get_by_text("● live").wait_for()
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => done(true)))")
        assert page.evaluate("window.broken") is None, name
        assert page.locator("main img, main script, main [onload], main [onerror]").count() == 0


def test_what_machines_and_people_write_is_shown_as_text(visit, stage):
    """Kernel lines, what a job says at its end, reasons, names of the twin's policies."""
    lines = [f"NVRM: Xid (PCI:0000:15:00): 13, pid=1, name={NASTY[0]}, x" for _ in range(2)]
    stage.read("n4", *lines)
    end = {"duration_s": 0.0, "exit_code": 3, "message": NASTY[0] + NASTY[5]}
    ended = stage.submit(
        {"name": "ends", "run": NASTY[1], "env": {"TERCIO_SIM": json.dumps(end)},
         "per_task": {"devices": "none"}, "labels": {"a": NASTY[2][:60]}}
    )  # fmt: skip
    with stage.client() as client:
        while client.job(ended).state != "failed":
            stage.step(1)
    page = visit(expected=("400", "409"))
    for path in (
        f"/jobs/{ended}", f"/jobs/{ended}?tab=placement", f"/jobs/{ended}?tab=story", "/nodes/n4",
        "/nodes/n4?tab=health", "/events", "/jobs?state=any", "/",
    ):  # fmt: skip
        page.goto(stage.url + path)
        settle(page)
        assert page.evaluate("window.broken") is None, path
        assert page.locator("main img, main script, main [onload]").count() == 0, path
    page.goto(stage.url + f"/jobs/{ended}")
    expect(page.get_by_text("onerror=window.broken").first).to_be_visible()
    page.goto(stage.url + "/settings?tab=policy")
    page.get_by_role("textbox", name="policy file").fill(f"queues: {{'{NASTY[0]}': {{}}}}")
    page.get_by_role("button", name="Show what it would do").click()
    expect(page.get_by_role("alert")).to_contain_text("onerror")
    assert page.evaluate("window.broken") is None


def test_dialogs_pass_axe(visit, stage):
    page = visit("/jobs/job-00002")
    page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")

    def violations():
        answer = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [violation["id"] for violation in answer["violations"]]

    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations() == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("n")
    assert violations() == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    assert violations() == []
    assert page.evaluate("document.getAnimations().length") == 0


def test_a_table_is_saved_as_csv(visit, stage):
    page = visit("/jobs")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    assert text.startswith("Job,State,Why,Devices,Queue,User,Nodes,Submitted,Runs / starts")
    assert re.search(r"^job-0000b,queued,", text, re.MULTILINE)
    page.goto(stage.url + "/topology")
    settle(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="save domains as CSV").click()
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    assert text.startswith("Level,Name,Nodes,Taking work,Free,All,Largest gang")
    assert "rack,r1,4,4," in text
