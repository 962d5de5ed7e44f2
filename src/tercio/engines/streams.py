"""The streams of a command inside a task, where its ends are descriptors of this machine."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from typing import Final

import msgspec

from tercio.engines.base import ExecRequest

_CHUNK_BYTES: Final = 64 * 1024
_END_OF_INPUT: Final = b"\x04"


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """Both ends of a command's streams.

    Attributes:
        input_fd, output_fd: ours, which may be one and the same.
        theirs: standard input, output and errors of the command.
    """

    input_fd: int
    output_fd: int
    theirs: tuple[int, int, int]

    def close_ours(self) -> None:
        """Close our ends: the command does not start."""
        for fd in sorted({self.input_fd, self.output_fd}):
            os.close(fd)

    def close_theirs(self) -> None:
        """Close the command's ends: it has them, or does not start."""
        for fd in sorted(set(self.theirs)):
            os.close(fd)


def open_ends(request: ExecRequest) -> Ends:
    """Make a terminal of the size that is asked for, or two pipes."""
    if request.has_terminal:
        ours, theirs = os.openpty()
        _resize(ours, request.rows, request.columns)
        return Ends(input_fd=ours, output_fd=ours, theirs=(theirs, theirs, theirs))
    stdin, input_fd = os.pipe2(os.O_CLOEXEC)
    output_fd, stdout = os.pipe2(os.O_CLOEXEC)
    return Ends(input_fd=input_fd, output_fd=output_fd, theirs=(stdin, stdout, stdout))


class Streams:
    """Reads and writes our ends until the command has ended; see `base.ExecSession`."""

    def __init__(self, ends: Ends, end: asyncio.Task[int], *, has_terminal: bool) -> None:
        """`end` is done when the command has ended."""
        self._input = ends.input_fd
        self._output = ends.output_fd
        self._end = end
        self._has_terminal = has_terminal
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)

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

    def close_streams(self) -> None:
        """Close our ends."""
        for fd in sorted({self._input, self._output} - {-1}):
            os.close(fd)
        self._input = self._output = -1

    async def _until_readable(self) -> None:
        readable = self._loop.create_future()
        self._loop.add_reader(self._output, _resolve, readable)
        try:
            await asyncio.wait({readable, self._end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_reader(self._output)


def _resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
