"""Streams that outlive a lost connection: events by sequence number, logs by time and count."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec

from tercio.client.transport import StreamEvent, Transport, quote, retry_delays
from tercio.errors import UserError
from tercio.model.views import EventView, LogView


class ExitBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the `exit` event that ends the output of a command."""

    code: int


def follow_events(transport: Transport, *, since: int, reconnect_s: float) -> Iterator[EventView]:
    """Yield every event after `since`, for ever; a lost connection goes on where it ended.

    Raises:
        UserError: `unavailable` when the server stays away for `reconnect_s`, `resync` when
            `since` is older than what the server keeps.
    """
    last = since
    while True:
        try:
            stream = transport.stream("/v1/events", headers={"Last-Event-ID": str(last)})
            for event in stream:
                view = msgspec.json.decode(event.body, type=EventView)
                last = view.seq
                yield view
            ended = UserError("the server ended the stream of events", code="unavailable")
        except UserError as error:
            ended = error
        _wait_for_server(transport, ended, reconnect_s)


def follow_log(
    transport: Transport,
    path: str,
    query: dict[str, object],
    *,
    reconnect_s: float,
) -> Iterator[LogView]:
    """Yield lines until the server says that the log has ended.

    After a lost connection the log is asked for again from the last instant seen, and the
    lines of that instant that were yielded before are dropped.
    """
    seen: dict[int, tuple[float, int]] = {}
    skip: dict[int, tuple[float, int]] = {}
    while True:
        try:
            for event in transport.stream(path, query=query):
                if event.name == "end":
                    return
                line = msgspec.json.decode(event.body, type=LogView)
                if _was_seen(line, skip):
                    continue
                at_s, count = seen.get(line.task, (line.at_s, 0))
                seen[line.task] = (line.at_s, count + 1 if at_s == line.at_s else 1)
                yield line
            ended = UserError("the log broke off before its end", code="unavailable")
        except UserError as error:
            ended = error
        if not query.get("follow"):
            raise ended
        _wait_for_server(transport, ended, reconnect_s)
        skip = dict(seen)
        if skip:
            query = {**query, "tail": None, "since": min(at_s for at_s, _ in skip.values())}


def _was_seen(line: LogView, skip: dict[int, tuple[float, int]]) -> bool:
    mark = skip.get(line.task)
    if mark is None:
        return False
    at_s, count = mark
    if line.at_s < at_s:
        return True
    if line.at_s == at_s and count > 0:
        skip[line.task] = (at_s, count - 1)
        return True
    del skip[line.task]
    return False


def _wait_for_server(transport: Transport, ended: UserError, reconnect_s: float) -> None:
    """Return when the server answers again; raise `ended` if it does not, or was no break."""
    if ended.code != "unavailable":
        raise ended
    for _ in retry_delays(reconnect_s):
        try:
            transport.raw("GET", "/v1/health")
        except UserError as error:
            if error.code != "unavailable":
                raise
        else:
            return
    raise ended


class RemoteCommand:
    """A command that runs inside a task; `output` drives it, `exit_code` is known at its end."""

    def __init__(self, transport: Transport, session: str) -> None:
        self._transport = transport
        self._path = f"/v1/exec/{quote(session)}"
        self.exit_code: int | None = None

    def output(self) -> Iterator[bytes]:
        """Yield what the command writes, as it writes it; may be read once."""
        for event in self._transport.stream(f"{self._path}/output"):
            if event.name == "exit":
                self.exit_code = msgspec.json.decode(event.body, type=ExitBody).code
                return
            yield _chunk(event)

    def write(self, chunk: bytes) -> None:
        """Give bytes to its input; empty bytes close the input."""
        self._transport.raw(
            "POST", f"{self._path}/input", body=chunk, content_type="application/octet-stream"
        )

    def resize(self, *, rows: int, columns: int) -> None:
        """Tell its terminal the new size."""
        body = msgspec.json.encode({"rows": rows, "columns": columns})
        self._transport.raw("POST", f"{self._path}/resize", body=body)

    def close(self) -> None:
        """End it if it still runs."""
        self._transport.raw("DELETE", self._path)


def _chunk(event: StreamEvent) -> bytes:
    return base64.b64decode(event.body)
