"""Events and logs as streams: whole, in order, resumable, and ended when the server stops."""

import asyncio
import threading
from contextlib import closing

import pytest
from live_server import ENDLESS, QUICK, LiveServer, SimEngine, job, make_node

from tercio.client import Client
from tercio.engines.sim.script import Rule, SimScript
from tercio.engines.sim.state import SimState
from tercio.errors import UserError
from tercio.model.events import TaskExited, TaskStarted
from tercio.model.ids import SiteName


def refused(call, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    return caught.value


def test_pages_and_stream_tell_the_same_events(server, client):
    (name,) = client.submit(job("quick-1")).ids
    server.wait_for(TaskExited, name)
    newest = client.server().seq
    paged, after = [], None
    while True:
        reply = server.request(
            "GET",
            "/v1/events?limit=2" + (f"&after={after}" if after else ""),
            token=server.admin_secret,
        ).body
        paged += [row["seq"] for row in reply["rows"]]
        after = reply["next"]
        if after is None:
            break
    with closing(client.follow_events()) as rows:
        followed = [next(rows).seq for _ in paged]
    assert paged == followed
    assert paged[:newest] == list(range(1, newest + 1))


def test_a_stream_goes_on_after_the_event_that_was_seen_last(client):
    with closing(client.follow_events(since=2)) as rows:
        assert next(rows).seq == 3


def test_a_stream_tells_what_happens_while_it_is_open(client):
    since = client.server().seq
    with closing(client.follow_events(since=since)) as rows:
        (name,) = client.submit(job()).ids
        assert next(rows).event.job_id == name


def test_events_that_are_not_there_ask_for_a_resync(server, client):
    error = refused(client.events, since=10_000)
    assert error.code == "resync"
    with closing(client.follow_events(since=10_000)) as rows:
        assert refused(next, rows).code == "resync"
    reply = server.request(
        "GET",
        "/v1/events",
        token=server.admin_secret,
        headers={"Accept": "text/event-stream", "Last-Event-ID": "x"},
    )
    assert (reply.status, reply.body["field"]) == (400, "Last-Event-ID")


def test_events_that_are_kept_no_more_ask_for_a_resync(server, client):
    for number in range(5):
        client.submit(job(f"h{number}", hold=True))
    journal = server.server.context.journal
    newest = journal.last_seq
    cluster = server.server.context.cluster
    journal.save_checkpoint(newest - 1, cluster.image(), "x")
    journal.save_checkpoint(newest, cluster.image(), cluster.state_hash())
    journal.prune(newest - 1)
    assert refused(client.events).code == "resync"
    assert client.events(since=newest - 1).rows


def texts(lines):
    return [line.text for line in lines]


def test_the_log_of_an_ended_job_is_whole(server, client):
    (name,) = client.submit(job("quick-1", tasks=2)).ids
    for _ in range(2):
        server.wait_for(TaskExited, name)
    lines = list(client.logs(name, is_following=True))
    assert sorted((line.task, line.text) for line in lines) == [
        (0, "one"),
        (0, "two"),
        (1, "one"),
        (1, "two"),
    ]
    assert texts(client.logs(name, task=1)) == ["one", "two"]
    assert texts(client.logs(name, task=1, tail=1)) == ["two"]
    assert texts(client.logs(name, since_s=lines[0].at_s + 3600)) == []
    times = [line.at_s for line in client.logs(name)]
    assert times == sorted(times)


def test_a_followed_log_waits_for_the_start_and_ends_with_the_job(server, client):
    (name,) = client.submit(job("train", hold=True)).ids
    lines = client.logs(name, is_following=True)
    client.release(name)
    assert next(lines).text == "up"
    client.cancel(name)
    assert "up" not in texts(lines)


def test_a_followed_log_goes_on_with_the_next_attempt(server, client):
    (name,) = client.submit(job("train")).ids
    lines = client.logs(name, is_following=True)
    assert next(lines).text == "up"
    client.requeue(name)
    assert "up" in (line.text for line in lines)
    assert client.job(name).attempt == 2
    client.cancel(name)
    assert "up" not in texts(lines)


class GatedEngine(SimEngine):
    """Launches task 1 of a job only when the gate is open."""

    gate: threading.Event

    async def launch(self, order, secrets):
        if order.task == 1:
            await asyncio.to_thread(self.gate.wait, 30)
        return await super().launch(order, secrets)


def test_a_followed_log_has_the_tasks_that_were_launched_late(tmp_path):
    gate = threading.Event()

    def engines(clock, _):
        site = SiteName("sim")
        nodes = [make_node("n1", devices=2, site="sim")]
        script = SimScript(rules=(Rule(behaviour=ENDLESS),))
        engine = GatedEngine(site=site, nodes=nodes, clock=clock.now_s, script=script)
        engine.gate = gate
        return {site: engine}

    with (
        LiveServer(tmp_path, engines=engines, nodes=("n1",)) as live,
        Client(live.url, live.admin_secret) as client,
    ):
        (name,) = client.submit(job("train", tasks=2)).ids
        lines = client.logs(name, is_following=True)
        assert next(lines).task == 0
        gate.set()
        with closing(client.follow_events()) as rows:
            started = (row.event for row in rows if isinstance(row.event, TaskStarted))
            next(event for event in started if event.task == 1)
        client.cancel(name)
        assert "up" in (line.text for line in lines if line.task == 1)


def test_a_log_that_cannot_be_is_refused(server, client):
    (name,) = client.submit(job("train")).ids
    server.wait_for(TaskStarted, name)
    error = refused(list, client.logs(name, task=5))
    assert (error.code, error.field) == ("not_found", "task")
    (array,) = client.submit(job("arr", array="0-3", hold=True)).ids
    assert f"{array}.0" in refused(list, client.logs(array)).hint
    bad = server.request("GET", f"/v1/jobs/{name}/logs?since=yesterday", token=server.admin_secret)
    assert (bad.status, bad.body["field"]) == (400, "since")


def engines_of(clock, _):
    site = SiteName("sim")
    script = SimScript(rules=(Rule(job="quick*", behaviour=QUICK), Rule(behaviour=ENDLESS)))
    engine = SimEngine(
        site=site, nodes=[make_node("n1", site="sim")], clock=clock.now_s, script=script
    )
    return {site: engine}


def test_a_server_that_stops_ends_its_streams_at_once(tmp_path):
    with (
        LiveServer(tmp_path, engines=engines_of, nodes=("n1",)) as live,
        Client(live.url, live.admin_secret, reconnect_s=0.01) as client,
    ):
        (name,) = client.submit(job("train")).ids
        lines = client.logs(name, is_following=True)
        assert next(lines).text == "up"
        with closing(client.follow_events(since=client.server().seq)) as rows:
            live.stop()
            assert refused(list, rows).code == "unavailable"
        assert refused(texts, lines).code == "unavailable"


def test_jobs_run_on_over_a_restart_of_the_server(tmp_path):
    state = SimState()

    def engines(clock, _):
        site = SiteName("sim")
        nodes = [make_node("n1", site="sim")]
        script = SimScript(rules=(Rule(behaviour=ENDLESS),))
        return {
            site: SimEngine(site=site, nodes=nodes, clock=clock.now_s, script=script, state=state)
        }

    with LiveServer(tmp_path, engines=engines, nodes=("n1",)) as live:
        secret = live.admin_secret
        with Client(live.url, secret) as client:
            (name,) = client.submit(job("train")).ids
        live.wait_for(TaskStarted, name)
    with LiveServer(tmp_path, engines=engines, nodes=("n1",)) as live:
        assert live.admin_secret == secret
        with Client(live.url, secret) as client:
            assert client.job(name).state == "running"
            assert client.server().epoch == 2
            assert [e.event.epoch for e in client.events(limit=1).rows] == [1]
