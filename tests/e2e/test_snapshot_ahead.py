"""`tercio snapshot save` on a running server, and `tercio twin run` on what it wrote."""

from __future__ import annotations

import json

import pytest

from .test_cli_server import home, submit, tercio  # noqa: F401

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("server")]


def ahead(tercio, *more):  # noqa: F811
    done = tercio("twin", "run", "--from", "now.json", "-o", "json", *more)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_live_queue_is_played_forward_under_each_change(tercio, home):  # noqa: F811
    running = submit(tercio, "--gpus", "H100:8", "--nodes", "8", "--time", "8h")
    waiting = submit(tercio, "--gpus", "H100:8", "--nodes", "2", "--name", "next", "--time", "1h",
                     "--env", "KEY=hunter2")  # fmt: skip
    tercio("wait", "--for", "running", running)
    saved = tercio("snapshot", "save", "now.json")
    assert saved.code == 0, saved.err
    text = (home / "now.json").read_text()
    assert "hunter2" not in text
    assert (home / "state" / "token").read_text().strip() not in text
    plain = ahead(tercio)
    (job,) = plain["jobs"]
    (start,), (end,) = job["start"], job["end"]
    now_s = plain["now_s"]
    assert (job["job"], job["name"], job["devices"]) == (waiting, "next", 16)
    assert now_s < start["p10_s"] <= start["p50_s"] <= start["p90_s"] <= now_s + 8 * 3600
    assert start["p10_s"] < end["p10_s"]
    assert end["p90_s"] <= start["p90_s"] + 3600
    changed = ahead(tercio, "--add", "16xH100")
    as_it_is, more = changed["jobs"][0]["start"]
    assert as_it_is == start, "equal seeds draw equal run times"
    assert more["p90_s"] == now_s, "it starts at once on what is added"
    drained = ahead(tercio, "--drain", "n1")
    assert drained["arms"] == ["as it is", "without n1"]
    (home / "new.yaml").write_text("queues: {default: {limit: {H100: 8}}}\n")
    limited = ahead(tercio, "--policy", "new.yaml")["jobs"][0]["start"]
    assert limited[1]["p10_s"] is None, "the new limit keeps it out"
    told = tercio("twin", "run", "--from", "now.json").out
    assert waiting in told
    assert "STARTS IN" in told
    tercio("cancel", running, waiting)


def test_what_is_no_snapshot_is_refused(tercio, home):  # noqa: F811
    (home / "bad.json").write_text("{}")
    done = tercio("twin", "run", "--from", "bad.json")
    assert done.code == 2
    assert "snapshot save" in done.err
