"""One thing that is done again and again beside the writer, and never takes the server down."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from tercio.logs import facts

log = logging.getLogger(__name__)

Work = Callable[[], object]
"""What is done: a function, or a coroutine function that is awaited."""


class Periodic:
    """Does its work, pauses, and does it again, until it is stopped.

    Work that fails is a bug: it is logged with its name, and its next turn comes all the same.
    What a site may bring about, such as a full disk, is caught in the work itself.

    Args:
        name: of the work, for the log.
        work: what is done.
        pause: awaited between two turns.
        pauses_first: whether the first turn comes after the first pause.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        pause: Callable[[], Awaitable[object]],
        pauses_first: bool = False,
    ) -> None:
        self._name = name
        self._work = work
        self._pause = pause
        self._pauses_first = pauses_first
        self._task: asyncio.Task[None] | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started, also when it was stopped since."""
        return self._task is not None

    def start(self) -> None:
        """Begin; on the event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End it, also in the middle of a turn. Raises nothing of what the work did."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def turn(self) -> None:
        """Do the work once."""
        try:
            result = self._work()
            if inspect.isawaitable(result):
                await result
        except Exception as failure:
            log.error("periodic_broke", extra=facts(work=self._name), exc_info=failure)

    async def _run(self) -> None:
        if self._pauses_first:
            await self._pause()
        while True:
            await self.turn()
            await self._pause()


def every(pause_s: float) -> Callable[[], Awaitable[object]]:
    """Return the pause of so many seconds."""
    return lambda: asyncio.sleep(pause_s)
