"""What happens when: on a clock that a test moves, or on the real one by timers of the loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from tercio.engines.base import Clock


class VirtualClock:
    """Seconds since the epoch that only `Timeline.advance` moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Return the present instant."""
        return self.now_s


class Timeline:
    """Actions by instant; equal instants keep the order in which they were added."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._sleepers: set[asyncio.Event] = set()
        self._is_open = False

    def open(self) -> None:
        """Start to act; needs a running loop on a real clock."""
        self._is_open = True
        self._arm()

    def close(self) -> None:
        """Stop acting, forget every action and wake who sleeps."""
        self._is_open = False
        for sleeper in list(self._sleepers):
            sleeper.set()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def next_s(self) -> float | None:
        """When the next action is due, or None."""
        return self._heap[0][0] if self._heap else None

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something at an instant; at once is at the next turn, never inside this call."""
        heapq.heappush(self._heap, (at_s, next(self._count), action))
        self._arm()

    def advance(self, to_s: float) -> None:
        """Move a virtual clock, doing what falls due on the way, each at its own instant."""
        clock = self._clock
        if not isinstance(clock, VirtualClock):
            raise TypeError("only a virtual clock can be advanced")
        while self._heap and self._heap[0][0] <= to_s:
            at_s, _, action = heapq.heappop(self._heap)
            clock.now_s = max(clock.now_s, at_s)
            action()
        clock.now_s = max(clock.now_s, to_s)

    async def sleep(self, delay_s: float) -> None:
        """Return when so much time has passed, or the timeline was closed."""
        if delay_s <= 0 or not self._is_open:
            return
        woken = asyncio.Event()
        self._sleepers.add(woken)
        self.at(self._clock() + delay_s, woken.set)
        try:
            await woken.wait()
        finally:
            self._sleepers.discard(woken)

    def _arm(self) -> None:
        if not self._is_open or isinstance(self._clock, VirtualClock):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            delay_s = max(0.0, self._heap[0][0] - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # The real clock may have been set back meanwhile: then nothing is due yet.
        while self._heap and self._heap[0][0] <= self._clock():
            heapq.heappop(self._heap)[2]()
        self._arm()
