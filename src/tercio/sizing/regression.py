"""The statistics of calibration: damped least squares with priors, and Gaussian-process residuals.

A predictor is a mechanism with a few multipliers, and a smooth residual over physical features.
`fit_parameters` finds the multipliers, each pulled to its published value by a prior. The residual
is a Gaussian process: near measured configurations it corrects, far away it returns to the
mechanism, and its variance says how far. Holding out a group is exact and cheap: with K the
covariance of all rows and g a group, the prediction of g from the rest is y_g - (K^-1_gg)^-1
(K^-1 y)_g (Rasmussen and Williams, 2006, eq. 5.12, by blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]

MAX_STEPS = 40


def fit_parameters(
    model: Callable[[Array], Array],
    target: Array,
    *,
    start: Array,
    prior: Array,
    prior_scale: Array,
    weights: Array,
    noise: float = 0.15,
) -> Array:
    """Minimises robust weighted squares of (model(theta) - target)/noise plus the prior's.

    `model` maps parameters (p,) to log predictions (n,). The loss is Cauchy's at 2 noise: published
    tables hold rows that no mechanism explains, and a few of them must not move the fit.
    Levenberg-Marquardt with a forward-difference Jacobian; deterministic.
    """
    theta = start.astype(float).copy()
    damping = 1e-2

    def loss(candidate: Array, predicted: Array) -> float:
        z = np.abs(predicted - target) / noise
        cauchy = 2.0 * np.log1p(z * z / 4.0)
        pull = (candidate - prior) / prior_scale
        return float(np.sum(weights * cauchy) + 0.5 * np.sum(pull * pull))

    predicted = model(theta)
    best = loss(theta, predicted)
    for _ in range(MAX_STEPS):
        jacobian = np.empty((target.size, theta.size))
        for column in range(theta.size):
            moved = theta.copy()
            moved[column] += 1e-4
            jacobian[:, column] = (model(moved) - predicted) / 1e-4
        residual = (predicted - target) / noise
        robust = weights / (1.0 + residual * residual / 4.0)
        scaled = jacobian / noise
        # einsum sums in one order whatever the number of BLAS threads, and these are small.
        gradient = np.einsum("np,n->p", scaled, robust * residual)
        gradient += (theta - prior) / prior_scale**2
        curvature = np.einsum("np,nq->pq", scaled * robust[:, None], scaled)
        curvature += np.diag(1.0 / prior_scale**2)
        improved = False
        for _ in range(8):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
            candidate = theta - step
            trial = model(candidate)
            score = loss(candidate, trial)
            if np.isfinite(score) and score < best:
                gain = best - score
                theta, predicted, best = candidate, trial, score
                damping = max(damping / 4.0, 1e-6)
                improved = gain > 1e-5 * (1.0 + abs(best))
                break
            damping *= 6.0
        if not improved:
            break
    return theta


def rbf(left: Array, right: Array) -> Array:
    """exp(-|x - y|^2 / 2) between rows of features already divided by their length scales."""
    squares = (
        np.sum(left * left, axis=1)[:, None]
        + np.sum(right * right, axis=1)[None, :]
        - 2.0 * left @ right.T
    )
    return np.asarray(np.exp(-0.5 * np.maximum(squares, 0.0)))


def matches(left: Sequence[str], right: Sequence[str]) -> Array:
    """1 where two labels are equal and not empty, else 0."""
    codes = {label: code for code, label in enumerate(dict.fromkeys((*left, *right)))}
    a = np.array([codes[label] for label in left])
    b = np.array([codes[label] for label in right])
    filled = np.array([label != "" for label in left], dtype=float)
    return np.asarray((a[:, None] == b[None, :]) * filled[:, None], dtype=float)


class Covariates(msgspec.Struct, frozen=True, kw_only=True):
    """What the residual may depend on: features (n, d) over their lengths, and labels."""

    features: Array
    labels: tuple[tuple[str, ...], ...]


class ResidualSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Standard deviations of the log residual: local, broad, per shared label, noise."""

    local: float
    broad: float
    label: float
    noise: float
    clip: float = 0.4

    def clipped(self, error: Array) -> Array:
        """Log errors held to +-`clip`: one odd row must not speak for its neighbours."""
        return np.asarray(np.clip(error, -self.clip, self.clip))

    def covariance(self, left: Covariates, right: Covariates) -> Array:
        """Prior covariance between two sets of rows, noise excluded; (n, m)."""
        total = self.local**2 * rbf(left.features, right.features)
        total += self.broad**2 * rbf(left.features / 3.0, right.features / 3.0)
        for a, b in zip(left.labels, right.labels, strict=True):
            total += self.label**2 * matches(a, b)
        return np.asarray(total)

    def inverse(self, rows: Covariates) -> Array:
        """Inverse of the covariance of measured rows, noise included; (n, n)."""
        own = self.covariance(rows, rows)
        noisy = own + self.noise**2 * np.eye(own.shape[0])
        return np.asarray(np.linalg.inv(noisy), dtype=np.float64)

    def own_variance(self, label_count: int) -> float:
        """Prior variance of one row."""
        return self.local**2 + self.broad**2 + label_count * self.label**2 + self.noise**2


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Log of a predicted quantity and its standard deviation before range scaling; (n,) each."""

    log_value: Array
    deviation: Array


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted residual: the rows it was measured on and their weights K^-1 r."""

    spec: ResidualSpec
    rows: Covariates
    weights: Array
    inverse: Array

    def has_seen(self, at: Covariates) -> NDArray[np.bool_]:
        """Which rows equal a measured one in every feature and label (to the stored precision)."""
        shared = self.spec.covariance(at, self.rows)
        whole = self.spec.own_variance(len(at.labels)) - self.spec.noise**2
        return np.asarray(shared.max(axis=1) >= whole * (1.0 - 1e-5))

    def apply(self, base: Array, at: Covariates) -> Prediction:
        """Adds the expected residual to the mechanism's log values `base`."""
        shared = self.spec.covariance(at, self.rows)
        variance = self.spec.own_variance(len(at.labels)) - np.sum(
            (shared @ self.inverse) * shared, axis=1
        )
        return Prediction(
            log_value=base + shared @ self.weights,
            deviation=np.sqrt(np.maximum(variance, self.spec.noise**2)),
        )


def fit_residual(spec: ResidualSpec, rows: Covariates, residual: Array) -> Residual:
    """The residual process given measured minus mechanism, in logs."""
    inverse = spec.inverse(rows)
    return Residual(spec=spec, rows=rows, weights=inverse @ spec.clipped(residual), inverse=inverse)


class RangeFactors(msgspec.Struct, frozen=True, kw_only=True):
    """What turns a deviation into half of an 80 % range of the log.

    A case is near when its model was measured on its device: `near` holds there. Elsewhere `far`
    holds, by the label in column `columns[0]`, or `far_default`. Columns 1 and 2 of `columns` name
    the model and the device.
    """

    near: float
    far: dict[str, float]
    far_default: float
    columns: tuple[int, int, int]

    def half_width(self, measured: Covariates, at: Covariates, prediction: Prediction) -> Array:
        """Half-widths for the rows of `at`."""
        kind, model, device = self.columns
        known = set(zip(measured.labels[model], measured.labels[device], strict=True))
        factors = [
            self.near if pair in known else self.far.get(label, self.far_default)
            for label, pair in zip(
                at.labels[kind], zip(at.labels[model], at.labels[device], strict=True), strict=True
            )
        ]
        return np.asarray(np.array(factors) * prediction.deviation)


def learn_ranges(
    residual: Residual,
    error: Array,
    target: Array,
    held: Prediction,
    *,
    columns: tuple[int, int, int],
) -> RangeFactors:
    """Factors from errors: `near` by leaving single rows out, `far` from the held-out groups.

    `error` is what the residual was fitted on, `held` the group-wise held-out prediction of
    `target`. A label needs ten rows for a factor of its own.
    """
    diagonal = np.diag(residual.inverse)
    unexplained = error - residual.spec.clipped(error)
    alone = np.abs(unexplained + residual.weights / diagonal) * np.sqrt(diagonal)
    z = np.abs((target - held.log_value) / held.deviation)
    labels = np.array(residual.rows.labels[columns[0]])
    far = {
        label: quantile(z[labels == label], 0.8)
        for label in dict.fromkeys(labels.tolist())
        if int(np.sum(labels == label)) >= 10
    }
    return RangeFactors(
        near=quantile(alone, 0.8) if error.size else 1.2816,
        far=far,
        far_default=quantile(z, 0.8),
        columns=columns,
    )


Fold = tuple[Index, Index]
"""(rows to predict, rows to leave out of the fit, which contain them)."""


def held_out(
    spec: ResidualSpec,
    rows: Covariates,
    target: Array,
    folds: Sequence[Fold],
    fit_base: Callable[[Index], Array],
) -> Prediction:
    """Predicts each fold from mechanism and residual fitted without it.

    `fit_base` maps the rows of a fit to the mechanism's log values of all rows. Rows in no fold
    come back as nan.
    """
    inverse = spec.inverse(rows)
    value = np.full(target.size, np.nan)
    deviation = np.full(target.size, np.nan)
    everything = np.arange(target.size)
    for predicted, left_out in folds:
        base = fit_base(np.setdiff1d(everything, left_out))
        block = inverse[np.ix_(left_out, left_out)]
        spread = np.linalg.inv(block)
        residual = spec.clipped(target - base)
        mean = np.full(target.size, np.nan)
        variance = np.full(target.size, np.nan)
        mean[left_out] = residual[left_out] - spread @ (inverse[left_out] @ residual)
        variance[left_out] = np.diag(spread)
        value[predicted] = base[predicted] + mean[predicted]
        deviation[predicted] = np.sqrt(variance[predicted])
    return Prediction(log_value=value, deviation=deviation)


def quantile(values: Array, share: float) -> float:
    """The `share` quantile, linear between order statistics; 0 for no values."""
    return float(np.quantile(values, share)) if values.size else 0.0
