"""When a scheduling cycle may run: short ones in every turn, long ones spaced.

A long cycle is followed by a pause, so that cycles take at most a set share of the time, and
it does not delay the answers of the turn that called for it: that turn leaves it to the next.
"""

from __future__ import annotations

from tercio.config import SchedulerConfig


class Cadence:
    """The timing of one server's cycles.

    Attributes:
        ready_s: earliest instant of the next cycle.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.ready_s = 0.0
        self._config = config
        self._is_long = False
        self._is_owed = False

    def allows(self, now_s: float, *, has_requests: bool) -> bool:
        """Whether this turn runs a cycle. A turn with requests puts a long one off, once."""
        if now_s < self.ready_s:
            return False
        self._is_owed = self._is_long and has_requests and not self._is_owed
        return not self._is_owed

    def ran(self, now_s: float, spent_s: float) -> None:
        """Note that a cycle which began at `now_s` took `spent_s`."""
        self._is_long = spent_s > self._config.short_cycle_s
        if self._is_long:
            self.ready_s = now_s + spent_s / self._config.busy_ratio
