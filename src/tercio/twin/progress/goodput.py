"""The goodput model of Pollux: step time, statistical efficiency, and their product.

Source: Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning
(OSDI 2021), sections 3.1 and 3.2; the noise scale is McCandlish et al., arXiv 1812.06162.

    T_grad = alpha_c + beta_c b                        b = samples of one device in one pass
    T_sync = 0 for K = 1 device; alpha_r + beta_r (K - 2) on one node; alpha_n + beta_n (K - 2)
             on several                                (equation 9)
    T_step = (T_grad^g + T_sync^g)^(1/g)               g = gamma, 1 (no overlap) to 10
    T      = s T_grad + T_step                         s = passes accumulated before the last
    efficiency(B) = (phi + B0) / (phi + B)             phi = B0 variance / square of the gradient
    goodput = B / T * efficiency(B)                    B = K b (s + 1), B0 = initial batch
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

GAMMA_MAX: Final = 10.0
_TINY: Final = 1e-8


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measured step.

    Attributes:
        nodes, replicas: how many nodes and devices took part.
        local_batch: samples of each device in one pass.
        step_s, sync_s: whole step, and the part of it that waits for the network.
    """

    nodes: int
    replicas: int
    local_batch: float
    step_s: float
    sync_s: float


class StepModel(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the step time; seconds, and seconds per sample or device."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float

    def grad_s(self, local_batch: float) -> float:
        """Return the time of forward and backward pass of `local_batch` samples."""
        return self.alpha_c + self.beta_c * local_batch

    def sync_s(self, nodes: int, replicas: int) -> float:
        """Return the time to average gradients."""
        if replicas <= 1:
            return 0.0
        alpha, beta = (self.alpha_n, self.beta_n) if nodes > 1 else (self.alpha_r, self.beta_r)
        return alpha + beta * max(replicas - 2, 0)

    def step_s(self, nodes: int, replicas: int, local_batch: float, accumulated: int = 0) -> float:
        """Return the time of one update with `accumulated` passes before the last."""
        grad_s = self.grad_s(local_batch)
        sync_s = self.sync_s(nodes, replicas)
        # Scaled by the larger part, so that a large power cannot underflow.
        large = max(grad_s, sync_s, _TINY)
        overlap = (grad_s / large) ** self.gamma + (sync_s / large) ** self.gamma
        return accumulated * grad_s + float(large * overlap ** (1 / self.gamma))


def efficiency(batch: float, *, initial_batch: float, grad_sqr: float, grad_var: float) -> float:
    """Return progress per sample at `batch` relative to the initial batch: 1 or less above it.

    >>> efficiency(256, initial_batch=128, grad_sqr=1.0, grad_var=1.0)
    0.6666666666666666
    """
    if batch <= 0 or initial_batch <= 0:
        return 0.0
    if grad_sqr <= 0:
        # All noise: every sample counts the same, however many are averaged.
        return 1.0
    phi = initial_batch * max(grad_var, 0.0) / grad_sqr
    return float((phi + initial_batch) / (phi + batch))


def gain(batch: float, *, initial_batch: float, grad_sqr: float, grad_var: float) -> float:
    """Return how many steps of the initial batch one step of `batch` is worth."""
    scale = batch / initial_batch
    return scale * efficiency(
        batch, initial_batch=initial_batch, grad_sqr=grad_sqr, grad_var=grad_var
    )


def fit_step_model(rows: Sequence[Measured]) -> StepModel:
    """Fit the seven parameters to measured steps, by least squares of relative errors.

    T_grad is fitted to the measured step without its network part; for each gamma on a grid the
    T_sync that explains the steps follows, and the gamma with the smallest mean squared
    logarithmic error of the whole step is taken. Cost: O(rows).

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("no measured steps")
    nodes = np.array([row.nodes for row in rows], dtype=float)
    replicas = np.array([row.replicas for row in rows], dtype=float)
    local = np.array([row.local_batch for row in rows], dtype=float)
    step = np.array([row.step_s for row in rows], dtype=float)
    grad = np.maximum(step - np.array([row.sync_s for row in rows], dtype=float), _TINY)
    alpha_c, beta_c = _line(local, grad)
    best: tuple[float, StepModel] | None = None
    for gamma in np.linspace(1.0, GAMMA_MAX, 19):
        compute = np.minimum(alpha_c + beta_c * local, step * (1 - 1e-9))
        network = np.maximum(step**gamma - compute**gamma, 0.0) ** (1 / gamma)
        far, near = nodes > 1, (nodes == 1) & (replicas > 1)
        alpha_n, beta_n = _line(replicas[far] - 2, network[far])
        alpha_r, beta_r = _line(replicas[near] - 2, network[near])
        model = StepModel(
            alpha_c=alpha_c, beta_c=beta_c, alpha_n=alpha_n, beta_n=beta_n,
            alpha_r=alpha_r, beta_r=beta_r, gamma=float(gamma),
        )  # fmt: skip
        predicted = np.array([model.step_s(r.nodes, r.replicas, r.local_batch) for r in rows])
        error = float(np.mean(np.log(np.maximum(predicted, _TINY) / step) ** 2))
        if best is None or error < best[0] - 1e-12:
            best = error, model
    assert best is not None
    return best[1]


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return (intercept, slope), neither negative, by least squares of relative errors."""
    if len(x) == 0:
        return _TINY, _TINY
    weight = 1.0 / np.maximum(y, max(float(np.max(y)) * 1e-3, _TINY))
    if float(np.ptp(x)) == 0.0:
        return max(float(np.average(y, weights=weight)), _TINY), _TINY
    columns = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(columns, y * weight, rcond=None)
    if slope < 0:
        return max(float(np.average(y, weights=weight)), _TINY), _TINY
    if intercept < 0:
        positive = np.maximum(x, 0)
        return _TINY, float(np.sum(weight**2 * positive * y) / np.sum((weight * positive) ** 2))
    return max(float(intercept), _TINY), max(float(slope), _TINY)


def local_batches(batch: float, replicas: int, *, local_batch_max: float) -> tuple[int, int]:
    """Return (samples of each pass, accumulated passes) that make up `batch` on `replicas`."""
    local = math.ceil(batch / replicas - _TINY)
    accumulated = max(math.ceil(local / local_batch_max - _TINY) - 1, 0)
    return math.ceil(local / (accumulated + 1) - _TINY), accumulated
