"""Named points at which a test can kill the server or spoil an effect.

Passed as an argument, never found by a global. A running server passes `NoFaults`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

from tercio.model.effects import AnyEffect
from tercio.model.events import AnyEvent

Act = Callable[[], Awaitable[AnyEvent | None]]
"""Performs an effect once and returns the event that answers it, None when it comes later."""


class Point(StrEnum):
    """Where the server can be when it dies."""

    BEFORE_WRITE = "before_write"
    AFTER_WRITE = "after_write"
    BEFORE_EFFECT = "before_effect"
    AFTER_EFFECT = "after_effect"
    BEFORE_CHECKPOINT = "before_checkpoint"
    AFTER_CHECKPOINT = "after_checkpoint"


class FaultPoints(Protocol):
    """What the runtime calls at its points."""

    def reach(self, point: Point) -> None:
        """Called at a point, from any thread; what it raises goes on as it is."""
        ...

    async def perform(self, effect: AnyEffect, act: Act) -> AnyEvent | None:
        """Perform the effect by `act`: late, twice, not at all, or with its answer lost."""
        ...


class NoFaults:
    """Everything goes well."""

    def reach(self, point: Point) -> None:
        """Go on."""

    async def perform(self, effect: AnyEffect, act: Act) -> AnyEvent | None:  # noqa: ARG002
        """Perform the effect once."""
        return await act()
