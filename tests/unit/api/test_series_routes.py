"""Device readings over HTTP as columns: of a job by rank, of a node, of the fleet."""

from __future__ import annotations

import json

import msgspec
import pytest
from live_server import job

from tercio.client import JobRequest
from tercio.errors import UserError
from tercio.model.events import TaskStarted
from tercio.model.readings import DeviceTelemetry, NodeReading


def read(server, node, **fields):
    devices = tuple(
        DeviceTelemetry(index=index, uuid=f"{node}-{index}", **fields) for index in range(4)
    )
    raw = msgspec.json.encode(NodeReading(at_s=1.0, boot_id="b", devices=devices))
    path = f"/v1/nodes/{node}/readings"
    assert server.request("POST", path, token=server.admin_secret, body=raw).status == 200


def get(server, path, token=None):
    return server.request("GET", path, token=token or server.admin_secret).body


def test_a_jobs_ranks_over_time(server, client):
    (name,) = client.submit(job("train", gpus=2)).ids
    server.wait_for(TaskStarted, name)
    node = client.job(name).nodes[0]
    read(server, node, power_w=400.0, utilization_ratio=0.75)
    found = get(server, f"/v1/jobs/{name}/series?metric=power_w")
    assert (found["kind"], found["metric"], len(found["at_s"])) == ("DeviceSeries", "power_w", 1)
    assert [(row["task"], row["node"], row["values"]) for row in found["rows"]] == [
        (0, node, [400.0]),
        (0, node, [400.0]),
    ]
    assert [row["device"] for row in found["rows"]] == list(client.job(name).tasks[0].devices)
    of_node = get(server, f"/v1/nodes/{node}/series")
    assert [row["values"] for row in of_node["rows"]] == [[0.75]] * 4


def test_another_tenants_job_is_not_told(server, client, connect):
    (name,) = client.submit(job("train", gpus=1)).ids
    stranger = connect("viewer", user="eve", tenant="red")
    with pytest.raises(UserError) as caught:
        stranger.job(name)
    assert caught.value.code == "not_found"
    secret = server.token("viewer", user="eve", tenant="red")
    assert server.request("GET", f"/v1/jobs/{name}/series", token=secret).status == 404


def test_the_fleet_at_a_glance(server):
    before = get(server, "/v1/fleet")
    assert (before["nodes"], before["reporting"], before["power_w"]) == (2, 0, None)
    read(server, "n1", power_w=500.0, utilization_ratio=0.5, temperature_c=61.0)
    now = get(server, "/v1/fleet")
    assert (now["reporting"], now["devices"], now["power_w"]) == (1, 4, 2000.0)
    assert (now["utilization_ratio"], now["temperature_max_c"]) == (0.5, 61.0)
    assert now["health"] == {"ok": 2}
    quarantine = server.request(
        "POST", "/v1/nodes/n2/quarantine", token=server.admin_secret, body=b'{"reason":"hot"}'
    )
    assert quarantine.status == 200
    column = get(server, "/v1/fleet/devices?metric=temperature_c")
    assert column["nodes"] == {"n1": [61.0] * 4}
    assert column["health"] == {"n2": "quarantined"}
    refused = server.request("GET", "/v1/fleet/devices?metric=smell", token=server.admin_secret)
    assert (refused.status, refused.body["field"]) == (400, "metric")


def test_queues_over_time(server, client):
    (name,) = client.submit(job("train", gpus=2)).ids
    server.wait_for(TaskStarted, name)
    viewer = server.token("viewer", user="eve", tenant="red")
    found = get(server, "/v1/queue-past?queue=default", token=viewer)
    assert (found["kind"], found["step_s"]) == ("QueuePast", 20.0)
    (row,) = found["rows"]
    assert (row["path"], row["running"][-1] > 0, row["used"][-1] > 0) == ("default", True, True)
    assert len(row["used"]) == len(found["at_s"])
    week = get(server, "/v1/queue-past?since=1000")
    assert (week["step_s"], len(week["rows"])) == (3600.0, len(client.queues().rows))
    refused = server.request("GET", "/v1/queue-past?queue=defalt", token=viewer)
    assert (refused.status, refused.body["hint"]) == (404, "did you mean 'default'?")


def test_steps_by_rank_of_a_job(server, client):
    wish = {"duration_s": 1e9, "steps": {"every_s": 0.001, "own_s": 0.5, "slow_task": 0}}
    spec = {
        "name": "marks", "run": "x", "tasks": 2, "per_task": {"devices": 1},
        "env": {"TERCIO_SIM": json.dumps(wish)},
    }  # fmt: skip
    (name,) = client.submit(JobRequest(job=spec)).ids
    server.wait_for(TaskStarted, name)
    found = get(server, f"/v1/jobs/{name}/steps")
    while not found["groups"]:  # both tasks start, and a step of both is over
        server.look()
        found = get(server, f"/v1/jobs/{name}/steps")
    assert (found["kind"], found["has_own"]) == ("JobSteps", True)
    (group,) = found["groups"]
    first, second = group["rows"]
    assert len(first["own_s"]) == len(group["first"]) > 0
    assert first["ratio"] > second["ratio"]
    assert get(server, f"/v1/jobs/{name}/use")["step_count"] >= len(group["first"])
    stranger = server.token("viewer", user="eve", tenant="red")
    assert server.request("GET", f"/v1/jobs/{name}/steps", token=stranger).status == 404
