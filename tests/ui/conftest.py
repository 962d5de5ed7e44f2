"""A stage and a browser for the tests of the page; both are skipped where they cannot be."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from tercio.web import is_built

LACKING = [
    text
    for text, is_here in (
        ("no chromium: `make test` installs it", shutil.which("chromium") is not None),
        ("no playwright: `make test` installs it", importlib.util.find_spec("playwright")),
        ("the page is not built: `make ui` builds it", is_built()),
    )
    if not is_here
]
if LACKING:
    collect_ignore_glob = ["test_*.py"]
else:
    from browser import Watch, chromium, new_page, settle
    from stage import Stage


def pytest_report_header():
    return [f"tests/ui is left out: {text}" for text in LACKING]


@pytest.fixture(scope="module")
def browser():
    """A browser for one module: its event loop would be in the way of other tests' own."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The demo's cluster, filled."""
    with Stage(tmp_path_factory.mktemp("stage") / "state") as running:
        running.fill()
        yield running


@pytest.fixture
def visit(browser, stage):
    """Return signed-in pages: `visit("/jobs", role="viewer")`. All are checked at the end."""
    watches = []
    contexts = []

    def make(path="/", *, role=None, secret=None, expected=(), **look):
        secret = secret or (stage.token(role) if role else None)
        page = new_page(browser, **look)
        contexts.append(page.context)
        watches.append(Watch(page, expected=expected))
        page.goto(stage.link(secret))
        settle(page)
        if path != "/":
            page.goto(stage.url + path)
            settle(page)
        return page

    yield make
    for watch in watches:
        watch.check()
    for context in contexts:
        context.close()
