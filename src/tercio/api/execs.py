"""Commands that run inside tasks: their sessions between the requests that use them.

A session belongs to whoever opened it. It ends with its command, when the reader of its output
leaves, or when no reader came in time.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from tercio.api.sse import frame
from tercio.engines.base import ExecSession
from tercio.errors import UserError
from tercio.model.identity import Principal

SESSIONS_MAX: Final = 64
SESSIONS_PER_USER_MAX: Final = 16
UNREAD_S: Final = 60.0


class _Open:
    __slots__ = ("closing", "is_read", "owner", "session")

    def __init__(self, session: ExecSession, owner: Principal) -> None:
        self.session = session
        self.owner = owner
        self.is_read = False
        self.closing: asyncio.TimerHandle | None = None


class ExecSessions:
    """The open sessions of this server, at most `SESSIONS_MAX`."""

    def __init__(self, *, unread_s: float = UNREAD_S) -> None:
        self._open: dict[str, _Open] = {}
        self._unread_s = unread_s
        self._closers: set[asyncio.Task[None]] = set()

    def check_room(self, owner: Principal) -> None:
        """Raise `too_many` when no further session may be opened, by anybody or by this one."""
        own = sum(
            (each.owner.tenant, each.owner.user) == (owner.tenant, owner.user)
            for each in self._open.values()
        )
        if own >= SESSIONS_PER_USER_MAX:
            raise UserError(
                f"{owner.user} has {own} commands inside tasks already",
                code="too_many",
                hint="end one of them first",
            )
        if len(self._open) >= SESSIONS_MAX:
            raise UserError(
                f"{SESSIONS_MAX} commands run inside tasks already",
                code="too_many",
                hint="end one of them first",
            )

    def add(self, session: ExecSession, owner: Principal) -> str:
        """Keep a session and return its name."""
        name = "exec-" + secrets.token_hex(8)
        record = _Open(session, owner)
        self._open[name] = record
        loop = asyncio.get_running_loop()
        record.closing = loop.call_later(self._unread_s, self._close_soon, name)
        return name

    def get(self, name: str, asker: Principal) -> ExecSession:
        """Return the session; one of somebody else's is not found."""
        return self._find(name, asker).session

    def claim_output(self, name: str, asker: Principal) -> ExecSession:
        """Return the session to the one reader of its output.

        Raises:
            UserError: `conflict` when its output is being read.
        """
        record = self._find(name, asker)
        if record.is_read:
            raise UserError(f"the output of {name} is being read already", code="conflict")
        record.is_read = True
        if record.closing is not None:
            record.closing.cancel()
        return record.session

    async def output(self, name: str, session: ExecSession) -> AsyncIterator[bytes]:
        """Yield the output as base64 events, then `exit` with the code; close at the end."""
        try:
            while chunk := await session.read():
                yield frame(base64.b64encode(chunk))
            code = await session.wait()
            yield frame(msgspec.json.encode({"code": code}), name="exit")
        finally:
            await self.close(name)

    async def close(self, name: str) -> None:
        """End a session; one that is gone is no error."""
        record = self._open.pop(name, None)
        if record is None:
            return
        if record.closing is not None:
            record.closing.cancel()
        await record.session.close()

    async def close_all(self) -> None:
        """End every session; the server stops."""
        for name in list(self._open):
            await self.close(name)
        if self._closers:
            await asyncio.gather(*self._closers, return_exceptions=True)

    def _find(self, name: str, asker: Principal) -> _Open:
        record = self._open.get(name)
        if record is None or record.owner != asker:
            raise UserError(
                f"there is no running command {name!r} of yours",
                code="not_found",
                hint="it may have ended; start another with POST /v1/jobs/{job}/exec",
            )
        return record

    def _close_soon(self, name: str) -> None:
        closer = asyncio.get_running_loop().create_task(self.close(name))
        self._closers.add(closer)
        closer.add_done_callback(self._closers.discard)
