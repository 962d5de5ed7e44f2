"""`tercio policy shadow` and `tercio up --policy FILE --shadow`."""

from __future__ import annotations

import json

import pytest
from cli_bodies import NOW_S

from tercio.errors import UserError
from tercio.model.shadow_views import (
    PolicyShadowView,
    ShadowDifference,
    ShadowQueue,
    ShadowReport,
    ShadowWaits,
)

PATH = "/v1/policy/shadow"
LIVE = ShadowWaits(mean_s=600.0, p50_s=300.0, p95_s=7200.0)
SHADOW = ShadowWaits(mean_s=60.0, p50_s=30.0, p95_s=720.0)


def queue(name: str, **more) -> ShadowQueue:
    counts = {"jobs": 40, "earlier": 12, "earlier_s": 1200.0, "later": 3, "later_s": 90.0, **more}
    return ShadowQueue(queue=name, live_waits=LIVE, shadow_waits=SHADOW, **counts)


def difference(what: str, **times) -> ShadowDifference:
    return ShadowDifference(job="job-7", name="train", queue="a", user="ana", what=what, **times)


def report(**more) -> ShadowReport:
    fields = {
        "since_s": NOW_S - 3600, "as_of_s": NOW_S, "from_seq": 3, "seq": 90, "total": queue("all"),
        "queues": (queue("a"),), "now": (), "recent": (), "waits_for": None, "guessed": 0,
        "passed_over": 0, "live_version": 2, "live_changes": 0, **more,
    }  # fmt: skip
    return ShadowReport(**fields)


def view(found: ShadowReport | None, **more) -> PolicyShadowView:
    fields = {"state": "following", "newest_seq": 90, **more}
    return PolicyShadowView(source="new.yaml", by="ana", lag_s=3600.0, report=found, **fields)


def test_the_tally_is_shown_with_what_is_there(server, tercio):
    raw = server.on("GET", PATH, view(report()))
    code, out, _ = tercio("policy", "shadow")
    assert code == 0
    for words in ("new.yaml, by ana", "following", "12 by 1m40s", "3 by 30s", "10m 5m 2h"):
        assert words in out
    for absent in ("EVICTED", "ONLY", "REFUSED", "guessed", "all"):
        assert absent not in out.replace("all jobs", "")
    assert tercio("policy", "shadow", "show", "-o", "json").out.encode() == raw + b"\n"


def test_differences_evictions_and_what_it_waits_for_are_told(server, tercio):
    rows = (queue("a", live_evictions=4, spared=3), queue("b", refused=2, only_live=1))
    found = report(
        queues=rows, as_of_s=NOW_S - 1800, waits_for="job-9", guessed=2, passed_over=1,
        live_changes=1, total=queue("all", live_evictions=4, spared=3),
        now=(difference("runs here only", shadow_s=NOW_S - 100),),
        recent=tuple(difference("earlier", live_s=NOW_S, shadow_s=NOW_S - 90) for _ in range(12)),
    )  # fmt: skip
    server.on("GET", PATH, view(found, behind=4, state="behind", note="began anew: pruned"))
    out = tercio("policy", "shadow").out
    for words in (
        "behind, 4 entries to read, 30m behind: it started job-9 earlier", "began anew: pruned",
        "2 run times", "1 request that", "version 2, 1 change since", "4 (3 alone)", "all",
        "runs in the shadow, waits live", "starts earlier", "1m30s", "and 2 more", "REFUSED",
    ):  # fmt: skip
        assert words in out, words


def test_one_that_failed_or_has_nothing_to_tell_says_so(server, tercio):
    server.on("GET", PATH, view(None, state="failed", error="it ended with 7"))
    code, out, err = tercio("policy", "shadow")
    assert (code, "failed" in out) == (0, True)
    assert "it ended with 7" in err
    assert "policy shadow start FILE" in err
    server.on("GET", PATH, view(report(queues=(), total=ShadowQueue(queue="all"))))
    assert "no job has started" in tercio("policy", "shadow").out
    server.refuse("GET", PATH, UserError("no policy runs in shadow", code="not_found"), 404)
    assert tercio("policy", "shadow").code == 3


def test_it_is_started_and_stopped(server, tercio, tmp_path):
    (tmp_path / "new.yaml").write_text("queues: {a: {}}")
    server.on("PUT", PATH, view(None, state="starting"))
    server.on("DELETE", PATH, b"")
    code, _, err = tercio("policy", "shadow", "start", "new.yaml", "--lag", "6h")
    assert (code, "tercio policy shadow" in err) == (0, True)
    (request,) = server.asked("PUT", PATH)
    sent = json.loads(request.body)
    assert (sent["file"], sent["source"], sent["lag"]) == ("queues: {a: {}}", "new.yaml", "6h")
    assert tercio("policy", "shadow", "stop").code == 0
    assert server.asked("DELETE", PATH)
    assert tercio("policy", "shadow", "start", "absent.yaml").code == 3
    server.on("PUT", PATH, view(None, state="failed", error="job-1 would be stranded"))
    code, _, err = tercio("policy", "shadow", "start", "new.yaml")
    assert (code, "stranded" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "new.yaml"), "tercio policy set new.yaml"),
        (("--shadow",), "tercio up --policy new.yaml --shadow"),
        (("--policy", "absent.yaml", "--shadow"), "there is no file"),
        (("--policy", "bad.yaml", "--shadow"), "bad.yaml:1"),
    ],
)
def test_up_refuses_what_cannot_run_in_shadow(tercio, tmp_path, arguments, words):
    (tmp_path / "new.yaml").write_text("queues: {a: {}}")
    (tmp_path / "bad.yaml").write_text("queues: {a: {wait: 1}}")
    code, _, err = tercio("up", *arguments)
    assert (code in (2, 3), words in err) == (True, True), (code, err)
