"""The client without a server of ours: discovery, refusals, broken connections, streams."""

import contextlib
import json
import socket
import subprocess
import sys
import threading

import pytest

import tercio
from tercio.client import Client, JobRequest
from tercio.client.discovery import find_server
from tercio.client.streams import follow_log
from tercio.client.transport import Transport, parse_stream
from tercio.errors import UserError


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch, tmp_path):
    for name in ("TERCIO_URL", "TERCIO_TOKEN", "TERCIO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERCIO_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("TERCIO_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text("")


@pytest.fixture
def connect():
    opened = []

    def make(url, **settings):
        opened.append(Client(url, "t", **settings))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


class ScriptedServer:
    """A loopback listener that answers each connection with the next of its scripts.

    A script is a list of answers: bytes to send after a request was read, or None to hang up.
    """

    def __init__(self, *scripts):
        self.requests = []
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        for script in self._scripts:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    for answer in script:
                        self.requests.append(self._read(connection))
                        if answer is None:
                            break
                        connection.sendall(answer)

    @staticmethod
    def _read(connection):
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = connection.recv(65536)
            if not chunk:
                break
            head += chunk
        head, _, body = head.partition(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                while len(body) < int(line.split(b":")[1]):
                    body += connection.recv(65536)
        return head.decode() + "\n\n" + body.decode("latin-1")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        self._thread.join(10)


def answer(body, status="200 OK", headers=""):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode() + content
    )


def stream(text):
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text.encode()


HEALTH = {"schema": "tercio/v1", "kind": "Health", "status": "ok", "version": "9.9"}
SUBMITTED = {"schema": "tercio/v1", "kind": "Submitted", "ids": ["job-00001"]}


def test_the_package_offers_the_client():
    assert tercio.Client is Client
    with pytest.raises(AttributeError):
        _ = tercio.Nothing


def test_importing_the_package_imports_no_client():
    program = "import sys, tercio; print(any('http' in m or 'msgspec' in m for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_the_client_imports_neither_the_server_nor_a_heavy_library():
    program = "import sys, tercio; tercio.Client; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    heavy = {"asyncio", "numpy", "yaml", "litestar", "uvicorn", "rich", "tomllib", "sqlite3"}
    assert not loaded & heavy
    assert not [name for name in loaded if name.startswith(("tercio.api", "tercio.runtime"))]


def test_arguments_win_over_everything(monkeypatch):
    monkeypatch.setenv("TERCIO_URL", "http://env:1")
    monkeypatch.setenv("TERCIO_TOKEN", "env-token")
    found = find_server("http://arg:2", "arg-token")
    assert (found.url, found.token, found.source) == ("http://arg:2", "arg-token", "the caller")


def test_the_environment_wins_over_the_state_directory(monkeypatch, tmp_path):
    (tmp_path / "server.json").write_text('{"url": "http://file:3", "pid": 1}')
    monkeypatch.setenv("TERCIO_URL", "http://env:1")
    assert find_server().url == "http://env:1"


def test_the_configuration_wins_over_the_state_directory(tmp_path):
    (tmp_path / "server.json").write_text('{"url": "http://file:3", "pid": 1}')
    (tmp_path / "secret").write_text("conf-token\n")
    (tmp_path / "config.toml").write_text(
        f'[client]\nurl = "http://conf:4"\ntoken_file = "{tmp_path}/secret"\n'
    )
    found = find_server()
    assert (found.url, found.token) == ("http://conf:4", "conf-token")


def test_a_server_on_this_machine_is_found_with_its_token(tmp_path):
    (tmp_path / "server.json").write_text('{"url": "http://file:3", "pid": 1}')
    (tmp_path / "token").write_text("admin-token\n")
    found = find_server()
    assert (found.url, found.token) == ("http://file:3", "admin-token")


def test_no_server_at_all_says_what_to_do():
    with pytest.raises(UserError) as caught:
        find_server()
    assert caught.value.code == "unavailable"
    assert "tercio up" in caught.value.hint


def test_a_damaged_server_file_is_named(tmp_path):
    (tmp_path / "server.json").write_text("{")
    with pytest.raises(UserError, match=r"server\.json"):
        find_server()


@pytest.mark.parametrize("url", ["localhost:7400", "ftp://x", "http://", "http://x:99999", "x"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(UserError) as caught:
        Client(url, "t")
    assert caught.value.field == "url"


def test_nobody_listening_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(UserError) as caught:
        Client(url, "t").health()
    assert caught.value.code == "unavailable"
    assert url in caught.value.message


def test_requests_share_a_connection_and_carry_the_token():
    with ScriptedServer([answer(HEALTH), answer(HEALTH)]) as server:
        with Client(server.url, "s3cret") as client:
            assert client.health().version == "9.9"
            assert client.health().version == "9.9"
        assert "Authorization: Bearer s3cret" in server.requests[0]


def test_a_connection_that_the_server_closed_is_replaced(connect):
    with ScriptedServer([answer(HEALTH)], [answer(HEALTH)]) as server:
        client = connect(server.url)
        client.health()
        # The server has hung up; wait until the end is readable here.
        client._transport._connection.sock.recv(1, socket.MSG_PEEK)
        assert client.health().version == "9.9"


def test_a_problem_becomes_the_servers_own_error(connect):
    problem = {
        "type": "urn:tercio:problem:conflict",
        "title": "x",
        "status": 409,
        "detail": "job-1 has ended",
        "code": "conflict",
        "hint": "look",
        "field": "job",
    }
    script = [answer(problem, "409 Conflict")]
    with ScriptedServer(script) as server, pytest.raises(UserError) as caught:
        connect(server.url).cancel("job-1")
    error = caught.value
    assert (error.message, error.code, error.hint, error.field) == (
        "job-1 has ended",
        "conflict",
        "look",
        "job",
    )


def test_a_page_of_a_proxy_is_not_mistaken_for_an_answer(connect):
    script = [answer(b"<html>Bad gateway", "502 Bad Gateway")]
    with ScriptedServer(script) as server:
        client = connect(server.url)
        with pytest.raises(UserError, match="502: <html>Bad gateway") as caught:
            client.server()
    assert caught.value.code == "unavailable"


def test_an_answer_of_another_shape_is_unavailable(connect):
    with ScriptedServer([answer({"kind": "Health"})]) as server:
        client = connect(server.url)
        with pytest.raises(UserError, match="cannot be read"):
            client.health()


def test_a_submit_whose_answer_was_lost_is_asked_again_with_the_same_key(connect):
    with ScriptedServer([None], [answer(SUBMITTED)]) as server:
        found = connect(server.url).submit(JobRequest(file="run: true"))
        assert found.ids == ("job-00001",)
    keys = [
        line
        for request in server.requests
        for line in request.splitlines()
        if line.startswith("Idempotency-Key: ")
    ]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_refused_submit_is_not_asked_again(connect):
    problem = {"type": "x", "title": "x", "status": 400, "detail": "bad", "code": "invalid"}
    with ScriptedServer([answer(problem, "400 Bad Request")]) as server:
        with pytest.raises(UserError, match="bad"):
            connect(server.url).submit(JobRequest(file="run: true"))
        assert len(server.requests) == 1


def test_another_command_whose_answer_was_lost_is_not_repeated(connect):
    with ScriptedServer([None], [answer(HEALTH)]) as server:
        with pytest.raises(UserError) as caught:
            connect(server.url).cancel("job-1")
        assert caught.value.code == "unavailable"
        connect(server.url).health()
        assert len(server.requests) == 2


def test_names_in_paths_are_quoted(connect):
    with ScriptedServer([answer(HEALTH)]) as server:
        with pytest.raises(UserError):
            connect(server.url).node("a/../b c")
        assert server.requests[0].startswith("GET /v1/nodes/a%2F..%2Fb%20c HTTP/1.1")


def events_of(text):
    return [(e.event_id, e.name, e.body) for e in parse_stream(iter(text.split("\n")))]


def test_a_stream_is_parsed_as_the_standard_says():
    text = ": open\n\nid: 5\ndata: a\ndata:b\n\nevent: end\ndata: {}\n\ndata: unfinished"
    assert events_of(text) == [("5", "message", "a\nb"), ("5", "end", "{}")]


def line(at_s, text, task=0):
    body = json.dumps({"task": task, "at_s": at_s, "stream": "out", "text": text})
    return f"data: {body}\n\n"


END = "event: end\ndata: {}\n\n"


def follow(server, *, is_following=True):
    query = {"follow": is_following or None, "tail": 5}
    path = "/v1/jobs/job-1/logs"
    with contextlib.closing(Transport(find_server(server.url, "t"), timeout_s=10)) as transport:
        views = follow_log(transport, path, query, reconnect_s=10)
        return [(view.task, view.text) for view in views]


def test_a_followed_log_goes_on_after_a_break_without_a_line_twice():
    first = line(1, "a") + line(2, "b") + line(2, "c") + line(2, "x", task=1)
    second = line(2, "b") + line(2, "c") + line(2, "d") + line(2, "x", task=1) + line(3, "e") + END
    with ScriptedServer([stream(first)], [answer(HEALTH)], [stream(second)]) as server:
        found = follow(server)
    assert found == [(0, "a"), (0, "b"), (0, "c"), (1, "x"), (0, "d"), (0, "e")]
    assert "since=2.0" in server.requests[2]
    assert "tail" not in server.requests[2]


def test_a_log_that_is_not_followed_reports_the_break():
    with (
        ScriptedServer([stream(line(1, "a"))]) as server,
        pytest.raises(UserError, match="broke off"),
    ):
        follow(server, is_following=False)


def test_followed_events_ask_for_what_comes_after_the_last_one(connect):
    def event(seq):
        body = {
            "seq": seq,
            "event": {"type": "ServerStarted", "at_s": 1, "epoch": 1, "version": "1"},
        }
        return f"id: {seq}\ndata: {json.dumps(body)}\n\n"

    scripts = [stream(event(4) + event(5))], [answer(HEALTH)], [stream(event(6))]
    with ScriptedServer(*scripts) as server:
        events = connect(server.url, reconnect_s=10).follow_events(since=3)
        assert [next(events).seq for _ in range(3)] == [4, 5, 6]
        events.close()
    asked = [r for r in server.requests if "/v1/events" in r]
    assert ["Last-Event-ID: 3" in asked[0], "Last-Event-ID: 5" in asked[1]] == [True, True]


def test_an_error_event_ends_a_followed_stream_with_the_servers_error(connect):
    problem = {"type": "x", "title": "x", "status": 410, "detail": "too old", "code": "resync"}
    text = f"event: error\ndata: {json.dumps(problem)}\n\n"
    with ScriptedServer([stream(text)]) as server:
        events = connect(server.url).follow_events(since=3)
        with pytest.raises(UserError, match="too old") as caught:
            next(events)
    assert caught.value.code == "resync"


def test_the_token_of_this_machine_is_sent_to_this_machine_only(tmp_path, monkeypatch):
    from tercio.client.discovery import find_server

    (tmp_path / "token").write_text("admin-secret\n", encoding="utf-8")
    for name in ("TERCIO_URL", "TERCIO_TOKEN", "TERCIO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERCIO_STATE_DIR", str(tmp_path))
    for url in ("http://127.0.0.1:7400", "http://localhost:7400", "https://[::1]:7400"):
        assert find_server(url).token == "admin-secret"
    for url in ("http://10.0.0.7:7400", "https://gpu.example.org", "http://127.0.0.1.example.org"):
        assert find_server(url).token is None
