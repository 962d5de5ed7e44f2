"""Deadlines: a promise in time, and an honest word when there is none."""

import pytest
from play import play

BEHIND = """
    cluster 2n x 8g
    0 run a default 1x8 firm t=60 on=n1
    0 run b default 1x4 firm t=100 on=n2
    1 submit head default 1x8 t=100
    2 submit second default 1x8 t=40 {by}
    3 submit small default 1x4 t=500
    3 expect small {then}
"""


@pytest.mark.parametrize(
    ("by", "then"),
    [
        ("", "running"),
        ("by=140", "waits"),
        ("by=139", "running"),
    ],
    ids=["no deadline, depth 1", "a start in time is kept", "lost anyhow: nobody waits for it"],
)
def test_a_deadline_gets_a_promise_beyond_the_depth(by: str, then: str):
    """The head is promised n1 at 60; the second could have n2 at 100."""
    play(BEHIND.format(by=by, then=then).replace("1x4 t=500", "1x4 firm t=500"))


def test_a_deadline_counts_however_many_wait_before_it():
    """So many classes are told together what they are short of; this one is still tried."""
    crowd = "".join(f"\n    2 submit c{n} default 1x8 t={1000 + n}" for n in range(80))
    lines = BEHIND.format(by="by=140", then="waits").replace("1x4 t=500", "1x4 firm t=500")
    play(lines.replace("\n    2 submit second", f"{crowd}\n    2 submit second"))


def test_it_says_that_the_deadline_will_be_missed():
    play("""
    cluster 1n x 8g
    0 run a default 1x8 firm t=100
    1 submit late default 1x8 t=40 by=120
    1 says late "would be done 1970-01-01T00:02:20.000Z, after its deadline 1970-01-01T00:02"
    2 submit fine default 1x8 t=40 by=500
    81 says late "it cannot meet its deadline 1970-01-01T00:02:00.000Z any more"
    100 expect late started 100
    """)
