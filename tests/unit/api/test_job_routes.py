"""Jobs over HTTP: submit, keys, batches, commands, lists, decisions and stories."""

import io
import tarfile

import pytest
from live_server import job

from tercio.api.auth import server_user
from tercio.client import JobRequest
from tercio.errors import UserError
from tercio.model.events import TaskExited, TaskStarted

QUICK = "quick-"


def refused(call, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    return caught.value


def test_a_job_goes_from_submit_to_its_end(server, client):
    (name,) = client.submit(job(QUICK + "one")).ids
    server.wait_for(TaskExited, name)
    view = client.job(name)
    assert (view.state, view.user) == ("succeeded", server_user())
    assert [task.exit_code for task in view.tasks] == [0]
    assert view.spec.run.strip() == "true"
    assert client.decision(name).decision.message.startswith("succeeded")
    rows = client.story(name).rows
    kinds = [line.kind for line in rows]
    assert kinds[:2] == ["JobSubmitted", "JobPlaced"]
    assert kinds[-2:] == ["TaskExited", "JobEnded"]
    assert rows[-1].text == "succeeded"


def test_an_object_is_the_same_job_as_its_text(client):
    text = client.submit(job("same", hold=True)).ids[0]
    body = {"name": "same", "per_task": {"devices": "H100:1"}, "run": "true"}
    parsed = client.submit(JobRequest(job=body, hold=True)).ids[0]
    assert client.job(text).spec == client.job(parsed).spec


def test_several_documents_are_several_jobs(client):
    answer = client.submit(JobRequest(file="name: a\nrun: x\n---\nname: b\nrun: y\n", hold=True))
    assert [client.job(name).name for name in answer.ids] == ["a", "b"]


def test_overrides_replace_what_the_file_says(client):
    request = job("file", hold=True, overrides={"name": "option", "gpus": "H100:2", "nodes": 2})
    view = client.job(client.submit(request).ids[0])
    assert (view.name, view.task_count, view.devices) == ("option", 2, {"H100": 4.0})


def test_a_repeated_key_returns_the_first_job(client, connect):
    first = client.submit(job(), key="k1")
    assert client.submit(job(), key="k1").ids == first.ids
    error = refused(client.submit, job("other"), key="k1")
    assert (error.code, error.field) == ("conflict", "Idempotency-Key")
    assert client.submit(job(), key="k2").ids != first.ids
    assert connect("user").submit(job(), key="k1").ids != first.ids
    assert len(client.jobs(is_all=True).rows) == 3


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_a_key_that_is_none_is_refused(server, key):
    reply = server.request(
        "POST",
        "/v1/jobs",
        token=server.admin_secret,
        body={"file": "run: x"},
        headers={"Idempotency-Key": key},
    )
    assert (reply.status, reply.body["field"]) == (400, "Idempotency-Key")


def test_a_batch_is_accepted_whole_or_not_at_all(client):
    good = [job(f"b{number}", hold=True) for number in range(20)]
    answer = client.submit_batch(good, key="batch")
    assert [client.job(name).name for name in answer.ids] == [f"b{number}" for number in range(20)]
    assert client.submit_batch(good, key="batch").ids == answer.ids
    error = refused(client.submit_batch, [*good[:3], job("bad", queue="nowhere"), *good[3:]])
    assert "nowhere" in error.message
    error = refused(client.submit_batch, [*good[:3], JobRequest(file="rnu: x")])
    assert error.field.startswith("jobs[3]")
    assert len(client.jobs(is_all=True).rows) == 20


@pytest.mark.parametrize(
    "body",
    [{}, {"file": "run: x", "job": {}}, {"file": ""}, {"job": {}}, {"file": "run: [", "hold": 1}],
)
def test_a_submit_that_names_no_job_is_refused(server, body):
    reply = server.request("POST", "/v1/jobs", token=server.admin_secret, body=body)
    assert reply.status == 400
    assert reply.body["code"] == "invalid"


def test_a_file_that_is_too_long_is_refused(client):
    error = refused(client.submit, JobRequest(file="#" * (1024 * 1024 + 1)))
    assert error.code == "too_large"


def test_values_of_secrets_go_to_the_store_and_nowhere_else(server, client):
    (name,) = client.submit(job(secrets=["TOKEN"], secret_values={"TOKEN": "hush-hush"})).ids
    server.wait_for(TaskStarted, name)
    secrets = server.server.context.controller.secrets
    assert secrets.get(name) == {"TOKEN": "hush-hush"}
    for path in (f"/v1/jobs/{name}", "/v1/events?limit=1000", f"/v1/jobs/{name}/story"):
        assert b"hush-hush" not in server.request("GET", path, token=server.admin_secret).content


def test_secrets_without_a_value_or_a_name_are_refused(client):
    error = refused(client.submit, job(secrets=["TOKEN"]))
    assert error.field == "secrets.TOKEN"
    error = refused(client.submit, job(secret_values={"TOKEN": "hush"}))
    assert error.field == "secrets.TOKEN"
    error = refused(client.submit, job(secrets=["T"], secret_values={"T": "hush\0"}))
    assert "hush" not in error.message


def archive():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("train.py"), io.BytesIO())
    return content.getvalue()


def test_a_working_directory_is_uploaded_and_named_in_the_job(client):
    snapshot = client.upload_workdir(archive())
    assert client.upload_workdir(io.BytesIO(archive())).startswith("wd-")
    view = client.job(client.submit(job(workdir=".", snapshot=snapshot, hold=True)).ids[0])
    assert view.spec.workdir == snapshot


def test_a_working_directory_that_was_not_uploaded_is_refused(client):
    assert refused(client.submit, job(workdir=".")).field == "workdir"
    error = refused(client.submit, job(workdir=".", snapshot="wd-" + "0" * 40))
    assert error.code == "not_found"
    assert refused(client.upload_workdir, b"no archive").field == "workdir"


def test_an_ended_job_shows_the_devices_it_held(server, client):
    (name,) = client.submit(job(QUICK + "any", gpus="1 | CPU:1")).ids
    assert client.job(name).devices in ({"any": 1.0}, {"H100": 1.0})
    server.wait_for(TaskExited, name)
    assert client.job(name).devices == {"H100": 1.0}


def test_commands_change_the_job(server, client):
    (name,) = client.submit(job(hold=True)).ids
    assert client.job(name).state == "held"
    assert client.decision(name).decision.message.startswith("held; it starts only after")
    client.release(name)
    server.wait_for(TaskStarted, name)
    assert client.suspend(name).state == "suspended"
    assert client.resume(name).state == "running"
    assert client.cancel(name, reason="enough").state == "stopping"
    server.wait_for(TaskExited, name)
    assert client.job(name).state == "cancelled"
    assert client.story(name).rows[-1].text == "cancelled by root: enough"
    assert client.decision(name).decision.message == "cancelled by root: enough"
    assert refused(client.cancel, name).code == "conflict"
    assert refused(client.release, name).code == "conflict"


def test_a_plan_says_now_later_or_never_and_changes_nothing(server, client):
    assert client.plan(job()).outcome == "now"
    server.decided(client.submit(job(gpus="H100:4", tasks=2)))
    later = client.plan(job())
    assert later.outcome == "later"
    assert later.decision.reason
    assert client.plan(job(gpus="H100:5")).outcome == "never"
    assert len(client.jobs(is_all=True).rows) == 1
    assert "2" in refused(client.plan, JobRequest(file="run: x\n---\nrun: y")).message


def test_a_waiting_job_says_why(server, client):
    client.submit(job(gpus="H100:4", tasks=2))
    name = server.decided(client.submit(job(gpus="H100:4")))
    view = client.job(name)
    decision = client.decision(name).decision
    assert view.state == "queued"
    assert view.reason == decision.reason
    assert decision.message


def test_lists_are_filtered_and_paged(connect):
    ana = connect("user", user="ana", tenant="red")
    bob = connect("user", user="bob", tenant="red")
    names = [ana.submit(job(f"a{number}", hold=True)).ids[0] for number in range(5)]
    names.append(bob.submit(job("b", hold=True)).ids[0])
    ana.cancel(names[0])
    newest_first = names[::-1]
    assert [row.id for row in ana.jobs().rows] == newest_first[:5]
    assert [row.id for row in ana.jobs(is_all=True).rows] == newest_first
    assert [row.id for row in ana.jobs(user="bob").rows] == [names[5]]
    assert [row.id for row in ana.jobs(states=["cancelled", "running"]).rows] == [names[0]]
    assert ana.jobs(queue="other").rows == ()
    first = ana.jobs(limit=2, is_all=True)
    second = ana.jobs(limit=2, is_all=True, after=first.next)
    assert [row.id for row in (*first.rows, *second.rows)] == newest_first[:4]
    third = ana.jobs(limit=2, is_all=True, after=second.next)
    assert third.next is None
    assert [row.id for row in ana.every_job(is_all=True, limit=1)] == newest_first
    assert first.rows[0].spec is None


def test_a_state_that_is_none_is_refused_with_the_nearest(client):
    error = refused(client.jobs, states=["runing"])
    assert (error.field, error.hint) == ("state", "did you mean 'running'?")


def test_a_job_that_is_not_there_names_the_nearest(client):
    (name,) = client.submit(job(hold=True)).ids
    error = refused(client.job, name[:-1] + "9")
    assert (error.code, error.hint) == ("not_found", f"did you mean '{name}'?")
