"""Own time of every rank in every step so far, in a grid that does not grow: for a heat map.

A grid begins with one step to a column. When it is full, neighbours are joined and each column
stands for twice as many: the whole attempt is always there, its newest steps too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

COLUMNS_MAX = 240
"""1,024 ranks take 1 MB."""


class StepGrid:
    """The grid of the ranks of one role.

    Attributes:
        per_column: steps that one column stands for.
        first: number of the first step of each column.
    """

    __slots__ = ("_columns", "_open", "_told", "first", "per_column")

    def __init__(self, rank_count: int) -> None:
        self.per_column = 1
        self.first: list[int] = []
        self._columns: list[NDArray[np.float32]] = []
        self._open = np.zeros(rank_count)
        self._told = np.zeros(rank_count, dtype=np.int64)

    def add(self, number: int, own_s: NDArray[np.float64]) -> None:
        """Take one step, shape (ranks,), seconds; NaN where a rank did not tell."""
        if self.first and number - self.first[-1] < self.per_column and number >= self.first[-1]:
            self._take(own_s)
            return
        if len(self._columns) >= COLUMNS_MAX:
            self._join()
            self.add(number, own_s)
            return
        self.first.append(number)
        self._open[:] = 0.0
        self._told[:] = 0
        self._columns.append(np.full(len(own_s), np.nan, dtype=np.float32))
        self._take(own_s)

    def rows(self) -> list[tuple[float | None, ...]]:
        """Return, for each rank, the mean own time of each column; None where it did not tell."""
        if not self._columns:
            return [() for _ in self._open]
        values = np.stack(self._columns, axis=1)
        return [
            tuple(None if np.isnan(value) else float(f"{value:.6g}") for value in row)
            for row in values
        ]

    def _take(self, own_s: NDArray[np.float64]) -> None:
        is_told = ~np.isnan(own_s)
        self._open[is_told] += own_s[is_told]
        self._told[is_told] += 1
        heard = self._told > 0
        self._columns[-1][heard] = (self._open[heard] / self._told[heard]).astype(np.float32)

    def _join(self) -> None:
        """Make one column of two, each counted alike."""
        pairs = [self._columns[at : at + 2] for at in range(0, len(self._columns), 2)]
        self._columns = [_mean(pair) for pair in pairs]
        self.first = self.first[::2]
        self.per_column *= 2
        last = self._columns[-1]
        is_told = ~np.isnan(last)
        # The last column may take more steps: it goes on from its mean.
        self._told = np.where(is_told, self.per_column // 2, 0)
        self._open = np.where(is_told, np.nan_to_num(last) * self._told, 0.0)


def _mean(pair: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    stacked = np.stack(pair)
    count = (~np.isnan(stacked)).sum(axis=0)
    total = np.nansum(stacked, axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)
