"""Reservations of people: who may run there, who may not, and until when."""

from __future__ import annotations

from play import play


def test_only_what_ends_in_time_runs_on_what_is_reserved():
    play("""
        cluster 2n x 8g
        queue A -/-/1
        queue B -/-/1
        0   reserve R B 8 from=100 for=50
        0   submit long A 1x8              # no time limit: only where nothing is reserved
        0   submit late A 1x8 t=101        # would end in the window
        0   expect long running
        0   expect late waits Reserved
        0   says late "reservation R begins at"
        0   submit short A 1x8 t=100       # ends when it opens
        0   expect short running
        99  expect late waits
    """)


def test_the_holder_has_it_while_it_is_open_and_nobody_else():
    play("""
        cluster 2n x 8g
        queue A -/-/1
        queue B -/-/1
        0   reserve R B 8 from=0 for=50
        0   run J1 A 1x8
        0   submit other A 1x1 t=10
        0   submit mine B 1x8 t=500        # may run on past the end of the window
        0   expect mine running
        0   expect other waits
        60  submit again B 1x1
    """)


def test_nobody_is_let_in_before_the_window_closes_and_everybody_after():
    r = play("""
        cluster 1n x 8g
        queue A -/-/1
        queue B -/-/1
        0   reserve R B 8 from=0 for=50
        0   submit other A 1x4 t=10
        0   expect other waits Reserved
        0   says other "kept for reservation R until"
        49  expect other waits
        50  expect other started 50
    """)
    assert not r.evicted()


def test_what_the_holder_takes_counts_against_it():
    play("""
        cluster 1n x 8g
        queue A -/-/1
        queue B -/-/1
        0   reserve R B 4 from=0 for=50
        0   submit mine B 1x4
        0   submit other A 1x4             # the rest is free for all
        0   expect mine,other running
    """)


def test_a_job_of_another_queue_may_name_it():
    play("""
        cluster 1n x 8g
        queue A -/-/1
        queue B -/-/1
        0   reserve R B 8 from=0 for=50
        0   submit stranger A 1x4
        0   submit guest A 1x4 reservation=R
        0   expect guest running
        0   expect stranger waits Reserved
    """)


def test_a_reservation_for_a_user():
    play("""
        cluster 1n x 8g
        queue A -/-/1
        0   reserve R - 8 from=0 for=50 user=eve
        0   submit J1 A 1x4 user=ana
        0   submit J2 A 1x4 user=eve
        0   expect J2 running
        0   expect J1 waits Reserved
    """)


def test_windows_come_again():
    play("""
        cluster 1n x 8g
        queue A -/-/1
        queue B -/-/1
        0   reserve R B 8 from=10 for=10 every=100
        0   submit first A 1x8 t=10 runs=10
        0   expect first running
        12  submit long A 1x8 t=91 runs=91     # longer than from one window to the next
        12  submit fits A 1x8 t=90 runs=90
        19  expect long,fits waits
        20  expect fits running
        20  expect long waits
        120 expect long waits                  # again too long, and again
        121 unreserve R
        121 expect long running
    """)


def test_whole_domains_are_kept_whole():
    play("""
        cluster 4n x 8g
        queue A -/-/1
        queue B -/-/1
        0   run J1 A 1x1 on=n1
        0   run J2 A 1x1 on=n2
        0   reserve R B node=2 from=100 for=50
        0   submit long A 2x7                  # fits beside J1 and J2 only
        0   submit wide A 1x8
        0   expect long running on=n1,n2
        0   expect wide waits Reserved
        100 submit gang B 2x8
        100 expect gang running on=n3,n4
    """)


def test_a_node_that_fails_is_replaced_by_another():
    play("""
        cluster 3n x 8g
        queue A -/-/1
        queue B -/-/1
        0   reserve R B node=2 from=100 for=50
        10  down n1
        10  submit long A 1x1
        10  expect long waits Reserved         # both others are needed now
        100 submit gang B 2x8
        100 expect gang running on=n2,n3
    """)


def test_what_runs_already_is_not_stopped_and_is_awaited():
    r = play("""
        cluster 1n x 8g
        queue A -/-/1
        queue B -/-/1
        policy across=off
        0   run J1 A 1x8
        0   reserve R B 8 from=10 for=100
        10  submit mine B 1x8
        10  submit other A 1x1
        10  expect mine,other waits
        30  end J1
        30  expect mine running
        30  expect other waits
    """)
    assert not r.evicted()


def test_two_reservations_do_not_share_devices():
    play("""
        cluster 2n x 8g
        queue A -/-/1
        queue B -/-/1
        queue C -/-/1
        0   reserve R B 8 from=10 for=20
        0   reserve Q C 8 from=20 for=20
        0   submit long A 1x1
        0   expect long waits Reserved
        20  submit b B 1x8 t=100
        20  submit c C 1x8 t=100
        20  expect b,c running
    """)


def test_a_promise_gives_way_to_a_reservation_made_later():
    play("""
        cluster 1n x 8g
        queue A -/-/1
        queue B -/-/1
        0   run J1 A 1x8 t=100 runs=100
        0   submit J2 A 1x8 t=50 runs=50
        1   reserve R B 8 from=120 for=30
        100 expect J2 waits
        150 expect J2 started 150
    """)
