"""Nodes, queues, policy, tokens, use, metrics and backup over HTTP."""

import io
import re

import pytest
from live_server import SIM_NODES, job

import tercio
from tercio.errors import UserError
from tercio.model.events import TaskExited, TaskStarted
from tercio.store.journal import Journal

POLICY = """
queues:
  default: {}
  research: {children: {nlp: {}, vision: {limit: {H100: 2}}}}
"""


def refused(call, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    return caught.value


def test_nodes_are_listed_in_pages_and_shown_with_their_devices(client):
    first = client.nodes(limit=1)
    second = client.nodes(limit=1, after=first.next)
    assert [row.name for row in (*first.rows, *second.rows)] == list(SIM_NODES)
    assert second.next is None
    assert [node.name for node in client.every_node()] == list(SIM_NODES)
    node = client.node("n1")
    assert (node.total, len(node.devices)) == ({"H100": 4.0}, 4)
    assert refused(client.node, "m1").code == "not_found"


def test_a_cordoned_node_takes_no_work_until_it_is_uncordoned(server, client):
    for name in SIM_NODES:
        view = client.cordon(name, reason="broken fan")
        assert view.state == "cordoned"
        assert view.cordons[0].reason == "broken fan"
    (job_id,) = client.submit(job()).ids
    assert client.job(job_id).state == "queued"
    client.uncordon("n1")
    server.wait_for(TaskStarted, job_id)
    assert "broken fan" in " ".join(line.text for line in client.node_story("n1").rows)


def test_a_drained_node_loses_its_jobs(server, client):
    (job_id,) = client.submit(job()).ids
    server.wait_for(TaskStarted, job_id)
    (node,) = client.job(job_id).nodes
    assert client.drain(node, reason="repair").state in ("draining", "cordoned")
    server.wait_for(TaskExited, job_id)
    told = [line.text for line in client.story(job_id).rows]
    assert f"node {node}: drain by user:root: repair" in told
    client.uncordon(node)
    client.drain(node, reason="not in the job's time here")
    assert "not in the job" not in " ".join(line.text for line in client.story(job_id).rows)


def test_the_policy_is_edited_from_the_version_it_was_read(client):
    before = client.policy()
    after = client.set_policy(POLICY, if_version=before.version)
    assert after.version == before.version + 1
    assert client.policy().policy == after.policy
    error = refused(client.set_policy, POLICY, if_version=before.version)
    assert error.code == "conflict"
    assert refused(client.set_policy, "quues: {}", if_version=after.version).hint
    assert refused(client.policy, version=99).code == "not_found"


def test_earlier_versions_of_the_policy_are_kept(client):
    version = client.policy().version
    client.set_policy(POLICY, if_version=version)
    client.set_policy("queues: {default: {}}", if_version=version + 1)
    old = client.policy(version=version + 1)
    assert (old.version, list(old.policy.queues)) == (version + 1, ["default", "research"])


def test_queues_are_shown_parents_first_and_by_path(client):
    client.set_policy(POLICY, if_version=client.policy().version)
    paths = ["default", "research", "research/nlp", "research/vision"]
    assert [queue.path for queue in client.every_queue()] == paths
    first = client.queues(limit=3)
    assert [q.path for q in client.queues(limit=3, after=first.next).rows] == paths[3:]
    assert client.queue("research/vision").limit == {"H100": 2.0}
    assert "'research/nlp'" in refused(client.queue, "research/nlq").hint


def test_a_job_may_go_to_a_nested_queue_and_is_found_below_its_parent(client):
    client.set_policy(POLICY, if_version=client.policy().version)
    (name,) = client.submit(job(queue="research/nlp", hold=True)).ids
    assert [row.id for row in client.jobs(queue="research").rows] == [name]
    assert client.jobs(queue="res").rows == ()


def test_tokens_are_listed_in_pages(client):
    ids = [client.create_token(f"user{number}").token_id for number in range(3)]
    seen, after = [], None
    for _ in ids:
        reply = client._transport.call(
            "GET", "/v1/tokens", dict, query={"limit": 1, "after": after}
        )
        seen += [row["token_id"] for row in reply["rows"]]
        after = reply["next"]
    assert (seen, after) == (ids, None)


def test_the_server_says_what_it_is(client):
    view = client.server()
    assert (view.version, view.epoch, view.nodes) == (tercio.__version__, 1, 2)
    assert view.sites == ("sim",)
    assert any("sim" in note for note in view.notes)
    assert client.health().status == "ok"


def test_metrics_are_in_prometheus_text(server, client):
    (name,) = client.submit(job()).ids
    server.wait_for(TaskStarted, name)
    text = client.metrics()
    assert re.search(r'^tercio_jobs\{.*state="running"\} 1\.0$', text, re.MULTILINE)


def test_use_is_told_by_user_and_by_queue(server, client):
    (name,) = client.submit(job()).ids
    server.wait_for(TaskStarted, name)
    (by_queue,) = client.usage(by="queue").rows
    assert (by_queue.key, by_queue.jobs, list(by_queue.device_ms)) == ("default", 1, ["H100"])
    assert refused(client.usage, by="color").field == "by"


def test_a_backup_is_a_journal_that_opens(server, client, tmp_path):
    client.submit(job(hold=True))
    target = io.BytesIO()
    size_bytes = client.backup(target)
    assert size_bytes == len(target.getvalue())
    copy = tmp_path / "copy" / "journal.db"
    copy.parent.mkdir()
    copy.write_bytes(target.getvalue())
    journal = Journal.open(copy)
    try:
        assert journal.last_seq == server.server.context.journal.last_seq
    finally:
        journal.close()
    assert not list(server.config.state_path.glob("backup-*"))


def test_sites_are_told_with_what_works_there(server):
    (row,) = server.request("GET", "/v1/sites", token=server.token("viewer")).body["rows"]
    assert (row["name"], row["kind"], row["error"]) == ("sim", "sim", "")
    assert (row["nodes"], row["nodes_ready"], row["devices"]) == (2, 2, {"H100": 8})
    assert row["can"]["signals"] is True
    assert row["notes"]
