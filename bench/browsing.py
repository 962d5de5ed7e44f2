"""How fast the web page is in software-rendered Chromium, with 10,000 jobs and 8,192 devices."""

from __future__ import annotations

import shutil
import statistics
import time
from typing import Any, Final, NamedTuple

from bench.served import Server
from bench.table import Row
from tercio.cli.signing_in import sign_in_link
from tercio.client import Client, JobRequest
from tercio.web import is_built

JOBS: Final = 10_000
NODES: Final = 1024
CHANGES: Final = 60
SIMULATED: Final = {"TERCIO_SIM__CLUSTER": f"{NODES}x8", "TERCIO_LOCAL__ENABLED": "false"}
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
FRAMES: Final = """
window.frames_ms = [];
let before = performance.now();
const next = (at) => {
  window.frames_ms.push(at - before);
  before = at;
  requestAnimationFrame(next);
};
requestAnimationFrame(next);
"""


class Speed(NamedTuple):
    """Milliseconds: from asking for a view to what it shows, and between two frames."""

    small_ms: float
    large_ms: float
    table_ms: list[float]
    map_ms: list[float]


def shown_ms(page: Any, url: str, text: str) -> float:
    """Return how long a view takes from the address to its content."""
    begun_s = time.perf_counter()
    page.goto(url)
    page.get_by_text(text).first.wait_for()
    return (time.perf_counter() - begun_s) * 1000


def frames_ms(page: Any, client: Client) -> list[float]:
    """Return the times between frames while nodes and jobs change, ten times a second."""
    page.evaluate(FRAMES)
    held = client.submit(JobRequest(job={"name": "held", "run": "x"}, hold=True)).ids[0]
    for number in range(CHANGES):
        (client.cordon if number % 2 == 0 else client.uncordon)(f"n{number // 2 + 1}")
        if number % 10 == 0:
            (client.release if number % 20 == 0 else client.requeue)(held)
        time.sleep(0.1)
    found: list[float] = page.evaluate("window.frames_ms")
    return sorted(found[1:])


def fill(client: Client) -> None:
    while len(client.nodes(limit=1000).rows) < min(NODES, 1000):
        time.sleep(0.05)
    for start in range(0, JOBS, 1000):
        job = {"run": "x", "per_task": {"devices": 8}}
        rows = [JobRequest(job={**job, "name": f"job{start + n}"}, hold=True) for n in range(1000)]
        client.submit_batch(rows)


def measure() -> Speed:
    from playwright.sync_api import sync_playwright

    with Server(SIMULATED) as server, sync_playwright() as tools:
        url = f"http://127.0.0.1:{server.port}"
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS), chromium_sandbox=False
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        with Client(url, server.secret) as client:
            page.goto(sign_in_link(url, client.sign_in_code().code))
            page.get_by_text("● live").wait_for()
            while len(client.nodes(limit=1000).rows) < min(NODES, 1000):
                time.sleep(0.05)
            small_ms = statistics.median(shown_ms(page, url, "Devices in use") for _ in range(3))
            fill(client)
            large_ms = shown_ms(page, url + "/jobs", "10,000 rows")
            table_ms = frames_ms(page, client)
            shown_ms(page, url + "/topology", "Largest gang that fits now")
            map_ms = frames_ms(page, client)
        browser.close()
    return Speed(small_ms, large_ms, table_ms, map_ms)


def told(frames: list[float]) -> str:
    high = frames[int(len(frames) * 0.99) - 1]
    return f"{frames[-1]:.0f} ms (99 % below {high:.0f} ms, {len(frames)} frames)"


def tables() -> list[tuple[str, list[Row], str]]:
    if shutil.which("chromium") is None or not is_built():
        return []
    speed = measure()
    rows = [
        Row("overview of 1,024 nodes shown after", f"{speed.small_ms:.0f} ms", "1000 ms"),
        Row("table of 10,000 jobs shown after a cold start", f"{speed.large_ms:.0f} ms"),
        Row("longest frame, table of 10,000 jobs, 10 changes/s", told(speed.table_ms), "100 ms"),
        Row("longest frame, map of 8,192 devices, 10 changes/s", told(speed.map_ms), "100 ms"),
    ]
    return [("Web page in the browser", rows, "Chromium without a GPU, server on loopback.")]
