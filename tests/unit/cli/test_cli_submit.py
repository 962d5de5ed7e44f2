from __future__ import annotations

import io
import json
import tarfile

import cli_bodies as bodies
import pytest

from tercio.cli.request import _default_name
from tercio.errors import UserError
from tercio.model.views import ArrayView, PlanView, SubmitAnswer, WorkdirView

JOB = "name: x\nrun: python train.py\n"


@pytest.fixture
def accepting(server):
    server.on("POST", "/v1/jobs", SubmitAnswer(ids=("job-00001",)))
    server.on("POST", "/v1/workdirs", WorkdirView(workdir="wd-1"))
    return server


def sent(server, path="/v1/jobs"):
    return json.loads(server.asked("POST", path)[-1].body)


def test_a_file_is_sent_as_it_is_with_the_options_beside(accepting, tercio, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    code, out, err = tercio(
        "submit", "job.yaml", "--gpus", "H100:8", "--nodes", "2", "--time", "8h", "--queue", "r",
        "--priority", "5", "--env", "A=1", "--env", "B=x=y", "--hold", "--name", "n", "--cpus", "4",
    )  # fmt: skip
    assert (code, out) == (0, "job-00001\n")
    assert "tercio logs -f job-00001" in err
    body = sent(accepting)
    assert body["file"] == JOB
    assert body["source"] == "job.yaml"
    assert body["hold"] is True
    assert body["overrides"] == {
        "gpus": "H100:8", "nodes": 2, "time": "8h", "queue": "r", "priority": 5, "name": "n",
        "env": {"A": "1", "B": "x=y"}, "cpus": "4",
    }  # fmt: skip
    assert accepting.asked("POST", "/v1/jobs")[0].headers["Idempotency-Key"]
    assert not accepting.asked("POST", "/v1/workdirs")


def test_a_command_is_quoted_and_named_and_runs_in_a_snapshot(accepting, tercio, tmp_path):
    (tmp_path / "train.py").write_text("print(1)", encoding="utf-8")
    tercio("submit", "--gpus", "1", "--", "python", "train.py", "--name", "a b")
    body = sent(accepting)
    assert body["overrides"]["run"] == "python train.py --name 'a b'"
    assert body["overrides"]["name"] == "train"
    assert body["overrides"]["workdir"] == "."
    assert body["workdir"] == "wd-1"
    (upload,) = accepting.asked("POST", "/v1/workdirs")
    with tarfile.open(fileobj=io.BytesIO(upload.body)) as archive:
        assert "train.py" in archive.getnames()


def test_one_word_is_a_shell_line(accepting, tercio):
    tercio("submit", "--no-workdir", "--", "python a.py && python b.py")
    body = sent(accepting)
    assert body["overrides"]["run"] == "python a.py && python b.py"
    assert "workdir" not in body


def test_the_work_directory_of_a_file_is_relative_to_it(accepting, tercio, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text("", encoding="utf-8")
    (tmp_path / "project" / "job.yaml").write_text(JOB + "workdir: .\n", encoding="utf-8")
    tercio("submit", "project/job.yaml")
    assert sent(accepting)["workdir"] == "wd-1"
    (upload,) = accepting.asked("POST", "/v1/workdirs")
    with tarfile.open(fileobj=io.BytesIO(upload.body)) as archive:
        assert archive.getnames() == ["a.py", "job.yaml"]


def test_jobs_of_one_file_share_a_work_directory(accepting, tercio, tmp_path):
    text = "run: a\nworkdir: x\n---\nrun: b\nworkdir: y\n"
    (tmp_path / "two.yaml").write_text(text, encoding="utf-8")
    code, _, err = tercio("submit", "two.yaml")
    assert code == 2
    assert "x, y" in err


def test_the_file_may_come_on_stdin(accepting, tercio):
    assert tercio("submit", "-", stdin=JOB).code == 0
    assert sent(accepting)["source"] == "stdin"


def test_nothing_to_run_and_a_missing_file_are_told(tercio):
    code, _, err = tercio("submit")
    assert code == 2
    assert "tercio submit -- python train.py" in err
    code, _, err = tercio("submit", "python")
    assert code == 3
    assert "put '--' before a command" in err


def test_a_secret_comes_from_the_environment_and_never_from_argv(
    accepting, tercio, monkeypatch, tmp_path
):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    tercio("submit", "--no-workdir", "--secret", "HF_TOKEN", "--", "true")
    body = sent(accepting)
    assert body["secrets"] == {"HF_TOKEN": "hunter2"}
    assert body["job"] == {}
    assert body["overrides"]["secrets"] == ["HF_TOKEN"]
    code, out, err = tercio("submit", "--no-workdir", "--secret", "HF_TOKEN=hunter2", "--", "true")
    assert code == 2
    assert "hunter2" not in out + err
    (tmp_path / "job.yaml").write_text(JOB + "secrets: [HF_TOKEN]\n", encoding="utf-8")
    tercio("submit", "job.yaml")
    assert sent(accepting)["secrets"] == {"HF_TOKEN": "hunter2"}


def test_a_secret_without_a_value_is_asked_for_only_on_a_terminal(accepting, tercio):
    code, _, err = tercio("submit", "--no-workdir", "--secret", "MISSING", "--", "true")
    assert code == 2
    assert "--secret-stdin MISSING" in err
    tercio("submit", "--no-workdir", "--secret-stdin", "KEY", "--", "true", stdin="v\n")
    assert sent(accepting)["secrets"] == {"KEY": "v"}


def test_env_without_a_value_passes_mine_or_is_refused(accepting, tercio, monkeypatch):
    monkeypatch.setenv("MINE", "7")
    tercio("submit", "--no-workdir", "--env", "MINE", "--", "true")
    assert sent(accepting)["overrides"]["env"] == {"MINE": "7"}
    assert tercio("submit", "--env", "NOT_MINE", "--", "true").code == 2


@pytest.mark.parametrize(("outcome", "code"), [("now", 0), ("later", 7), ("never", 8)])
def test_plan_says_what_would_happen_and_submits_nothing(server, tercio, outcome, code):
    view = PlanView(outcome=outcome, decision=bodies.decision().decision, evicts=("job-00007",))
    raw = server.on("POST", "/v1/plan", view)
    for argv in (("plan",), ("submit", "--plan"), ("submit", "--dry")):
        result = tercio(*argv, "--gpus", "H100:4", "--secret", "UNSET", "--", "true")
        assert result.code == code
        assert "Fragmented: needs 4 H100" in result.out
        assert "job-00007" in result.out
    assert tercio("plan", "-o", "json", "--", "true").out.encode() == raw + b"\n"
    assert {request.path for request in server.requests} == {"/v1/plan"}
    assert sent(server, "/v1/plan")["overrides"]["workdir"] == "/"


def test_follow_shows_the_log_and_ends_as_the_job(accepting, tercio):
    accepting.stream(
        "/v1/jobs/job-00001/logs",
        'data: {"task":0,"at_s":1,"stream":"out","text":"loss 0.1"}\n\nevent: end\ndata: {}\n\n',
    )
    ended = bodies.job(state="failed", exit_code=3, message="task 0: exit code 3")
    accepting.on("GET", "/v1/jobs/job-00001", ended)
    code, out, err = tercio("submit", "--no-workdir", "--follow", "--", "true")
    assert (code, out) == (1, "job-00001\nloss 0.1\n")
    assert "exit code 3" in err
    assert tercio("submit", "--no-workdir", "--wait", "--", "true").code == 1


@pytest.mark.parametrize("is_array", [True, False])
def test_follow_waits_for_all_of_several_jobs(server, tercio, is_array):
    ids = ("job-00001",) if is_array else ("job-00001", "job-00002")
    server.on("POST", "/v1/jobs", SubmitAnswer(ids=ids))
    for job_id in ids:
        array = (
            ArrayView(size=2, waiting=0, active=0, succeeded=2, failed=0, cancelled=0)
            if is_array
            else None
        )
        server.on("GET", f"/v1/jobs/{job_id}", bodies.job(job_id, state="succeeded", array=array))
    code, out, err = tercio("submit", "--no-workdir", "--follow", "--", "true")
    assert (code, out.split()) == (0, list(ids))
    assert "tercio logs -f JOB" in err
    assert not any(request.path.endswith("/logs") for request in server.requests)


def test_a_refused_submit_is_told_as_the_server_says_it(server, tercio):
    error = UserError("needs 16 H100; the site has 8", code="never_fits", hint="ask for 8")
    server.refuse("POST", "/v1/jobs", error, 422)
    assert tercio("submit", "--no-workdir", "--", "true").code == 8


def test_machine_output_of_submit(accepting, tercio):
    argv = ("submit", "--no-workdir", "-o")
    assert tercio(*argv, "name", "--", "true").out == "job-00001\n"
    assert json.loads(tercio(*argv, "json", "--", "true").out)["ids"] == ["job-00001"]
    quiet = tercio("submit", "-q", "--no-workdir", "--", "true")
    assert (quiet.out, quiet.err) == ("job-00001\n", "")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python", "train.py"), "train"),
        (("python -m x && y",), "x"),
        (("torchrun", "--nproc", "8", "My_Train.py"), "my-train"),
        (("./run.sh",), "run"),
        (("bash",), "bash"),
        (("échec",), "chec"),
    ],
)
def test_a_job_is_named_after_its_command(argv, name):
    assert _default_name(argv) == name
