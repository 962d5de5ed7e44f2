"""Debian's Chromium under Playwright, and what every visit is held to."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page, expect, sync_playwright
from stage import Stage

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_S = 60.0
expect.set_options(timeout=WAIT_S * 1000)
POLL_MS = 30
WATCH = """
window.cspReports = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.cspReports.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`);
});
"""


class Watch:
    """What went wrong on a page: errors on the console, foreign requests, breaches of the CSP."""

    def __init__(self, page: Page, *, expected: tuple[str, ...] = ()) -> None:
        self.page = page
        self.faults: list[str] = []
        self.expected = expected
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        is_expected = any(each in f"{message.text} {message.location}" for each in self.expected)
        if message.type in ("error", "warning") and not is_expected:
            self.faults.append(f"console: {message.text} {message.location}")

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws") and parts.hostname != "127.0.0.1":
            self.faults.append(f"request: {request.url}")

    def check(self) -> None:
        """Fail when something went wrong since the page was opened."""
        reports = self.page.evaluate("window.cspReports")
        found = self.faults + reports
        assert found == [], found


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run a browser."""
    path = shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=path, args=list(FLAGS), headless=True, chromium_sandbox=False
        )
        try:
            yield browser
        finally:
            browser.close()


def new_page(
    browser: Any,
    *,
    width: int = 1280,
    height: int = 800,
    theme: str = "light",
    zone: str = "UTC",
    is_trusting: bool = False,
) -> Page:
    """Open a page of a person of its own; `is_trusting` takes any certificate."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        locale="en-GB",
        timezone_id=zone,
        ignore_https_errors=is_trusting,
        reduced_motion="reduce",
    )
    context.add_init_script(WATCH)
    page: Page = context.new_page()
    page.set_default_timeout(WAIT_S * 1000)
    return page


def until(page: Page, expression: str, arg: object = None) -> None:
    """Wait until an expression holds on the page.

    Playwright's own waiting evaluates text inside the page again and again, which the page's
    security policy forbids.
    """
    deadline_s = time.monotonic() + WAIT_S
    while not page.evaluate(expression, arg):
        assert time.monotonic() < deadline_s, expression
        page.wait_for_timeout(POLL_MS)


FRAMES = """
count => new Promise(done => {
  const next = left => requestAnimationFrame(() => left > 1 ? next(left - 1) : done(true));
  next(count);
})
"""


def settle(page: Page) -> None:
    """Wait until the page is live and has read and drawn what it shows.

    What is drawn on a canvas is drawn some frames later: its size is measured first.
    """
    page.get_by_text("● live").wait_for()
    until(page, "() => !document.querySelector('main .empty[role=status]')")
    page.evaluate(FRAMES, 2)
    # One that was never drawn on has the size that the browser gives it.
    until(
        page,
        "() => [...document.querySelectorAll('main canvas')].every(({width, height}) => "
        "width !== 300 || height !== 150)",
    )
    page.evaluate(FRAMES, 1)


@contextlib.contextmanager
def opened(
    stage: Stage, *, width: int = 1280, height: int = 800, theme: str = "light"
) -> Iterator[Page]:
    """Open a signed-in page in a browser of its own."""
    with chromium() as browser:
        page = new_page(browser, width=width, height=height, theme=theme)
        page.goto(stage.link())
        settle(page)
        yield page
