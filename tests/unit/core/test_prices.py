"""Prices as facts of the state: the hour of a flexible job, over restarts and changes."""

from __future__ import annotations

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.core.plans import plan_job, plan_policy
from tercio.core.prices import is_news, joined, known_until_s, lacking, window
from tercio.core.story import sentence
from tercio.model.commands import SetPolicy, SubmitJob
from tercio.model.events import PricesRead, subjects
from tercio.model.grid import HOUR_S, GridHour, GridSeries
from tercio.model.ids import JobId
from tercio.model.job import TimeSpec
from tercio.model.queue import Flexible
from tercio.model.snapshot import Cheaper
from tercio.runtime.turn import admitted
from tercio.testing import make_job, make_policy, make_principal

from .test_healing import World


def series(start_s: float, *prices: float) -> GridSeries:
    return GridSeries(
        hours=tuple(
            GridHour(at_s=start_s + at * HOUR_S, price_usd_per_kwh=price)
            for at, price in enumerate(prices)
        )
    )


def cheap_at(world: World, hour: int, *, hours: int = 24) -> PricesRead:
    """A day from now on at 0.31, with one hour at 0.12."""
    prices = [0.12 if at == hour else 0.31 for at in range(hours)]
    return PricesRead(at_s=world.now_s, series=series(world.now_s, *prices))


def flexible(world: World, hours: float = 12.0, **times: float) -> JobId:
    time = TimeSpec(flexible_s=hours * HOUR_S, **{"limit_s": HOUR_S, **times})
    world.command(SubmitJob(spec=make_job(devices=1, time=time)))
    return next(reversed(world.driver.cluster.jobs))


def cheaper(world: World, job_id: JobId) -> Cheaper | None:
    return world.driver.cluster.waiting[job_id].cheaper


@pytest.fixture
def world() -> World:
    """One device that a job holds, under a policy that orders by price."""
    world = World(1, spares=0)
    world.command(SetPolicy(policy=make_policy(flexible=Flexible.PRICE)))
    world.command(SubmitJob(spec=make_job(devices=1)))
    return world


def test_a_flexible_job_waits_for_its_hour(world: World) -> None:
    world.step([cheap_at(world, 3)])
    job_id = flexible(world)
    found = cheaper(world, job_id)
    assert found is not None
    assert found.from_s == world.now_s + 3 * HOUR_S
    assert found.latest_s == world.now_s + 12 * HOUR_S
    assert (found.rate, found.rate_at_once, found.unit) == (
        pytest.approx(0.12), pytest.approx(0.31), "USD/kWh",
    )  # fmt: skip
    assert "flexible: lets others go first" in world.driver.decisions[job_id].message


def test_the_hour_is_that_of_the_deadline_where_that_is_sooner(world: World) -> None:
    world.step([cheap_at(world, 3)])
    late = flexible(world, deadline_s=world.now_s + 4 * HOUR_S)
    found = cheaper(world, late)
    assert found is not None
    assert found.latest_s == found.from_s == world.now_s + 3 * HOUR_S
    assert cheaper(world, flexible(world, deadline_s=world.now_s + 3.9 * HOUR_S)) is None


def test_slack_begins_at_the_earliest_start(world: World) -> None:
    world.step([cheap_at(world, 3)])
    job_id = flexible(world, 2.0, earliest_s=world.now_s + 2 * HOUR_S)
    found = cheaper(world, job_id)
    assert found is not None
    assert found.latest_s == world.now_s + 4 * HOUR_S
    assert cheaper(world, flexible(world, 1.0, earliest_s=world.now_s + HOUR_S)) is None


def test_a_policy_that_does_not_order_by_it_and_a_job_without_slack_have_no_hour(
    world: World,
) -> None:
    world.step([cheap_at(world, 3)])
    job_id = flexible(world)
    world.command(SubmitJob(spec=make_job(devices=1)))
    assert cheaper(world, next(reversed(world.driver.cluster.jobs))) is None
    policy = msgspec.structs.replace(world.driver.cluster.policy, flexible=Flexible.OFF)
    world.command(SetPolicy(policy=policy))
    assert cheaper(world, job_id) is None
    assert "flexible" not in world.driver.decisions[job_id].message


def test_other_prices_move_the_hour(world: World) -> None:
    world.step([cheap_at(world, 3)])
    job_id = flexible(world)
    world.step([cheap_at(world, 5)])
    found = cheaper(world, job_id)
    assert found is not None
    assert found.from_s == world.now_s + 5 * HOUR_S
    world.step([PricesRead(at_s=world.now_s, series=GridSeries())])
    assert cheaper(world, job_id) is None


@pytest.mark.parametrize("passed_h", [0.0, 2.0, 4.0])
def test_a_restart_and_the_twin_see_the_same_hour(world: World, passed_h: float) -> None:
    """Also when the hour has come meanwhile: it is that of the whole slack."""
    world.step([cheap_at(world, 3)])
    job_id = flexible(world)
    world.later(passed_h * HOUR_S)
    before = cheaper(world, job_id)
    restored = Cluster.from_image(world.driver.cluster.image())
    assert before is not None
    assert restored.waiting[job_id].cheaper == before
    assert restored.prices.series == world.driver.cluster.prices.series


def test_dry_runs_of_a_job_and_of_a_policy_know_the_hour(world: World) -> None:
    world.step([cheap_at(world, 3)])
    time = TimeSpec(flexible_s=12 * HOUR_S, limit_s=HOUR_S)
    spec = make_job(devices=1, time=time)
    told = plan_job(world.driver, spec, make_principal("root"), world.now_s)
    assert "flexible: lets others go first" in told.decision.message
    world.command(SubmitJob(spec=msgspec.structs.replace(spec, priority=10)))
    policy = world.driver.cluster.policy
    assert plan_policy(world.driver, policy, world.now_s).evicts == ()
    off = msgspec.structs.replace(policy, flexible=Flexible.OFF)
    assert len(plan_policy(world.driver, off, world.now_s).evicts) == 1


def test_only_news_enters_the_journal(world: World) -> None:
    known, now_s = series(0.0, *[0.3] * 400), 50 * HOUR_S
    assert not is_news(known, known, now_s)
    assert not is_news(known, series(10 * HOUR_S, *[0.3] * 390), now_s)  # the past is no news
    assert not is_news(known, series(0.0, *[0.3] * 500), now_s)  # there is a week ahead
    assert is_news(known, series(0.0, *[0.3] * 60, *[0.2] * 340), now_s)
    assert is_news(known, series(0.0, *[0.3] * 200), now_s)
    assert is_news(series(0.0, *[0.3] * 60), known, now_s)
    assert is_news(GridSeries(), known, now_s)
    assert is_news(known, GridSeries(), now_s)
    assert not is_news(GridSeries(), GridSeries(), now_s)
    assert not is_news(GridSeries(), series(0.0, 0.1), now_s)  # it is over
    event = cheap_at(world, 3)
    assert admitted(world.driver.cluster, event, world.now_s) == event
    world.step([event])
    assert admitted(world.driver.cluster, event, world.now_s) is None


def test_the_state_keeps_a_week_behind_and_two_ahead() -> None:
    year = series(0.0, *[0.3] * 8760)
    kept = window(year, 100 * 86_400.0)
    assert kept.hours[0].at_s == 93 * 86_400.0
    assert kept.end_s == 114 * 86_400.0


def test_the_story_names_how_far_prices_reach(world: World) -> None:
    event = PricesRead(at_s=0.0, series=series(0.0, 0.1, 0.2))
    assert subjects(event) == ("prices",)
    assert sentence(event, "prices") == (
        "prices of power read: 2 hours, up to 1970-01-01T02:00:00.000Z"
    )


def test_what_is_sent_replaces_what_is_known_from_its_first_hour_on() -> None:
    known = series(0.0, 0.1, 0.2, 0.3)
    sent = series(HOUR_S, 0.5)
    assert joined(known, sent) == series(0.0, 0.1, 0.5)
    assert joined(known, GridSeries()) == GridSeries()
    assert joined(GridSeries(), sent) == sent
    late = joined(known, series(5 * HOUR_S, 0.9))
    assert [late.at(at * HOUR_S + 1).price_usd_per_kwh for at in range(6)] == [
        0.1, 0.2, 0.3, None, None, 0.9,
    ]  # fmt: skip


def test_until_when_a_rate_is_known_ends_at_the_first_gap() -> None:
    known = series(0.0, 0.1, 0.2, 0.3)
    assert known_until_s(known, Flexible.PRICE, 0.0) == 3 * HOUR_S
    assert known_until_s(known, Flexible.PRICE, 3 * HOUR_S - 1) == 3 * HOUR_S
    assert known_until_s(known, Flexible.PRICE, 3 * HOUR_S) is None
    assert known_until_s(known, Flexible.PRICE, -1.0) is None
    assert known_until_s(known, Flexible.CARBON, 0.0) is None
    holed = joined(known, series(5 * HOUR_S, 0.9))
    assert known_until_s(holed, Flexible.PRICE, 0.0) == 3 * HOUR_S
    assert known_until_s(holed, Flexible.PRICE, 4 * HOUR_S) is None
    assert known_until_s(GridSeries(), Flexible.PRICE, 0.0) is None


def test_a_policy_that_orders_by_what_nobody_knows_is_told_so() -> None:
    day = series(0.0, *[0.1] * 24)
    assert lacking(day, Flexible.PRICE, 0.0) == ""
    assert lacking(day, Flexible.OFF, 99 * HOUR_S) == ""
    assert "no carbon of power is known for now" in lacking(day, Flexible.CARBON, 0.0)
    assert "no price of power is known" in lacking(day, Flexible.PRICE, 24 * HOUR_S)
    late = lacking(day, Flexible.PRICE, 19 * HOUR_S)
    assert "no effect after 1970-01-02" in late
