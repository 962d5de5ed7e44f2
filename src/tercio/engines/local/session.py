"""A command inside a running task, as the server sees it (see `base.ExecSession`)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from tercio.engines.base import ExecRequest, ExecSession
from tercio.engines.local import control
from tercio.engines.streams import Ends, Streams, open_ends
from tercio.errors import EngineError

_ANSWER_BYTES = 64 * 1024


async def open_session(directory: Path, request: ExecRequest, *, timeout_s: float) -> ExecSession:
    """Start a command in the task with this control directory. Raises EngineError."""
    ends = open_ends(request)
    fields = ("exec", "1" if request.has_terminal else "0", *request.argv)
    try:
        connection = await asyncio.to_thread(_begin, directory, fields, ends.theirs, timeout_s)
    except OSError as error:
        ends.close_ours()
        raise EngineError(
            str(error), engine="local", operation="execute", retryable=False
        ) from error
    finally:
        ends.close_theirs()
    return _Session(connection, ends, has_terminal=request.has_terminal)


def _begin(
    directory: Path, fields: tuple[str, ...], theirs: tuple[int, ...], timeout_s: float
) -> socket.socket:
    connection = control.connect(directory, timeout_s=timeout_s)
    try:
        answer = control.ask(connection, *fields, descriptors=theirs)
        if answer[0] != "started":
            raise OSError(answer[-1])
    except BaseException:
        connection.close()
        raise
    connection.setblocking(False)
    return connection


class _Session(Streams):
    """Keeps both ends: the descriptors of the streams, and the connection that tells the end."""

    def __init__(self, connection: socket.socket, ends: Ends, *, has_terminal: bool) -> None:
        self._connection = connection
        end = asyncio.get_running_loop().create_task(self._read_end())
        super().__init__(ends, end, has_terminal=has_terminal)

    async def wait(self) -> int:
        """Return its exit code, 128 + signal when a signal ended it."""
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """End it if it still runs."""
        self._end.cancel()
        await asyncio.gather(self._end, return_exceptions=True)
        self._connection.close()
        self.close_streams()

    async def _read_end(self) -> int:
        answer = await self._loop.sock_recv(self._connection, _ANSWER_BYTES)
        fields = answer.decode().split("\0")
        # Without an answer the supervisor ended with its task and killed the command.
        return int(fields[1]) if fields[0] == "exit" else 137
