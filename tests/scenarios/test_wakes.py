"""Time alone changes a plan: it is made anew then, as a scheduler without memory would make it."""

from __future__ import annotations

from play import play


def test_a_job_whose_closed_place_a_window_takes_is_looked_at_again():
    """While n2 is free, J has a place that its queue's limit closes: the whole node is more than
    what J names. From 300 on it would outlive the start of R's window there, and x has to stop.
    """
    play("""
    cluster 2n x 2g
    queue A -/3/1
    queue B -/-/1
    0 run x A 1x2 on=n1
    0 reserve R B node=1 from=600 for=1000
    0 submit J A 1x1 p100 exclusive t=300
    299 expect J waits QueueLimit
    299 expect evicted none
    310 expect J running
    310 expect J started 300.001
    """)
