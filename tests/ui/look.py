"""Take screenshots of the page: `python tests/ui/look.py DIR` makes those of the documents."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser import opened, settle
from stage import Stage

SHOTS = {
    "overview": "/",
    "jobs": "/jobs",
    "explain": "/jobs/job-0000b?tab=explain",
    "topology": "/topology?by=queue",
    "plan": "/plan",
}
VIEWS = {
    **SHOTS,
    "job": "/jobs/job-00001",
    "story": "/jobs/job-00001?tab=story",
    "placement": "/jobs/job-00001?tab=placement",
    "logs": "/jobs/job-00001?tab=logs",
    "spec": "/jobs/job-00001?tab=spec",
    "metrics": "/jobs/job-00001?tab=metrics",
    "goodput": "/jobs/job-00001?tab=goodput",
    "queues": "/queues",
    "nodes": "/nodes",
    "node": "/nodes/n1",
    "node-health": "/nodes/n2?tab=health",
    "node-metrics": "/nodes/n2?tab=metrics&metric=power_w",
    "heat": "/topology?by=temperature_c",
    "reservations": "/reservations",
    "sizing": "/sizing",
    "sized": "/sizing?model=llama-3-8b&tokens=100B&counts=8%2C16%2C32%2C64",
    "usage": "/usage",
    "events": "/events",
    "settings": "/settings",
    "policy": "/settings?tab=policy",
    "tokens": "/settings?tab=tokens",
}
EVENING_S = 1500.0
XID = "NVRM: Xid (PCI:0000:15:00): 94, pid=1, name=python, Contained: SM (0x1)."


def shoot(target: Path, *, is_every: bool) -> None:
    """Write the pictures; with `is_every` all views, both themes and two widths."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state, Stage(Path(state) / "state") as stage:
        stage.fill()
        stage.step(EVENING_S)
        stage.measure()
        stage.read("n2", XID)
        with stage.client() as client:
            client.cordon("n7", reason="firmware")
            client.create_token("ana", role="operator", groups=("nlp",))
        sizes = ((1280, 800), (390, 844)) if is_every else ((1280, 800),)
        for width, height in sizes:
            for theme in ("light", "dark"):
                with opened(stage, width=width, height=height, theme=theme) as page:
                    for name, path in (VIEWS if is_every else SHOTS).items():
                        stage.measure(1)
                        page.goto(stage.url + path)
                        settle(page)
                        if name == "plan":
                            page.get_by_role("button", name="Review").click()
                            page.get_by_role("button", name="Submit").wait_for()
                        suffix = f"-{width}-{theme}" if is_every else f"-{theme}"
                        page.screenshot(path=target / f"{name}{suffix}.png", full_page=is_every)


if __name__ == "__main__":
    shoot(Path(sys.argv[1]), is_every="--every" in sys.argv)
