"""Rings of readings: thinned, bounded, and cut into columns for the devices asked about."""

from __future__ import annotations

from tercio.model.readings import DeviceTelemetry
from tercio.runtime.series import POINTS, Rings, Want


def device(index: int, power_w: float | None) -> DeviceTelemetry:
    return DeviceTelemetry(index=index, power_w=power_w)


def add(rings: Rings, node: str, at_s: float, *powers: float | None) -> None:
    found = {index: device(index, power) for index, power in enumerate(powers)}
    rings.add(node, at_s, found, known=("n1", "n2"))


def test_a_step_keeps_its_first_reading_and_a_ring_no_more_than_its_points() -> None:
    rings = Rings(keep_s=3600.0, poll_s=10.0)
    assert rings.step_s == 20.0
    for number in range(3 * POINTS):
        add(rings, "n1", number * 10.0, float(number))
    at_s, (row,) = rings.cut([Want("n1", 0, 0.0, 1e9)], "power_w")
    assert len(at_s) == POINTS
    assert row[-2:] == (3 * POINTS - 4.0, 3 * POINTS - 2.0)
    assert at_s[1] - at_s[0] == 20.0


def test_columns_share_their_instants_and_say_nothing_where_nothing_was_read() -> None:
    rings = Rings(keep_s=1800.0, poll_s=10.0)
    add(rings, "n1", 100.0, 300.0, None)
    add(rings, "n1", 110.0, 310.0, 1.5)
    add(rings, "n2", 110.0, 500.0)
    wants = [Want("n1", 0, 0.0, 1e9), Want("n1", 1, 0.0, 1e9), Want("n2", 0, 0.0, 1e9)]
    at_s, rows = rings.cut([*wants, Want("n2", 7, 0.0, 1e9), Want("n3", 0, 0.0, 1e9)], "power_w")
    assert at_s == (100.0, 110.0)
    assert rows == [(300.0, 310.0), (None, 1.5), (None, 500.0), (None, None), (None, None)]


def test_only_the_time_of_interest_is_told() -> None:
    rings = Rings(keep_s=1800.0, poll_s=10.0)
    for at_s in range(0, 100, 10):
        add(rings, "n1", float(at_s), float(at_s))
    times, (row,) = rings.cut([Want("n1", 0, 35.0, 62.0)], "power_w")
    assert times == (30.0, 40.0, 50.0, 60.0)
    assert row == times


def test_a_node_that_is_gone_is_forgotten() -> None:
    rings = Rings(keep_s=1800.0, poll_s=10.0)
    rings.add("n9", 100.0, {0: device(0, 1.0)}, known=("n9",))
    add(rings, "n1", 110.0, 2.0)
    assert rings.cut([Want("n9", 0, 0.0, 1e9)], "power_w") == ((), [()])
