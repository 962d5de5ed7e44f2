"""What the stream costs a page per event, and a page that was away for too long."""

from __future__ import annotations

import asyncio
import http.client
from contextlib import closing

import pytest
from browser import settle
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(180)]

CHANGES = 40
EVENT_BYTES_MAX = 6000


def frames(stage, since, until):
    """Yield the frames that a page gets, up to that of the event `until`."""
    with closing(
        http.client.HTTPConnection("127.0.0.1", int(stage.url.rpartition(":")[2]))
    ) as link:
        accept = {"Authorization": f"Bearer {stage.secret}", "Accept": "text/event-stream"}
        link.request("GET", f"/v1/events?since={since}&views=true&pause_s=0.25", headers=accept)
        answer = link.getresponse()
        frame = b""
        for line in answer:
            frame += line
            if line != b"\n":
                continue
            if b"data: " in frame:
                yield frame
            if f"id: {until}\n".encode() in frame:
                return
            frame = b""


def test_an_event_is_one_small_message(stage):
    with stage.client() as client:
        since = client.server().seq
        for number in range(CHANGES // 2):
            client.cordon("n1", reason=f"change {number}")
            client.uncordon("n1")
        until = client.server().seq
    found = list(frames(stage, since, until))
    boards = [frame for frame in found if b"event: board" in frame]
    events = [frame for frame in found if b"event: board" not in frame]
    assert len(events) == until - since >= CHANGES
    assert len(boards) <= 2 + len(events) // 10
    assert sum(len(frame) for frame in events) / len(events) < EVENT_BYTES_MAX


def test_a_page_that_was_away_for_longer_than_events_are_kept_reads_anew(visit, stage):
    page = visit("/jobs?state=any", expected=("ERR_", "Failed to load", "net::", "410"))
    statuses = []
    page.on("response", lambda answer: statuses.append((answer.status, answer.url)))
    page.context.set_offline(True)
    context = stage.server.context
    context.stopping.set()
    expect(page.get_by_role("alert")).to_contain_text("connection to the server is lost")
    context.stopping.clear()
    stage.submit({"name": "meanwhile", "run": "x", "per_task": {"devices": "none"}})
    controller = context.controller
    for _ in range(2):
        # A journal forgets no further back than its older checkpoint.
        stage.submit({"name": "later", "run": "x", "per_task": {"devices": "none"}})
        checkpoint = controller._recorder.checkpoint(controller.driver)
        asyncio.run_coroutine_threadsafe(checkpoint, stage.loop).result(30)
    shown = int(page.locator("[data-seq]").get_attribute("data-seq"))
    while context.journal.prune(context.journal.last_seq):
        pass
    assert context.journal.first_seq > shown + 1
    page.context.set_offline(False)
    settle(page)
    expect(page.get_by_role("table")).to_contain_text("meanwhile")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert [url for status, url in statuses if status == 410 and "/v1/events" in url]
