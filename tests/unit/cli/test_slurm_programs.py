"""Slurm's programs over Tercio: words, ids, columns, what is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cli_bodies as bodies
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tercio.cli.commands.shims import command as shims
from tercio.cli.session import Session
from tercio.cli.slurm import columns, submitting, words
from tercio.cli.slurm.ids import read_ids
from tercio.cli.slurm.parsing import parse
from tercio.cli.slurm.program import PROGRAMS, run
from tercio.errors import UserError
from tercio.formats.foreign.sbatch import read_sbatch
from tercio.formats.foreign.sbatch_options import KNOWN, SHORT
from tercio.model.job import EndCause, JobState
from tercio.model.node import Cordon, NodeState
from tercio.model.reasons import Reason
from tercio.model.views import ArrayView, NodeList, NodeView, TaskView

SOURCE = Path(columns.__file__).parents[3]


def test_every_state_and_reason_has_a_word_of_slurm():
    assert set(words.LIVING) == set(JobState)
    assert set(words.ENDED) == set(EndCause)
    assert set(words.REASONS) == set(Reason)
    for state in NodeState:
        node = NodeView(name="n", site="s", state=state.value)
        assert words.node_state(node) in ("unk", "idle", "drain", "drng", "down")


@pytest.mark.parametrize(
    ("node", "state"),
    [
        ({"jobs": ("job-00001",), "total": {"H100": 8}, "free": {"H100": 0}}, "alloc"),
        ({"jobs": ("job-00001",), "total": {"H100": 8}, "free": {"H100": 2}}, "mix"),
        ({"cpus": 8, "cpus_free": 0, "jobs": ("job-00001",)}, "alloc"),
        ({"state": "cordoned", "jobs": ("job-00001",)}, "drng"),
    ],
)
def test_a_used_node_is_mixed_or_allocated(node, state):
    assert (
        words.node_state(NodeView(**{"name": "n", "site": "s", "state": "ready", **node})) == state
    )


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("31", ["job-0000z"]), ("32_3", ["job-00010.3"]), ("32000003", ["job-00010.3"]),
        ("1_[1-2,5]", ["job-00001.1", "job-00001.2", "job-00001.5"]),
        ("1,2", ["job-00001", "job-00002"]), ("7.batch", ["job-00007"]),
        ("job-00003", ["job-00003"]),
    ],
)  # fmt: skip
def test_ids_of_slurm(text, ids):
    assert read_ids([text]) == ids


@pytest.mark.parametrize("text", ["x", "0", "1_[a]", "1_[0-9999999]", "-3"])
def test_what_is_no_id_is_refused(text):
    with pytest.raises(UserError):
        read_ids([text])


def test_columns_and_times():
    assert columns.clock(93784, is_long=False) == "1-02:03:04"
    assert [columns.clock(64, is_long=flag) for flag in (False, True)] == ["1:04", "00:01:04"]
    found = columns.read_letters("%.6i|%4j")
    assert columns.line(found, {"jobid": "1", "name": "toolong"}.__getitem__) == "     1|tool"
    (column,) = columns.read_names("JobName%-6", width=10)
    assert columns.line([column], lambda _: "toolong", mark="+") == "toolo+"
    for wrong in ("%Z",):
        with pytest.raises(UserError, match="no field"):
            columns.read_letters(wrong)
    with pytest.raises(UserError, match="no field"):
        columns.read_names("Nope", width=1)


def test_options_are_read_as_getopt_reads_them():
    tables = {"valued": {"user": "u", "format": "o"}, "flags": {"noheader": "h", "me": ""}}
    found = parse(["-huana", "--form=%i", "--me", "x", "--", "-y"], **tables)
    assert found.options == {"noheader": "", "user": "ana", "format": "%i", "me": ""}
    assert found.rest == ["x", "-y"]
    for wrong in (["-z"], ["--nope"], ["-u"]):
        with pytest.raises(UserError):
            parse(wrong, **tables)


SCRIPT = "#!/bin/bash -e\n#SBATCH -N2 -t 10\n#SBATCH --gres=gpu:1 # one\n\necho $1\n#SBATCH -N9\n"


def composed(text, *argv, environment=None):
    ordered = submitting.read_command([*argv, "a.sh", "one two"])
    return submitting.compose(
        text, options=ordered.options, arguments=ordered.rest[1:], environment=environment or {},
        directory="/home/ana",
    )  # fmt: skip


def test_the_command_line_beats_the_environment_and_both_the_file():
    text, _ = composed(
        SCRIPT, "-N4", "--gpus-per-node=8", "--comment=a b #c", "--parsable",
        environment={"SBATCH_TIMELIMIT": "20", "SBATCH_REQUEUE": "1"},
    )  # fmt: skip
    (job,) = read_sbatch(text, source="a.sh").jobs
    assert (job["tasks"], job["time"], job["workdir"]) == (4, {"limit": "20m"}, "/home/ana")
    assert job["per_task"] == {"devices": "8"}
    assert job["labels"] == {"slurm-comment": "a b #c"}
    assert job["retry"] == {"on": ["node_failed", "preempted"]}
    run_text = str(job["run"])
    assert "set -e" in run_text
    assert "set -- 'one two'\n" in run_text
    (plain,) = read_sbatch(composed(SCRIPT)[0], source="a.sh").jobs
    assert (plain["tasks"], plain["per_task"]) == (2, {"devices": "1"})


def test_a_relative_directory_counts_from_here_and_another_interpreter_gets_its_words():
    text, _ = composed("#!/usr/bin/env python3\n#SBATCH -D sub\nprint(1)\n")
    (job,) = read_sbatch(text, source="a.py").jobs
    assert job["workdir"] == "/home/ana/sub"
    assert "exec /usr/bin/env python3 \"$TERCIO_TASK_DIR/script\" 'one two'" in str(job["run"])


@pytest.mark.parametrize(
    ("argv", "env", "secrets"),
    [
        ((), {"LR": "1", "B": "x"}, {"HF_TOKEN": "t"}),
        (("--export=ALL,LR=2",), {"B": "x"}, {"HF_TOKEN": "t"}),
        (("--export=NONE",), {}, {}),
        (("--export=B,HF_TOKEN",), {"B": "x"}, {"HF_TOKEN": "t"}),
    ],
)
def test_export_lets_through_what_it_names_and_secrets_as_secrets(argv, env, secrets):
    environment = {"LR": "1", "B": "x", "HF_TOKEN": "t", "HOME": "/x", "SLURM_JOB_ID": "1",
                   "TERCIO_URL": "u", "BASH_FUNC_x%%": "()", "SSH_AGENT_PID": "1"}  # fmt: skip
    text, options = composed(SCRIPT, *argv)
    wanted = submitting.request(text, options, source="a.sh", environment=environment)
    assert wanted.overrides.get("env", {}) == env
    assert (wanted.secrets, wanted.overrides.get("secrets", [])) == (secrets, list(secrets))


def test_heterogeneous_jobs_are_refused():
    with pytest.raises(UserError, match="heterogeneous"):
        submitting.read_command(["-N1", ":", "-N2", "a.sh"])


def test_squeue_lists_jobs_and_arrays(server, monkeypatch, capsys):
    monkeypatch.setenv("TERCIO_URL", server.url)
    array = ArrayView(
        size=4, waiting=2, active=1, succeeded=0, failed=0, cancelled=1, pending="1,3"
    )
    server.on(
        "GET", "/v1/jobs",
        bodies.jobs(bodies.job(), bodies.waiting(), bodies.waiting("job-00003", state="held"),
                    bodies.job("job-00004", array=array), bodies.job("job-00004.0")),
    )  # fmt: skip
    server.on("GET", "/v1/jobs/job-00004", bodies.job("job-00004"))
    assert run("squeue", ["-h", "-o", "%A %t %r", "-u", "ana"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert sorted(told) == [
        "1 R None", "2 PD Resources", "3 PD JobHeldUser", "4 PD Resources", "4000000 R None",
    ]  # fmt: skip
    assert run("squeue", ["-h", "-t", "PD", "-O", "Name:3,State:.10"]) == 0
    assert "vis   PENDING" in capsys.readouterr().out
    assert run("squeue", ["-t", "nope"]) == 1
    assert "squeue: error: 'NOPE' is no job state" in capsys.readouterr().err


def test_sinfo_groups_nodes_by_pool_and_state(server, monkeypatch, capsys):
    monkeypatch.setenv("TERCIO_URL", server.url)
    nodes = [
        NodeView(name=f"n{at}", site="s", state="ready", pool="a", total={"H100": 8.0},
                 free={"H100": 8.0 - at}, jobs=("job-00001",) if at else ())
        for at in range(3)
    ]  # fmt: skip
    server.on("GET", "/v1/nodes", NodeList(rows=tuple(nodes)))
    assert run("sinfo", ["-h", "-o", "%P %t %D %N %G"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a idle 1 n0 gpu:h100:8", "a mix 2 n1,n2 gpu:h100:8",
    ]  # fmt: skip


def test_sinfo_says_why_nodes_are_out_and_how_many_are_in(server, monkeypatch, capsys):
    monkeypatch.setenv("TERCIO_URL", server.url)
    bad = Cordon(owner="user:op", reason="bad fan", since_s=0.0)
    nodes = (
        NodeView(name="n0", site="s", state="ready", pool="a", total={"H100": 8.0},
                 free={"H100": 8.0}),
        NodeView(name="n1", site="s", state="cordoned", pool="a", reason="bad fan",
                 cordons=(bad,), total={"H100": 8.0}, free={"H100": 8.0}),
        NodeView(name="n2", site="s", state="ready", pool="a", total={"H100": 8.0},
                 free={"H100": 0.0}, jobs=("job-00001",)),
    )  # fmt: skip
    server.on("GET", "/v1/nodes", NodeList(rows=nodes))
    assert run("sinfo", ["-h", "-R"]) == 0
    (told,) = capsys.readouterr().out.splitlines()
    assert told.split()[:3] == ["bad", "fan", "op"]
    assert told.endswith(" n1")
    assert run("sinfo", ["-h", "-s"]) == 0
    assert capsys.readouterr().out.split() == ["a", "up", "infinite", "1/1/1/3", "n0,n1,n2"]


def test_sacct_writes_what_scripts_parse(server, monkeypatch, capsys):
    monkeypatch.setenv("TERCIO_URL", server.url)
    ended = {"state": "failed", "started_s": 100.0, "ended_s": 164.0}
    server.on(
        "GET", "/v1/jobs",
        bodies.jobs(bodies.job(**ended, reason="time_limit", exit_code=143),
                    bodies.job("job-00002", **ended, reason="failed", exit_code=3)),
    )  # fmt: skip
    words = ["-X", "-n", "--parsable2", "-u", "ana", "-o", "JobID,JobName,State,ExitCode,Elapsed"]
    assert run("sacct", words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1|llama-sft|TIMEOUT|0:15|00:01:04", "2|llama-sft|FAILED|3:0|00:01:04",
    ]  # fmt: skip


def test_sacct_has_a_step_for_each_task(server, monkeypatch, capsys):
    monkeypatch.setenv("TERCIO_URL", server.url)
    ended = {"state": "failed", "started_s": 100.0, "ended_s": 164.0, "task_count": 2}
    job = bodies.job(**ended, reason="failed", exit_code=3)
    tasks = (
        TaskView(task=0, group="", state="exited", node="n1", devices=(0, 1), started_s=100.0,
                 ended_s=160.0, exit_code=3),
        TaskView(task=1, group="eval", state="exited", node="n2", started_s=100.0, ended_s=164.0,
                 signal=15),
    )  # fmt: skip
    server.on("GET", "/v1/jobs", bodies.jobs(job, bodies.waiting()))
    server.on("GET", "/v1/jobs/job-00001", msgspec.structs.replace(job, tasks=tasks))
    form = "JobID,JobName,State,ExitCode,Elapsed,NodeList,AllocTRES,MaxRSS"
    assert run("sacct", ["-n", "-P", "-u", "ana", "-j", "1", "-o", form]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1|llama-sft|FAILED|3:0|00:01:04|n1|cpu=2,node=1,gres/gpu:h100=8|",
        "1.0|task|FAILED|3:0|00:01:00|n1|cpu=1,node=1,gres/gpu=2|",
        "1.1|eval|CANCELLED|0:15|00:01:04|n2|cpu=1,node=1|",
    ]
    # Whoever wants jobs alone says -X; a job that waits has no steps.
    assert run("sacct", ["-n", "-X", "-P", "-u", "ana", "-o", "JobID,Submit"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_shims_are_programs_and_never_replace_others(tmp_path):
    folder = tmp_path / "bin"
    made = CliRunner().invoke(shims, [str(folder)], standalone_mode=False, obj=Session())
    assert made.exception is None
    assert sorted(path.name for path in folder.iterdir()) == sorted(PROGRAMS)
    for path in folder.iterdir():
        done = subprocess.run(
            [path, "--version"], env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert done.stdout.startswith("tercio ")
    (folder / "sbatch").write_text("real", encoding="utf-8")
    for words_ in ([str(folder)], [str(folder), "--remove"]):
        again = CliRunner().invoke(shims, words_, standalone_mode=False, obj=Session())
        assert "is another program" in str(again.exception)
    (folder / "sbatch").unlink()
    CliRunner().invoke(shims, [str(folder), "--remove"], standalone_mode=False, obj=Session())
    assert list(folder.iterdir()) == []


def test_squeue_imports_nothing_heavy(server):
    program = (
        "import sys; from tercio.cli.slurm.program import run; code = run('squeue', ['-h']); "
        "print(*sys.modules); sys.exit(code)"
    )
    server.on("GET", "/v1/jobs", bodies.jobs())
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "TERCIO_URL": server.url},
    )  # fmt: skip
    modules = set(done.stdout.splitlines()[-1].split())
    assert not modules & {"numpy", "yaml", "rich", "asyncio", "litestar", "tercio.formats"}


VALUES = ("", "0", "a b", "'", '"', "#", "\n", "--", "-", "-N2", "=", "é", "a.sh", "ALL")
TEXTS = ("", "#!", "#!/bin/sh\nls", "#! \n", "#!/usr/bin/env python\nx",
         "#!/bin/bash\n#SBATCH -N2 foo\n#SBATCH hetjob\nls")  # fmt: skip


@given(
    st.lists(
        st.sampled_from([*(f"--{name}" for name in sorted(KNOWN)), *(f"-{name}" for name in SHORT)])
        | st.builds("--{}={}".format, st.sampled_from(sorted(KNOWN)), st.sampled_from(VALUES))
        | st.sampled_from(VALUES),
        max_size=6,
    ),
    st.sampled_from(TEXTS),
)
@settings(deadline=None, max_examples=300)
def test_any_command_line_is_sent_or_refused(argv, text):
    try:
        ordered = submitting.read_command(argv)
        made, options = submitting.compose(
            text, options=ordered.options, arguments=ordered.rest[1:], environment={},
            directory="/home/ana",
        )  # fmt: skip
        submitting.request(made, options, source="s", environment={"A": "1"})
        read_sbatch(made, source="s")
    except UserError as error:
        assert error.hint
