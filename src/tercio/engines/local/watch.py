"""A supervisor that is alive, as the engine knows it."""

from __future__ import annotations

import asyncio

import msgspec

from tercio.engines.base import TaskRef


class Watch(msgspec.Struct):
    """A supervisor that is alive: its process, and the timer that ends it when it is overdue.

    `begun_s` is None until it has said that its task runs.
    """

    ref: TaskRef
    pid: int
    pidfd: int
    begun_s: float | None
    overdue: asyncio.TimerHandle | None = None
