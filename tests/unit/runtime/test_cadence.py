from __future__ import annotations

from tercio.config import SchedulerConfig
from tercio.runtime.cadence import Cadence


def test_short_cycles_run_in_every_turn() -> None:
    cadence = Cadence(SchedulerConfig(short_cycle_s=0.02))
    for now_s in (1.0, 1.001, 1.002):
        assert cadence.allows(now_s, has_requests=True)
        cadence.ran(now_s, 0.01)


def test_long_cycles_take_no_more_than_their_share() -> None:
    cadence = Cadence(SchedulerConfig(short_cycle_s=0.02, busy_ratio=0.25))
    assert cadence.allows(10.0, has_requests=False)
    cadence.ran(10.0, 1.0)
    assert cadence.ready_s == 14.0
    assert not cadence.allows(13.9, has_requests=False)
    assert cadence.allows(14.0, has_requests=False)


def test_turn_with_requests_puts_a_long_cycle_off_once() -> None:
    cadence = Cadence(SchedulerConfig(short_cycle_s=0.0, busy_ratio=1.0))
    cadence.ran(10.0, 1.0)
    assert [cadence.allows(20.0 + n, has_requests=True) for n in range(4)] == [
        False,
        True,
        False,
        True,
    ]
    assert cadence.allows(30.0, has_requests=False)
