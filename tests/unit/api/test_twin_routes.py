"""The twin over HTTP: the journal's own past under two policies, in a process of its own."""

from __future__ import annotations

import time

import msgspec
import pytest
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


def test_devices_more_and_faults_are_arms_and_conditions_of_the_same_run(server, client):
    (name,) = client.submit(job("brief")).ids
    server.wait_for(TaskExited, name)
    begun = start(
        server, "in force", "fifo", add=["8xH100"], drain=["n2"], faults="mean=30d,repair=2h"
    )
    arms = ["in force", "fifo", "in force +8xH100 without n2", "fifo +8xH100 without n2"]
    assert (begun.status, begun.body["arms"], begun.body["whole"]) == (200, arms, 4)
    view = finished(server, begun.body["run"])
    assert view["state"] == "done", view
    assert [course["devices"] for course in view["answer"]["courses"]] == [8, 8, 12, 12]
    assert view["faults"] == "mean=30d,repair=2h"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("add", ["7xH100"], "no whole number of nodes"),
        ("add", ["many"], "not a number of devices"),
        ("drain", ["n9"], "no node, rack or other label"),
        ("faults", "often=1d", "often"),
        ("faults", "/etc/passwd", "words: mean"),
    ],
)
def test_a_change_that_cannot_be_is_refused_before_anything_runs(server, field, value, words):
    refused = start(server, "in force", **{field: value})
    assert (refused.status, refused.body["field"]) == (400, field)
    assert words in refused.body["detail"] + str(refused.body["hint"])
    assert server.request("GET", "/v1/twin/runs", token=server.admin_secret).body["rows"] == []
