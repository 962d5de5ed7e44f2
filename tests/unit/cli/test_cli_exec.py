from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import cli_bodies as bodies
import pytest
from cli_server import Answer

from tercio.errors import UserError
from tercio.model.views import ExecView

ROOT = Path(__file__).parents[3]


def record_command(server, output: bytes, code: int) -> None:
    server.on("POST", "/v1/jobs/job-00001/exec", ExecView(exec="exec-1"))
    chunk = base64.b64encode(output).decode()
    body = f'data: {chunk}\n\nevent: exit\ndata: {{"code":{code}}}\n\n'
    server.stream("/v1/exec/exec-1/output", body)
    server.on("POST", "/v1/exec/exec-1/input", b"")
    server.on("POST", "/v1/exec/exec-1/resize", b"")
    server.on("DELETE", "/v1/exec/exec-1", b"")


@pytest.fixture
def piped(monkeypatch, tmp_path):
    """A stdin with a file descriptor, as exec reads it."""
    (tmp_path / "input").write_text("abc", encoding="utf-8")

    def give(tercio, *argv):
        with open(tmp_path / "input", encoding="utf-8") as file:
            return tercio(*argv, stdin=file)

    return give


def test_output_and_exit_code_are_those_of_the_command(server, tercio, piped):
    record_command(server, b"binary\n", 5)
    result = piped(tercio, "exec", "job-00001", "--task", "2", "--", "sh", "-c", "exit 5")
    assert result.code == 5
    assert "binary\n" in result.out
    body = json.loads(server.asked("POST", "/v1/jobs/job-00001/exec")[0].body)
    assert body["argv"] == ["sh", "-c", "exit 5"]
    assert body["task"] == 2
    assert body["terminal"] is False


def test_a_command_must_be_given(server, tercio):
    code, _, err = tercio("exec", "job-00001")
    assert code == 2
    assert "tercio exec job-00001 -- bash" in err


def test_a_job_that_does_not_run_is_refused(server, tercio, piped):
    error = UserError("job-00001 does not run", code="conflict")
    server.refuse("POST", "/v1/jobs/job-00001/exec", error, 409)
    assert piped(tercio, "exec", "job-00001", "--", "true").code == 4


def test_a_terminal_is_made_raw_and_given_back(server, monkeypatch):
    record_command(server, b"prompt$ ", 7)
    seen: list[int] = []
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {
            **os.environ, "TERCIO_URL": server.url, "TERCIO_TOKEN": "secret",
            "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        argv = [sys.executable, "-m", "tercio", "exec", "job-00001", "--", "bash"]
        os.execve(sys.executable, argv, environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    output = server.answers["GET", "/v1/exec/exec-1/output"]
    before = termios.tcgetattr(terminal)[3]

    def reply(request) -> Answer:
        seen.append(termios.tcgetattr(terminal)[3])
        return output

    server.answers["GET", "/v1/exec/exec-1/output"] = reply
    text = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
    after = termios.tcgetattr(terminal)[3]
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert b"prompt$ " in text
    assert before & termios.ECHO
    assert not seen[0] & (termios.ECHO | termios.ICANON | termios.ISIG)
    assert after & termios.ECHO
    body = json.loads(server.asked("POST", "/v1/jobs/job-00001/exec")[0].body)
    assert body["terminal"] is True
    assert (body["rows"], body["columns"]) == (33, 77)


def test_a_name_works_too(server, tercio, piped):
    server.on("GET", "/v1/jobs", bodies.jobs())
    record_command(server, b"x", 0)
    assert piped(tercio, "exec", "llama-sft", "--", "true").code == 0
