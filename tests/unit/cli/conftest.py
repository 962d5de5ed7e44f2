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
from cli_bodies import NOW_S
from cli_server import Handler, Recorded

from tercio.cli.main import run
from tercio.cli.session import Session


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
def environment(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No setting of the machine that runs the tests reaches them."""
    for name in list(os.environ):
        if re.match(r"TERCIO_|_TERCIO|NO_COLOR|CLICOLOR|XDG_", name) and name != "TERCIO_SHARED":
            monkeypatch.delenv(name)
    aside = tmp_path_factory.mktemp("aside")
    monkeypatch.setenv("HOME", str(aside / "home"))
    monkeypatch.setenv("TERCIO_STATE_DIR", str(aside / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(aside / "cache"))
    monkeypatch.setenv("TERCIO_CONFIG", str(aside / "config.toml"))
    (aside / "config.toml").write_text("", encoding="utf-8")
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

    def call(*argv: str, stdin: str | io.TextIOBase = "") -> Result:
        source = io.StringIO(stdin) if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()
        code = run(argv, Session(clock=lambda: NOW_S))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call
