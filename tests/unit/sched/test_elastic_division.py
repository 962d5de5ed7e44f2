"""Sizes and types by goodput: the division itself, against the best of all divisions."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tercio.sched.elastic import NOTHING, Option, _trade, allot, kept_part, worth

RATES = st.floats(0.1, 10.0)


def total(jobs: list[list[Option]], chosen: tuple[int, ...] | list[int]) -> float:
    return sum(jobs[at][c].worth for at, c in enumerate(chosen) if c != NOTHING)


def fits(jobs: list[list[Option]], chosen: tuple[int, ...] | list[int], supply: list[int]) -> bool:
    used = [0] * len(supply)
    for at, c in enumerate(chosen):
        if c != NOTHING:
            used[jobs[at][c].kind] += jobs[at][c].devices
    return all(have >= want for have, want in zip(supply, used, strict=True))


@st.composite
def markets(draw: st.DrawFn) -> tuple[list[list[Option]], list[int]]:
    jobs = []
    for _ in range(draw(st.integers(1, 4))):
        power = draw(st.floats(0.4, 1.0))
        fast = draw(RATES)
        rates = [(kind, n, speed * n**power) for kind, speed in ((0, 1.0), (1, fast))
                 for n in (1, 2, 4)]  # fmt: skip
        least = min(rate for *_, rate in rates)
        jobs.append([Option(kind, n, n, worth(rate, least, -0.5)) for kind, n, rate in rates])
    return jobs, draw(st.lists(st.integers(0, 6), min_size=2, max_size=2))


@settings(max_examples=60, deadline=None)
@given(markets())
def test_it_fits_and_is_near_the_best_division(
    market: tuple[list[list[Option]], list[int]],
) -> None:
    jobs, supply = market
    chosen = allot(jobs, supply)
    assert fits(jobs, chosen, supply)
    every = itertools.product(*([NOTHING, *range(len(options))] for options in jobs))
    best = max(total(jobs, each) for each in every if fits(jobs, each, supply))
    assert total(jobs, chosen) >= 0.85 * best


def test_the_faster_type_goes_to_whom_it_helps_most() -> None:
    helped = [Option(0, 1, 1, worth(1, 1, -0.5)), Option(1, 1, 1, worth(10, 1, -0.5))]
    same = [Option(0, 1, 1, worth(1, 1, -0.5)), Option(1, 1, 1, worth(1.1, 1, -0.5))]
    assert allot([same, helped], [1, 1]) == [0, 1]


def test_who_is_served_first_among_equals_is_the_earlier() -> None:
    one = [Option(0, 1, 1, 0.5)]
    assert allot([one, one, one], [2]) == [0, 0, NOTHING]


def test_nothing_is_given_where_nothing_is() -> None:
    assert allot([], [4]) == []
    assert allot([[Option(0, 2, 2, 0.5)]], [1]) == [NOTHING]
    assert allot([[Option(0, 2, 2, 0.5)]], []) == [NOTHING]


def test_worth_grows_with_the_rate_and_a_move_is_discounted_by_what_it_costs() -> None:
    assert worth(2, 1, 0.5) > worth(1, 1, 0.5) == 1.0
    assert worth(4, 1, -0.5) == 1.1 - 0.5
    assert worth(1, 1, -0.5, kept=0.0) == 0.0
    assert kept_part(0.0, 0, 60.0) == 0.0
    assert kept_part(60.0, 0, 60.0) == 0.5
    assert kept_part(0.0, 0, 0.0) == 1.0


def test_who_was_moved_often_is_moved_for_more_only() -> None:
    assert kept_part(540.0, 0, 60.0) == 0.9
    assert kept_part(540.0, 4, 60.0) == 0.5
    assert kept_part(540.0, 20, 60.0) == 0.0


def test_two_trade_where_neither_could_change_alone() -> None:
    # At its first choice each is content; only both changes together are worth more.
    big = [Option(0, 1, 1, 0.1), Option(0, 4, 4, 1.0)]
    small = [Option(0, 1, 1, 0.35), Option(0, 2, 2, 0.45)]
    value = np.array([[0.1, 1.0, 0.0], [0.35, 0.45, 0.0]])
    size = np.array([[1, 4, 0], [1, 2, 0]])
    kind, free = np.zeros_like(size), np.array([2])
    chosen = np.array([0, 1])
    assert _trade(value, size, kind, free, chosen)
    assert (chosen.tolist(), free.tolist()) == ([1, 0], [0])
    assert allot([big, small], [5]) == [1, 0]
