from __future__ import annotations

import pytest

from tercio.model.ids import QueuePath
from tercio.model.reservation import Reservation


def make(**fields: object) -> Reservation:
    known = {"name": "r", "user": "ana", "from_s": 100.0, "duration_s": 50.0, "devices": 1}
    return Reservation(**{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now_s", "windows"),
    [(0, [(100, 150)]), (100, [(100, 150)]), (149.9, [(100, 150)]), (150, []), (1e9, [])],
)
def test_a_single_window_is_there_until_it_ends(now_s, windows):
    assert list(make().windows(now_s, 3)) == windows


@pytest.mark.parametrize(
    ("now_s", "windows"),
    [
        (0, [(100, 150), (1100, 1150)]),
        (149, [(100, 150), (1100, 1150)]),
        (150, [(1100, 1150), (2100, 2150)]),
        (1120, [(1100, 1150), (2100, 2150)]),
        (2150, []),
    ],
)
def test_windows_come_again_until_the_last(now_s, windows):
    assert list(make(every_s=1000.0, until_s=2101.0).windows(now_s, 2)) == windows


def test_windows_may_follow_each_other_without_a_gap():
    assert make(every_s=50.0).windows(150, 2) == ((150, 200), (200, 250))


def test_a_queue_holds_it_with_its_sub_queues_and_nobody_else():
    kept = make(user=None, queue=QueuePath("lab"))
    assert kept.is_held_by("lab", "x")
    assert kept.is_held_by("lab/nlp", "x")
    assert not kept.is_held_by("laboratory", "x")
    assert make().is_held_by("anywhere", "ana")
    assert not make().is_held_by("anywhere", "bob")
