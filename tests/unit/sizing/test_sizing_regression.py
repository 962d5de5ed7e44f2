from __future__ import annotations

import numpy as np
import pytest

from tercio.sizing import metrics, regression
from tercio.sizing.regression import Covariates, ResidualSpec

SPEC = ResidualSpec(local=0.3, broad=0.2, label=0.1, noise=0.1)


def rows(count: int, seed: int = 0) -> tuple[Covariates, np.ndarray]:
    stream = np.random.default_rng(seed)
    features = stream.normal(size=(count, 3))
    labels = (tuple("abc"[i % 3] for i in range(count)),)
    return Covariates(features=features, labels=labels), np.sin(features[:, 0]) * 0.3


def subset(whole: Covariates, index: np.ndarray) -> Covariates:
    return Covariates(
        features=whole.features[index],
        labels=tuple(tuple(column[i] for i in index) for column in whole.labels),
    )


def test_leaving_a_group_out_equals_fitting_without_it() -> None:
    whole, target = rows(30)
    group = np.array([3, 7, 11])
    rest = np.setdiff1d(np.arange(30), group)
    held = regression.held_out(
        SPEC, whole, target, [(group, group)], lambda _: np.zeros(target.size)
    )
    direct = regression.fit_residual(SPEC, subset(whole, rest), target[rest]).apply(
        np.zeros(3), subset(whole, group)
    )
    assert held.log_value[group] == pytest.approx(direct.log_value)
    assert held.deviation[group] == pytest.approx(direct.deviation, rel=1e-6)
    assert np.isnan(held.log_value[rest]).all()


def test_nothing_of_a_left_out_group_reaches_its_prediction() -> None:
    whole, target = rows(30)
    group = np.array([1, 2, 3])
    seen: list[set[int]] = []

    def base(taught: np.ndarray) -> np.ndarray:
        seen.append(set(taught.tolist()))
        return np.full(30, target[taught].mean())

    first = regression.held_out(SPEC, whole, target, [(group, group)], base)
    changed = target.copy()
    changed[group] += 5.0
    second = regression.held_out(SPEC, whole, changed, [(group, group)], base)
    assert second.log_value[group] == pytest.approx(first.log_value[group])
    assert not seen[0] & {1, 2, 3}


def test_parameters_are_recovered_and_priors_hold_where_nothing_is_measured() -> None:
    stream = np.random.default_rng(1)
    work = stream.uniform(0.1, 2.0, size=(200, 2))
    truth = np.array([0.4, -0.3])

    def model(theta: np.ndarray) -> np.ndarray:
        return np.log(work @ np.exp(theta[:2]))

    found = regression.fit_parameters(
        model, model(np.append(truth, 0.0)), start=np.zeros(3), prior=np.array([0.0, 0.0, 0.7]),
        prior_scale=np.array([1.0, 1.0, 0.1]), weights=np.ones(200), noise=0.05,
    )  # fmt: skip
    assert found[:2] == pytest.approx(truth, abs=0.02)
    assert found[2] == pytest.approx(0.7, abs=1e-3)


def test_an_outlier_does_not_move_the_fit_far() -> None:
    work = np.linspace(1.0, 3.0, 50)
    target = np.log(work)
    target[10] += 4.0
    found = regression.fit_parameters(
        lambda theta: np.log(work) + theta[0], target, start=np.zeros(1), prior=np.zeros(1),
        prior_scale=np.ones(1), weights=np.ones(50), noise=0.1,
    )  # fmt: skip
    assert abs(found[0]) < 0.02


def test_far_from_data_the_residual_returns_to_the_mechanism() -> None:
    whole, target = rows(40)
    residual = regression.fit_residual(SPEC, whole, target)
    far = Covariates(features=np.full((1, 3), 80.0), labels=(("z",),))
    prediction = residual.apply(np.array([1.5]), far)
    assert prediction.log_value[0] == pytest.approx(1.5)
    assert prediction.deviation[0] == pytest.approx(SPEC.own_variance(1) ** 0.5)


def test_a_group_never_sets_its_own_range() -> None:
    z = np.concatenate([np.full(20, 9.0), np.linspace(0.0, 1.0, 20)])
    groups = ["wild"] * 20 + ["tame"] * 20
    factors = metrics.range_factors(z, groups)
    assert factors[0] == pytest.approx(0.8)
    assert factors[-1] == pytest.approx(9.0)
