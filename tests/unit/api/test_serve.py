"""The server process: where it may listen, what it writes, and how it stops."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest
from live_server import LiveServer, job

from tercio.api.serve import ServerFile, bind, check_bind, is_loopback, server_url
from tercio.client import Client
from tercio.config import ServerConfig
from tercio.errors import UserError
from tercio.model.events import TaskStarted

PROGRAM = """
import sys
from pathlib import Path
from tercio.api.serve import run_server
from tercio.config import load
flags = {"state_dir": sys.argv[1], "server.port": 0, "local.enabled": False, "sim.cluster": "2x4"}
run_server(load(flags, {}, ())[0])
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_nothing(host):
    assert is_loopback(host)
    check_bind(ServerConfig(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu.example.org"])
def test_another_address_needs_tls_or_a_trusted_proxy(host):
    with pytest.raises(UserError) as caught:
        check_bind(ServerConfig(host=host))
    assert caught.value.code == "invalid"
    assert "tls_cert" in caught.value.hint
    check_bind(ServerConfig(host=host, tls_cert="c.pem", tls_key="k.pem"))
    check_bind(ServerConfig(host=host, trusted_proxy="10.0.0.2"))


def test_a_port_in_use_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=str(port)) as caught:
            bind(ServerConfig(port=port))
    assert caught.value.code == "unavailable"


def test_answers_are_not_held_back():
    """asyncio turns Nagle's delay off only for sockets that name their protocol."""
    with bind(ServerConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (ServerConfig(), "http://127.0.0.1:9"),
        (ServerConfig(host="0.0.0.0"), "http://127.0.0.1:9"),
        (ServerConfig(host="::1"), "http://[::1]:9"),
        (ServerConfig(host="h", tls_cert="c", tls_key="k"), "https://h:9"),
    ],
)
def test_the_url_is_one_that_this_machine_reaches(server, url):
    assert server_url(server, 9) == url


def test_the_server_file_of_another_server_is_left_alone(tmp_path):
    file = ServerFile(tmp_path / "server.json", "http://x:1")
    file.write()
    assert json.loads((tmp_path / "server.json").read_text())["pid"] == os.getpid()
    (tmp_path / "server.json").write_text('{"url": "http://y:2", "pid": 1}')
    file.remove()
    assert (tmp_path / "server.json").exists()
    file.write()
    file.remove()
    assert not (tmp_path / "server.json").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate by openssl")
def test_tls_is_served_and_checked(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    settings = {"host": "0.0.0.0", "tls_cert": str(certificate), "tls_key": str(key)}
    with LiveServer(tmp_path / "state", **settings) as live:
        assert live.url.startswith("https://127.0.0.1:")
        with Client(live.url, live.admin_secret) as client:
            assert client.server().nodes == 2
        monkeypatch.delenv("SSL_CERT_FILE")
        with Client(live.url, live.admin_secret) as client, pytest.raises(UserError) as caught:
            client.health()
    assert caught.value.code == "unavailable"
    assert "SSL_CERT_FILE" in caught.value.hint


def test_what_is_secret_in_the_state_directory_is_for_its_owner(tmp_path):
    state = tmp_path / "state"
    with LiveServer(state) as live, Client(live.url, live.admin_secret) as client:
        client.submit(job(hold=True, secrets=["T"], secret_values={"T": "hush"}))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
        assert stat.S_IMODE(state.stat().st_mode) == 0o711
        assert (modes["token"], modes["secrets"]) == (0o600, 0o700)
        assert modes["journal.db"] == 0o600


def test_the_client_finds_a_server_by_its_state_directory(tmp_path, monkeypatch):
    with LiveServer(tmp_path):
        monkeypatch.setenv("TERCIO_STATE_DIR", str(tmp_path))
        monkeypatch.delenv("TERCIO_URL", raising=False)
        monkeypatch.delenv("TERCIO_TOKEN", raising=False)
        # The port is open a little before the file says so.
        give_up_s = time.monotonic() + 20.0
        while not (tmp_path / "server.json").exists() and time.monotonic() < give_up_s:
            os.sched_yield()
        with Client() as client:
            assert client.server().nodes == 2


def start(state):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERCIO_")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(state)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_until_ready(process):
    for line in process.stderr:
        if "api_started" in line:
            return
    raise AssertionError(process.wait())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_and_leaves_the_job(tmp_path, number):
    with start(tmp_path) as process:
        wait_until_ready(process)
        address = json.loads((tmp_path / "server.json").read_text())
        assert address["pid"] == process.pid
        with Client(address["url"], (tmp_path / "token").read_text().strip()) as client:
            (name,) = client.submit(job()).ids
            for row in client.follow_events():
                if isinstance(row.event, TaskStarted):
                    break
            process.send_signal(number)
            process.stderr.read()
            assert process.wait(30) == 0
    assert not (tmp_path / "server.json").exists()
    from tercio.store.journal import Journal

    journal = Journal.open(tmp_path / "journal.db")
    try:
        kinds = [type(entry.event).__name__ for entry in journal.read(subject=name)]
    finally:
        journal.close()
    assert "TaskExited" not in kinds


def test_a_second_server_on_one_state_directory_is_refused(tmp_path):
    with start(tmp_path) as first:
        wait_until_ready(first)
        before = (tmp_path / "server.json").read_text()
        with start(tmp_path) as second:
            text = second.stderr.read()
            assert second.wait(30) != 0
        assert "StoreError" in text
        assert str(first.pid) in text
        assert (tmp_path / "server.json").read_text() == before
        first.send_signal(signal.SIGTERM)
        first.stderr.read()


def test_the_server_imports_no_test_library():
    program = "import sys, tercio.api.serve; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"faker", "polyfactory", "jinja2", "httpx", "pytest", "rich", "torch"}
