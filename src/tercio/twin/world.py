"""What the world does to jobs and orders, as numbers. All zeros is a calm world."""

from __future__ import annotations

import msgspec


class World(msgspec.Struct, frozen=True, kw_only=True):
    """How engines, tasks and messages behave.

    Attributes:
        launch_s: time from an order to the running task.
        slow_start_ratio: part of the launches that take `slow_start_s` more.
        slow_start_s: see `slow_start_ratio`.
        launch_failure_ratio: part of the launches that fail.
        checkpoint_every_s: a job that loses a node goes back to the last multiple of this; 0
            keeps all of its work, None loses all.
        keeps_on_stop: whether a job that is stopped in order saves its work first.
        restart_s: time that every attempt after the first spends before it gets on.
        stop_s: most time that a task takes to stop, drawn evenly, never above its grace.
        failure_ratio: part of the attempts that fail by themselves, half way on average.
        lost_ratio: part of the orders and answers that get lost; time-outs repeat them.
        repeat_ratio: part of the orders and answers that come twice.
        delay_s: most time an order is under way, drawn evenly.
    """

    launch_s: float = 0.0
    slow_start_ratio: float = 0.0
    slow_start_s: float = 0.0
    launch_failure_ratio: float = 0.0
    checkpoint_every_s: float | None = 0.0
    keeps_on_stop: bool = True
    restart_s: float = 0.0
    stop_s: float = 0.0
    failure_ratio: float = 0.0
    lost_ratio: float = 0.0
    repeat_ratio: float = 0.0
    delay_s: float = 0.0

    def saved_s(self, done_s: float) -> float:
        """Work that survives the loss of a node after `done_s` of it."""
        if self.checkpoint_every_s is None:
            return 0.0
        if self.checkpoint_every_s == 0:
            return done_s
        return done_s // self.checkpoint_every_s * self.checkpoint_every_s
