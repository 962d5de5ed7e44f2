"""The second shell: a virtual clock and a heap of what comes, around the unchanged driver.

Everything that is due at one instant goes to the driver as one batch, as a live turn batches
what arrived meanwhile. Orders that come out are carried out by the engine of the world, whose
answers come back as events, at the same instant or later.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from tercio.core.driver import Driver, Step
from tercio.model.effects import AnyEffect
from tercio.model.events import AnyEvent, Entry, TaskStarted

Subject = TypeVar("Subject")

NEVER_S: Final = float("inf")
IDLE_WAKES: Final = 1_000
"""After so many wake-ups of the driver alone, with nothing to come from the world, it is over."""

MOST_ROUNDS: Final = 10_000
"""So many batches at one instant are an endless loop."""


class StuckError(Exception):
    """The world went on at one instant without an end."""


class Observer(Protocol):
    """Sees every step."""

    def stepped(self, loop: Loop, events: Sequence[AnyEvent], step: Step) -> None:
        """Look at one step; raise to end the run."""


class Loop:
    """See the module's description.

    Attributes:
        now_s: virtual time.
        pending: events for the next batch.
        journal: every entry so far, or None when it is not kept.
        events: entries so far.
        is_over: set by whoever has seen enough; ends the run.
        defers_starts: leave out the cycle after a batch of `TaskStarted` alone: nothing comes
            free by it. Only for work that never grows.
    """

    __slots__ = (
        "_heap", "_order", "_wake_s", "defers_starts", "driver", "events", "is_over", "journal",
        "now_s", "observers", "pending", "perform", "settled",
    )  # fmt: skip

    def __init__(
        self,
        driver: Driver,
        now_s: float,
        *,
        observers: Sequence[Observer] = (),
        journal: list[Entry] | None = None,
        defers_starts: bool = False,
    ) -> None:
        self.driver = driver
        self.now_s = now_s
        self.pending: list[AnyEvent] = []
        self.journal = journal
        self.events = 0
        self.is_over = False
        self.observers = tuple(observers)
        self.defers_starts = defers_starts
        self.perform: Callable[[AnyEffect], None] = _nobody
        self.settled: Callable[[], None] = _nothing
        self._heap: list[tuple[float, int, Callable[..., None], object]] = []
        self._order = 0
        self._wake_s = NEVER_S

    def at(self, at_s: float, do: Callable[[Subject], None], subject: Subject) -> None:
        """Do something at an instant, after what was put there before."""
        self._order += 1
        heapq.heappush(self._heap, (at_s, self._order, do, subject))

    def next_s(self) -> float:
        """When something happens next, or infinity."""
        heap_s = self._heap[0][0] if self._heap else NEVER_S
        return min(heap_s, self._wake_s)

    def run(self, until_s: float) -> None:
        """Let everything happen that is due up to an instant, and stand there."""
        heap = self._heap
        idle = 0
        while not self.is_over and idle < IDLE_WAKES:
            idle = 0 if heap else idle + 1
            next_s = heap[0][0] if heap else NEVER_S
            next_s = min(self._wake_s, next_s)
            if next_s > until_s or next_s == NEVER_S:
                break
            self.now_s = max(self.now_s, next_s)
            while heap and heap[0][0] <= next_s:
                _, _, do, subject = heapq.heappop(heap)
                do(subject)
            self.settle()
        if until_s != NEVER_S and not self.is_over:
            self.now_s = max(self.now_s, until_s)

    def settle(self) -> None:
        """Feed what is pending, and what comes of it at this instant."""
        is_first = True
        for _ in range(MOST_ROUNDS):
            if not self.pending and not is_first:
                self.settled()
                return
            events, self.pending = self.pending, []
            is_deferred = self.defers_starts and not is_first and _are_starts(events)
            self._feed(events, is_scheduling=not is_deferred)
            is_first = False
        raise StuckError(f"{MOST_ROUNDS} batches at {self.now_s}")

    def _feed(self, events: Sequence[AnyEvent], *, is_scheduling: bool) -> None:
        driver = self.driver
        step = driver.step(events, self.now_s, is_scheduling=is_scheduling)
        self.events += len(step.entries)
        if self.journal is not None:
            self.journal.extend(step.entries)
        # The deadline of a start that was answered must not wake anybody: it would bring the
        # cycle that was left out.
        wake_s = step.wake_at_s if is_scheduling else driver.later_s(self.now_s)
        self._wake_s = NEVER_S if wake_s is None else wake_s
        for observer in self.observers:
            observer.stepped(self, events, step)
        for effect in step.effects:
            self.perform(effect)

    def replace(self, driver: Driver) -> None:
        """Go on with another driver, as after a restart."""
        self.driver = driver
        self._wake_s = self.now_s


def _are_starts(events: Sequence[AnyEvent]) -> bool:
    for event in events:  # noqa: SIM110  a generator would cost more than the loop
        if type(event) is not TaskStarted:
            return False
    return True


def _nobody(effect: AnyEffect) -> None:
    raise StuckError(f"no engine carries out {effect.effect_id}")


def _nothing() -> None:
    return None
