from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from live_world import World, run, spin
from tercio.errors import EngineError
from tercio.model.events import EffectAnswered
from tercio.model.job import NotifySpec, TimeSpec
from tercio.runtime.webhooks import call
from tercio.testing.factories import make_job


class Receiver(ThreadingHTTPServer):
    """Answers with the statuses given, then 200; keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str]]] = []
        self.statuses: list[int] = []
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?x=1"


class Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, msgspec.json.decode(body)))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_job_tells_its_end_and_the_effect_is_answered(tmp_path: Path, receiver: Receiver) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            hook = NotifySpec(on=("finished",), url=receiver.url)
            receiver.statuses = [503]
            job_id = await world.submit(make_job(notify=(hook,), time=TimeSpec(expected_s=0.0)))
            await world.ended(job_id)
            await world.until(lambda: bool(world.events(EffectAnswered)))
            path, body = receiver.got[-1]
            assert (path, len(receiver.got)) == ("/hook?x=1", 2)
            assert (body["job"], body["state"], body["kind"]) == (job_id, "succeeded", "JobNotice")
            assert world.events(EffectAnswered)[0].is_done  # type: ignore[union-attr]
            await spin(lambda: not world.running.driver.cluster.open_effects)

    run(test())


@pytest.mark.parametrize(
    ("status", "retryable", "told"),
    [
        (302, False, "redirects are not followed"),
        (404, False, "answered 404"),
        (429, True, "answered 429"),
        (500, True, "answered 500"),
    ],
)
def test_bad_answers(receiver: Receiver, status: int, retryable: bool, told: str) -> None:
    receiver.statuses = [status]
    with pytest.raises(EngineError, match=told) as caught:
        call(receiver.url, {"a": "b"}, timeout_s=5.0)
    assert caught.value.retryable is retryable
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("url", "retryable"),
    [
        ("file:///etc/passwd", False),
        ("ftp://example.org/", False),
        ("http://169.254.169.254/latest/meta-data", False),
        ("http://[fe80::1]/", False),
        ("http://127.0.0.1:1/", True),
        ("http://127.0.0.1:99999/", False),
        ("http://[::1", False),
        ("http://[::ffff:169.254.169.254]/latest/meta-data", False),
    ],
)
def test_bad_addresses(url: str, retryable: bool) -> None:
    with pytest.raises(EngineError) as caught:
        call(url, {}, timeout_s=5.0)
    assert caught.value.retryable is retryable
