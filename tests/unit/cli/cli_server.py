"""A loopback server that answers with recorded bodies and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

import msgspec

from tercio.errors import UserError
from tercio.model.views import Problem


class Request(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    body: bytes
    status: int = 200
    content_type: str = "application/json"


class Recorded:
    """Answers by method and path; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Answer | Callable[[Request], Answer]] = {}
        self.requests: list[Request] = []

    def on(self, method: str, path: str, body: object, *, status: int = 200) -> bytes:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "application/problem+json" if status >= 400 else "application/json"
        self.answers[method, path] = Answer(raw, status, kind)
        return raw

    def refuse(self, method: str, path: str, error: UserError, status: int) -> None:
        problem = Problem(
            type="about:blank",
            title=error.code,
            status=status,
            detail=error.message,
            code=error.code,
            hint=error.hint,
            field=error.field,
        )
        self.on(method, path, problem, status=status)

    def stream(self, path: str, events: str) -> None:
        self.answers["GET", path] = Answer(events.encode(), 200, "text/event-stream")

    def reply(self, request: Request) -> Answer:
        self.requests.append(request)
        found = self.answers.get((request.method, request.path))
        if callable(found) and not isinstance(found, Answer):
            return found(request)
        if found is None:
            error = UserError(f"nothing is recorded for {request.path}", code="not_found")
            self.refuse(request.method, request.path, error, 404)
            found = self.answers.pop((request.method, request.path))
        assert isinstance(found, Answer)
        return found

    def asked(self, method: str, path: str) -> list[Request]:
        return [r for r in self.requests if (r.method, r.path) == (method, path)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    recorded: Recorded

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        answer = self.recorded.reply(
            Request(self.command, path, query, dict(self.headers.items()), body)
        )
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *args: object) -> None:
        return
