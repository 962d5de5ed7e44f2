from __future__ import annotations

import json

import cli_bodies as bodies
import msgspec
import pytest
from cli_server import Answer

from tercio.cli import human
from tercio.errors import UserError
from tercio.model.job import JobSpec, TaskGroup, TimeSpec
from tercio.model.reasons import Best, Change, Excluded, Holder, StartEstimate
from tercio.model.series_views import JobSteps, StepGroup, StepRow
from tercio.model.units import format_instant
from tercio.model.views import Story, StoryLine


def test_explain_names_blocker_numbers_holders_and_change(server, tercio):
    view = bodies.decision(
        best=Best(node="n3", free={"H100": 2.0}),
        holders=(Holder(job="job-00001", devices={"H100": 6.0}, ends_s=bodies.NOW_S + 7200),),
        excluded=(Excluded(by="cordoned", nodes=1), Excluded(by="type", nodes=12)),
        change=Change(what="tasks", to=2),
        start=StartEstimate(
            at_s=bodies.NOW_S + 1800, low_s=bodies.NOW_S + 900, high_s=bodies.NOW_S + 3600,
            label="reserved",
        ),
    )  # fmt: skip
    raw = server.on("GET", "/v1/jobs/job-00002/decision", view)
    server.on("GET", "/v1/jobs/job-00002", bodies.waiting())
    out = tercio("explain", "job-00002").out
    for words in (
        "job-00002 vision",
        "Fragmented: needs 4 H100 on one node; 4 free, best node n3 has 2",
        "H100:4",
        "node n3 with H100:2 free",
        "job-00001  H100:6",
        "1 node by cordoned, 12 nodes by type",
        "ask for 2 tasks; it would start now",
        "3 in its pool",
        "(reserved), likely between",
    ):
        assert words in out
    assert tercio("explain", "job-00002", "-o", "json").out.encode() == raw + b"\n"


def test_explain_says_for_whom_a_waiting_job_was_stopped(server, tercio):
    def line(seq, kind, text):
        return StoryLine(seq=seq, at_s=bodies.NOW_S - 60 + seq, kind=kind, text=text)

    placed = line(1, "JobPlaced", "attempt 1 placed: 1 task on n1")
    stopped = line(2, "JobEvicted", "stopped (preempted) for job-00003: gives its turn")
    other = line(3, "JobEvicted", "job-00001 is stopped to make room (preempted)")

    def told(*rows, attempt=1):
        job = msgspec.structs.replace(bodies.waiting(), attempt=attempt)
        server.on("GET", "/v1/jobs/job-00002/decision", bodies.decision())
        server.on("GET", "/v1/jobs/job-00002", job)
        server.on("GET", "/v1/jobs/job-00002/story", Story(subject="job/job-00002", rows=rows))
        return tercio("explain", "job-00002").out

    out = told(placed, stopped, other)
    assert "last run" in out
    assert "stopped (preempted) for job-00003: gives its turn, 58s ago" in out
    assert "last run" not in told(placed, stopped, line(4, "JobPlaced", "attempt 2 placed"))
    assert "last run" not in told(placed)


def test_explain_does_not_promise_what_a_change_does_not_do(server, tercio):
    def told(**fields):
        server.on("GET", "/v1/jobs/job-00002/decision", bodies.decision(**fields))
        server.on("GET", "/v1/jobs/job-00002", bodies.waiting())
        return tercio("explain", "job-00002").out

    limit = Change(what="limit", to="9.5 H100", starts="later")
    assert "raise the limit to 9.5 H100; it would wait for room then" in told(change=limit)
    start = StartEstimate(
        at_s=bodies.NOW_S + 60, low_s=bodies.NOW_S, high_s=bodies.NOW_S + 60, label="reserved"
    )
    for ends_s, is_told in ((bodies.NOW_S + 30, True), (bodies.NOW_S + 3600, False)):
        after = Change(what="after", to="job-00001", starts=format_instant(ends_s))
        assert ("wait for job-00001" in told(change=after, start=start)) is is_told
    assert "ask for 8 cores per task" in told(change=Change(what="cpus", to=8.0))


def test_show_job_has_tasks_events_and_what_to_do_next(server, tercio):
    from tercio.model.views import TaskView

    task = TaskView(
        task=0, group="", state="failed", node="n1", devices=(0, 1), exit_code=137, signal=9
    )
    server.on("GET", "/v1/jobs/job-00001", bodies.job(tasks=(task,), state="failed"))
    server.on("GET", "/v1/jobs/job-00001/story", bodies.story())
    code, out, err = tercio("show", "job/job-00001")
    assert code == 0
    assert "signal 9" in out
    assert "placed on n1" in out
    assert "tercio requeue job-00001" in err


@pytest.mark.parametrize("kind", ["node", "queue"])
def test_show_by_kind_and_by_bare_name(server, tercio, kind):
    name = "n1" if kind == "node" else "research/nlp"
    raw = server.on("GET", f"/v1/{kind}s/{name}", getattr(bodies, kind)(name))
    server.on("GET", "/v1/jobs", bodies.jobs())
    server.on("GET", "/v1/nodes", bodies.nodes())
    server.on("GET", "/v1/queues", bodies.queues())
    server.on("GET", "/v1/nodes/n1/story", bodies.story("n1"))
    assert tercio("show", f"{kind}/{name}", "-o", "json").out.encode() == raw + b"\n"
    assert tercio("show", name, "-o", "json").out.encode() == raw + b"\n"
    assert name in tercio("show", name).out


def test_show_an_unknown_name_suggests_the_nearest(server, tercio):
    for path, body in (
        ("jobs", bodies.jobs()),
        ("nodes", bodies.nodes()),
        ("queues", bodies.queues()),
    ):
        server.on("GET", f"/v1/{path}", body)
    code, _, err = tercio("show", "llama-sfd")
    assert code == 3
    assert "did you mean 'llama-sft'?" in err
    assert "did you mean 'node'?" in tercio("show", "nod/n9").err


def test_a_name_of_two_kinds_must_be_told_apart(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs(bodies.job(name="n1")))
    server.on("GET", "/v1/nodes", bodies.nodes())
    server.on("GET", "/v1/queues", bodies.queues())
    code, _, err = tercio("show", "n1")
    assert code == 4
    assert "job/job-00001 or node/n1" in err


def test_a_job_name_means_its_living_job_else_its_newest(server, tercio):
    ended = [bodies.job(i, state="failed") for i in ("job-00009", "job-00003")]
    living = [bodies.job("job-00005")]

    def reply(request):
        rows = (*ended, *living) if "all=true" in request.query else living
        return Answer(msgspec.json.encode(bodies.JobList(rows=tuple(rows))))

    server.answers["GET", "/v1/jobs"] = reply
    for job_id in ("job-00005", "job-00009"):
        server.on("POST", f"/v1/jobs/{job_id}/requeue", bodies.job(job_id))
        assert job_id in tercio("requeue", "llama-sft").err
        living.clear()


def test_a_name_of_two_living_jobs_is_a_conflict(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs(bodies.job("job-00001"), bodies.job("job-00002")))
    code, _, err = tercio("cancel", "llama-sft")
    assert code == 4
    assert "job-00001, job-00002" in err


def test_the_name_of_an_array_means_the_array_not_its_elements(server, tercio):
    rows = [bodies.job(job_id) for job_id in ("job-00001.1", "job-00001.0", "job-00001")]
    server.on("GET", "/v1/jobs", bodies.jobs(*rows))
    server.on("POST", "/v1/jobs/job-00001/cancel", bodies.job())
    assert tercio("cancel", "llama-sft").code == 0


def test_an_unknown_job_name_suggests_the_nearest(server, tercio):
    server.on("GET", "/v1/jobs", bodies.jobs())
    code, _, err = tercio("explain", "lama-sft")
    assert code == 3
    assert "did you mean 'llama-sft'?" in err


@pytest.mark.parametrize(
    ("verb", "done"),
    [
        ("cancel", "cancelled"),
        ("hold", "held"),
        ("release", "released"),
        ("requeue", "requeued"),
        ("suspend", "suspended"),
        ("resume", "resumed"),
    ],
)
def test_each_verb_asks_the_server_and_says_so(server, tercio, verb, done):
    server.on("POST", f"/v1/jobs/job-00001/{verb}", bodies.job(state="stopping"))
    code, out, err = tercio(verb, "job-00001")
    assert (code, out) == (0, "")
    assert err == f"{done} job-00001 llama-sft (now stopping)\n"
    assert len(server.asked("POST", f"/v1/jobs/job-00001/{verb}")) == 1
    assert tercio(verb, "-q", "job-00001").err == ""


def test_one_refusal_does_not_keep_the_other_jobs_from_it(server, tercio):
    error = UserError("job-00001 has ended", code="conflict")
    server.refuse("POST", "/v1/jobs/job-00001/hold", error, 409)
    server.on("POST", "/v1/jobs/job-00002/hold", bodies.waiting())
    code, _, err = tercio("hold", "job-00001", "job-00002")
    assert code == 4
    assert "error: job-00001 has ended" in err
    assert "held job-00002" in err


def test_plan_of_a_verb_changes_nothing(server, tercio):
    server.on("GET", "/v1/jobs/job-00001", bodies.job())
    code, out, _ = tercio("cancel", "--plan", "job-00001")
    assert code == 0
    assert "job-00001" in out
    assert [request.method for request in server.requests] == ["GET"]


def test_cancel_sends_its_reason(server, tercio):
    server.on("POST", "/v1/jobs/job-00001/cancel", bodies.job())
    tercio("cancel", "job-00001", "--reason", "wrong data")
    (request,) = server.asked("POST", "/v1/jobs/job-00001/cancel")
    assert json.loads(request.body) == {"reason": "wrong data"}


def test_show_job_says_how_long_it_should_run_and_may_wait(server, tercio):
    times = TimeSpec(limit_s=14_400.0, expected_s=7200.0, flexible_s=43_200.0)
    spec = JobSpec(name="x", run="true", groups=(TaskGroup(),), time=times)
    server.on("GET", "/v1/jobs/job-00001", bodies.job(spec=spec))
    server.on("GET", "/v1/jobs/job-00001/story", bodies.story())
    facts = [line.split() for line in tercio("show", "job/job-00001").out.splitlines()]
    assert ["expected", "2h"] in facts
    assert ["flexible", "for", "12h"] in facts


def test_a_story_tells_instants_as_explain_does(server, tercio):
    text = "waits (NotBefore): may not start before 2026-12-01T01:00:00.000Z"
    line = StoryLine(seq=4, at_s=bodies.NOW_S, kind="JobWaits", text=text)
    server.on("GET", "/v1/jobs/job-00001/story", Story(subject="job-00001", rows=(line,)))
    assert human.told(text) in tercio("story", "job-00001").out
    assert text not in tercio("story", "job-00001").out


def test_story_lists_events_oldest_first(server, tercio):
    raw = server.on("GET", "/v1/jobs/job-00001/story", bodies.story())
    out = tercio("story", "job-00001").out
    assert out.index("submitted by ana") < out.index("placed on n1")
    assert tercio("story", "job-00001", "-o", "json").out.encode() == raw + b"\n"
    assert "SEQ" in tercio("story", "job-00001", "-o", "wide").out


LINES = (
    'data: {"task":0,"at_s":100.5,"stream":"out","text":"step 1"}\n\n'
    'data: {"task":1,"at_s":100.6,"stream":"err","text":"a warning"}\n\n'
    'data: {"task":0,"at_s":100.7,"stream":"out","text":"half","is_partial":true}\n\n'
    'data: {"task":0,"at_s":100.8,"stream":"tercio","text":"log rotated"}\n\n'
    "event: end\ndata: {}\n\n"
)


def test_logs_prefix_tasks_only_where_there_are_several(server, tercio):
    server.stream("/v1/jobs/job-00001/logs", LINES)
    server.on("GET", "/v1/jobs/job-00001", bodies.job(task_count=2))
    code, out, err = tercio("logs", "job-00001")
    assert code == 0
    assert out == "[0] step 1\n[1] a warning\n[0] half"
    assert "log rotated" in err
    server.on("GET", "/v1/jobs/job-00001", bodies.job(task_count=1))
    assert tercio("logs", "job-00001").out.startswith("step 1\n")


def test_logs_choose_and_stamp_lines(server, tercio):
    server.stream("/v1/jobs/job-00001/logs", LINES)
    server.on("GET", "/v1/jobs/job-00001", bodies.job(task_count=2))
    out = tercio("logs", "job-00001", "--task", "0", "--tail", "5", "--since", "10m", "-t").out
    assert out.startswith("1970-01-01T00:01:40.500Z step 1\n")
    query = server.asked("GET", "/v1/jobs/job-00001/logs")[-1].query
    assert "task=0" in query
    assert "tail=5" in query
    assert "since=" in query
    assert tercio("logs", "job-00001", "--since", "yesterday").code == 2
    first = tercio("logs", "job-00001", "-o", "jsonl").out.splitlines()[0]
    assert json.loads(first)["text"] == "step 1"


def test_wait_ends_with_the_jobs_and_tells_failure(server, tercio):
    server.on("GET", "/v1/jobs/job-00001", bodies.job(state="succeeded", ended_s=bodies.NOW_S))
    assert tercio("wait", "job-00001").code == 0
    failed = bodies.job("job-00002", state="failed", exit_code=3, message="exit code 3")
    server.on("GET", "/v1/jobs/job-00002", failed)
    code, out, err = tercio("wait", "job-00001", "job-00002")
    assert (code, out) == (1, "")
    assert "exit code 3" in err


def test_wait_polls_until_the_end(server, tercio):
    states = iter(["queued", "running", "succeeded"])

    def reply(request):
        return Answer(msgspec.json.encode(bodies.job(state=next(states))))

    server.answers["GET", "/v1/jobs/job-00001"] = reply
    assert tercio("wait", "job-00001").code == 0


def test_wait_times_out_with_nine(server, tercio):
    server.on("GET", "/v1/jobs/job-00001", bodies.job())
    code, _, err = tercio("wait", "--timeout", "50ms", "job-00001")
    assert code == 9
    assert "tercio explain job-00001" in err


def test_steps_say_which_rank_is_slow_and_since_when(server, tercio):
    def rank(number, *own_s, ratio=1.0, is_slow=False):
        return StepRow(
            rank=number, task=number, node=f"n{number}", own_s=own_s, ratio=ratio, is_slow=is_slow
        )

    rows = (
        rank(0, 1.0, 1.0, 2.0), rank(1, 1.0, None, 2.0),
        rank(2, 1.0, 1.1, 2.6, ratio=1.3, is_slow=True),
    )  # fmt: skip
    group = StepGroup(name="", first=(1, 2, 3), per_column=1, rows=rows)
    steps = JobSteps(job="job-00002", attempt=1, has_own=True, groups=(group,))
    raw = server.on("GET", "/v1/jobs/job-00002/steps", steps)
    table = [line.split() for line in tercio("show", "job-00002", "--steps").out.splitlines()]
    assert table[1] == ["0", "n0", "2", "s", "+0.0", "%", "ok", "···"]
    assert table[2][-2:] == ["·", "·"]
    assert table[3] == ["2", "n2", "2.6", "s", "+30.0", "%", "!", "slow", "·░█"]
    assert tercio("show", "job-00002", "--steps", "-o", "json").out.encode() == raw + b"\n"
    code, _, err = tercio("show", "queue/default", "--steps")
    assert (code, "has no steps" in err) == (2, True)
    server.on("GET", "/v1/jobs/job-00002/steps", msgspec.structs.replace(steps, groups=()))
    assert "marked no step" in tercio("show", "job-00002", "--steps").err
    blind = msgspec.structs.replace(steps, has_own=False)
    server.on("GET", "/v1/jobs/job-00002/steps", blind)
    assert "their wait for the others is in it" in tercio("show", "job-00002", "--steps").err
