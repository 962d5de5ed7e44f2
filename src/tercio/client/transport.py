"""One HTTP connection to a Tercio server: requests, streams, and errors as `UserError`.

Only the standard library's `http.client`, because every command of the CLI pays for this
import.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import IO, TypeVar

import msgspec

from tercio.client.discovery import Address
from tercio.errors import UserError
from tercio.model.views import Problem

T = TypeVar("T")
Query = Mapping[str, object]

_RETRY_FIRST_S = 0.2
_RETRY_LONGEST_S = 2.0
_CHUNK_BYTES = 1 << 20
_QUIET_S = 45.0


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event: its id (empty when it has none), name and body."""

    event_id: str = ""
    name: str = "message"
    body: str = ""


class Transport:
    """Sends requests over one kept-alive connection. Not for use from several threads at once."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        parts = urllib.parse.urlsplit(address.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(
                f"{address.url!r} is not the URL of a server",
                hint="write it as http://HOST:PORT or https://HOST",
                field="url",
            )
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = _port(parts, address.url)
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the kept-alive connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        query: Query | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send a request with a JSON body, if any, and decode the answer.

        Raises:
            UserError: what the server refused, or `unavailable` when it cannot be reached.
        """
        raw = None if body is None else msgspec.json.encode(body)
        content = self.raw(method, path, query=query, body=raw, headers=headers)
        try:
            return msgspec.json.decode(content, type=answer)
        except msgspec.MsgspecError as error:
            raise UserError(
                f"{self.address.url}: the answer to {method} {path} cannot be read: {error}",
                code="unavailable",
                hint="the server may be of another version; compare `tercio --version`",
            ) from None

    def raw(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the bytes of its answer."""
        connection = self._reuse()
        try:
            connection.request(
                method,
                self._target(path, query),
                body=body,
                headers=self._headers(headers, content_type if body is not None else None),
            )
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from None
        if response.will_close:
            self.close()
        if response.status >= 400:
            raise problem_error(response.status, content)
        return content

    def stream(
        self,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[StreamEvent]:
        """Yield server-sent events until the server ends the stream.

        The server says something at least every 15 seconds, so a read that takes much longer
        means that it is gone.

        Raises:
            UserError: `unavailable` when the connection breaks; what the server says in an
                `error` event otherwise.
        """
        accept = {"Accept": "text/event-stream", **(headers or {})}
        timeout_s = max(self.timeout_s, _QUIET_S)
        with self._open(path, query=query, headers=accept, timeout_s=timeout_s) as response:
            for event in parse_stream(_lines(response)):
                if event.name == "error":
                    raise problem_error(500, event.body.encode())
                yield event

    def download(self, path: str, *, timeout_s: float) -> Iterator[bytes]:
        """Yield the body of a GET in pieces; an incomplete one raises `unavailable`."""
        with self._open(path, timeout_s=timeout_s) as response:
            while chunk := response.read(_CHUNK_BYTES):
                yield chunk

    def save(self, path: str, target: IO[bytes], *, timeout_s: float) -> int:
        """Write the body of a GET to `target`; return its size in bytes."""
        return sum(target.write(chunk) for chunk in self.download(path, timeout_s=timeout_s))

    @contextlib.contextmanager
    def _open(
        self,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Iterator[http.client.HTTPResponse]:
        """Open a GET whose body is read piece by piece, on a connection of its own."""
        connection = self._connect()
        connection.sock.settimeout(timeout_s)
        try:
            connection.request("GET", self._target(path, query), headers=self._headers(headers))
            with connection.getresponse() as response:
                if response.status >= 400:
                    raise problem_error(response.status, response.read())
                yield response
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def _reuse(self) -> http.client.HTTPConnection:
        kept = self._connection
        if kept is not None and kept.sock is not None:
            # A kept-alive socket that is readable before a request was sent has been closed
            # by the server. Asking first means that no request is ever sent twice.
            poll = select.poll()
            poll.register(kept.sock, select.POLLIN)
            if not poll.poll(0):
                return kept
        self.close()
        self._connection = self._connect()
        return self._connection

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.timeout_s)
        try:
            connection.connect()
        except OSError as error:
            raise self._unreachable(error) from None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _target(self, path: str, query: Query | None) -> str:
        pairs = [(name, _text(value)) for name, value in (query or {}).items() if value is not None]
        suffix = "?" + urllib.parse.urlencode(pairs) if pairs else ""
        return self._prefix + path + suffix

    def _headers(
        self, extra: Mapping[str, str] | None, content_type: str | None = None
    ) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "tercio", **(extra or {})}
        if self.address.token is not None:
            headers["Authorization"] = f"Bearer {self.address.token}"
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers

    def _unreachable(self, error: Exception) -> UserError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "check that the server runs: `tercio up` starts one on this machine"
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted: {error.verify_message}"
            hint = "set SSL_CERT_FILE to the certificate of its authority, or to its own"
        return UserError(
            f"no answer from {self.address.url} (named by {self.address.source}): {reason}",
            code="unavailable",
            hint=hint,
        )


def quote(part: str) -> str:
    """Return one path segment, safe inside a URL."""
    return urllib.parse.quote(part, safe="")


def problem_error(status: int, content: bytes) -> UserError:
    """Return the error that a problem body, or any other refusal, stands for."""
    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.MsgspecError:
        first = content[:200].decode("utf-8", "replace").strip().partition("\n")[0]
        return UserError(
            f"the server answered {status}: {first or 'no body'}",
            code="unavailable" if status >= 500 else "invalid",
            hint="something between here and the server may have answered in its place",
        )
    return UserError(problem.detail, code=problem.code, hint=problem.hint, field=problem.field)


def retry_delays(give_up_after_s: float) -> Iterator[None]:
    """Sleep a little longer before each retry; end when `give_up_after_s` have passed."""
    started_s = time.monotonic()
    delay_s = _RETRY_FIRST_S
    while time.monotonic() - started_s < give_up_after_s:
        time.sleep(delay_s)
        delay_s = min(delay_s * 2, _RETRY_LONGEST_S)
        yield


def parse_stream(lines: Iterator[str]) -> Iterator[StreamEvent]:
    """Turn the lines of a `text/event-stream` into events (WHATWG HTML, section 9.2.6)."""
    event_id, name, body = "", "", list[str]()
    for line in lines:
        if not line:
            if body:
                yield StreamEvent(event_id=event_id, name=name or "message", body="\n".join(body))
            name, body = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "data":
                body.append(value)
            case "event":
                name = value
            case "id":
                event_id = value
            case _:
                pass  # A comment keeps the connection alive; other fields are not for us.


def _lines(response: http.client.HTTPResponse) -> Iterator[str]:
    while line := response.readline():
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def _port(parts: urllib.parse.SplitResult, url: str) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise UserError(
            f"{url!r} names no usable port", hint="write a port from 1 to 65535", field="url"
        ) from None


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(str(part) for part in value)
        case _:
            return str(value)
