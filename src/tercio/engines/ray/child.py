"""The server's end of the bridge: starts it, asks it, and notices when it has gone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

import tercio
from tercio.engines.ray.messages import (
    Body,
    Reply,
    Request,
    Told,
    decode_answer,
    framed,
    read_frame,
)
from tercio.engines.ray.settings import RaySettings

_END_S: Final = 10.0
_STARTED: Final = 0
"""The bridge answers this request, which nobody sent, when it has connected."""


class BridgeError(Exception):
    """The bridge did not answer as it was asked to; `is_retryable` says if it could later."""

    def __init__(self, message: str, *, is_retryable: bool = True) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable


class Child:
    """One bridge process, from start to end."""

    def __init__(self, settings: RaySettings, hear: Callable[[Told], None]) -> None:
        self._settings = settings
        self._hear = hear
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: list[asyncio.Task[None]] = []
        self._errors: deque[str] = deque(maxlen=5)

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the bridge and return when it has connected. Raises BridgeError."""
        root = str(Path(tercio.__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        started = asyncio.get_running_loop().create_future()
        self._waiting[_STARTED] = started
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tercio.engines.ray.bridge",
                msgspec.json.encode(self._settings).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=2**20,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                # A signal to the server's terminal is the server's to answer.
                start_new_session=True,
            )
        except OSError as error:
            raise BridgeError(f"the bridge cannot be started: {error}") from error
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._reading = [
            asyncio.create_task(self._read(self._process.stdout)),
            asyncio.create_task(self._read_errors(self._process.stderr)),
        ]
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s + _END_S):
                await started
            # What Ray said while it connected is not why it may go later.
            self._errors.clear()
        except TimeoutError:
            await self.close()
            raise BridgeError(f"no answer from {self._settings.address}") from None
        except BridgeError:
            await self.close()
            raise

    async def ask(self, body: Body, *, timeout_s: float) -> bytes:
        """Return the bridge's answer. Raises BridgeError, also after the time has passed."""
        if self._process is None or self._process.stdin is None or not self.is_running:
            raise BridgeError(self._gone())
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._process.stdin.write(framed(Request(id=number, body=body)))
            async with asyncio.timeout(timeout_s):
                await self._process.stdin.drain()
                return await answer
        except TimeoutError:
            raise BridgeError(f"no answer within {timeout_s:g}s") from None
        except ConnectionError:
            raise BridgeError(self._gone()) from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the bridge; what it started in Ray goes on."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._fail_all()

    async def _read(self, answers: asyncio.StreamReader) -> None:
        while (frame := await read_frame(answers)) is not None:
            match decode_answer(frame):
                case Told() as told:
                    self._hear(told)
                case Reply(id=number) as reply:
                    waiting = self._waiting.get(number)
                    if waiting is None or waiting.done():
                        continue
                    if reply.error is None:
                        waiting.set_result(reply.payload)
                    else:
                        error = BridgeError(reply.error, is_retryable=reply.is_retryable)
                        waiting.set_exception(error)
        # Give its last words the time to be read.
        if len(self._reading) > 1:
            await asyncio.wait([self._reading[1]], timeout=1.0)
        self._fail_all()

    async def _read_errors(self, errors: asyncio.StreamReader) -> None:
        while line := await errors.readline():
            self._errors.append(line.decode(errors="replace").rstrip())

    def _fail_all(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BridgeError(self._gone()))
        self._waiting.clear()

    def _gone(self) -> str:
        why = next((line for line in reversed(self._errors) if line.strip()), "")
        return why or "the bridge to Ray is not running"
