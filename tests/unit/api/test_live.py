"""The stream of a page: each event with the rows it touched, made once for all who see the same."""

import http.client
import json

import pytest
from live_server import job

from tercio.model.events import TaskStarted


def read_until(server, token, name, *, query="views=true"):
    """Return the stream's events and boards up to the first event of a kind."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    connection.request("GET", f"/v1/events?{query}", headers=headers)
    response = connection.getresponse()
    found, kind = [], "message"
    try:
        for raw in response:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                found.append((kind, json.loads(line[6:])))
                kind = "message"
                if found[-1][1].get("event", {}).get("type") == name:
                    return found
    finally:
        connection.close()
    raise AssertionError(found)


@pytest.fixture
def started(server, connect):
    """A running job of tenant red."""
    ana = connect("user", user="ana", tenant="red")
    ana.submit(job("secret-name", env={"KEY": "swordfish"}))
    server.wait_for(TaskStarted)
    return server


def test_an_event_carries_the_rows_that_it_touched(started):
    rows = read_until(started, started.admin_secret, "TaskStarted")
    last = rows[-1][1]
    (view,) = last["jobs"]
    assert (view["name"], view["state"]) == ("secret-name", "running")
    (node,) = last["nodes"]
    assert [device["jobs"] for device in node["devices"]].count([view["id"]]) == 1
    assert node["free"]["H100"] == 3


def test_the_board_comes_first_and_has_the_queues(started):
    kind, board = read_until(started, started.admin_secret, "TaskStarted")[0]
    assert kind == "board"
    assert [row["path"] for row in board["queues"]] == ["default"]


def test_strangers_get_no_row_of_a_job_and_no_name(started):
    stranger = started.token("user", user="bob", tenant="blue")
    rows = read_until(started, stranger, "TaskStarted")
    assert "secret-name" not in json.dumps(rows)
    assert rows[-1][1].get("jobs", []) == []
    assert rows[-1][1]["nodes"][0]["free"]["H100"] == 3


def test_environment_values_stay_with_their_user(started):
    colleague = started.token("user", user="cid", tenant="red")
    seen = json.dumps(read_until(started, colleague, "TaskStarted"))
    assert "secret-name" in seen
    assert "swordfish" not in seen


def test_a_frame_is_made_once_for_all_who_see_the_same(started):
    frames = started.server.context.frames
    made = []
    for user in ("bob", "eve", "joe"):
        read_until(started, started.token("user", user=user, tenant="blue"), "TaskStarted")
        made.append(len(frames._frames))
    # Each new token is an event of its own; no reader after the first adds more than that.
    assert made[1] - made[0] <= 2
    assert made[2] - made[1] <= 2


def test_without_views_the_stream_is_as_before(started):
    rows = read_until(started, started.admin_secret, "TaskStarted", query="since=0")
    assert {kind for kind, _ in rows} == {"message"}
    assert set(rows[-1][1]) == {"seq", "event"}
