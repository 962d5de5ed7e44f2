"""Limits of users and tenants over all queues: at once, and in device-hours."""

from __future__ import annotations

import random

import msgspec
from play import play

from tercio.model.limits import DAY_S, HOUR_MS, DeviceTime, Limits, OwnerLimit
from tercio.model.queue import Policy
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds


def test_a_user_is_held_to_a_limit_in_all_queues_together():
    r = play("""
        cluster 1n x 8g
        queue A 4/-/1
        queue B 4/-/1
        limits user:* devices=4
        0 run    a1 A 1x3 user=ana
        0 submit a2 B 1x2 user=ana        # B has room, and ana has 1 left
        0 submit a3 B 1x1 user=ana        # what fits goes on
        0 submit b1 B 1x4 user=ben
        0 expect a1,a3,b1 running
        0 expect a2 waits UserLimit
        0 says a2 "user ana may hold 4 devices in all queues and holds 4 devices; this job wants 2"
        5 end a1
        5 expect a2 running
    """)
    assert r.evicted() == []


def test_a_tenant_is_held_to_a_limit_whoever_asks():
    play("""
        cluster 1n x 8g
        limits tenant:acme devices=4 running_jobs=2 user:* running_jobs=2
        0 submit a1 default 1x2 user=ana tenant=acme
        0 submit b1 default 1x3 user=ben tenant=acme
        0 submit c1 default 1x3 user=ben tenant=other
        0 expect a1,c1 running
        0 expect b1 waits UserLimit
        0 says b1 "tenant acme may hold 4 devices in all queues and holds 2 devices"
        0 submit a2 default 1x1 user=ana tenant=acme
        0 submit a3 default 1x1 user=ana tenant=other
        0 expect a2 running
        0 expect a3 waits UserLimit
        0 says a3 "user ana may hold 2 running jobs in all queues and holds 2 running jobs"
    """)


def test_one_named_user_has_a_limit_of_their_own():
    play("""
        cluster 1n x 8g
        limits user:* devices=1 user:ana devices=6
        0 submit a default 1x6 user=ana
        0 submit b1 default 1x1 user=ben
        0 submit b2 default 1x1 user=ben
        0 expect a,b1 running
        0 expect b2 waits UserLimit
    """)


def test_more_than_a_limit_ever_gives_never_fits():
    r = play("""
        cluster 1n x 8g
        limits user:* devices=4 hours=10/1d
        0 submit big default 1x6
        0 submit long default 1x4 t=10800
        0 expect big,long waits NeverFits
        0 says big "needs 6 devices at once, but user ana may hold 4 devices in all queues"
        0 says long "needs 12 device-hours at once, but user ana may use 10 device-hours in 1 day"
    """)
    change = r.why("long").change
    assert change is not None
    assert (change.what, change.to, change.starts) == ("time_limit_s", 9000, "now")


def test_device_hours_come_free_at_midnight():
    """8 device-hours a day: two jobs of 4 fill it, the third starts as the day begins."""
    r = play("""
        cluster 1n x 8g
        limits user:* hours=8/1d
        0 submit a default 1x4 t=3600
        0 submit b default 1x4 t=3600
        0 submit c default 1x4 t=3600
        0 submit d default 1x4 t=3600 user=ben
        0 expect a,b running              # what they will use by their limits counts at once
        0 expect c waits UserLimit
        0 says c "user ana may use 8 device-hours in 1 day and has 8 device-hours, running jobs to"
        0 says c "this job wants 4 device-hours; there is room from 1970-01-02T00:00:00"
        3600 expect d running
        7200 expect c waits UserLimit     # nothing runs, and nothing is left
        86400 expect c started 86400
    """)
    assert r.evicted() == []


def test_hours_that_a_job_does_not_use_are_given_back():
    play("""
        cluster 1n x 8g
        limits tenant:* hours=8/1d
        0 submit a default 1x4 t=7200 runs=1800
        0 submit b default 1x4 t=3600
        0 expect b waits UserLimit
        1800 expect b started 1800        # a used 2 of its 8 hours
    """)


def test_a_window_of_days_slides_day_by_day():
    play("""
        cluster 1n x 8g
        limits user:* hours=24/2d
        43200  submit a default 1x4 t=14400          # 16 on day 0
        90000  submit b default 1x4 t=7200           # 8 on day 1
        100800 submit c default 1x4 t=7200
        100800 expect c waits UserLimit
        100800 says c "room from 1970-01-03T00:00:00"
        172800 expect c started 172800               # day 0 has left the window: 8 and 8
        172800 submit d default 1x4 t=10800          # 12 more are too many until day 1 leaves
        172800 expect d waits UserLimit
        259200 expect d started 259200
    """)


def test_a_job_that_names_no_time_starts_while_something_is_left():
    """It counts for what it has used, and nobody is stopped for a budget."""
    r = play("""
        cluster 1n x 8g
        limits user:* hours=8/1d
        0     submit a default 1x4 runs=10800        # no limit: counts as it runs
        3600  submit b default 1x2                   # 4 of 8 are used
        3600  expect b running
        7200  submit c default 1x1
        7200  expect c waits UserLimit               # 8 and 2 by now
        7200  says c "this job names no time limit; there is room from 1970-01-02"
        86400 expect c started 86400
    """)
    assert r.evicted() == []


def test_budgets_hold_in_random_work_over_days():
    """The rule is checked in every cycle from what jobs held, apart from the scheduler's counts."""
    limits = Limits(
        per_user=OwnerLimit(
            amounts={"devices": 6000}, device_time=DeviceTime(amount_ms=40 * HOUR_MS, days=1)
        ),
        per_tenant=OwnerLimit(
            amounts={"running_jobs": 5}, device_time=DeviceTime(amount_ms=150 * HOUR_MS, days=3)
        ),
        users={"cy": OwnerLimit()},
    )
    reasons: dict[str, int] = {}
    for seed in range(2):
        rng = random.Random(seed)
        policy = Policy(half_life_s=0.0, limits=limits)
        r = Rounds(cluster("1r x 3n x 4g"), policy, checks=rules.ALL)
        for at in range(40):
            limit_s = rng.choice([3600.0, 10_800.0, 40_000.0])
            r.submit(
                f"j{at}",
                gang(f"{rng.choice([1, 1, 2])}x{rng.choice([0.5, 1, 2, 4]):g}", limit_s=limit_s),
                user=rng.choice(["ana", "ben", "cy"]),
                tenant=rng.choice(["acme", "acme", "other"]),
                priority=rng.choice([0, 0, 5]),
                runs_s=limit_s * rng.choice([0.3, 1.0, 2.0]),
            )
            r.run(r.now_s + rng.choice([0.0, 2000.0, 9000.0]))
            for job in r.waiting:
                reason = str(r.plans[-1].briefs[job].reason)
                reasons[reason] = reasons.get(reason, 0) + 1
            if at == 25:
                per_user = msgspec.structs.replace(limits.per_user, amounts={"devices": 4000})
                lower = msgspec.structs.replace(limits, per_user=per_user)
                r.set_policy(msgspec.structs.replace(policy, limits=lower))
        r.run(r.now_s + 12 * DAY_S)
        never = [job for job in r.waiting if r.reason(job) != "NeverFits"]
        assert not never, [r.why(job).message for job in never]
    assert reasons["UserLimit"] > 15, reasons
