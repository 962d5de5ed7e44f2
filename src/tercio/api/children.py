"""Long questions, each in a process of its own: the event loop goes on, and a deadline holds.

A thread would share the interpreter with every other request and could not be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from tercio.errors import UserError

AT_ONCE: Final = 2
"""Processes at a time; who comes later waits for one to end."""
WAITING_MAX: Final = 16
DEADLINE_S: Final = 60.0
REFUSED: Final = 3
"""Exit code of a child whose answer is a `Refusal`."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A UserError on its way between processes."""

    message: str
    code: str
    field: str | None = None
    hint: str | None = None


class Children:
    """The processes of one server."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)
        self._running: set[asyncio.subprocess.Process] = set()
        self._waiting = 0

    async def ask(
        self,
        task: str,
        body: object,
        *,
        deadline_s: float,
        tell: Callable[[str], None] | None = None,
    ) -> bytes:
        """Return the answer of a task of `tercio.api.child`, as it is sent.

        `tell` gets what the task says on its way, a line at a time.

        Raises:
            UserError: the task refused; `unavailable` when too many wait, or when it took longer
                than `deadline_s`.
        """
        if self._waiting >= WAITING_MAX:
            raise UserError(
                "too many long questions wait", code="unavailable", hint="ask again in a minute"
            )
        self._waiting += 1
        try:
            async with self._room:
                return await self._ask(task, msgspec.json.encode(body), deadline_s, tell)
        finally:
            self._waiting -= 1

    async def _ask(
        self, task: str, body: bytes, deadline_s: float, tell: Callable[[str], None] | None
    ) -> bytes:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tercio.api.child", task, str(int(deadline_s) + 1),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._running.add(child)
        try:
            async with asyncio.timeout(deadline_s):
                answer, faults = await _talk(child, body, tell)
        except TimeoutError:
            raise UserError(
                f"no answer within {deadline_s:.0f} s",
                code="unavailable",
                hint="ask for less: fewer device types, counts or jobs",
            ) from None
        finally:
            self._running.discard(child)
            if child.returncode is None:
                child.kill()
                with contextlib.suppress(ProcessLookupError):
                    await child.wait()
        if child.returncode == REFUSED:
            said = msgspec.json.decode(answer, type=Refusal)
            raise UserError(said.message, code=said.code, field=said.field, hint=said.hint)
        if child.returncode != 0:
            raise RuntimeError(f"{task}: {faults[-2000:]}")
        return answer

    async def close(self) -> None:
        """End those that run."""
        for child in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                child.kill()


async def _talk(
    child: asyncio.subprocess.Process, body: bytes, tell: Callable[[str], None] | None
) -> tuple[bytes, str]:
    """Give a child its question; return its answer and what it said on its way."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    said: list[str] = []

    async def listen(lines: asyncio.StreamReader) -> None:
        async for raw in lines:
            said.append(raw.decode(errors="replace"))
            if tell is not None:
                tell(said[-1])

    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        child.stdin.write(body)
        await child.stdin.drain()
    child.stdin.close()
    answer, _ = await asyncio.gather(child.stdout.read(), listen(child.stderr))
    await child.wait()
    return answer, "".join(said)
