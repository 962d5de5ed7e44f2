"""Queues over time: means of steps, three reaches, gaps, bounds, and a restart."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tercio.model.views import QueueView
from tercio.runtime.clock import SteppedClock
from tercio.runtime.queue_past import QUEUES_MAX, QueuePasts

START_S = 36_000.0


def queue(path: str, used: float, **more: float) -> QueueView:
    return QueueView(path=path, used={"H100": used}, entitled={"H100": 4.0, "L4": 1.0}, **more)


class Site:
    def __init__(self) -> None:
        self.rows: list[QueueView] = []
        self.clock = SteppedClock(START_S)
        self.pasts = QueuePasts(lambda: self.rows, self.clock)

    def sample(self, at_s: float, *rows: QueueView) -> None:
        self.rows = list(rows)
        self.pasts.sample(START_S + at_s)


def test_a_step_is_the_mean_of_its_samples_of_all_types_together() -> None:
    site = Site()
    for at_s, used in ((0.0, 2.0), (5.0, 4.0), (19.0, 6.0), (20.0, 8.0)):
        site.sample(at_s, queue("a", used, decayed_use=used, running=2, waiting=1))
    past = site.pasts.cut(["a"], START_S, START_S + 30)
    assert past.step_s == 20.0
    assert past.at_s == (START_S, START_S + 20)
    (row,) = past.rows
    assert (row.used, row.entitled, row.decayed_use) == ((4.0, 8.0), (5.0, 5.0), (4.0, 8.0))
    assert (row.running, row.waiting, row.wanted) == ((2.0, 2.0), (1.0, 1.0), (0.0, 0.0))


def test_the_finest_steps_that_reach_back_are_told_and_no_ring_grows() -> None:
    site = Site()
    for minute in range(2 * 1440):
        site.sample(minute * 60.0, queue("a", float(minute)))
    now_s = START_S + 2 * 86_400
    spans = {3600.0: (20.0, 60), 86_000.0: (300.0, 287), 8 * 86_400.0: (3600.0, 48)}
    for back_s, (step_s, count) in spans.items():
        past = site.pasts.cut(["a"], now_s - back_s, now_s)
        assert past.step_s == step_s
        assert len([value for value in past.rows[0].used if value is not None]) == count
    assert past.rows[0].used[0] == 29.5


def test_a_time_without_samples_is_a_gap_and_a_missed_one_is_not() -> None:
    site = Site()
    for at_s in (0.0, 40.0, 200.0):
        site.sample(at_s, queue("a", 1.0))
    past = site.pasts.cut(["a"], START_S, START_S + 220)
    assert [at - START_S for at in past.at_s] == [0.0, 40.0, 60.0, 200.0]
    assert past.rows[0].used == (1.0, 1.0, None, 1.0)


def test_queues_come_and_go() -> None:
    site = Site()
    site.sample(0.0, queue("a", 1.0))
    site.sample(10.0, queue("a", 3.0), queue("b", 5.0))
    site.sample(20.0, queue("b", 7.0))
    past = site.pasts.cut(["a", "b"], START_S, START_S + 30)
    assert [row.used for row in past.rows] == [(3.0, None), (5.0, 7.0)]
    many = [queue(f"q{number}", 1.0) for number in range(QUEUES_MAX + 9)]
    site.sample(40.0, *many)
    past = site.pasts.cut([many[-10].path, many[-9].path], START_S + 40, START_S + 50)
    assert [row.used for row in past.rows] == [(1.0,), (None,)]


def test_what_was_seen_outlives_the_server() -> None:
    site, other = Site(), Site()
    for at_s in (0.0, 20.0, 25.0):
        site.sample(at_s, queue("a", at_s))
    other.pasts.load(site.pasts.image())
    other.sample(40.0, queue("a", 9.0))
    past = other.pasts.cut(["a"], START_S, START_S + 60)
    assert past.rows[0].used == (0.0, 22.5, 9.0)


@pytest.mark.parametrize("layouts", [(), (("a", "b"),)])
def test_a_damaged_image_is_refused(layouts: tuple[tuple[str, ...], ...]) -> None:
    site = Site()
    site.sample(0.0, queue("a", 1.0))
    damaged = msgspec.msgpack.decode(site.pasts.image())
    damaged["layouts"] = layouts
    with pytest.raises(ValueError, match=r"queues|layout"):
        site.pasts.load(msgspec.msgpack.encode(damaged))
    assert site.pasts.cut(["a"], START_S, START_S + 9).rows[0].used == (1.0,)


def test_it_samples_by_the_clock() -> None:
    async def scene() -> tuple[float | None, ...]:
        site = Site()
        site.rows = [queue("a", 1.0)]
        site.pasts.start()
        for used in (2.0, 3.0):
            while site.clock.next_s is None:
                await asyncio.sleep(0)
            site.rows = [queue("a", used)]
            site.clock.advance(site.clock.now_s() + 20.0)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await site.pasts.stop()
        return site.pasts.cut(["a"], START_S, START_S + 60).rows[0].used

    assert asyncio.run(scene()) == (1.0, 2.0, 3.0)


def test_a_sample_that_fails_ends_neither_the_next_ones_nor_the_stop() -> None:
    async def scene() -> tuple[float | None, ...]:
        clock, rows = SteppedClock(START_S), [[queue("a", 3.0)]]
        pasts = QueuePasts(rows.pop, clock)
        pasts.start()
        while clock.next_s is None:
            await asyncio.sleep(0)
        rows.clear()
        clock.advance(clock.now_s() + 20.0)
        while clock.next_s is None or clock.next_s <= clock.now_s():
            await asyncio.sleep(0)
        rows.append([queue("a", 5.0)])
        clock.advance(clock.now_s() + 20.0)
        for _ in range(3):
            await asyncio.sleep(0)
        await pasts.stop()
        return pasts.cut(["a"], START_S, START_S + 60).rows[0].used

    found = asyncio.run(scene())
    assert (found[0], found[-1]) == (3.0, 5.0)
