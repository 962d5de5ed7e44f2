"""Health over HTTP: readings by an agent's own token, live devices, people's word, the policy."""

import json

import msgspec

from tercio.model.events import HealthDecided, NodeHealthChanged
from tercio.model.health_views import HealthPlanView, HealthPolicyView, ReadingsAnswer
from tercio.model.readings import DeviceTelemetry, KernelLine, NodeReading

XID = "NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=python, GPU has fallen off the bus."


def reading(*lines, **device):
    gpu = DeviceTelemetry(index=0, uuid="n1-0", pci="00000000:10:00.0", **device)
    told = tuple(KernelLine(seq=number, text=text) for number, text in enumerate(lines))
    return NodeReading(at_s=1.0, boot_id="boot", driver="580.65", devices=(gpu,), lines=told)


def post(server, node, body, token):
    raw = msgspec.json.encode(body)
    return server.request("POST", f"/v1/nodes/{node}/readings", token=token, body=raw)


def put(server, path, body, token=None):
    raw = msgspec.json.encode(body)
    return server.request("PUT", path, token=token or server.admin_secret, body=raw)


def test_an_agents_token_reports_for_its_node_and_no_other(server):
    token = server.token("viewer", user="agent@n1")
    answer = post(server, "n1", reading(utilization_ratio=0.5), token)
    assert answer.status == 200
    told = msgspec.convert(answer.body, ReadingsAnswer)
    assert (told.faults, told.poll_s) == (0, 10.0)
    assert post(server, "n2", reading(), token).status == 403
    assert post(server, "n1", reading(), server.token("viewer", user="eve")).status == 403
    assert post(server, "none", reading(), token).status == 404


def test_a_newer_agent_may_say_more_than_the_server_knows(server):
    body = {"at_s": 1.0, "devices": [{"index": 0, "flux": 7}], "moon": "full"}
    assert post(server, "n1", body, server.token("operator")).status == 200


def test_live_shows_what_was_read_and_nothing_else(server, client):
    post(server, "n1", reading(utilization_ratio=0.5), server.admin_secret)
    rows = {row.node: row for row in client.live().rows}
    assert rows["n1"].devices[0].utilization_ratio == 0.5
    assert (rows["n2"].at_s, rows["n2"].devices) == (0.0, {})
    assert client.node_health("n1").driver == "580.65"


def test_a_fault_is_decided_on_and_shown(server, client):
    assert put(server, "/v1/health-policy", {"settings": {"mode": "act"}}).status == 200
    post(server, "n1", reading(), server.admin_secret)
    post(server, "n1", reading(XID), server.admin_secret)
    server.wait_for(NodeHealthChanged, "node/n1")
    view = client.node_health("n1")
    assert (view.state, view.faults[0].code) == ("quarantined", "79")
    assert [c.owner for c in client.node("n1").cordons] == ["health"]
    assert "DCGM_FI_DEV_XID_ERRORS" in client.metrics()
    answer = server.request(
        "POST", "/v1/nodes/n1/return", token=server.admin_secret, body=b'{"reason":"swapped"}'
    )
    assert answer.status == 200
    assert client.node_health("n1").state == "ok"


def test_shadow_says_what_it_would_do_and_a_plan_what_acting_would(server, client):
    post(server, "n1", reading(), server.admin_secret)
    post(server, "n1", reading(XID), server.admin_secret)
    decided = server.wait_for(HealthDecided, "node/n1")
    assert decided.held_by == "shadow"
    assert client.node("n1").cordons == ()
    raw = msgspec.json.encode({"settings": {"mode": "act"}})
    answer = server.request(
        "POST", "/v1/health-policy/plan", token=server.token("operator"), body=raw
    )
    (row,) = msgspec.convert(answer.body, HealthPlanView).rows
    assert (row.node, row.order, row.held_by) == ("n1", "quarantine", "")
    assert client.node("n1").cordons == ()


def test_the_policy_is_set_by_admins_and_a_stale_edit_refused(server):
    path = "/v1/health-policy"
    assert put(server, path, {"settings": {}}, server.token("operator")).status == 403
    view = msgspec.convert(put(server, path, {"settings": {"mode": "act"}}).body, HealthPolicyView)
    assert (view.version, view.effective["mode"], view.effective["loop_count"]) == (1, "act", 5)
    stale = put(server, path, {"settings": {"mode": "shadow"}, "if_version": 0})
    assert (stale.status, stale.body["code"]) == (409, "conflict")
    wrong = put(server, path, {"settings": {"mod": "act"}})
    assert wrong.status in (400, 422)
    assert "mode" in json.dumps(wrong.body)


def test_the_faults_of_a_device_are_listed_by_its_serial(server):
    post(server, "n1", reading(), server.admin_secret)
    post(server, "n1", reading(XID), server.admin_secret)
    server.wait_for(HealthDecided, "node/n1")
    answer = server.request("GET", "/v1/rma?since=0", token=server.token("operator"))
    (row,) = answer.body["rows"]
    assert (row["serial"], row["node"], row["codes"]) == ("n1-0", "n1", ["Xid 79 x1"])
    assert server.request("GET", "/v1/rma", token=server.token("user")).status == 403


def test_the_report_and_a_jobs_use_answer(server, client):
    from live_server import job

    ids = client.submit(job(name="endless")).ids
    use = client.job_use(ids[0])
    assert use.job == ids[0]
    answer = server.request("GET", "/v1/report?by=job&since=0", token=server.admin_secret)
    assert answer.status == 200
    assert answer.body["by"] == "job"
    wrong = server.request("GET", "/v1/report?by=moon", token=server.admin_secret)
    assert wrong.status in (400, 422)
