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

    `model` maps parameters (p,) to log predictions (n,). Residuals beyond 2 noise count linearly
    (Huber). Levenberg-Marquardt with a forward-difference Jacobian; deterministic.
    """
    theta = start.astype(float).copy()
    damping = 1e-2

    def loss(candidate: Array, predicted: Array) -> float:
        z = np.abs(predicted - target) / noise
        huber = np.where(z <= 2.0, 0.5 * z * z, 2.0 * z - 2.0)
        pull = (candidate - prior) / prior_scale
        return float(np.sum(weights * huber) + 0.5 * np.sum(pull * pull))

    predicted = model(theta)
    best = loss(theta, predicted)
    for _ in range(MAX_STEPS):
        jacobian = np.empty((target.size, theta.size))
        for column in range(theta.size):
            moved = theta.copy()
            moved[column] += 1e-4
            jacobian[:, column] = (model(moved) - predicted) / 1e-4
        residual = (predicted - target) / noise
        robust = weights / np.maximum(np.abs(residual) / 2.0, 1.0)
        scaled = jacobian / noise
        gradient = scaled.T @ (robust * residual) + (theta - prior) / prior_scale**2
        curvature = (scaled * robust[:, None]).T @ scaled + np.diag(1.0 / prior_scale**2)
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


def leave_groups_out(
    inverse: Array, residual: Array, groups: Sequence[Index]
) -> tuple[Array, Array]:
    """Predicted residual and variance of each group from all rows outside it.

    `inverse` is the inverse of the covariance with noise of all rows; `residual` may differ per
    call. Rows in no group get 0 and infinity.
    """
    mean = np.zeros(residual.size)
    variance = np.full(residual.size, np.inf)
    solved = inverse @ residual
    for rows in groups:
        block = inverse[np.ix_(rows, rows)]
        spread = np.linalg.inv(block)
        mean[rows] = residual[rows] - spread @ solved[rows]
        variance[rows] = np.diag(spread)
    return mean, variance


def quantile(values: Array, share: float) -> float:
    """The `share` quantile, linear between order statistics; 0 for no values."""
    return float(np.quantile(values, share)) if values.size else 0.0
