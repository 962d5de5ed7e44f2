"""A command inside a running task, as the server sees it (see `base.ExecSession`)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from pathlib import Path

from tercio.engines.base import ExecRequest, ExecSession
from tercio.engines.local import control
from tercio.errors import EngineError

_CHUNK_BYTES = 64 * 1024
_END_OF_INPUT = b"\x04"


async def open_session(directory: Path, request: ExecRequest, *, timeout_s: float) -> ExecSession:
    """Start a command in the task with this control directory. Raises EngineError."""
    terminal = request.has_terminal
    if terminal:
        parent, child = os.openpty()
        _resize(parent, request.rows, request.columns)
        ours, theirs = (parent, parent), (child, child, child)
    else:
        input_child, input_ours = os.pipe2(os.O_CLOEXEC)
        output_ours, output_child = os.pipe2(os.O_CLOEXEC)
        ours, theirs = (input_ours, output_ours), (input_child, output_child, output_child)
    fields = ("exec", "1" if terminal else "0", *request.argv)
    try:
        connection = await asyncio.to_thread(_begin, directory, fields, theirs, timeout_s)
    except OSError as error:
        for fd in sorted(set(ours)):
            os.close(fd)
        raise EngineError(
            str(error), engine="local", operation="execute", retryable=False
        ) from error
    finally:
        for fd in sorted(set(theirs)):
            os.close(fd)
    return _Session(connection, *ours, has_terminal=terminal)


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


def _resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class _Session:
    """Keeps both ends: the descriptors of the streams, and the connection that tells the end."""

    def __init__(
        self, connection: socket.socket, input_fd: int, output_fd: int, *, has_terminal: bool
    ) -> None:
        self._connection = connection
        self._input = input_fd
        self._output = output_fd
        self._has_terminal = has_terminal
        os.set_blocking(input_fd, False)
        os.set_blocking(output_fd, False)
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_task(self._read_end())

    async def read(self) -> bytes:
        """Return the next output bytes; empty when the output has ended."""
        while self._output >= 0:
            is_over = self._end.done()
            try:
                return os.read(self._output, _CHUNK_BYTES)
            except BlockingIOError:
                if is_over:
                    # A process left behind keeps the stream open; the command has ended.
                    return b""
                await self._until_readable()
            except OSError:
                # A terminal answers EIO once nobody has its other end open.
                return b""
        return b""

    async def write(self, chunk: bytes) -> None:
        """Give bytes to its input; empty bytes close the input."""
        if self._input < 0:
            return
        if not chunk and not self._has_terminal:
            os.close(self._input)
            self._input = -1
            return
        view = memoryview(chunk or _END_OF_INPUT)
        while view and not self._end.done():
            try:
                view = view[os.write(self._input, view) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError:
                return

    async def resize(self, *, rows: int, columns: int) -> None:
        """Tell its terminal the new size; nothing happens without a terminal."""
        if self._has_terminal and self._output >= 0:
            _resize(self._output, rows, columns)

    async def wait(self) -> int:
        """Return its exit code, 128 + signal when a signal ended it."""
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """End it if it still runs."""
        self._end.cancel()
        await asyncio.gather(self._end, return_exceptions=True)
        self._connection.close()
        for fd in sorted({self._input, self._output} - {-1}):
            os.close(fd)
        self._input = self._output = -1

    async def _read_end(self) -> int:
        answer = await self._loop.sock_recv(self._connection, _CHUNK_BYTES)
        fields = answer.decode().split("\0")
        # Without an answer the supervisor ended with its task and killed the command.
        return int(fields[1]) if fields[0] == "exit" else 137

    async def _until_readable(self) -> None:
        readable = self._loop.create_future()
        self._loop.add_reader(self._output, _resolve, readable)
        try:
            await asyncio.wait({readable, self._end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_reader(self._output)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
