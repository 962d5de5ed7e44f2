"""The twin over HTTP: the journal's own past under two policies, in a process of its own."""

from __future__ import annotations

import time

import msgspec
from live_server import job

from tercio.model.events import TaskExited


def start(server, *arms, token=None, **body):
    raw = msgspec.json.encode({"arms": [{"name": name} for name in arms], **body})
    token = token or server.token("operator")
    return server.request("POST", "/v1/twin/runs", token=token, body=raw)


def finished(server, run):
    deadline_s = time.monotonic() + 100
    while True:
        view = server.request("GET", f"/v1/twin/runs/{run}", token=server.admin_secret).body
        if view["state"] != "running":
            return view
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_the_past_is_replayed_under_two_policies_and_compared(server, client):
    for number in range(3):
        (name,) = client.submit(job(f"brief-{number}")).ids
        server.wait_for(TaskExited, name)
    begun = start(server, "in force", "fifo")
    assert (begun.status, begun.body["state"], begun.body["whole"]) == (200, "running", 2)
    assert start(server, "fifo").status == 409
    view = finished(server, begun.body["run"])
    assert view["state"] == "done", view
    assert (view["done"], view["arms"]) == (2, ["in force", "fifo"])
    answer = view["answer"]
    rows = {row["key"]: row for row in answer["rows"]}
    assert rows["jobs"]["values"] == [3.0, 3.0]
    assert [course["name"] for course in answer["courses"]] == ["in force", "fifo"]
    assert answer["courses"][0]["devices"] == 8
    assert len(answer["courses"][0]["jobs"]) == answer["jobs"] == 3
    listed = server.request("GET", "/v1/twin/runs", token=server.admin_secret).body
    assert [row["run"] for row in listed["rows"]] == [begun.body["run"]]
    assert listed["policies"][:2] == ["in force", "default"]


def test_what_cannot_be_replayed_says_why(server):
    view = finished(server, start(server, "in force").body["run"])
    assert (view["state"], "job" in view["error"]) == ("failed", True)
    assert start(server, *"abcd").status == 400
    assert start(server, "fifo", token=server.token("user")).status == 403
