"""Ranks that are slower than their peers, and jobs that became slower as a whole.

The signal is each rank's own compute time per step, without the wait in collectives: plain step
time is the same on every rank of a synchronous job.
"""

from __future__ import annotations

from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

# 1 / Phi^-1(3/4): makes the median absolute deviation an estimate of the standard deviation.
MAD_TO_SIGMA = 1.4826


class StragglerRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a rank is a straggler.

    Attributes:
        window_steps: steps whose median speaks for a rank; 20 finds 10 %, 50 finds 5 %.
        ratio: least slowness against the median rank that is worth acting on.
        false_alarm_ratio: probability of a false alarm over all ranks of one check; the limit
            in standard deviations grows with the ranks.
        windows: consecutive windows that must agree.
    """

    window_steps: int = 20
    ratio: float = 1.05
    false_alarm_ratio: float = 0.001
    windows: int = 2


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """One slow rank."""

    rank: int
    role: str
    ratio: float
    z: float
    step: int


def z_limit(rank_count: int, *, false_alarm_ratio: float) -> float:
    """Return Phi^-1(1 - p / ranks): 3.7, 4.2, 4.6, 5.0 for 8, 64, 512, 4,096 ranks at 0.001."""
    return NormalDist().inv_cdf(1 - false_alarm_ratio / max(rank_count, 1))


def judge_window(
    own_s: NDArray[np.float64], *, rule: StragglerRule
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """Return which ranks of one role are slow in one window.

    Args:
        own_s: own compute time, shape (steps, ranks), seconds; NaN where a rank did not report.
        rule: thresholds.

    Returns:
        Flags, robust z and ratio to the median rank, each of shape (ranks,). A rank without a
        single report is never slow: silence is a matter for hang detection.
    """
    rank_count = own_s.shape[1]
    silent = np.isnan(own_s).all(axis=0)
    medians = np.full(rank_count, np.nan)
    medians[~silent] = np.nanmedian(own_s[:, ~silent], axis=0)
    if silent.all():
        return np.zeros(rank_count, dtype=np.bool_), medians, medians
    middle = float(np.nanmedian(medians))
    spread = MAD_TO_SIGMA * float(np.nanmedian(np.abs(medians - middle)))
    # Ranks that agree to the microsecond give no spread: a thousandth keeps z finite.
    z = (medians - middle) / max(spread, middle * 1e-3, 1e-12)
    ratio = medians / max(middle, 1e-12)
    limit = z_limit(rank_count, false_alarm_ratio=rule.false_alarm_ratio)
    return (z > limit) & (ratio > rule.ratio), z, ratio


def is_worth_a_restart(ratio: float, *, slow_s: float, restart_s: float, undone_s: float) -> bool:
    """Whether a slow rank has cost a job more than to start again without it would have.

    The rule of ski rental: who acts when the loss reaches the price never pays more than twice.

    Args:
        ratio: time of a step over that of the median rank.
        slow_s: for how long the job was so slow.
        restart_s: from its stop to its first step again.
        undone_s: work since the last checkpoint, which is done again.
    """
    return slow_s * (1 - 1 / ratio) > restart_s + undone_s


class StragglerWatch:
    """Collects steps and says which ranks stay slow. One watch per role: stages differ.

    Attributes:
        slow: the stragglers of the last window, by position of the rank.
    """

    __slots__ = ("_role", "_rows", "_rule", "_slow_windows", "_step", "slow")

    def __init__(self, rank_count: int, *, role: str, rule: StragglerRule | None = None) -> None:
        self._role = role
        self._rule = rule or StragglerRule()
        self._rows: list[NDArray[np.float64]] = []
        self._slow_windows = np.zeros(rank_count, dtype=np.int64)
        self._step = 0
        self.slow: dict[int, Straggler] = {}

    def add_step(self, own_s: NDArray[np.float64]) -> list[Straggler]:
        """Take one step, shape (ranks,), seconds, and return the stragglers a window confirms.

        Raises:
            ValueError: the number of ranks is not that of the watch.
        """
        if own_s.shape != self._slow_windows.shape:
            raise ValueError(
                f"{own_s.shape[0]} ranks reported, {len(self._slow_windows)} are watched"
            )
        self._rows.append(own_s)
        self._step += 1
        if len(self._rows) < self._rule.window_steps:
            return []
        slow, z, ratio = judge_window(np.vstack(self._rows), rule=self._rule)
        self._rows = []
        self._slow_windows = np.where(slow, self._slow_windows + 1, 0)
        self.slow = {
            int(rank): Straggler(
                rank=int(rank),
                role=self._role,
                ratio=float(ratio[rank]),
                z=float(z[rank]),
                step=self._step,
            )
            for rank in np.flatnonzero(self._slow_windows >= self._rule.windows)
        }
        return list(self.slow.values())


class ShiftWatch:
    """CUSUM on step time: the whole job became slower than its own best stretch.

    Page's test with slack k = 0.5 sigma and threshold h = 5 sigma. The best median of
    `baseline_steps` steps is below the true mean by chance, so the test runs against a level
    half way to `ratio` times that median, and the recent median must be beyond `ratio`.
    """

    __slots__ = (
        "_baseline_steps",
        "_best_s",
        "_ratio",
        "_recent",
        "_sigma_s",
        "_sum",
        "onset_step",
        "step",
    )

    def __init__(self, *, baseline_steps: int = 50, ratio: float = 1.03) -> None:
        self._ratio = ratio
        self._baseline_steps = baseline_steps
        self._recent: list[float] = []
        self._best_s: float | None = None
        self._sigma_s = 0.0
        self._sum = 0.0
        self.step = 0
        self.onset_step: int | None = None

    def add_step(self, step_s: float) -> bool:
        """Take the time of one step and return whether the job is shifted to slower now."""
        self.step += 1
        self._recent = [*self._recent, step_s][-self._baseline_steps :]
        if len(self._recent) == self._baseline_steps:
            self._learn()
        if self._best_s is None:
            return False
        before = self._sum
        level_s = self._best_s * (1 + self._ratio) / 2
        self._sum = max(0.0, self._sum + (step_s - level_s) / self._sigma_s - 0.5)
        if self._sum == 0.0:
            self.onset_step = None
        elif before == 0.0:
            self.onset_step = self.step
        recent_s = float(np.median(self._recent[-self._baseline_steps // 2 :]))
        return self._sum > 5.0 and recent_s > self._ratio * self._best_s

    def _learn(self) -> None:
        times = np.array(self._recent)
        middle = float(np.median(times))
        if self._best_s is not None and middle >= self._best_s:
            return
        spread = MAD_TO_SIGMA * float(np.median(np.abs(times - middle)))
        self._best_s = middle
        self._sigma_s = max(spread, middle * 1e-3, 1e-12)


class Mitigation(msgspec.Struct, frozen=True, kw_only=True):
    """One way to live with, or get rid of, a straggler, and what it costs once."""

    name: str
    cost_s: float


def due_mitigation(lost_s: float, ladder: tuple[Mitigation, ...]) -> Mitigation | None:
    """Return the hardest measure whose cost the loss so far has exceeded, or None.

    Ski rental, as Falcon (ATC'25) does: the total is at most twice that of knowing the
    future.

    Args:
        lost_s: device time lost to the straggler so far, in the same measure as the costs.
        ladder: measures from cheap to dear.
    """
    due = [m for m in ladder if lost_s >= m.cost_s]
    return due[-1] if due else None
