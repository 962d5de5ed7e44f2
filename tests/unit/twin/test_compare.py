"""Differences between arms and how sure they are."""

from __future__ import annotations

import numpy as np
import pytest
from unit_twin import record, result

from tercio.twin.compare import Comparison, bootstrap, compare, t_quantile
from tercio.twin.rng import Stream
from tercio.twin.stats import Figures, measure


def of(waits_s: list[float], seed: int = 0) -> Figures:
    jobs = [record(str(i), 0.0, wait_s, wait_s + 50.0) for i, wait_s in enumerate(waits_s)]
    return measure(result(jobs, seed=seed))


def row(comparison: Comparison, key: str) -> tuple[float, float | None, float | None, str]:
    difference = next(row for row in comparison.rows if row.key == key).differences[1]
    assert difference is not None
    return difference.mean, difference.low, difference.high, difference.verdict


def test_the_interval_is_students_over_the_seeds() -> None:
    first = [of([10.0]), of([20.0]), of([30.0])]
    other = [of([9.0]), of([18.0]), of([27.0])]
    mean, low, high, verdict = row(compare(["a", "b"], [first, other]), "mean_wait_s")
    # Gaps -1, -2, -3: deviation 1, half width 4.303 / sqrt(3).
    assert mean == -2.0
    assert (low, high) == (pytest.approx(-2 - 4.303 / 3**0.5), pytest.approx(-2 + 4.303 / 3**0.5))
    assert verdict == "unsure"


def test_a_steady_difference_is_sure_although_the_seeds_differ_much() -> None:
    first = [of([10.0 * n]) for n in range(1, 9)]
    other = [of([10.0 * n - 5.0 - 0.1 * n]) for n in range(1, 9)]
    assert row(compare(["a", "b"], [first, other]), "mean_wait_s")[3] == "better"
    assert row(compare(["b", "a"], [other, first]), "mean_wait_s")[3] == "worse"


def test_equal_arms_are_the_same() -> None:
    arm = [of([10.0]), of([20.0])]
    assert row(compare(["a", "b"], [arm, arm]), "mean_wait_s")[3] == "same"


def test_one_seed_takes_its_interval_from_the_jobs() -> None:
    jobs = [record(str(i), 0.0, 100.0 + i, 200.0) for i in range(40)]
    faster = [record(str(i), 0.0, 50.0 + i, 150.0) for i in range(40)]
    results = [result(jobs), result(faster)]
    comparison = compare(["a", "b"], [[measure(one)] for one in results], results)
    mean, low, high, verdict = row(comparison, "mean_wait_s")
    assert (mean, low, high, verdict) == (-50.0, -50.0, -50.0, "better")
    # Sums over all jobs have no pairs within one seed.
    assert row(comparison, "makespan_s")[1:] == (None, None, "unsure")
    assert comparison.rows[0].differences[0] is None


def test_the_bootstrap_holds_the_mean_and_repeats_exactly() -> None:
    gaps = np.array([float(i % 7) for i in range(100)])
    low, high = bootstrap(gaps, Stream(1, "x"))
    assert low < gaps.mean() < high
    assert (low, high) == bootstrap(gaps, Stream(1, "x"))


def test_students_quantiles() -> None:
    # NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
    for degrees, expected in ((1, 12.706), (9, 2.262), (40, 2.021), (100, 1.984)):
        assert t_quantile(degrees) == pytest.approx(expected, abs=0.001)


def test_classes_of_all_arms_are_told() -> None:
    comparison = compare(["a", "b"], [[of([1.0])], [of([2.0])]])
    assert [waits.mean_s for waits in comparison.waits_by_size["1"] if waits] == [1.0, 2.0]
    assert "fairness_error_ratio" not in [row.key for row in comparison.rows]


def test_classes_are_means_over_all_seeds_that_have_them() -> None:
    large = result([record("x", 0.0, 30.0, 40.0, devices=8)])
    comparison = compare(["a"], [[measure(large), of([1.0]), of([3.0])]])
    assert list(comparison.waits_by_size) == ["1", "5-8"]
    (small,), (whole,) = comparison.waits_by_size.values()
    assert (small.mean_s, small.p99_s, small.jobs) == (2.0, 2.0, 2)
    assert (whole.mean_s, whole.jobs) == (30.0, 1)
