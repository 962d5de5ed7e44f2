"""Flexible jobs give way to others until power is cheaper, and never leave a device idle for it."""

import pytest
from play import play

BUSY = """
    cluster 1n x 8g
    0 run a default 1x8 t=100 runs=100
"""


def test_it_lets_a_later_job_go_first_until_its_hour():
    play(
        BUSY
        + """
    1 submit flex default 1x8 t=50 runs=50 cheap=150
    2 submit later default 1x8 t=40 runs=40
    2 expect flex waits NoFreeDevices
    2 says flex "free; flexible: lets others go first until 1970-01-01T00:02:30.000Z"
    2 says flex "when power is cheaper (0.3 → 0.1 USD/kWh); its slack ends 1970-01-01T00:03:30"
    101 expect later started 100
    140 expect flex started 140
    """
    )


def test_it_never_leaves_devices_idle():
    play("""
    cluster 1n x 8g
    0 submit flex default 1x8 t=50 runs=50 cheap=5000
    0 expect flex running
    1 submit big default 1x8 t=50
    2 submit small default 1x4 t=10 cheap=5000
    50 expect big running
    """)


def test_it_fills_what_the_head_of_the_queue_cannot_use():
    play("""
    cluster 1n x 8g
    0 run a default 1x4 t=100 firm
    1 submit head default 1x8 t=50
    2 submit flex default 1x4 t=90 cheap=5000
    2 expect head waits
    2 expect flex running
    """)


def test_from_its_hour_on_it_has_its_old_place():
    """The later one is submitted before the hour, and waits behind it after that."""
    play(
        BUSY
        + """
    1 submit flex default 1x8 t=50 cheap=80
    2 submit later default 1x8 t=40
    81 says flex "needs 8 H100 on one node; 0 of 8 H100 free"
    100 expect flex started 100
    100 expect later waits
    """
    )


@pytest.mark.parametrize(("cheap", "evicted"), [("cheap=500", "none"), ("", "low")])
def test_nobody_is_stopped_for_it_before_its_hour(cheap: str, evicted: str):
    play(f"""
    cluster 1n x 8g
    0 run low default 1x8
    1 submit flex default 1x8 p10 {cheap}
    1 expect evicted {evicted}
    """)


def test_its_hour_comes_without_any_other_event():
    play("""
    cluster 1n x 8g
    0 run low default 1x8
    1 submit flex default 1x8 p10 t=50 cheap=500
    499 expect evicted none
    500 expect flex started 500
    """)


def test_it_gives_way_to_other_queues_as_well():
    """Queue A holds nothing and would go first."""
    play("""
    cluster 1n x 8g
    queue A -/-/1
    queue B -/-/1
    0 run a B 1x8 t=100 runs=100 firm
    1 submit flex A 1x8 t=50 cheap=5000
    2 submit later B 1x8 t=40 runs=40
    100 expect later started 100
    140 expect flex started 140
    """)


def test_elements_of_an_array_give_way_one_by_one():
    play("""
    cluster 1n x 8g
    0 submit flex default 1x4 array=4 runs=30 t=30 cheap=60
    1 submit later default 1x8 t=40 runs=40
    30 expect later started 30
    70 expect flex.3 running
    """)
