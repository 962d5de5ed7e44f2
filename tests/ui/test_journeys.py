"""What people come to the page for, done as they do it."""

from __future__ import annotations

import re

import pytest
from browser import Watch, new_page, settle
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]


def test_a_link_signs_in_once_and_leaves_no_code_behind(browser, stage):
    link = stage.link()
    first = new_page(browser)
    watch = Watch(first)
    first.goto(link)
    settle(first)
    assert "code" not in first.url
    expect(first.get_by_role("heading", name="Overview")).to_be_visible()
    assert first.evaluate("document.cookie") == ""
    first.reload()
    settle(first)
    watch.check()
    again = new_page(browser)
    again.goto(link)
    expect(again.get_by_role("alert")).to_contain_text("used already")
    expect(again.get_by_label("Or paste a token")).to_be_visible()
    for page in (first, again):
        page.context.close()


def test_a_token_signs_in_and_signing_out_ends_it(browser, stage):
    page = new_page(browser)
    page.goto(stage.url + "/jobs?state=waiting")
    page.get_by_label("Or paste a token").fill(stage.secret)
    page.get_by_role("button", name="Sign in").click()
    settle(page)
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert page.url.endswith("/jobs?state=waiting")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Or paste a token").wait_for()
    page.goto(stage.url + "/nodes")
    page.get_by_label("Or paste a token").wait_for()
    page.context.close()


def test_cancel_asks_once_says_what_stops_and_shows_the_end(visit, stage):
    page = visit("/jobs/job-00005")
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Stops for good")
    expect(dialog).to_contain_text("eval-suite")
    dialog.get_by_label("Reason").fill("wrong data; $(reboot)")
    expect(dialog.get_by_label("equivalent command")).to_have_text(
        "tercio cancel job-00005 --reason 'wrong data; $(reboot)'"
    )
    dialog.get_by_role("button", name="Keep as it is").click()
    expect(page.locator(".headline")).to_contain_text("running")
    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel job-00005").click()
    expect(dialog).to_be_hidden()
    stage.step(200)
    expect(page.locator(".headline")).to_contain_text("cancelled")


def test_cordon_and_drain_say_what_they_stop(visit, stage):
    page = visit("/nodes")
    page.get_by_label("select n1", exact=True).check()
    page.get_by_label("select n2", exact=True).check()
    page.get_by_role("button", name="Drain 2").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("llama-pretrain")
    expect(dialog).to_contain_text("tercio node drain n1 && tercio node drain n2")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("link", name="n6").click()
    page.get_by_role("button", name="Cordon", exact=True).click()
    dialog.get_by_label("Reason").fill("firmware")
    dialog.get_by_role("button", name="Cordon n6").click()
    expect(page.get_by_text("Cordoned by user:")).to_contain_text("firmware")
    page.get_by_role("button", name="Uncordon").click()
    dialog.get_by_role("button", name="Uncordon n6").click()
    expect(page.locator(".headline")).to_contain_text("ready")


def test_plan_then_submit(visit):
    page = visit("/plan")
    editor = page.get_by_role("textbox", name="job file")
    editor.fill("name: from-the-page\nrun: 'true'\nper_task: {devices: none}\nqu")
    page.get_by_role("list", name=re.compile("completions")).get_by_text("queue").first.click()
    editor.press_sequentially("research")
    page.get_by_role("button", name="Review").click()
    expect(page.get_by_text("It would start now")).to_be_visible()
    editor.press("End")
    editor.press_sequentially(" ")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    editor.press("Control+Enter")
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("heading", name=re.compile("from-the-page")).wait_for()
    expect(page.get_by_role("region", name=re.compile("Where it is|Why it waits"))).to_be_visible()


def test_a_wrong_job_file_is_refused_with_a_fix(visit):
    page = visit("/plan", expected=("/v1/plan",))
    page.get_by_role("textbox", name="job file").fill("nam: x\nrun: 'true'\n")
    page.get_by_role("button", name="Review").click()
    expect(page.get_by_role("alert")).to_contain_text("nam")
    expect(page.get_by_role("alert")).to_contain_text("did you mean")


def test_a_policy_shows_what_it_would_do_before_it_is_applied(visit):
    page = visit("/settings?tab=policy")
    editor = page.get_by_role("textbox", name="policy file")
    before = editor.input_value()
    editor.fill(before.replace("limit: {H100: 8}", "limit: {H100: 9}"))
    page.get_by_role("button", name="Show what it would do").click()
    expect(page.get_by_text("Stops no job")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("region", name="Policy, version 2")).to_be_visible()
    expect(page.get_by_role("region", name="Versions")).to_contain_text("students")


def test_a_reservation_is_made_and_ended(visit):
    page = visit("/reservations")
    page.get_by_label("Name", exact=True).fill("demo-day")
    page.get_by_label("Queue").select_option("research")
    page.get_by_label("Devices").fill("H100:8")
    page.get_by_role("button", name="Reserve").click()
    expect(page.get_by_role("region", name=re.compile("^reservations, 1 rows"))).to_contain_text(
        "demo-day"
    )
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="End demo-day").click()
    expect(page.get_by_text("Nothing is reserved")).to_be_visible()


def test_a_token_is_made_shown_once_and_revoked(visit):
    page = visit("/settings?tab=tokens")
    page.get_by_role("textbox", name="User").fill("bob")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text(re.compile("^tercio_"))).to_be_visible()
    row = page.get_by_role("row").filter(has_text="bob")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Revoke tok-")).click()
    expect(row).to_have_count(0)


def test_the_log_is_searched_and_followed(visit, stage):
    page = visit("/jobs/job-00002?tab=logs")
    expect(page.get_by_role("log")).to_contain_text("step 0 loss")
    stage.step(30)
    expect(page.get_by_role("log")).to_contain_text("step 6 loss")
    page.get_by_label("Search the log").fill("step 2 ")
    expect(page.get_by_role("log").locator("mark")).to_have_text(["step 2 "])
    expect(page.get_by_text(re.compile("1 of [0-9]+ lines"))).to_be_visible()


def test_a_viewer_sees_no_action_and_the_api_refuses_him(visit, stage):
    page = visit("/jobs/job-00001", role="viewer", expected=("403",))
    expect(page.get_by_role("heading", name=re.compile("llama-pretrain"))).to_be_visible()
    for name in ("Cancel", "Hold", "Requeue", "Suspend"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.goto(stage.url + "/nodes/n1")
    settle(page)
    expect(page.get_by_role("button", name="Drain")).to_have_count(0)
    page.goto(stage.url + "/settings")
    settle(page)
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    page.goto(stage.url + "/plan")
    settle(page)
    expect(page.get_by_text("may look, not submit")).to_be_visible()
    for path in ("/v1/jobs/job-00001/cancel", "/v1/nodes/n1/drain"):
        status = page.evaluate(
            """path => fetch(path, {method: "POST", body: "{}",
            headers: {"Tercio-Request": "page"}}).then(answer => answer.status)""",
            path,
        )
        assert status == 403


def test_with_the_keyboard_alone(visit):
    page = visit()
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter jobs")).to_be_focused()
    page.keyboard.type("chat-server")
    page.keyboard.press("Escape")
    expect(page.get_by_text("1 row", exact=True)).to_be_visible()
    assert "q=chat-server" in page.url
    page.get_by_role("region", name=re.compile("^jobs, 1 rows")).focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("chat-server"))).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("suspend")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Pauses its processes")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("topology")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Topology")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name=re.compile("chat-server"))).to_be_visible()


def test_the_stream_breaks_and_goes_on_where_it_was(visit, stage):
    page = visit("/jobs?state=any", expected=("ERR_", "Failed to load", "net::"))
    page.context.set_offline(True)
    page.evaluate("1")
    stage.server.context.stopping.set()
    expect(page.get_by_role("alert")).to_contain_text("connection to the server is lost")
    stage.server.context.stopping.clear()
    job = stage.submit({"name": "while-away", "run": "x", "per_task": {"devices": "none"}})
    page.context.set_offline(False)
    settle(page)
    expect(page.get_by_role("table")).to_contain_text("while-away")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert job
