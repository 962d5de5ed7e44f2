"""The grid of steps by rank: whole, bounded, and true to its means."""

from __future__ import annotations

import numpy as np
import pytest

from tercio.health.step_grid import COLUMNS_MAX, StepGrid


def fill(grid: StepGrid, count: int, *, first: int = 1) -> None:
    for number in range(first, first + count):
        grid.add(number, np.array([1.0, float(number)]))


def test_each_step_is_a_column_until_the_grid_is_full() -> None:
    grid = StepGrid(2)
    fill(grid, 3)
    assert (grid.first, grid.per_column) == ([1, 2, 3], 1)
    assert grid.rows() == [(1.0, 1.0, 1.0), (1.0, 2.0, 3.0)]


@pytest.mark.parametrize("count", [COLUMNS_MAX + 1, 5 * COLUMNS_MAX + 3])
def test_a_full_grid_joins_neighbours_and_still_reaches_from_the_first_step_to_the_last(
    count: int,
) -> None:
    grid = StepGrid(2)
    fill(grid, count)
    rows = grid.rows()
    assert len(grid.first) == len(rows[0]) <= COLUMNS_MAX
    assert grid.first[0] == 1
    assert grid.first[-1] + grid.per_column > count
    assert set(rows[0]) == {1.0}
    assert rows[1][0] == pytest.approx((1 + grid.per_column) / 2)
    steps_in_last = count - grid.first[-1] + 1
    assert rows[1][-1] == pytest.approx(grid.first[-1] + (steps_in_last - 1) / 2)


def test_a_rank_that_did_not_tell_is_unknown_and_not_zero() -> None:
    grid = StepGrid(2)
    for number in range(2 * COLUMNS_MAX):
        grid.add(number, np.array([2.0, np.nan if number != 1 else 6.0]))
    assert grid.rows()[1] == (6.0, *[None] * (COLUMNS_MAX - 1))
    assert StepGrid(2).rows() == [(), ()]


def test_a_job_that_begins_its_count_anew_begins_a_column() -> None:
    grid = StepGrid(1)
    for number in (8, 9, 1, 2):
        grid.add(number, np.array([float(number)]))
    assert grid.first == [8, 9, 1, 2]
