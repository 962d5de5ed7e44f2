from __future__ import annotations

import csv
import io
import json

import cli_bodies as bodies
import msgspec
import pytest
from cli_server import Answer

from tercio.errors import UserError


def test_table_says_why_a_job_waits(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs())
    code, out, err = tercio("ps")
    assert (code, err) == (0, "")
    assert out == (
        "ID         NAME       USER  QUEUE     STATE    DEVICES  TIME  START   WHERE OR WHY\n"
        "job-00001  llama-sft  ana   research  running  H100:8     5m  -       n1\n"
        "job-00002  vision     ana   research  queued   H100:8    12m  in 30m  Fragmented: needs 4"
        " H100 on one node; 4 free, best node n3 has 2\n"
    )


def test_wide_adds_columns(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs())
    header = tercio("ps", "-o", "wide").out.splitlines()[0]
    for name in ("TASKS", "PRIORITY", "ATTEMPT", "NODES", "AGE", "ENDED", "TENANT"):
        assert name in header


def test_a_pipe_is_never_cut_and_has_no_escapes(server, tercio, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    server.on("GET", "/v1/jobs", bodies.jobs(bodies.waiting(message="x" * 300)))
    out = tercio("ps").out
    assert "x" * 300 in out
    assert "\x1b" not in out


def test_json_is_the_body_byte_for_byte(server, tercio):
    odd = b'{"schema":"tercio/v1", "kind":"JobList","rows":[ ],"next":null,"later":"field"}'
    server.on("GET", "/v1/jobs", odd)
    assert tercio("ps", "-o", "json").out.encode() == odd + b"\n"


def test_jsonl_prints_each_row_as_it_came(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs())
    rows = [msgspec.json.encode(row) for row in bodies.jobs().rows]
    assert tercio("ps", "-o", "jsonl").out.encode().splitlines() == rows


def test_pages_are_joined(server, tercio):
    def reply(request):
        last = "after=c2" in request.query
        page = (
            bodies.jobs(bodies.job("job-00001"))
            if last
            else bodies.jobs(bodies.job("job-00002"), following="c2")
        )
        return Answer(msgspec.json.encode(page))

    server.answers["GET", "/v1/jobs"] = reply
    assert tercio("ps", "-o", "name").out.split() == ["job-00002", "job-00001"]
    whole = json.loads(tercio("ps", "-o", "json").out)
    assert [row["id"] for row in whole["rows"]] == ["job-00002", "job-00001"]
    assert whole["next"] is None
    assert whole["kind"] == "JobList"


def test_a_limit_above_a_page_is_asked_for_in_pages(server, tercio):
    def reply(request):
        following = None if "after=c2" in request.query else "c2"
        return Answer(msgspec.json.encode(bodies.jobs(bodies.job(), following=following)))

    server.answers["GET", "/v1/jobs"] = reply
    assert tercio("ps", "--limit", "1500").code == 0
    asked = [request.query for request in server.asked("GET", "/v1/jobs")]
    assert ["limit=1000" in query for query in asked] == [True, False]
    assert "limit=500" in asked[1]


def test_csv_has_base_units_and_a_header(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs(bodies.job()))
    (row,) = csv.DictReader(io.StringIO(tercio("ps", "-o", "csv").out))
    assert float(row["submitted_s"]) == bodies.NOW_S - 720
    assert json.loads(row["devices"]) == {"H100": 8.0}
    assert len(tercio("ps", "-o", "csv", "--no-header").out.splitlines()) == 1


def test_fields_choose_columns_in_every_format(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs(bodies.job(labels={"project": "x"})))
    assert tercio("ps", "--fields", "id,state").out.split() == [
        "ID",
        "STATE",
        "job-00001",
        "running",
    ]
    fields = ("--fields", "id,labels.project")
    assert json.loads(tercio("ps", "-o", "json", *fields).out) == [
        {"id": "job-00001", "labels.project": "x"}
    ]
    assert tercio("ps", "-o", "csv", *fields).out == "id,labels.project\njob-00001,x\n"
    assert tercio("ps", "--no-header", *fields).out.split() == ["job-00001", "x"]


def test_unknown_field_names_the_nearest(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs())
    code, out, err = tercio("ps", "--fields", "stat")
    assert (code, out) == (2, "")
    assert "'stat' is not a field" in err
    assert "did you mean 'state'" in err


def test_empty_list_is_a_note_and_no_data(server, tercio):
    server.on("GET", "/v1/jobs", msgspec.structs.replace(bodies.jobs(), rows=()))
    code, out, err = tercio("ps")
    assert (code, out) == (0, "")
    assert err.startswith("no jobs")
    assert tercio("ps", "-q").err == ""


def test_filters_reach_the_server(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs())
    tercio(
        "ps",
        "-a",
        "-s",
        "queued",
        "-s",
        "failed",
        "--queue",
        "research",
        "-u",
        "ana",
        "--site",
        "west",
    )
    (request,) = server.asked("GET", "/v1/jobs")
    assert "state=queued%2Cfailed" in request.query
    assert "queue=research" in request.query
    assert "user=ana" in request.query
    assert "site=west" in request.query
    assert "all=true" in request.query
    assert request.headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("word", ["runing", "queud"])
def test_unknown_state_names_the_nearest(tercio, word):
    code, _, err = tercio("ps", "--state", word)
    assert code == 2
    assert "did you mean" in err


def test_control_characters_of_a_name_do_not_reach_the_terminal(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs(bodies.job(message="a\x1b[31mb\nc")))
    out = tercio("ps").out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


def test_colour_and_symbol_stand_beside_the_word(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs())
    assert "\x1b[32mrunning" in tercio("ps", "--color", "always").out
    assert "\x1b" not in tercio("ps", "--color", "never").out


def test_an_unknown_queue_is_an_error_with_the_nearest_one(server, tercio):
    server.on("GET", "/v1/jobs", b'{"rows":[],"next":null}')
    server.on("GET", "/v1/queues", bodies.queues())
    server.refuse("GET", "/v1/queues/reserch", UserError("no queue", code="not_found"), 404)
    server.on("GET", "/v1/queues/research", bodies.queue())
    for form in ("table", "json"):
        code, out, err = tercio("ps", "--queue", "reserch", "-o", form)
        assert (code, out) == (3, "")
        assert "did you mean 'research'" in err
    assert tercio("ps", "--queue", "research").code == 0
