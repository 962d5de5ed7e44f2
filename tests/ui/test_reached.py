"""The page as it is reached elsewhere: below a proxy's path, over TLS, in another time zone."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from browser import Watch, new_page, settle
from playwright.sync_api import expect
from stage import Stage

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]

BASE = "/ops/tercio"


def walk(page, stage):
    """Go through all pages by their links, change something, and read it again."""
    page.goto(stage.link())
    settle(page)
    links = page.get_by_role("navigation", name="Pages").get_by_role("listitem")
    names = [text.split(maxsplit=1)[1] for text in links.all_inner_texts()]
    assert len(names) == 12
    for name in names:
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        settle(page)
        expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    page.goto(f"{stage.url}{stage.base_path}/nodes/n3")
    page.get_by_role("button", name="Cordon", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cordon n3").click()
    expect(page.locator(".headline")).to_contain_text("cordoned")
    page.reload()
    settle(page)
    expect(page.locator(".headline")).to_contain_text("cordoned")


def test_below_the_path_of_a_proxy(browser, tmp_path):
    with Stage(tmp_path / "state", base_path=BASE) as stage:
        page = new_page(browser)
        watch = Watch(page)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        stage.fill()
        walk(page, stage)
        outside = [url for url in asked if not url.startswith(f"{stage.url}{BASE}/")]
        assert outside == []
        (cookie,) = page.context.cookies()
        assert cookie["path"] == BASE
        watch.check()
        page.context.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate by openssl")
def test_over_tls(browser, tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with Stage(tmp_path / "state", tls_cert=str(certificate), tls_key=str(key)) as stage:
        assert stage.url.startswith("https://")
        page = new_page(browser, is_trusting=True)
        watch = Watch(page)
        stage.fill()
        walk(page, stage)
        (cookie,) = page.context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        watch.check()
        page.context.close()


def test_times_are_shown_in_the_zone_that_is_chosen(visit):
    page = visit("/events?sort=seq", zone="Asia/Tokyo")
    first = page.get_by_role("row").nth(1)
    expect(page.get_by_role("button", name="Asia/Tokyo")).to_be_visible()
    expect(first).to_contain_text("2026-09-21 23:13")
    page.get_by_role("button", name="Asia/Tokyo").click()
    expect(first).to_contain_text("2026-09-21 14:13")
    page.reload()
    settle(page)
    expect(page.get_by_role("button", name="UTC")).to_be_visible()
    expect(first).to_contain_text("2026-09-21 14:13")


def test_the_address_holds_filter_sorting_and_order_survives_a_reload(visit):
    page = visit("/jobs")
    page.get_by_label("Filter jobs").fill("hpo")
    page.get_by_role("button", name="Runs / starts").click()
    expect(page).to_have_url(re.compile(r"q=hpo.*sort=time|sort=.*q=hpo|q=hpo.*sort="))
    shown = page.get_by_role("row").all_inner_texts()
    page.reload()
    settle(page)
    assert [row.split("\t")[:2] for row in page.get_by_role("row").all_inner_texts()] == [
        row.split("\t")[:2] for row in shown
    ]
