from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tercio.cli.errors import EXIT_BY_ERROR_CODE, MEANINGS, ExitCode, exit_code_of, report
from tercio.cli.verbs import GLOBAL_OPTIONS
from tercio.errors import EngineError, StoreError, UserError

CONTRACT = {
    "ok": 0, "failed": 1, "usage": 2, "not_found": 3, "conflict": 4, "forbidden": 5,
    "unavailable": 6, "infeasible": 7, "never_fits": 8, "timed_out": 9, "interrupted": 130,
}  # fmt: skip


def test_exit_codes_are_those_of_the_contract():
    assert {code.name.lower(): code.value for code in ExitCode} == CONTRACT
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize(("code", "exit_code"), EXIT_BY_ERROR_CODE.items())
def test_each_error_code_has_its_exit_code(code, exit_code):
    assert exit_code_of(UserError("x", code=code)) is exit_code


def test_other_errors_have_exit_codes():
    engine = EngineError("gone", engine="slurm", operation="launch", retryable=True)
    assert exit_code_of(engine) is ExitCode.UNAVAILABLE
    assert exit_code_of(StoreError("disk full")) is ExitCode.UNAVAILABLE
    assert exit_code_of(click.UsageError("x")) is ExitCode.USAGE
    assert exit_code_of(KeyboardInterrupt()) is ExitCode.INTERRUPTED
    assert exit_code_of(UserError("x", code="of a newer server")) is ExitCode.FAILED
    assert exit_code_of(ZeroDivisionError()) is ExitCode.FAILED


def test_every_error_code_of_the_tree_is_mapped():
    source = Path(UserError.__init__.__code__.co_filename).read_text(encoding="utf-8")
    listed = re.search(r"one of (.*?)\.\n", source, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed.group(1))) <= set(EXIT_BY_ERROR_CODE)


def test_an_error_is_at_most_four_lines(capsys):
    error = UserError("\n".join(f"line {i}" for i in range(9)), hint="do\nthis")
    report(error, is_debug=False, has_color=False)
    assert capsys.readouterr().err.splitlines() == [
        "error: line 0", "line 1", "line 2", "hint: do this",
    ]  # fmt: skip


def test_a_bug_asks_for_debug_and_debug_shows_the_traceback(capsys):
    report(ZeroDivisionError("division"), is_debug=False, has_color=False)
    short = capsys.readouterr().err
    assert "ZeroDivisionError: division" in short
    assert "--debug" in short
    assert "Traceback" not in short
    try:
        raise ZeroDivisionError("division")
    except ZeroDivisionError as error:
        report(error, is_debug=True, has_color=False)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (("sumbit",), "'submit'"),
        (("ps", "--al"), "'--all'"),
        (("node", "drian", "n1"), "'drain'"),
        (("ps", "-o", "jsn"), "'json'"),
        (("help", "exit-code"), "'exit-codes'"),
        (("token", "create", "--user", "a", "--role", "admn"), "'admin'"),
        (("completion", "bsh"), "'bash'"),
    ],
)
def test_a_wrong_word_is_answered_by_the_nearest(tercio, argv, near):
    code, out, err = tercio(*argv)
    assert (code, out) == (2, "")
    assert f"did you mean {near}" in err
    assert err.startswith("error: ")


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("reserve", "add", "x", "--devices", "8"), "write '--gpus'"),
        (("submit", "--gres", "gpu:8"), "write '--gpus'"),
        (("ps", "--al"), "did you mean '--all'?"),
        (("ps", "--devices", "8"), "see 'tercio ps --help'"),
    ],
)
def test_an_unknown_option_is_answered_by_what_does_it_here(tercio, argv, hint):
    code, _, err = tercio(*argv)
    assert code == 2
    assert err.splitlines()[-1] == f"hint: {hint}"


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (("ps", "--limit", "x"), "--limit: 'x' is not a whole number",
         "write a whole number, at least 1"),
        (("ps", "--limit", "0"), "--limit: '0' is out of bounds",
         "write a whole number, at least 1"),
        (("up", "--port", "99999"), "--port: '99999' is out of bounds",
         "write a whole number from 0 to 65535"),
        (("twin", "fleet", "--faults", "1e10"), "--faults: '10000000000' is out of bounds",
         "write a number from 0.001 to 1000"),
        (("policy", "rollback", "new"), "VERSION: 'new' is not a whole number",
         "write a whole number, at least 0"),
        (("submit", "--priority", "high"), "--priority: 'high' is not a whole number",
         "write a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_number_names_the_field_the_value_and_the_bounds(tercio, argv, error, hint):
    code, _, err = tercio(*argv)
    assert code == 2
    assert err.splitlines() == [f"error: {error}", f"hint: {hint}"]


def test_a_missing_argument_says_which(tercio):
    code, _, err = tercio("explain")
    assert code == 2
    assert err.splitlines()[0] == "error: JOB is missing"
    assert "tercio explain --help" in err


def test_a_missing_option_is_called_as_it_is_written(tercio):
    code, _, err = tercio("reserve", "add", "x", "--queue", "a", "--gpus", "H100:1")
    assert code == 2
    assert err.splitlines()[0] == "error: --for is missing"


def test_no_server_is_exit_code_six(tercio, monkeypatch):
    monkeypatch.setenv("TERCIO_URL", "http://127.0.0.1:1")
    code, out, err = tercio("ps")
    assert (code, out) == (6, "")
    assert "127.0.0.1:1" in err
    assert "hint:" in err


def test_the_server_s_refusal_is_told_with_its_hint(server, tercio):
    error = UserError("queues.a.limit: H1000 is unknown", hint="did you mean H100?", code="invalid")
    server.refuse("GET", "/v1/jobs", error, 400)
    assert tercio("ps") == (
        2, "", "error: queues.a.limit: H1000 is unknown\nhint: did you mean H100?\n",
    )  # fmt: skip
    server.refuse("GET", "/v1/jobs", UserError("bad token", code="unauthorised"), 401)
    assert tercio("ps").code == 5


def test_global_options_work_before_and_after_the_verb(server, tercio, tmp_path):
    server.on("GET", "/v1/jobs", b'{"rows":[],"next":null}')
    token = tmp_path / "token"
    token.write_text("other\n", encoding="utf-8")
    for argv in (("--token-file", str(token), "ps"), ("ps", "--token-file", str(token))):
        tercio(*argv)
        assert server.requests[-1].headers["Authorization"] == "Bearer other"
    assert tercio("ps", "--url", "http://127.0.0.1:1").code == 6
    assert {option.opts[0] for option in GLOBAL_OPTIONS} == {
        "--url", "--token-file", "--color", "-q", "--debug",
    }  # fmt: skip


def test_the_version_is_a_command(tercio):
    answer = tercio("--version")
    assert answer.code == 2
    assert "hint: see 'tercio version'" in answer.err
