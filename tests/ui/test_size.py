"""A large cluster: the page stays small and quick, and does not grow while it is open."""

from __future__ import annotations

from contextlib import closing

import pytest
from browser import Watch, new_page, settle, until
from stage import Stage

from tercio.client import JobRequest

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

JOBS = 10_000
NODES = 1024
BATCH = 1000
ELEMENTS_MAX = 2500
CLUSTER = """
nodes:
  - {name: "n[1-512]", devices: "H100:8", cpus: 96, memory: 1TiB, labels: {rack: r1}}
  - {name: "n[513-1024]", devices: "H100:8", cpus: 96, memory: 1TiB, labels: {rack: r2}}
"""
COUNT = """
() => {
  window.drawn = 0;
  const fillRect = CanvasRenderingContext2D.prototype.fillRect;
  CanvasRenderingContext2D.prototype.fillRect = function (...box) {
    window.drawn += 1;
    fillRect.apply(this, box);
  };
}
"""


@pytest.fixture
def large(tmp_path):
    """1,024 nodes and 10,000 jobs, all waiting for a release; a test may add to them."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    with Stage(tmp_path / "state", cluster=str(tmp_path / "cluster.yaml")) as stage:
        with stage.client() as client:
            for start in range(0, JOBS, BATCH):
                client.submit_batch(
                    [
                        JobRequest(
                            job={"name": f"job{start + n}", "run": "x", "per_task": {"devices": 8}},
                            hold=True,
                        )
                        for n in range(BATCH)
                    ]
                )
        yield stage


def measures(page):
    """Return what grows in a page that leaks, after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    counters = session.send("Memory.getDOMCounters")
    session.detach()
    return {**counters, "elements": page.evaluate("document.querySelectorAll('*').length")}


def test_ten_thousand_jobs_and_eight_thousand_devices(browser, large):
    with closing(new_page(browser)) as page:
        watch = Watch(page)
        page.goto(large.link())
        settle(page)
        page.goto(large.url + "/jobs")
        settle(page)
        page.get_by_text("10,000 rows").wait_for()
        assert measures(page)["elements"] < ELEMENTS_MAX
        page.locator(".table-box").evaluate("box => { box.scrollTop = 180000; }")
        page.get_by_text("job4990", exact=False).first.wait_for()
        assert measures(page)["elements"] < ELEMENTS_MAX
        page.goto(large.url + "/topology")
        settle(page)
        assert page.get_by_role("img", name="map of 1024 nodes").count() == 1
        assert measures(page)["elements"] < ELEMENTS_MAX
        # One node changes, and its eight devices alone are drawn again.
        page.evaluate(COUNT)
        with large.client() as client:
            client.cordon("n5", reason="look")
        until(page, "() => window.drawn > 0")
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => done(true)))")
        assert page.evaluate("window.drawn") == 8
        watch.check()


def test_a_page_that_is_left_open_does_not_grow(browser, large):
    with closing(new_page(browser)) as page, large.client() as client:
        page.goto(large.link())
        settle(page)
        page.goto(large.url + "/jobs?q=job1234")
        settle(page)
        page.get_by_text("1 row", exact=True).wait_for()
        job = client.submit(
            JobRequest(job={"name": "job1234x", "run": "x", "queue": "default"}, hold=True)
        ).ids[0]
        page.get_by_text("2 rows", exact=True).wait_for()

        def change(times):
            for _ in range(times):
                client.cordon("n1", reason="again")
                client.uncordon("n1")
            # The seal of the last change: shown when all before it are.
            seq = client.server().seq
            until(
                page, "seq => Number(document.querySelector('[data-seq]').dataset.seq) >= seq", seq
            )

        change(150)
        before = measures(page)
        change(300)
        after = measures(page)
        assert job
        for name in ("nodes", "jsEventListeners", "elements", "documents"):
            assert after[name] <= before[name] * 1.1 + 20, (name, before, after)
