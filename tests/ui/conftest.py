"""A stage and a browser for the tests of the page; both are skipped where they cannot be."""

from __future__ import annotations

import shutil

import pytest
from browser import Watch, chromium, new_page, settle
from stage import Stage

from tercio.web import is_built

if shutil.which("chromium") is None:
    pytest.skip("no chromium here: `make test` installs it", allow_module_level=True)
if not is_built():
    pytest.skip("the page is not built here: `make ui` builds it", allow_module_level=True)


@pytest.fixture(scope="session")
def browser():
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
