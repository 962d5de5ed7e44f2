"""The real command line, in this process, against a loopback server with recorded bodies."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_server import Handler, Recorded

from tercio.cli.main import run


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def server() -> Iterator[Recorded]:
    recorded = Recorded()
    handler = type("Handler", (Handler,), {"recorded": recorded})
    loopback = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    loopback.daemon_threads = True
    thread = threading.Thread(target=loopback.serve_forever, args=(0.01,))
    thread.start()
    recorded.url = f"http://127.0.0.1:{loopback.server_address[1]}"  # type: ignore[attr-defined]
    yield recorded
    loopback.shutdown()
    thread.join()
    loopback.server_close()


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine that runs the tests reaches them."""
    for name in list(os.environ):
        if re.match(r"TERCIO_|_TERCIO|NO_COLOR|CLICOLOR|XDG_", name) and name != "TERCIO_SHARED":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERCIO_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TERCIO_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tercio(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Result]:
    """Run a command line in this process; with the `server` fixture, against it."""
    if "server" in request.fixturenames:
        monkeypatch.setenv("TERCIO_URL", request.getfixturevalue("server").url)
        monkeypatch.setenv("TERCIO_TOKEN", "secret")

    def call(*argv: str, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = run(argv)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call
