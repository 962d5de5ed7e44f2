"""A command inside a task of another node, seen from the server."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

_WAIT_S: Final = 30.0 * 24 * 3600


class Ask(Protocol):
    """Asks the node's agent for one step of the session; returns its encoded answer."""

    async def __call__(
        self, what: str, chunk: bytes, rows: int, columns: int, timeout_s: float
    ) -> bytes:
        """Raise EngineError when the agent does not answer."""
        ...


class RaySession:
    """See `base.ExecSession`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def read(self) -> bytes:
        """Return the next output bytes; empty when the output has ended."""
        return msgspec.msgpack.decode(await self._ask("read", b"", 0, 0, _WAIT_S), type=bytes)

    async def write(self, chunk: bytes) -> None:
        """Give bytes to its input; empty bytes close the input."""
        await self._ask("write", chunk, 0, 0, 30.0)

    async def resize(self, *, rows: int, columns: int) -> None:
        """Tell its terminal the new size."""
        await self._ask("resize", b"", rows, columns, 30.0)

    async def wait(self) -> int:
        """Return its exit code, 128 + signal when a signal ended it."""
        return msgspec.msgpack.decode(await self._ask("wait", b"", 0, 0, _WAIT_S), type=int)

    async def close(self) -> None:
        """End it if it still runs."""
        await self._ask("close", b"", 0, 0, 30.0)
