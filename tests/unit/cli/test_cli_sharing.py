"""Policy check, plan and rollback, the queue tree, topo, reserve and what-if, as typed."""

from __future__ import annotations

import json

import cli_bodies as bodies
import msgspec
import pytest

from tercio.cli.sharing import tree_branches
from tercio.errors import UserError
from tercio.formats.policy import read_policy
from tercio.model.reasons import Decision, Outcome, Reason, StartEstimate
from tercio.model.series_views import QueuePast, QueuePastRow
from tercio.model.sharing_views import (
    DomainView,
    EvictionRow,
    GapList,
    GapRow,
    LargestGang,
    OwnerLimitList,
    OwnerLimitRow,
    PolicyHistory,
    PolicyPlanView,
    PolicyVersion,
    ReservationList,
    ReservationView,
    ShareRow,
    StartAccuracy,
    StartAccuracyRow,
    StartRow,
    TopologyView,
)
from tercio.model.views import PlanView, PolicyView, QueueList, QueueView

NOW_S = bodies.NOW_S


@pytest.mark.parametrize(
    ("text", "line", "words", "hint"),
    [
        ("queues: {a: {weight: -1}}", 1, "'-1' is out of bounds", "from 0"),
        ("queues:\n  a: {limit: {H100: -4}}", 2, "'-4' is not an amount", "not negative"),
        ("default_queue: b\nqueues: {a: {}}", 1, "'b' is no queue", "queues: a"),
        ("queues:\n  a:\n    guarantee: {shape: {rak: 2}}", 3, "'rak' is no level", "rack"),
        ("queues:\n  a: {guarantee: {H100: 8}, limit: {H100: 4}}", 2, "more than the limit", "4"),
        (
            "queues:\n  a:\n    guarantee: {H100: 4}\n    children: {b: {guarantee: {H100: 5}}}",
            4, "children of 'a' are guaranteed 5", "lower theirs",
        ),
        ("queues:\n  a: {guarantee: {H100: 9}}", 2, "guarantees of 9 H100", "--overcommit"),
        ("queues:\n  a: {wieght: 1}", 2, "unknown key", "weight"),
        ("queues: &q\n  a: {children: *q}", 2, "alias", ""),
    ],
)  # fmt: skip
def test_policy_check_names_the_line_and_a_fix(tercio, tmp_path, text, line, words, hint):
    (tmp_path / "p.yaml").write_text(text)
    code, _, err = tercio("policy", "check", "p.yaml", "--capacity", "H100:8")
    assert code == 2
    assert f"p.yaml:{line}:" in err
    assert words in err
    assert hint in err


def test_policy_check_needs_no_server_and_takes_one_that_answers(server, tercio, tmp_path):
    (tmp_path / "p.yaml").write_text("queues: {a: {guarantee: {H100: 9}}}")
    code, _, err = tercio("policy", "check", "p.yaml", "--capacity", "none")
    assert (code, "no capacity to compare" in err) == (0, True)
    assert "no capacity to compare" in tercio("policy", "check", "p.yaml").err
    server.on("GET", "/v1/nodes", bodies.nodes(bodies.node()))
    assert tercio("policy", "check", "p.yaml").code == 2
    code, _, err = tercio("policy", "check", "p.yaml", "--overcommit")
    assert code == 0
    assert "warning: guarantees of" in err
    assert tercio("policy", "check", "absent.yaml").code == 3
    (tmp_path / "w.yaml").write_text("queues:\n  a: {guarantee: {shape: {nodes: 2}}}")
    code, _, err = tercio("policy", "check", "w.yaml")
    assert (code, "w.yaml:2:" in err) == (2, True)
    assert "guarantees of 2 whole nodes, but the cluster has 1" in err
    (tmp_path / "i.yaml").write_text("queues: {a: {guarantee: {shape: {islands: 2}}}}")
    assert "whole islands are compared by 'policy plan'" in tercio("policy", "check", "i.yaml").err


def test_policy_plan_shows_who_stops_and_its_exit_code_says_whether_anyone_does(
    server, tercio, tmp_path
):
    (tmp_path / "p.yaml").write_text("queues: {a: {weight: 2}}")
    server.on("GET", "/v1/policy", PolicyView(version=3, policy=read_policy("queues: {a: {}}")))
    plan = PolicyPlanView(
        version=3,
        evicts=(EvictionRow(job="job-1", name="x", queue="b", user="ana", for_job="job-2"),),
        starts=(StartRow(job="job-2", name="y", queue="a", user="bob", when="after evictions"),),
        queues=(ShareRow(path="a", before={"H100": 2.666}, after=None),),
    )
    server.on("POST", "/v1/policy/plan", plan)
    code, out, _ = tercio("policy", "plan", "p.yaml")
    assert code == 7
    for words in ("+  a: {weight: 2}", "job-1", "job-2", "after evictions", "H100:2.7", "no such"):
        assert words in out
    server.on("POST", "/v1/policy/plan", PolicyPlanView(version=3, warnings=("too much",)))
    code, out, err = tercio("policy", "plan", "p.yaml")
    assert (code, "stop no running job" in out, "warning: too much" in err) == (0, True, True)
    assert json.loads(tercio("policy", "plan", "p.yaml", "-o", "json").out)["version"] == 3
    conflict = UserError("queue 'a' cannot go: job job-1 runs in it", code="conflict")
    server.refuse("POST", "/v1/policy/plan", conflict, 409)
    assert tercio("policy", "plan", "p.yaml").code == 4


def test_policy_history_and_rollback(server, tercio):
    old, new = read_policy("queues: {a: {weight: 2}}"), read_policy("queues: {a: {weight: 3}}")

    def policy(request):
        is_old = "version=1" in request.query
        from cli_server import Answer
        from msgspec.json import encode

        view = PolicyView(version=1, policy=old) if is_old else PolicyView(version=2, policy=new)
        return Answer(encode(view))

    server.answers["GET", "/v1/policy"] = policy
    server.on("PUT", "/v1/policy", PolicyView(version=3, policy=old))
    rows = (PolicyVersion(version=2, at_s=NOW_S - 60, by="ana", changed=tuple("abcde")),)
    server.on("GET", "/v1/policy/history", PolicyHistory(rows=rows))
    assert "a, b, c, d and 1 more" in tercio("policy", "history").out
    code, out, _ = tercio("policy", "rollback", "1", "--plan")
    assert (code, "+  a: {weight: 2}" in out) == (0, True)
    assert not server.asked("PUT", "/v1/policy")
    code, _, err = tercio("policy", "rollback", "1")
    assert code == 0
    assert "version 3 is in force; to undo: tercio policy rollback 2" in err
    (request,) = server.asked("PUT", "/v1/policy")
    assert request.headers["If-Match"] == "2"
    assert read_policy(json.loads(request.body)["file"]) == old


def test_the_tree_has_branches():
    paths = ("a", "a/x", "a/x/deep", "a/y", "b")
    assert list(tree_branches(paths).values()) == ["a", "├─ x", "│  └─ deep", "└─ y", "b"]


def test_queue_tree(server, tercio):
    lab = bodies.queue(
        "lab", borrowed={"H100": 4.0}, lent={"H100": 1.26}, wanted={"H100": 9.0},
        decayed_use=7200.0, entitled={"H100": 3.333},
    )  # fmt: skip
    raw = server.on("GET", "/v1/queues", bodies.queues(lab, bodies.queue("lab/nlp")))
    out = tercio("queue", "tree").out
    for words in ("└─ nlp", "H100:3.3", "H100:4", "H100:1.3", "H100:9", "2h"):
        assert words in out
    assert tercio("queue", "tree", "-o", "json").out.encode() == raw + b"\n"


def test_queue_limits(server, tercio):
    rows = (
        OwnerLimitRow(kind="user", name="ana", resource="running_jobs", used=3, limit=20),
        OwnerLimitRow(
            kind="tenant", name="acme", resource="device_hours", used=410.25, limit=400, days=7,
            frees_s=bodies.NOW_S + 7200.0, frees=30.5,
        ),
        OwnerLimitRow(
            kind="user", name="ben", queue="lab", resource="memory", used=2**40, limit=2**41
        ),
    )  # fmt: skip
    raw = server.on("GET", "/v1/limits", OwnerLimitList(rows=rows))
    lines = [" ".join(line.split()) for line in tercio("queue", "limits").out.splitlines()]
    assert lines[1] == "user ana all running jobs 3 20 17 -"
    assert lines[2].startswith("tenant acme all device-hours in 7 days 410.2 400 0 30.5 in")
    assert lines[3] == "user ben lab memory 1TiB 2TiB 1TiB -"
    assert tercio("queue", "limits", "-o", "json").out.encode() == raw + b"\n"


def test_queue_accuracy(server, tercio):
    row = StartAccuracyRow(
        key="all", jobs=40, wait_s=7200.0, error_s=600.0, bias_s=-300.0,
        inside_ratio=0.8, early_ratio=0.15, late_ratio=0.05,
    )  # fmt: skip
    view = StartAccuracy(rows=(row,), low_ratio=0.5, mid_ratio=1.0, high_ratio=1.5)
    raw = server.on("GET", "/v1/start-accuracy", view)
    out = tercio("queue", "accuracy").out
    for words in ("JOBS OF", "all", "40", "2h", "10m", "-5m", "80%", "15%", "5%"):
        assert words in out
    assert tercio("queue", "accuracy", "-o", "json").out.encode() == raw + b"\n"


def test_topo(server, tercio):
    view = TopologyView(
        levels=("site", "rack"),
        per_task={"H100": 8},
        rows=(
            DomainView(level="site", name="s", nodes=4, up=3, total={"H100": 32}, free={"H100": 9},
                       fits={"H100": 1}),
            DomainView(level="rack", name="r1", nodes=2, up=2, total={"H100": 16}, free={},
                       fits={"H100": 0}),
        ),
        largest=(
            LargestGang(level="site", type="H100", tasks=1, domain="s"),
            LargestGang(level="rack", type="H100", tasks=0, domain="r1"),
        ),
    )  # fmt: skip
    raw = server.on("GET", "/v1/topology", view)
    out = tercio("topo", "--gpus", "8", "--nodes").out
    for words in ("3/4", "H100 9/32", "1 x H100:8", "in one site: 1 task of H100:8, in s",
                  "in one rack: no task of H100:8 fits now"):  # fmt: skip
        assert words in out
    assert "devices=8" in server.requests[-1].query
    assert tercio("topo", "-o", "json").out.encode() == raw + b"\n"
    assert tercio("topo", "-o", "name").out.split() == ["s", "r1"]


def test_reserve(server, tercio):
    kept = ReservationView(
        name="nightly", queue="lab", type="H100", devices=8, from_s=NOW_S + 7200,
        duration_s=3600.0, every_s=86400.0, window=(NOW_S + 7200, NOW_S + 10800),
    )  # fmt: skip
    shaped = ReservationView(
        name="course", user="ana", shape={"node": 2}, from_s=0.0, duration_s=60.0, is_open=True,
        window=(NOW_S - 30, NOW_S + 30),
    )  # fmt: skip
    server.on("GET", "/v1/reservations", ReservationList(rows=(kept, shaped)))
    server.on("GET", "/v1/gaps", GapList(rows=()))
    out = tercio("reserve").out
    assert "gaps" not in out
    for words in ("queue lab", "H100:8", "opens in 2h", "user ana", "2 nodes of any", "open, ends"):
        assert words in out
    server.on("POST", "/v1/reservations", kept)
    code, _, err = tercio(
        "reserve", "add", "nightly", "--queue", "queue/lab", "--gpus", "H100:8", "--start", "+2h",
        "--for", "1h", "--every", "1d",
    )  # fmt: skip
    assert (code, "opens in 2h" in err) == (0, True)
    assert "warning" not in err
    sent = json.loads(server.asked("POST", "/v1/reservations")[0].body)
    assert sent["queue"] == "lab"
    assert float(sent["start"]) == NOW_S + 7200
    told = msgspec.structs.replace(kept, warnings=("reservations ask for 33 H100",))
    server.on("POST", "/v1/reservations", told)
    again = tercio("reserve", "add", "nightly", "--queue", "lab", "--gpus", "8", "--for", "1h")
    assert "warning: reservations ask for 33 H100" in again.err
    server.on("DELETE", "/v1/reservations/nightly", b"", status=204)
    assert tercio("reserve", "remove", "nightly").code == 0


def test_reserve_tells_the_gaps_and_what_fits_in_them(server, tercio):
    now = GapRow(
        type="H100", devices=20, nodes=("n1", "n2", "n3"), from_s=NOW_S, until_s=NOW_S + 12_000,
        device_hours=66.67, tasks=2, per_task=8, limit_s=11_940.0, reservation="nightly",
    )  # fmt: skip
    later = GapRow(
        type="L4", devices=1, nodes=("n9",), from_s=NOW_S + 3600, until_s=NOW_S + 7200,
        device_hours=1.0, tasks=1, per_task=1, limit_s=3600.0, job="job-0000b",
    )  # fmt: skip
    server.on("GET", "/v1/reservations", ReservationList(rows=()))
    server.on("GET", "/v1/gaps", GapList(rows=(now, later)))
    found = tercio("reserve")
    assert "no reservations" in found.err
    _, title, head, *rows = found.out.splitlines()
    assert title.startswith("gaps")
    assert head.split("  ")[0] == "FREE"
    assert [" ".join(row.split()) for row in rows] == [
        "H100:20 on 3 nodes now in 3h20m 66.7 reservation nightly "
        "--nodes 2 --gpus H100:8 --time 3h19m",
        "L4:1 on 1 node in 1h in 2h 1 job-0000b --gpus L4:1 --time 1h",
    ]
    assert tercio("reserve", "gaps", "-o", "name").out.splitlines()[1] == "--gpus L4:1 --time 1h"
    body = json.loads(tercio("reserve", "gaps", "-o", "json", "--site", "hpc").out)
    assert [row["devices"] for row in body["rows"]] == [20, 1]
    assert "site=hpc" in server.requests[-1].query


@pytest.mark.parametrize("verb", ["list", "tree"])
def test_queues_of_one_site_say_what_is_of_it_and_what_is_of_all(server, tercio, verb):
    row = QueueView(path="lab", used={"H100": 3.0}, used_elsewhere={"L4": 5.0}, running=1)
    server.on("GET", "/v1/queues", QueueList(rows=(row,)))
    found = tercio("queue", verb, "--site", "hpc")
    assert "site=hpc" in server.requests[-1].query
    head, line = found.out.splitlines()
    assert "USED ELSEWHERE" in head
    assert "H100:3" in line
    assert "L4:5" in line
    assert "those of site hpc" in found.err
    assert "guarantees and limits are over all sites" in found.err
    found = tercio("queue", verb)
    assert "ELSEWHERE" not in found.out
    assert found.err == ""
    assert tercio("queue", verb, "--site", "hpc", "-o", "json").err == ""


@pytest.mark.parametrize(
    "argv",
    [
        ("x", "--queue", "a", "--gpus", "1"),
        ("x", "--queue", "a", "--gpus", "1", "--for", "soon"),
        ("x", "--queue", "a", "--shape", "node", "--for", "1h"),
        ("x", "--queue", "a", "--gpus", "1", "--for", "1h", "--start", "soon"),
    ],
)
def test_a_wrong_reserve_is_refused_before_it_is_sent(server, tercio, argv):
    code, _, err = tercio("reserve", "add", *argv)
    assert (code, "hint:" in err) == (2, True)
    assert not server.requests


def test_a_wrong_start_is_told_both_forms(server, tercio):
    argv = ("x", "--queue", "a", "--gpus", "1", "--for", "1h", "--start", "-2h")
    code, _, err = tercio("reserve", "add", *argv)
    assert code == 2
    assert err.startswith("error: --start: '-2h' is not an instant\n")
    assert "+2h from now" in err
    assert not server.requests


def plan(outcome, **fields):
    decision = Decision(
        job="job-00002", outcome=Outcome.WAITING, reason=Reason.FRAGMENTED, message="needs 4",
        start=StartEstimate(at_s=NOW_S + 600, low_s=NOW_S, high_s=NOW_S + 900, label="reserved"),
    )  # fmt: skip
    return PlanView(outcome=outcome, decision=decision, **fields)


@pytest.mark.parametrize(("outcome", "code"), [("now", 0), ("later", 7), ("never", 8)])
def test_explain_what_if(server, tercio, outcome, code):
    server.on("POST", "/v1/jobs/job-00002/what-if", plan(outcome))
    found, out, _ = tercio("explain", "job-00002", "--what-if", "gpus=4", "--what-if", "queue=x")
    assert found == code
    assert "job-00002 with gpus=4 queue=x" in out
    sent = json.loads(server.asked("POST", "/v1/jobs/job-00002/what-if")[0].body)
    assert sent == {"changes": {"gpus": "4", "queue": "x"}}
    if outcome == "later":
        assert "it would wait, and start in 10m" in out


def test_explain_what_if_must_be_key_and_value(server, tercio):
    code, _, err = tercio("explain", "job-00002", "--what-if", "gpus")
    assert (code, "KEY=VALUE" in err, server.requests) == (2, True, [])


def test_plan_says_whom_it_would_stop(server, tercio):
    server.on("POST", "/v1/plan", plan("later", evicts=("job-00007",)))
    code, out, _ = tercio("plan", "--no-workdir", "--wait-for-capacity", "--", "x")
    assert code == 7
    assert "it would start after 1 job stopped for it" in out
    assert "job-00007" in out
    sent = json.loads(server.asked("POST", "/v1/plan")[0].body)
    assert sent["overrides"]["wait_for_capacity"] is True


def test_queue_history_tells_means_of_all_and_the_steps_of_one(server, tercio):
    def row(path, *used):
        some = tuple(None if u is None else 2 * u for u in used)
        return QueuePastRow(
            path=path, used=used, entitled=some, wanted=some, decayed_use=some, running=used,
            waiting=used,
        )  # fmt: skip

    at_s = (NOW_S - 60, NOW_S - 40, NOW_S - 20)
    rows = (row("research", 1.0, None, 4.0), row("research/nlp", 0.0, None, 1.0))
    server.on("GET", "/v1/queue-past", QueuePast(at_s=at_s, rows=rows, step_s=20.0))
    table = tercio("queue", "history").out.splitlines()
    assert table[0].split() == [
        "QUEUE", "USED", "ENTITLED", "WANTED", "RUNNING", "WAITING", "PAST", "USE", "USED",
        "OVER", "TIME",
    ]  # fmt: skip
    assert table[1].split() == ["research", "2.5", "5", "5", "2.5", "2.5", "0h", "▃·█"]
    assert server.requests[-1].query == f"since={NOW_S - 3600}"
    steps = tercio("queue", "history", "research", "--since", "1d", "-o", "csv").out.splitlines()
    assert steps[0] == "at_s,used,entitled,wanted,running,waiting,decayed_use"
    assert [line.split(",")[1] for line in steps[1:]] == ["1.0", "4.0"]
    assert f"queue=research&since={NOW_S - 86400}" in server.requests[-1].query
    body = json.loads(tercio("queue", "history", "-o", "json").out)
    assert body["rows"][0]["used"] == [1.0, None, 4.0]
