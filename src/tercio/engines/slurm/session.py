"""A command inside a running task: a job step of `srun --overlap`, with the task's environment."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tercio.engines.base import ExecRequest
from tercio.errors import EngineError

_CHUNK_BYTES: Final = 64 * 1024
_END_OF_INPUT: Final = b"\x04"


def step_words(number: int, runner: Sequence[str], request: ExecRequest) -> list[str]:
    """Return the `srun` that runs a command beside the task."""
    words = [
        "srun", f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1", "--quiet",
        "--unbuffered", "--input=0" if not request.has_terminal else "--pty",
        "--mem=0", "--gres=none", "--mpi=none",
    ]  # fmt: skip
    return [*words, *runner, "--", *request.argv]


async def open_session(
    command: Sequence[str],
    options: dict[str, Any],
    request: ExecRequest,
    *,
    read_code: Callable[[], bytes | None],
) -> StepSession:
    """Start the step; `read_code` reads the record of its end. Raises EngineError."""
    if request.has_terminal:
        ours, theirs = os.openpty()
        _resize(ours, request.rows, request.columns)
        read_fd, write_fd, streams = ours, os.dup(ours), (theirs, theirs, theirs)
    else:
        stdin, write_fd = os.pipe2(os.O_CLOEXEC)
        read_fd, stdout = os.pipe2(os.O_CLOEXEC)
        streams = (stdin, stdout, stdout)
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=streams[0], stdout=streams[1], stderr=streams[2],
            start_new_session=True, **options,
        )  # fmt: skip
    except OSError as failure:
        os.close(read_fd)
        os.close(write_fd)
        raise EngineError(
            f"{command[0]}: {failure.strerror}", engine="slurm", operation="execute",
            retryable=False,
        ) from failure  # fmt: skip
    finally:
        for fd in sorted(set(streams)):
            os.close(fd)
    return StepSession(
        child, read_fd, write_fd, has_terminal=request.has_terminal, read_code=read_code
    )


def _resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class StepSession:
    """See `base.ExecSession`."""

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        read_fd: int,
        write_fd: int,
        *,
        has_terminal: bool,
        read_code: Callable[[], bytes | None],
    ) -> None:
        self._child = child
        self._read_code = read_code
        self._output = read_fd
        self._input = write_fd
        self._has_terminal = has_terminal
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_task(child.wait())

    async def read(self) -> bytes:
        """Return the next output bytes; empty when the output has ended."""
        while self._output >= 0:
            is_over = self._end.done()
            try:
                return os.read(self._output, _CHUNK_BYTES)
            except BlockingIOError:
                if is_over:
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
        code = await asyncio.shield(self._end)
        record = await asyncio.to_thread(self._read_code)
        if record:
            return int(msgspec.json.decode(record, type=dict[str, int])["code"])
        return 128 - code if code < 0 else code

    async def close(self) -> None:
        """End it if it still runs: `srun` passes the signal on to its step."""
        if self._child.returncode is None:
            self._child.terminate()
            try:
                async with asyncio.timeout(5.0):
                    await asyncio.shield(self._end)
            except TimeoutError:
                self._child.kill()
        await asyncio.gather(self._end, return_exceptions=True)
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


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
