"""A policy in shadow of a real server: what it tells, and that its end is nobody else's."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest
from live_server import LiveServer, job

from tercio.api.app import all_routes
from tercio.api.openapi import openapi_document
from tercio.api.policy_shadow import PolicyShadow
from tercio.api.shadow_bodies import BEGUN_FILE, ORDER_FILE, ShadowAnswer, ShadowOrder
from tercio.api.shadow_child import Follower
from tercio.client import Client
from tercio.core.cluster import Cluster
from tercio.errors import StoreError, UserError
from tercio.model.events import (
    Entry,
    JobPlaced,
    JobSubmitted,
    NodeReported,
    PolicyChanged,
    ServerStarted,
)
from tercio.model.ids import QueuePath, job_id
from tercio.model.queue import Policy
from tercio.runtime.recovery import digest
from tercio.store.journal import Journal
from tercio.testing.factories import make_job, make_node

PATH = "/v1/policy/shadow"
CAPPED = "queues: {default: {limit: {H100: 4}}}"


def start(server, text=CAPPED, *, token=None, **more):
    body = {"file": text, "source": "new.yaml", **more}
    return server.request("PUT", PATH, token=token or server.admin_secret, body=body)


def shown(server):
    return server.request("GET", PATH, token=server.admin_secret)


def settled(server):
    """The view when the process has failed, or has read all: it may take long to start."""
    deadline_s = time.monotonic() + 100
    while True:
        view = shown(server).body
        if view["state"] == "failed" or (view["state"] == "following" and not view["behind"]):
            return view
        assert time.monotonic() < deadline_s, view


def test_it_follows_the_live_jobs_and_says_where_it_differs(server, client):
    assert shown(server).status == 404
    begun = start(server, lag="2h")
    assert (begun.status, begun.body["source"], begun.body["lag_s"]) == (200, "new.yaml", 7200.0)
    (first,) = client.submit(job("a", gpus="H100:4")).ids
    (second,) = client.submit(job("b", gpus="H100:4")).ids
    for name in (first, second):
        server.wait_for(JobPlaced, name)
    view = settled(server)
    assert (view["state"], view["behind"]) == ("following", 0), view
    schema = {"$ref": "#/components/schemas/PolicyShadowView"}
    jsonschema.validate(view, {**schema, **openapi_document(all_routes())})
    report = view["report"]
    assert report["total"]["jobs"] == 1
    assert report["total"]["only_live"] == 1, "the other one is above the limit of its queue"
    assert report["queues"][0]["queue"] == "default"
    assert server.request("DELETE", PATH, token=server.admin_secret).status == 204
    assert shown(server).status == 404
    assert not (server.config.state_path / ORDER_FILE).exists()
    assert not (server.config.state_path / BEGUN_FILE).exists()


def test_only_operators_run_one_and_a_bad_policy_is_refused(server, client):
    assert start(server, token=server.token("user")).status == 403
    assert start(server, "queues: {a: {wait: 1}}").status == 400
    assert start(server, lag="soon").status == 400
    (name,) = client.submit(job()).ids
    server.wait_for(JobPlaced, name)
    refused = start(server, "queues: {other: {}}\ndefault_queue: other")
    assert (refused.status, name in refused.body["detail"]) == (409, True)
    assert shown(server).status == 404


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise RuntimeError('it broke')", "it broke"),
        ("import sys; sys.exit(7)", "it ended with 7"),
        ("print('hello', flush=True); input()", "nobody understands"),
    ],
    ids=["raises", "exits", "nonsense"],
)
def test_a_shadow_that_fails_does_not_touch_the_live_server(server, client, program, words):
    shadow = server.server.context.policy_shadow
    healthy, shadow.command = shadow.command, (sys.executable, "-c", program)
    assert start(server).status == 200
    view = settled(server)
    assert (view["state"], words in view["error"]) == ("failed", True), view
    (name,) = client.submit(job("quick-a")).ids
    server.wait_for(JobPlaced, name)
    assert any(words in note for note in client.server().notes)
    shadow.command = healthy
    assert start(server).status == 200
    assert settled(server)["state"] == "following"
    assert not any("shadow" in note for note in client.server().notes)


def test_a_shadow_that_is_killed_or_says_nothing_holds_nobody_up(server, client):
    shadow = server.server.context.policy_shadow
    shadow.answer_s = 0.01
    healthy = shadow.command
    shadow.command = (sys.executable, "-c", "import time; time.sleep(1000)")
    assert start(server).body["state"] == "starting"
    os.kill(shadow._child.pid, signal.SIGKILL)
    shadow.answer_s = 10.0
    view = settled(server)
    assert (view["state"], view["error"]) == ("failed", "it ended with -9")
    shadow.command = healthy
    assert start(server).status == 200
    assert settled(server)["state"] == "following"
    (name,) = client.submit(job("quick-a")).ids
    server.wait_for(JobPlaced, name)


def test_it_goes_on_after_a_restart(tmp_path):
    with LiveServer(tmp_path) as live, Client(live.url, live.admin_secret) as client:
        start(live)
        (name,) = client.submit(job("quick-a")).ids
        live.wait_for(JobPlaced, name)
        before = settled(live)["report"]
    with LiveServer(tmp_path) as live:
        view = settled(live)
        assert (view["state"], view["note"]) == ("following", "")
        assert view["report"]["from_seq"] == before["from_seq"]
        assert view["report"]["total"]["jobs"] == before["total"]["jobs"] == 1


def test_the_configuration_may_begin_one(tmp_path):
    policy = tmp_path / "new.yaml"
    policy.write_text(CAPPED)
    live = LiveServer(tmp_path / "state")
    shadow = msgspec.structs.replace(live.config.shadow, policy=str(policy))
    live.config = msgspec.structs.replace(live.config, shadow=shadow)
    with live:
        view = settled(live)
        assert (view["by"], view["source"], view["state"]) == (
            "configuration", "new.yaml", "following",
        )  # fmt: skip
        begun = msgspec.json.decode((live.config.state_path / ORDER_FILE).read_bytes())
    again = LiveServer(tmp_path / "state")
    again.config = msgspec.structs.replace(again.config, shadow=shadow)
    with again:
        kept = msgspec.json.decode((again.config.state_path / ORDER_FILE).read_bytes())
        assert kept == begun, "the same policy goes on, it does not begin anew"


# The process by itself.


class Kept:
    """A state directory with a journal and an order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal.open(path / "journal.db")
        self.seq = 0
        self.add(
            ServerStarted(at_s=1.0, epoch=1, version="t"),
            PolicyChanged(at_s=1.0, version=1, policy=Policy(), by="t"),
            NodeReported(at_s=1.0, spec=make_node("n1")),
        )
        self.order("one")

    def add(self, *events) -> None:
        entries = [Entry(seq=self.seq + 1 + n, event=event) for n, event in enumerate(events)]
        self.journal.append(entries)
        self.seq += len(events)

    def order(self, name: str, text: str = "queues: {default: {}}") -> None:
        order = ShadowOrder(id=name, file=text, source="p", by="t", at_s=1.0, lag_s=60.0)
        (self.path / ORDER_FILE).write_bytes(msgspec.json.encode(order))

    def submit(self, number: int) -> None:
        self.add(
            JobSubmitted(
                at_s=2.0, job_id=job_id(number), spec=make_job(), queue=QueuePath("default"),
                user="ana", tenant="default",
            )
        )  # fmt: skip

    def answer(self) -> ShadowAnswer:
        follower = Follower(self.path)
        try:
            return msgspec.json.decode(follower.answer(), type=ShadowAnswer)
        finally:
            follower.reader.close()

    def checkpoint(self) -> None:
        cluster = Cluster()
        for entry in self.journal.read(limit=1000):
            cluster.apply(entry.event)
        image = cluster.image()
        self.journal.save_checkpoint(self.seq, image, digest(image))


@pytest.fixture
def kept(tmp_path):
    found = Kept(tmp_path)
    yield found
    found.journal.close()


def test_it_reads_on_where_it_began(kept):
    assert (kept.answer().report.from_seq, kept.answer().note) == (3, "")
    kept.submit(1)
    answer = kept.answer()
    assert (answer.report.from_seq, answer.report.seq, answer.note) == (3, 4, "")
    assert answer.report.total.only_shadow == 1
    assert (kept.path / BEGUN_FILE).stat().st_mode & 0o777 == 0o600
    kept.order("two")
    assert kept.answer().report.from_seq == 4, "another order begins where the journal stands"


def test_it_begins_anew_where_the_journal_is_not_whole_any_more_and_says_so(kept):
    kept.answer()
    kept.submit(1)
    for _ in range(2):
        kept.submit(kept.seq)
        kept.checkpoint()
    assert kept.journal.prune(kept.seq)
    answer = kept.answer()
    assert answer.note == "began anew: entries before 6 are no longer kept"
    assert answer.report.from_seq == kept.seq
    assert kept.answer().note == answer.note, "it is still true after one more restart"


def test_it_stops_rather_than_leave_entries_out(kept):
    follower = Follower(kept.path)
    assert not follower.read()
    for _ in range(2):
        kept.submit(kept.seq)
        kept.checkpoint()
    assert kept.journal.prune(kept.seq)
    with pytest.raises(StoreError, match="from 4 on were dropped"):
        follower.read()
    follower.reader.close()


def test_what_it_began_with_may_be_damaged_or_of_a_later_time(kept):
    kept.answer()
    (kept.path / BEGUN_FILE).write_bytes(b"\x00\x01")
    assert "cannot be read" in kept.answer().note
    kept.submit(1)
    (kept.path / BEGUN_FILE).unlink()
    kept.answer()
    kept.journal.close()
    for file in kept.path.glob("journal.db*"):
        file.unlink()
    kept.__init__(kept.path)
    assert "restored" in kept.answer().note


def test_a_policy_that_would_strand_a_job_does_not_begin(kept):
    kept.submit(1)
    kept.order("two", "queues: {other: {}}\ndefault_queue: other")
    with pytest.raises(UserError, match="job-00001"):
        kept.answer()


def test_an_order_that_cannot_be_read_is_passed_over(tmp_path):
    (tmp_path / ORDER_FILE).write_bytes(b"{")

    async def ask():
        return PolicyShadow(tmp_path).kept()

    assert asyncio.run(ask()) is None
