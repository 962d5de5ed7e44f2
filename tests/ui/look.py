"""Take screenshots of the page: `python tests/ui/look.py DIR` makes those of the documents."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from browser import chromium, new_page, settle
from playwright.sync_api import Page
from stage import Stage

SHOTS = {
    "overview": "/",
    "jobs": "/jobs",
    "explain": "/jobs/job-0000b?tab=explain",
    "metrics": "/jobs/job-00001?tab=metrics",
    "topology": "/topology?by=queue",
    "plan": "/plan",
    "sizing": "/sizing?model=llama-3-8b&tokens=100B&counts=8%2C16%2C32%2C64",
    "usage": "/usage",
    "queues": "/queues",
    "reservations": "/reservations",
}
VIEWS = {
    **SHOTS,
    "job": "/jobs/job-00001",
    "story": "/jobs/job-00001?tab=story",
    "placement": "/jobs/job-00001?tab=placement",
    "goodput": "/jobs/job-00001?tab=goodput",
    "logs": "/jobs/job-00001?tab=logs",
    "spec": "/jobs/job-00001?tab=spec",
    "nodes": "/nodes",
    "node": "/nodes/n1",
    "node-health": "/nodes/n2?tab=health",
    "node-metrics": "/nodes/n2?tab=metrics&metric=power_w",
    "heat": "/topology?by=temperature_c",
    "serving": "/sizing?for=serve",
    "twin": "/twin",
    "events": "/events",
    "settings": "/settings",
    "sites": "/settings?tab=sites",
    "policy": "/settings?tab=policy",
    "tokens": "/settings?tab=tokens",
}
EVENING_S = 1500.0
XID = "NVRM: Xid (PCI:0000:15:00): 94, pid=1, name=python, Contained: SM (0x1)."
THEMES = ("light", "dark")
ANSWER_MS = 90_000


def prepare(stage: Stage) -> None:
    """Bring a stage to the evening of which the pictures are."""
    stage.fill()
    stage.step(EVENING_S)
    stage.measure()
    stage.read("n2", XID)
    with stage.client() as client:
        client.cordon("n7", reason="firmware")
        client.create_token("ana", role="operator", groups=("nlp",))


def visits(stage: Stage, page: Page, views: dict[str, str]) -> Iterator[str]:
    """Yield the name of each view when the page shows it whole."""
    for name, path in views.items():
        stage.measure(1)
        page.goto(stage.url + path)
        settle(page)
        if name == "overview":
            page.get_by_role("link", name=re.compile("^Health")).wait_for()
        if name == "plan":
            page.get_by_role("button", name="Review").click()
            page.get_by_role("button", name="Submit").wait_for()
        if name == "sizing":
            page.get_by_role("button", name="Size it").wait_for(timeout=ANSWER_MS)
            settle(page)
        yield name


def shoot(target: Path, *, is_every: bool) -> None:
    """Write the pictures; with `is_every` all views, both themes and two widths."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state, Stage(Path(state) / "state") as stage:
        prepare(stage)
        sizes = ((1280, 800), (390, 844)) if is_every else ((1280, 800),)
        with chromium() as browser:
            for size in sizes:
                for theme in THEMES:
                    _shoot(stage, browser, target, size=size, theme=theme, is_every=is_every)


def _shoot(
    stage: Stage,
    browser: Any,
    target: Path,
    *,
    size: tuple[int, int],
    theme: str,
    is_every: bool,
) -> None:
    page = new_page(browser, width=size[0], height=size[1], theme=theme)
    page.goto(stage.link())
    settle(page)
    for name in visits(stage, page, VIEWS if is_every else SHOTS):
        suffix = f"-{size[0]}-{theme}" if is_every else f"-{theme}"
        page.screenshot(path=target / f"{name}{suffix}.png", full_page=is_every)
    page.context.close()


if __name__ == "__main__":
    shoot(Path(sys.argv[1]), is_every="--every" in sys.argv)
