"""The policy that runs in shadow, seen from the server: a process beside it that may fail.

Whatever becomes of that process, the server only notes it: nothing waits for it but the person
who asks for its report, and that not for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from tercio.api.shadow_bodies import (
    BEGUN_FILE,
    LAG_S,
    ORDER_FILE,
    ShadowAnswer,
    ShadowOrder,
)
from tercio.errors import UserError
from tercio.logs import facts
from tercio.model.shadow_views import PolicyShadowView

ANSWER_S: Final = 10.0
"""Longest time that a report waits for the process."""
_LINE_BYTES_MAX: Final = 64 * 1024**2
_FAULTS_KEPT: Final = 20
log = logging.getLogger(__name__)


class PolicyShadow:
    """See the module's description.

    Attributes:
        command: of the process; its last argument, the state directory, is added.
        answer_s: longest time that a report waits.
    """

    def __init__(self, state_path: Path) -> None:
        self.command: tuple[str, ...] = (sys.executable, "-m", "tercio.api.shadow_child")
        self.answer_s = ANSWER_S
        self._state_path = state_path
        self._order: ShadowOrder | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._last: ShadowAnswer | None = None
        self._asked = self._answered = 0
        self._news = asyncio.Condition()
        self._faults: deque[str] = deque(maxlen=_FAULTS_KEPT)
        self._error = ""

    def kept(self) -> ShadowOrder | None:
        """Return what ran in shadow when the server stopped, if it can be read."""
        try:
            raw = (self._state_path / ORDER_FILE).read_bytes()
            return msgspec.json.decode(raw, type=ShadowOrder)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("policy_shadow_lost", extra=facts(error=str(error)))
            return None

    async def start(
        self,
        file: str,
        *,
        source: str,
        by: str,
        at_s: float,
        lag_s: float = LAG_S,
        overcommit: bool = False,
    ) -> None:
        """Begin with a policy, in the place of one that runs."""
        await self.close()
        order = ShadowOrder(
            id=secrets.token_hex(8), file=file, source=source, by=by, at_s=at_s, lag_s=lag_s,
            overcommit=overcommit,
        )  # fmt: skip
        await asyncio.to_thread(self._write, order)
        await self.go_on(order)

    async def go_on(self, order: ShadowOrder) -> None:
        """Let what ran in shadow before run on."""
        self._order, self._last, self._error = order, None, ""
        self._asked = self._answered = 0
        self._faults.clear()
        try:
            self._child = await asyncio.create_subprocess_exec(
                *self.command, str(self._state_path),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=_LINE_BYTES_MAX,
            )  # fmt: skip
        except OSError as error:
            self._error = str(error)
            return
        self._watch = asyncio.create_task(self._listen(self._child))

    async def stop(self) -> None:
        """End it for good.

        Raises:
            UserError: `not_found` when none runs.
        """
        self._known()
        await self.close()
        self._order = None
        for name in (ORDER_FILE, BEGUN_FILE):
            await asyncio.to_thread((self._state_path / name).unlink, missing_ok=True)

    async def close(self) -> None:
        """End the process; a restart goes on with it."""
        child, watch, self._child, self._watch = self._child, self._watch, None, None
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        if watch is not None:
            await asyncio.gather(watch, return_exceptions=True)

    async def view(self, newest_seq: int) -> PolicyShadowView:
        """Return what it came to so far, or why it says nothing.

        Raises:
            UserError: `not_found` when none runs.
        """
        order = self._known()
        await self._ask()
        answer = self._last
        report = None if answer is None else answer.report
        behind = 0 if report is None else max(newest_seq - report.seq, 0)
        state = "failed" if self._error else "starting" if report is None else "following"
        if behind and not self._error:
            state = "behind"
        return PolicyShadowView(
            source=order.source,
            by=order.by,
            state=state,
            lag_s=order.lag_s,
            newest_seq=newest_seq,
            behind=behind,
            note="" if answer is None else answer.note,
            error=self._error,
            report=report,
        )

    def notes(self) -> tuple[str, ...]:
        """Return what an operator should know now."""
        return (f"the policy in shadow failed: {self._error}",) if self._error else ()

    def _known(self) -> ShadowOrder:
        if self._order is None:
            raise UserError(
                "no policy runs in shadow",
                code="not_found",
                hint="begin with: tercio policy shadow start FILE",
            )
        return self._order

    async def _ask(self) -> None:
        """Ask for a report and wait for it, not for long."""
        child = self._child
        if child is None or child.stdin is None or self._error:
            return
        self._asked += 1
        ticket = self._asked
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.answer_s):
                with contextlib.suppress(ConnectionError):  # it has ended, and will say why
                    child.stdin.write(b"\n")
                    await child.stdin.drain()
                async with self._news:
                    await self._news.wait_for(lambda: self._answered >= ticket or self._is_over())

    def _is_over(self) -> bool:
        return self._watch is None or bool(self._error)

    async def _listen(self, child: asyncio.subprocess.Process) -> None:
        """Take its reports in, and note how it ends."""
        assert child.stdout is not None
        assert child.stderr is not None
        faults = asyncio.create_task(self._read_faults(child.stderr))
        error = ""
        try:
            async for line in child.stdout:
                self._last = msgspec.json.decode(line, type=ShadowAnswer)
                self._answered += 1
                async with self._news:
                    self._news.notify_all()
        except (ValueError, msgspec.MsgspecError) as failure:
            error = f"it says what nobody understands: {failure}"
            child.kill()
        code = await child.wait()
        await faults
        if child is self._child:
            self._error = error or (self._faults[-1] if self._faults else f"it ended with {code}")
            log.error("policy_shadow_failed", extra=facts(error=self._error))
        async with self._news:
            self._news.notify_all()

    async def _read_faults(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace").strip()
            if text:
                self._faults.append(text)

    def _write(self, order: ShadowOrder) -> None:
        path = self._state_path / ORDER_FILE
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(order))
        part.replace(path)
