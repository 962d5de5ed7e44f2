"""The program as a process: what it imports, pipes, signals, completion, help and docs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import cli_bodies as bodies
import pytest
from cli_server import Answer

from tercio.cli.commands import demo
from tercio.cli.main import OTHER_WORDS, SECTIONS, cli
from tercio.cli.reference import render
from tercio.cli.topics import TOPICS
from tercio.cli.verbs import Verb
from tercio.model.views import TokenList, TokenView

ROOT = Path(__file__).parents[3]
HEAVY = ("numpy", "litestar", "uvicorn", "rich", "yaml", "asyncio", "sqlite3", "prometheus_client")
NAMES = [name for table in SECTIONS.values() for name in table]
SERVERS = ("up", "demo", "agent")
SHOW_MODULES = (
    "import sys; from tercio.cli.main import run; code = run(sys.argv[1:]); "
    "print(*sys.modules, file=sys.stderr); sys.exit(code)"
)


def process(*argv, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *argv], env=environment, capture_output=True, text=True, timeout=60,
        check=False, **options,
    )  # fmt: skip


def imported(*argv):
    done = process("-c", SHOW_MODULES, *argv)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.split()} | set(done.stderr.split())


def test_help_imports_nothing_heavy():
    modules = imported("--help")
    assert not modules.intersection(HEAVY)
    assert "tercio.client" not in modules
    assert "msgspec" not in modules
    assert not {name for name in modules if name.startswith("tercio.cli.commands.")}


def test_ps_imports_nothing_heavy(server, monkeypatch):
    monkeypatch.setenv("TERCIO_URL", server.url)
    server.on("GET", "/v1/jobs", bodies.jobs())
    modules = imported("ps")
    assert not modules.intersection(HEAVY)
    assert not modules.intersection({"tercio.api", "tercio.core", "tercio.store"})


@pytest.mark.parametrize("name", NAMES)
def test_no_command_module_imports_the_server(name):
    program = f"import sys, tercio.cli.commands.{name.replace('-', '_')}; print(*sys.modules)"
    done = process("-c", program)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    heavy = {"numpy", "litestar", "uvicorn", "rich", "tercio.api", "tercio.runtime", "tercio.core"}
    assert not modules.intersection(heavy)


def test_only_a_few_commands_name_the_server_at_all():
    folder = Path(sys.modules[cli.__module__].__file__ or "").parent
    naming = {
        path.stem
        for path in folder.rglob("*.py")
        if any(f"tercio.{part}" in path.read_text(encoding="utf-8") for part in ("api", "runtime"))
    }
    assert naming <= set(SERVERS)


def test_the_table_and_the_commands_say_the_same():
    for table in SECTIONS.values():
        for name, summary in table.items():
            command = cli.get_command(None, name)
            assert command is not None
            assert command.name is not None
            assert summary.endswith(".")
            assert len(summary) < 66


def verbs_of(command):
    if not hasattr(command, "commands"):
        return [command]
    return [verb for each in command.commands.values() for verb in verbs_of(each)]


def test_every_verb_shows_an_example_of_itself():
    for name in NAMES:
        for verb in verbs_of(cli.get_command(None, name)):
            assert isinstance(verb, Verb)
            assert verb.examples, name
            assert any(f"tercio {name}" in line or "tercio" in line for line in verb.examples)


def test_the_reference_is_current():
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == render(), "run: python -m tercio.cli.reference > docs/cli.md"


@pytest.mark.parametrize("topic", TOPICS)
def test_help_topics(tercio, topic):
    code, out, err = tercio("help", topic)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) > 5


def test_help_of_a_command_is_its_help(tercio):
    assert tercio("help", "node", "drain").out == tercio("node", "drain", "--help").out
    assert "Examples:" in tercio("help", "submit").out
    assert tercio("help").out.startswith("Usage: tercio")
    assert tercio() == tercio("--help")
    assert tercio().code == 0
    assert tercio("version").out.startswith("tercio 0.")


def test_a_reader_that_leaves_is_no_error(server, monkeypatch):
    monkeypatch.setenv("TERCIO_URL", server.url)
    rows = [bodies.job(f"job-{i:05}") for i in range(5000)]
    server.on("GET", "/v1/jobs", bodies.jobs(*rows))
    program = f"{sys.executable} -m tercio ps | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == "0"


def test_ctrl_c_is_130_and_says_nothing(server, monkeypatch):
    monkeypatch.setenv("TERCIO_URL", server.url)
    asked = threading.Event()

    def reply(request):
        asked.set()
        return Answer(bodies.msgspec_json(bodies.job()))

    server.answers["GET", "/v1/jobs/job-00001"] = reply
    # A run in the background may have been told to pass SIGINT over, and so may its children.
    heed = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); "
    run = f"{heed}from tercio.cli.main import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", run, "wait", "job-00001"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert asked.wait(30)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert (out, err.strip()) == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(tercio, shell):
    code, out, _ = tercio("completion", shell)
    assert code == 0
    assert "_TERCIO_COMPLETE" in out


def complete(words, current):
    environment = {
        "_TERCIO_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(current),
        "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tercio"], env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completion_offers_commands_options_and_words():
    assert complete("tercio sub", 1) == ["submit"]
    assert "--follow" in complete("tercio logs --fo", 2)
    assert complete("tercio ps --state run", 3) == ["running"]
    assert complete("tercio node dr", 2) == ["drain"]


def test_completion_offers_live_names_and_remembers_them(server, monkeypatch):
    monkeypatch.setenv("TERCIO_URL", server.url)
    server.on("GET", "/v1/jobs", bodies.jobs())
    server.on("GET", "/v1/nodes", bodies.nodes())
    server.on("GET", "/v1/queues", bodies.queues())
    assert complete("tercio logs job", 2) == ["job-00001", "job-00002"]
    assert complete("tercio node show n", 3) == ["n1", "n2"]
    assert complete("tercio ps --queue res", 3) == ["research", "research/nlp"]
    asked = len(server.requests)
    assert complete("tercio cancel job", 2) == ["job-00001", "job-00002"]
    assert len(server.requests) == asked


def test_completion_without_a_server_is_silent(monkeypatch):
    monkeypatch.setenv("TERCIO_URL", "http://127.0.0.1:1")
    assert complete("tercio logs job", 2) == []


def test_completion_offers_names_of_jobs_kinds_topics_and_words(server, monkeypatch):
    monkeypatch.setenv("TERCIO_URL", server.url)
    token = TokenView(token_id="tok-1", user="ana", tenant="default", role="user")
    server.on("GET", "/v1/jobs", bodies.jobs())
    server.on("GET", "/v1/nodes", bodies.nodes())
    server.on("GET", "/v1/tokens", TokenList(rows=(token,)))
    assert complete("tercio logs lla", 2) == ["llama-sft"]
    assert complete("tercio show job/lla", 2) == ["job/llama-sft"]
    assert complete("tercio show node/n", 2) == ["node/n1", "node/n2"]
    assert complete("tercio token revoke t", 3) == ["tok-1"]
    assert complete("tercio help exi", 2) == ["exit-codes"]
    assert complete("tercio help node dr", 3) == ["drain"]
    assert complete("tercio submit --framework torch", 3) == ["torch", "torchrun"]


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_a_word_of_another_tool_is_answered_with_ours(tercio, word):
    assert word not in NAMES
    code, _, err = tercio(word, "--all")
    assert code == 2
    assert f"hint: {OTHER_WORDS[word]}" in err
    named = re.findall(r"'tercio ([a-z]+)", err.partition("hint:")[2])
    assert named
    assert set(named) <= set(NAMES)


@pytest.mark.parametrize(("prefix", "is_told"), [("/opt/venv", True), (sys.base_prefix, False)])
def test_the_demo_tells_where_tercio_is_when_another_terminal_may_not_find_it(
    monkeypatch, prefix, is_told
):
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/tercio")
    assert bool(demo._path_hint()) is is_told
