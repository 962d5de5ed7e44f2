"""Every command that a page offers to copy is one that the command line understands."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

import pytest
from browser import settle
from look import VIEWS
from playwright.sync_api import expect

from tercio.cli.main import run

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

TOLD = """
() => ["[aria-label='equivalent command']", ".command-hint", "dialog code"]
  .flatMap((which) => [...document.querySelectorAll(which)])
  .map((each) => each.textContent)
  .filter((text) => text.includes("tercio "))
"""


def fault_of(command: str) -> str | None:
    """Return why a command line is refused; None for one that is understood.

    With `--help` after it, all words are read, and nothing is done.
    """
    for part in re.sub(r" <<'END'.*", "", command, flags=re.DOTALL).split(" && "):
        words = shlex.split(part.partition(" > ")[0].removeprefix("$ "))
        assert words[0] == "tercio", command
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            code = run([*words[1:], "--help"])
        if code:
            return f"{part}: {told.getvalue()}"
    return None


def test_a_wrong_command_would_be_found():
    assert fault_of("$ tercio ps --all && tercio show job-1 -o json > job.json") is None
    assert "no-such" in (fault_of("tercio ps --no-such") or "")
    assert "pss" in (fault_of("tercio pss") or "")


def test_every_command_on_every_page_is_understood(visit, stage):
    held = stage.submit({"name": "kept", "run": "x", "queue": "students"}, hold=True)
    page = visit()
    told = {}
    for name, path in {**VIEWS, "held": f"/jobs/{held}", "own": "/jobs?queue=research"}.items():
        page.goto(stage.url + path)
        settle(page)
        told |= dict.fromkeys(page.evaluate(TOLD), name)
        actions = page.locator(".headline .actions button, main .actions button")
        for number in range(actions.count()):
            actions.nth(number).click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_be_visible()
            told |= dict.fromkeys(page.evaluate(TOLD), f"{name}, a dialog")
            page.keyboard.press("Escape")
            expect(dialog).to_be_hidden()
    assert len(told) > 30
    faults = {text: (name, fault) for text, name in told.items() if (fault := fault_of(text))}
    assert faults == {}
