from __future__ import annotations

import json
import os
import stat

import cli_bodies as bodies
import msgspec
import pytest
from cli_server import Answer

from tercio.cli.policies import parse_amounts, replace_queue
from tercio.errors import UserError
from tercio.formats.policy import read_policy
from tercio.model.node import Cordon
from tercio.model.queue import Policy, QueueSpec, walk_queues
from tercio.model.views import (
    HealthView,
    PolicyView,
    ServerView,
    TokenList,
    TokenView,
    UsageList,
    UsageRow,
)


def test_node_alone_lists(server, tercio):
    cordon = Cordon(owner="user:ana", reason="fan noise", since_s=1.0)
    raw = server.on("GET", "/v1/nodes", bodies.nodes(bodies.node(cordons=(cordon,))))
    out = tercio("node").out
    assert out == tercio("node", "list").out
    assert "H100 6/8" in out
    assert "48/64" in out
    assert "128/512GiB" in out
    assert "user:ana: fan noise" in out
    assert tercio("node", "-o", "json").out.encode() == raw + b"\n"


def test_node_show_lists_devices_and_holders(server, tercio):
    server.on("GET", "/v1/nodes/n1", bodies.node())
    server.on("GET", "/v1/nodes/n1/story", bodies.story("n1"))
    out = tercio("node", "show", "node/n1").out
    assert "job-00001" in out
    assert "100%" in out


def test_an_unknown_node_suggests_the_nearest(server, tercio):
    server.on("GET", "/v1/nodes", bodies.nodes(bodies.node("gpu-01"), bodies.node("gpu-02")))
    for argv in (("show", "gpu-1"), ("cordon", "gpu-1"), ("drain", "gpu-1")):
        code, _, err = tercio("node", *argv)
        assert code == 3
        assert "no node is called 'gpu-1'" in err
        assert "did you mean 'gpu-01'" in err


def test_cordon_and_uncordon_say_what_they_did(server, tercio):
    server.on("POST", "/v1/nodes/n1/cordon", bodies.node(state="cordoned"))
    server.on("POST", "/v1/nodes/n1/uncordon", bodies.node())
    assert "cordoned n1 (now cordoned" in tercio("node", "cordon", "n1", "--reason", "fan").err
    assert json.loads(server.requests[-1].body) == {"reason": "fan"}
    assert "uncordoned n1 (now ready" in tercio("node", "uncordon", "n1").err
    server.on("GET", "/v1/nodes/n1", bodies.node())
    for verb in ("cordon", "uncordon"):
        asked = len(server.asked("POST", f"/v1/nodes/n1/{verb}"))
        code, out, err = tercio("node", verb, "n1", "--plan")
        assert (code, err) == (0, f"would be {verb}ed:\n")
        assert "H100" in out
        assert len(server.asked("POST", f"/v1/nodes/n1/{verb}")) == asked


def test_drain_shows_its_plan_and_needs_a_yes(server, tercio):
    server.on("GET", "/v1/nodes/n1", bodies.node())
    server.on("GET", "/v1/jobs/job-00001", bodies.job())
    server.on("POST", "/v1/nodes/n1/drain", bodies.node(state="draining"))
    plan = tercio("node", "drain", "n1", "--plan")
    assert plan.code == 0
    assert "llama-sft" in plan.out
    assert "stops and requeues 1 job" in plan.err
    refused = tercio("node", "drain", "n1")
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert not server.asked("POST", "/v1/nodes/n1/drain")
    assert "draining n1" in tercio("node", "drain", "n1", "--yes").err
    assert len(server.asked("POST", "/v1/nodes/n1/drain")) == 1


def test_queue_lists_children_below_their_parent(server, tercio):
    server.on("GET", "/v1/queues", bodies.queues())
    lines = tercio("queue").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["research", "research/nlp", "default"]
    assert lines[2].startswith("  research/nlp")
    assert "H100:32" in lines[1]


POLICY = Policy(
    queues={
        "default": QueueSpec(),
        "research": QueueSpec(guarantee={"H100": 64_000}, children={"nlp": QueueSpec()}),
    }
)


@pytest.fixture
def governed(server):
    server.on("GET", "/v1/policy", PolicyView(version=4, policy=POLICY))

    def put(request):
        text = json.loads(request.body)["file"]
        return Answer(msgspec.json.encode(PolicyView(version=5, policy=read_policy(text))))

    server.answers["PUT", "/v1/policy"] = put
    return server


def test_queue_set_changes_one_queue_on_top_of_the_version_read(governed, tercio):
    code, _, err = tercio("queue", "set", "research/nlp", "--weight", "3", "--limit", "H100:8")
    assert code == 0
    (request,) = governed.asked("PUT", "/v1/policy")
    assert request.headers["If-Match"] == "4"
    changed = walk_queues(read_policy(json.loads(request.body)["file"]))
    assert changed["research/nlp"] == QueueSpec(weight=3, limit={"H100": 8_000})
    assert changed["research"].guarantee == {"H100": 64_000}
    assert "version 5 is in force" in err
    assert "+" in err


def test_queue_set_plan_only_shows_the_difference(governed, tercio):
    code, out, _ = tercio("queue", "set", "research", "--weight", "3", "--plan")
    assert code == 0
    assert "weight: 3" in out
    assert not governed.asked("PUT", "/v1/policy")


def test_queue_set_of_an_unknown_queue_suggests_and_can_create(governed, tercio):
    code, _, err = tercio("queue", "set", "research/nlq", "--weight", "3")
    assert code == 3
    assert "did you mean 'research/nlp'" in err
    tercio("queue", "set", "research/new", "--create")
    (request,) = governed.asked("PUT", "/v1/policy")
    assert "research/new" in walk_queues(read_policy(json.loads(request.body)["file"]))


def test_a_stale_version_is_exit_code_four(governed, tercio):
    error = UserError("the policy is at version 5, not 4", code="conflict")
    governed.refuse("PUT", "/v1/policy", error, 409)
    assert tercio("queue", "set", "research", "--weight", "3", "--if-version", "3").code == 4
    assert governed.requests[-1].headers["If-Match"] == "3"


def test_policy_show_and_set_round_trip(governed, tercio):
    shown = tercio("policy", "show").out
    assert read_policy(shown) == POLICY
    assert shown.startswith("# version 4\n")
    unchanged = tercio("policy", "set", "-", stdin=shown)
    assert "nothing was changed" in unchanged.err
    assert not governed.asked("PUT", "/v1/policy")
    edited = shown.replace("default_queue: default", "default_queue: research/nlp")
    assert tercio("policy", "set", "-", stdin=edited).code == 0
    assert len(governed.asked("PUT", "/v1/policy")) == 1


def test_a_bad_policy_file_is_refused_before_it_is_sent(governed, tercio):
    code, _, err = tercio("policy", "set", "-", stdin="queues: {a: {weigth: 3}}")
    assert code == 2
    assert "weight" in err
    assert tercio("policy", "set", "nowhere.yaml").code in (1, 3)
    assert not governed.asked("PUT", "/v1/policy")


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("H100:8", {"H100": 8000}),
        ("H100:0.5, cpus:64,memory:1TiB", {"H100": 500, "cpus": 64_000, "memory": 1024**4}),
        ("", {}),
    ],
)
def test_amounts_are_read_in_human_units(text, amounts):
    assert parse_amounts(text, field="--limit") == amounts


@pytest.mark.parametrize("text", ["H100", "8", "H100:x", "memory:lots"])
def test_wrong_amounts_name_the_option(text):
    with pytest.raises(UserError, match="--limit"):
        parse_amounts(text, field="--limit")


def test_replacing_a_queue_keeps_all_others():
    changed = replace_queue(POLICY, "research", {"weight": 7}, is_new=False)
    assert changed.queues["research"].children == POLICY.queues["research"].children
    assert changed.queues["default"] == POLICY.queues["default"]


def test_tokens_are_listed_created_and_revoked(server, tercio):
    view = TokenView(token_id="tok-1", user="ana", tenant="default", role="user")
    server.on("GET", "/v1/tokens", TokenList(rows=(view,)))
    assert "tok-1" in tercio("token").out
    created = msgspec.structs.replace(view, secret="s3cret")
    server.on("POST", "/v1/tokens", created)
    code, out, err = tercio("token", "create", "--user", "ana", "--group", "nlp", "--expires", "1d")
    assert (code, out) == (0, "s3cret\n")
    assert "s3cret" not in err
    body = json.loads(server.requests[-1].body)
    assert body["groups"] == ["nlp"]
    assert tercio("token", "create", "--agent", "n7").out == "s3cret\n"
    asked = json.loads(server.requests[-1].body)
    assert (asked["user"], asked["role"]) == ("agent@n7", "viewer")
    assert tercio("token", "create").code == 2
    assert tercio("token", "create", "--user", "ana", "--agent", "n7").code == 2
    assert body["expires_s"] > bodies.NOW_S
    server.on("DELETE", "/v1/tokens/tok-1", b"")
    code, out, err = tercio("token", "revoke", "tok-1", "--plan")
    assert (code, err) == (0, "would be revoked:\n")
    assert "tok-1" in out
    assert not server.asked("DELETE", "/v1/tokens/tok-1")
    code, _, err = tercio("token", "revoke", "tok-2")
    assert code == 3
    assert "did you mean 'tok-1'?" in err
    asked = len(server.asked("POST", "/v1/tokens"))
    plan = tercio("token", "create", "--user", "ana", "--group", "nlp", "--plan")
    assert "would be created: a token of ana in nlp (user)" in plan.out
    assert len(server.asked("POST", "/v1/tokens")) == asked
    assert tercio("token", "revoke", "tok-1").code == 0


def test_usage_is_hours_for_people_and_exact_for_machines(server, tercio):
    rows = (UsageRow(key="ana", device_ms={"H100": 45_000_000}, jobs=3),)
    server.on("GET", "/v1/usage", UsageList(by="user", rows=rows))
    assert "H100 12.5h" in tercio("usage").out
    assert "45000000" in tercio("usage", "-o", "csv").out
    tercio("usage", "--by", "queue", "--since", "7d")
    assert "by=queue" in server.requests[-1].query
    assert "since=" in server.requests[-1].query


EVENTS = (
    b'{"schema":"tercio/v1","kind":"EventList","rows":['
    b'{"seq":7,"event":{"type":"JobHeld","at_s":1.5,"job_id":"job-00001","by":"ana"}},'
    b'{"seq":8,"event":{"type":"OfTheFuture","at_s":2.5,"node":"n1","speed":3}}'
    b'],"next":null}'
)


def server_view(**fields):
    known = {
        "version": "0.1.0", "epoch": 1, "started_s": bodies.NOW_S - 60, "now_s": bodies.NOW_S,
        "seq": 8, "sites": ("local",), "jobs_waiting": 1, "jobs_active": 1, "nodes": 2,
        "journal_schema": 1,
    }  # fmt: skip
    return ServerView(**{**known, **fields})


def test_events_show_kinds_that_this_client_does_not_know(server, tercio):
    server.on("GET", "/v1/events", EVENTS)
    server.on("GET", "/v1/server", server_view())
    out = tercio("events").out
    assert "JobHeld" in out
    assert "by=ana" in out
    assert "OfTheFuture" in out
    assert "speed=3" in out
    assert tercio("events", "--since", "6", "-o", "json").out.encode() == EVENTS + b"\n"
    assert "since=6" in server.requests[-1].query


def test_events_follow_until_the_limit(server, tercio):
    stream = (
        'id: 7\ndata: {"seq":7,"event":{"type":"JobHeld","at_s":1.5,"job_id":"job-00001",'
        '"by":"ana"}}\n\n'
    )
    server.stream("/v1/events", stream)
    out = tercio("events", "-f", "--since", "6", "--limit", "1").out
    assert out.split()[0] == "7"
    assert "job-00001" in out


def test_top_prints_a_plain_picture_without_a_terminal(server, tercio):
    server.on("GET", "/v1/server", server_view())
    server.on("GET", "/v1/jobs", bodies.jobs())
    server.on("GET", "/v1/nodes", bodies.nodes())
    server.on("GET", "/v1/queues", bodies.queues())
    code, out, _ = tercio("top", "--count", "2", "--interval", "0.2")
    assert code == 0
    assert out.count("12/16 75%  1 of 2 nodes out") == 2
    assert "Fragmented" in out
    assert "\x1b" not in out


def test_doctor_names_what_is_wrong_and_a_fix(server, tercio):
    server.on("GET", "/v1/health", HealthView(version="9.9.9"))
    view = server_view(now_s=bodies.NOW_S - 3600, notes=("local: memory is not limited here",))
    server.on("GET", "/v1/server", view)
    os.makedirs(os.environ["TERCIO_STATE_DIR"], mode=0o700)
    token = os.path.join(os.environ["TERCIO_STATE_DIR"], "token")
    with open(token, "w", encoding="utf-8") as file:
        file.write("x")
    os.chmod(token, 0o644)
    code, out, _ = tercio("doctor", "-o", "jsonl")
    found = {row["name"]: row for row in map(json.loads, out.splitlines())}
    assert code == 1
    assert found["python"]["status"] == "ok"
    assert found["server"]["status"] == "ok"
    assert found["version"]["status"] == "warn"
    assert found["clock"]["status"] == "fail"
    assert found["token file"]["status"] == "fail"
    assert "chmod 600" in found["token file"]["fix"]
    assert found["engines"]["text"] == "local: memory is not limited here"
    assert all(row["fix"] for row in found.values() if row["status"] != "ok")


def test_doctor_without_a_server_says_how_to_start_one(tercio):
    code, out, _ = tercio("doctor")
    assert code == 1
    assert "tercio up" in out


def test_backup_replaces_a_file_only_when_whole(server, tercio, tmp_path):
    target = tmp_path / "b.db"
    target.write_bytes(b"old")
    server.refuse("GET", "/v1/backup", UserError("no", code="forbidden"), 403)
    assert tercio("backup", "b.db", "--yes").code == 5
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["b.db"]
    server.on("GET", "/v1/backup", b"SQLite format 3\0journal")
    assert tercio("backup", "b.db").code == 2
    assert tercio("backup", "b.db", "--yes").code == 0
    assert target.read_bytes().endswith(b"journal")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.db"]


def test_config_shows_origins(tercio, monkeypatch):
    monkeypatch.setenv("TERCIO_SERVER__PORT", "7411")
    out = tercio("config", "show", "--origin").out
    (line,) = [line for line in out.splitlines() if line.startswith("server.port")]
    assert line.split(maxsplit=2) == ["server.port", "7411", "environment TERCIO_SERVER__PORT"]
    assert tercio("config", "-o", "name").out.startswith("state_dir\n")
    monkeypatch.setenv("TERCIO_SERVER__PROT", "1")
    code, _, err = tercio("config")
    assert code == 2
    assert "server.port" in err
