"""Limits of users and tenants in the life of a site: refusal, use over days, what is shown."""

from __future__ import annotations

from tercio.core.cluster import Cluster
from tercio.core.owner_limits import owner_limit_rows
from tercio.formats.policy import read_policy
from tercio.model.commands import CancelJob, SubmitJob
from tercio.model.job import TimeSpec
from tercio.model.limits import DAY_S
from tercio.testing import make_job

from .site import Site

POLICY = read_policy("""
limits:
  per_user: {devices: 12, device_hours: {amount: 24, per: 2d}}
  tenants: {default: {running_jobs: 2}}
queues: {default: {user_limit: {cpus: 64}}}
""")


def test_what_alone_passes_a_limit_is_refused_at_submit():
    site = Site(POLICY)
    error = site.refused(SubmitJob(spec=make_job(tasks=2, devices=8)))
    assert error.code == "never_fits"
    assert "needs 16 devices at once, but user ana may hold 12 devices" in error.message
    assert error.hint == "ask for less, or have the limit of user 'ana' raised in the policy"
    error = site.refused(SubmitJob(spec=make_job(devices=8, time=TimeSpec(limit_s=4 * 3600.0))))
    assert "needs 32 device-hours at once, but user ana may use 24" in error.message


def test_use_is_shown_and_counted_over_restarts_and_days():
    site = Site(POLICY)
    job = site.submit(devices=8, time=TimeSpec(limit_s=3 * 3600.0))
    rows = {(r.kind, r.name, r.queue, r.resource): r for r in owner_limit_rows(site.cluster, 1002)}
    hours = rows["user", "ana", None, "device_hours"]
    assert (round(hours.used, 1), hours.limit, hours.days) == (24.0, 24, 2)
    assert rows["user", "ana", None, "devices"].used == 8
    assert rows["user", "ana", "default", "cpus"].limit == 64
    assert rows["tenant", "default", None, "running_jobs"].used == 1
    waits = site.submit(devices=1, time=TimeSpec(limit_s=3600.0))
    assert site.driver.decisions[waits].reason.value == "UserLimit"
    site.now_s += 1800.0
    site.do(CancelJob(job_id=job))
    image = Cluster.from_image(site.cluster.image())
    assert image.ledger.spent_ms == site.cluster.ledger.spent_ms
    assert owner_limit_rows(image, site.now_s) == owner_limit_rows(site.cluster, site.now_s)


def test_ended_use_leaves_the_window_day_by_day():
    site = Site(POLICY)
    for day, hours in ((0, 1), (1, 2)):
        site.cluster.ledger.add_usage(
            user="ana", tenant="default", queue="default", type="H100", milli=4000,
            start_s=day * DAY_S, stop_s=day * DAY_S + hours * 3600.0,
        )  # fmt: skip

    def shown(at_s: float) -> tuple[float, float | None, float]:
        row = next(r for r in owner_limit_rows(site.cluster, at_s) if r.resource == "device_hours")
        return (row.used, row.frees_s, row.frees)

    assert shown(DAY_S + 10_000.0) == (12.0, 2.0 * DAY_S, 4.0)
    assert shown(2 * DAY_S + 1.0) == (8.0, 3.0 * DAY_S, 8.0)
    assert shown(4 * DAY_S) == (0.0, None, 0.0)
