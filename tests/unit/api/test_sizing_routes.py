"""`devices: auto` through a server: plan, submit, run, predicted beside actual."""

from __future__ import annotations

import pytest
from live_server import job

from tercio.client import JobRequest
from tercio.errors import UserError
from tercio.model.events import TaskExited, TaskStarted

MODEL = {"name": "llama-3-8b", "method": "lora", "tokens": "100M"}


def auto(name="train", **fields):
    return job(name, gpus="auto", model={**MODEL, **fields})


def test_a_plan_says_what_sizing_chose_and_why(client):
    view = client.plan(auto())
    assert view.outcome == "now"
    assert view.sized is not None
    (first,) = view.sized.choices
    assert (first.devices, first.tasks) == ("H100:1", 1)
    assert "GiB a device" in first.why
    assert first.low_s < first.expected_s < first.high_s
    assert client.jobs(is_all=True).rows == ()


def test_a_sized_job_runs_and_is_compared_with_its_prediction(server, client):
    (name,) = client.submit(auto("brief-tune")).ids
    server.wait_for(TaskExited, name)
    view = client.job(name)
    assert view.devices == {"H100": 1.0}
    assert view.predicted is not None
    assert view.predicted.devices == "H100:1"
    assert view.predicted.actual_s == view.ended_s - view.started_s
    assert view.predicted.ratio == view.predicted.actual_s / view.predicted.expected_s


def test_a_repeated_submit_is_the_same_job_though_sizing_has_learnt(server, client):
    first = client.submit(auto("brief-tune"), key="k")
    server.wait_for(TaskExited, first.ids[0])
    (other,) = client.submit(auto("train")).ids
    server.wait_for(TaskStarted, other)
    assert client.job(other).spec.sized.site_jobs == 1
    assert client.submit(auto("brief-tune"), key="k").ids == first.ids
    with pytest.raises(UserError) as caught:
        client.submit(auto("brief-tune", seq=8192), key="k")
    assert caught.value.code == "conflict"


def test_what_cannot_be_sized_is_refused_with_its_field(client):
    with pytest.raises(UserError) as caught:
        client.submit(job(gpus="auto", model={"name": "llama-3.1-405b", "method": "full"}))
    assert caught.value.code == "never_fits"
    with pytest.raises(UserError) as caught:
        client.plan(JobRequest(file="per_task: {devices: auto}\nmodel: llama-9\nrun: x"))
    assert "llama-9" in caught.value.message
    assert caught.value.hint
