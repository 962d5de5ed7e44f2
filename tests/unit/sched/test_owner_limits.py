"""Counting of users' and tenants' use beside what the scenarios of limits show."""

from __future__ import annotations

import pytest

from tercio.model.ids import JobId, QueuePath
from tercio.model.limits import DAY_S, HOUR_MS, DeviceTime, Limits, OwnerKind, OwnerLimit
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceShare
from tercio.model.snapshot import RunningJob
from tercio.sched.owners import Owner, OwnerLimits
from tercio.testing.build import gang

ANA = Owner("ana", "acme", 3600.0)
BUDGET = Limits(per_user=OwnerLimit(device_time=DeviceTime(amount_ms=10 * HOUR_MS, days=2)))


def running(*, placed_s: float, ends_s: float | None, **fields: object) -> RunningJob:
    tasks = (
        TaskPlacement(
            task=0, group=0, node="n1", devices=(DeviceShare(index=0),), cpus_milli=0,
            memory_bytes=0,
        ),
    )  # fmt: skip
    return RunningJob(
        job_id=JobId("job-1"), spec=gang("1x1"), queue=QueuePath("default"), user="ana",
        tenant="acme", priority=0, is_preemptible=True, sequence=1, attempt=1, tasks=tasks,
        placed_s=placed_s, ends_s=ends_s, **fields,
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("placed_s", "ends_s", "hours"),
    [
        (9 * DAY_S, 10 * DAY_S + 3600.0, 25),  # from the first day of the window to its end
        (5 * DAY_S, 10 * DAY_S + 7200.0, 26),  # what is older has left the window
        (5 * DAY_S, 20 * DAY_S, 48),  # no window holds more than two days of one device
        (10 * DAY_S, None, 1),  # names no time: counts for what it has had
    ],
)
def test_what_a_running_job_counts_for(placed_s: float, ends_s: float | None, hours: int):
    limits = OwnerLimits(BUDGET)
    limits.begin({}, 10 * DAY_S + 3600.0)
    limits.run(running(placed_s=placed_s, ends_s=ends_s), sign=+1)
    assert limits.used_ms(OwnerKind.USER, "ana") == hours * HOUR_MS
    assert limits.used_ms(OwnerKind.USER, "ben") == 0


def test_a_job_that_stops_counts_until_it_is_gone():
    limits = OwnerLimits(BUDGET)
    limits.begin({}, 7200.0)
    job = running(placed_s=0.0, ends_s=36_000.0, is_stopping=True, stops_by_s=10_800.0)
    limits.run(job, sign=+1)
    assert limits.used_ms(OwnerKind.USER, "ana") == 3 * HOUR_MS
    limits.run(job, sign=-1)
    assert limits.used_ms(OwnerKind.USER, "ana") == 0


def test_devices_that_are_being_freed_for_a_job_count_for_one_cycle():
    limits = OwnerLimits(BUDGET)
    limits.begin({"user:ana": {0: 4 * HOUR_MS}}, 0.0)
    limits.pledge(ANA, {"devices": 5000})
    found = limits.block(ANA, {"devices": 2000})
    assert found is not None
    assert (found.use, found.wanted) == (9 * HOUR_MS, 2 * HOUR_MS)
    limits.begin({"user:ana": {0: 4 * HOUR_MS}}, 0.0)
    assert limits.block(ANA, {"devices": 2000}) is None


def test_room_that_never_comes_has_no_time():
    limits = OwnerLimits(BUDGET)
    limits.begin({"user:ana": {0: 10 * HOUR_MS}}, 5.0)
    found = limits.block(ANA, {"devices": 1000})
    assert found is not None
    assert limits.fits_from_s(found) == 2 * DAY_S
    too_much = limits.block(ANA, {"devices": 11_000})
    assert too_much is not None
    assert too_much.is_for_ever
    assert limits.fits_from_s(too_much) is None
