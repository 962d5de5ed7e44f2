"""Time as the runtime sees it: the real one, and one that a test or a demo steps by hand.

Both never go backwards. All waiting of the runtime goes through its clock, so that nothing
else in it depends on which one it is.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

_LONGEST_SLEEP_S = 60.0


class Clock(Protocol):
    """What the runtime needs of time."""

    def now_s(self) -> float:
        """Return seconds since the epoch; never less than before."""
        ...

    def not_before(self, at_s: float) -> None:
        """Go on from `at_s` if that is later than now: the journal's time must not be undone."""
        ...

    async def sleep_until(self, at_s: float) -> None:
        """Return when it is `at_s` or later."""
        ...

    def deadline(self, at_s: float) -> AbstractAsyncContextManager[object]:
        """Return a block that raises `TimeoutError` inside when it is `at_s`."""
        ...


class SystemClock:
    """The machine's clock, made steady.

    A wall clock that is set forward is followed. One that is set back is not: time goes on at
    its steady rate, so that no deadline or limit stands still for as long as the step was.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._offset_s = wall() - steady()

    def now_s(self) -> float:
        """Return seconds since the epoch; never less than before."""
        steady_s = self._steady()
        self._offset_s = max(self._offset_s, self._wall() - steady_s)
        return steady_s + self._offset_s

    def not_before(self, at_s: float) -> None:
        """Go on from `at_s` if that is later than now."""
        self._offset_s = max(self._offset_s, at_s - self._steady())

    async def sleep_until(self, at_s: float) -> None:
        """Return when it is `at_s` or later, also when the wall clock is set forward meanwhile."""
        left_s = at_s - self.now_s()
        while left_s > 0:
            await asyncio.sleep(min(left_s, _LONGEST_SLEEP_S))
            left_s = at_s - self.now_s()

    def deadline(self, at_s: float) -> AbstractAsyncContextManager[object]:
        """Return a block that raises `TimeoutError` inside when it is `at_s`."""
        return asyncio.timeout(at_s - self.now_s())


class SteppedClock:
    """A clock that moves only when told to. `advance` wakes sleepers in order of their time."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self._now_s = now_s
        self._count = 0
        self._waiting: list[tuple[float, int]] = []
        self._wakes: dict[int, Callable[[], None]] = {}

    def now_s(self) -> float:
        """Return seconds since the epoch; never less than before."""
        return self._now_s

    def not_before(self, at_s: float) -> None:
        """Go on from `at_s` if that is later than now."""
        self._now_s = max(self._now_s, at_s)

    @property
    def next_s(self) -> float | None:
        """When the next sleeper wants to be woken, or None."""
        while self._waiting and self._waiting[0][1] not in self._wakes:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def advance(self, to_s: float) -> None:
        """Move time to `to_s`, waking every sleeper that is due, each at its own time."""
        while (next_s := self.next_s) is not None and next_s <= to_s:
            _, number = heapq.heappop(self._waiting)
            self.not_before(next_s)
            self._wakes.pop(number)()
        self.not_before(to_s)

    async def sleep_until(self, at_s: float) -> None:
        """Return when time was moved to `at_s` or later."""
        if at_s <= self._now_s:
            return
        woken = asyncio.Event()
        number = self._call_at(at_s, woken.set)
        try:
            await woken.wait()
        finally:
            self._wakes.pop(number, None)

    @asynccontextmanager
    async def deadline(self, at_s: float) -> AsyncIterator[None]:
        """Return a block that raises `TimeoutError` inside when it is `at_s`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as block:
            if at_s <= self._now_s:
                block.reschedule(loop.time())
            number = self._call_at(at_s, lambda: block.reschedule(loop.time()))
            try:
                yield
            finally:
                self._wakes.pop(number, None)

    def _call_at(self, at_s: float, wake: Callable[[], None]) -> int:
        self._count += 1
        heapq.heappush(self._waiting, (at_s, self._count))
        self._wakes[self._count] = wake
        return self._count
