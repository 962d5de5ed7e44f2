"""Running jobs whose members come and go: `repair: task`, and elastic jobs that grow."""

from play import play


def test_a_lost_member_comes_back_before_anything_new():
    r = play("""
    cluster 2n x 8g
    0 run A default 2x4 firm
    1 submit waits default 1x8 firm
    1 expect waits running
    2 submit next default 1x4 p100
    2 expect next waits NoFreeDevices
    3 lose A 1
    3 expect A running
    3 expect A tasks 2
    3 expect next waits NoFreeDevices
    3 expect evicted none
    """)
    (again,) = (task for task in r.running["A"].tasks if task.member is not None)
    assert (again.task, again.rank) == (2, 1)


def test_a_lost_member_waits_for_room_and_comes_first_then():
    play("""
    cluster 2n x 8g
    0 run A default 2x8 firm
    1 down n2
    1 lose A 1
    2 submit next default 1x8 p100
    2 expect A tasks 1
    2 expect next waits NoFreeDevices
    9 up n2
    9 expect A tasks 2
    9 expect next waits NoFreeDevices
    """)


def test_a_lost_member_comes_back_in_the_domain_of_the_others():
    play("""
    cluster 2r x 2n x 8g
    0 run A default 2x8 same=rack on=n1,n2
    0 run B default 1x8 on=n3
    1 down n2
    1 lose A 1
    1 expect A tasks 1         # n4 is free, in the other rack
    2 up n2
    2 expect A running on=n1,n2
    """)


def test_an_elastic_job_grows_when_devices_come_free():
    play("""
    cluster 2n x 8g
    0 run busy default 1x8
    0 run E default 1x4 max=4
    0 expect E tasks 2
    5 end busy
    5 expect E tasks 4
    5 expect evicted none
    """)


def test_it_does_not_grow_into_what_somebody_waits_for():
    play("""
    cluster 2n x 8g
    0 run busy default 1x8 t=100 firm on=n1
    0 run other default 1x4 t=20 firm on=n2
    0 run E default 1x4 max=4 on=n2
    1 submit big default 1x8
    20 expect E tasks 1
    100 expect big started 100
    101 end big
    101 expect E tasks 4
    """)


def test_it_makes_room_for_its_equals():
    """What is above the minimum is lent, also to jobs of the same queue and priority."""
    play("""
    cluster 2n x 8g
    0 run E default 2x4 max=4
    0 expect E tasks 4
    1 submit next default 1x8
    1 expect next running
    1 expect E tasks 2
    2 submit another default 1x8
    2 expect another waits NoFreeDevices
    3 submit lower default 1x4 p-5
    3 expect lower waits NoFreeDevices
    9 end next
    9 expect another running
    20 end another
    20 expect lower running
    20 expect E tasks 3
    """)


def test_it_grows_to_the_limit_of_its_queue():
    play("""
    cluster 2n x 8g
    queue A 0/12/1
    queue B 0/-/1
    0 run busy B 1x8 on=n1
    0 run E A 1x4 max=4
    0 expect E tasks 2
    5 end busy
    5 expect E tasks 3
    """)


def test_it_gives_back_what_it_grew_by_before_anyone_is_broken():
    play("""
    cluster 2n x 8g
    queue A 8/-/1
    queue B 8/-/1
    0 run busy B 1x8 on=n1
    0 run E A 2x4 max=4
    2 end busy
    2 expect E tasks 4
    3 submit J B 1x8
    3 expect J running
    3 expect E tasks 2
    9 end J
    9 expect E tasks 4
    """)


def test_it_grows_inside_its_own_domain():
    play("""
    cluster 2r x 1n x 8g
    0 run half default 1x4 on=n1
    0 run E default 1x4 max=4 same=rack on=n1
    0 expect E tasks 1
    5 end half
    5 expect E tasks 2
    """)
