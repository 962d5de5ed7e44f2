"""Preference among nodes that fit: smaller is better. One column per need, as integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tercio.model.queue import Policy
from tercio.sched.feasible import Fit, View
from tercio.sched.need import Mode
from tercio.sched.table import UNLIMITED, Ints

_CORES = 1 << 20
_MILLI = 1 << 14


def rating(policy: Policy) -> Callable[[Fit, View], Ints]:
    """Return the score that the policy asks for."""
    return spread if policy.placement.pack == "spread" else best_fit


def best_fit(fit: Fit, view: View) -> Ints:
    """Prefer the node that keeps the fewest devices, then the tightest device, then few cores.

    A task without devices prefers nodes without free devices, so that it strands none.
    """
    devices: Ints = view.untouched.sum(axis=0)
    tight = np.zeros(len(devices), np.int64)
    if fit.need.mode in (Mode.SHARE, Mode.MIG):
        left = np.where(view.usable, fit.table.milli_free[view.rows], _MILLI - 1)
        fitting = np.where(left >= max(fit.need.device_milli, 1), left, _MILLI - 1)
        tight = fitting.min(axis=1)
    cores = np.minimum(view.cpus // 1000, _CORES - 1)
    cores = np.where(view.cpus >= UNLIMITED // 2, 0, cores)
    key: Ints = (devices * _MILLI + tight) * _CORES + np.clip(cores, 0, None)
    return key


def spread(fit: Fit, view: View) -> Ints:
    """Prefer the emptiest node."""
    devices: Ints = view.untouched.sum(axis=0)
    cores = np.clip(np.minimum(view.cpus // 1000, _CORES - 1), 0, None)
    key: Ints = -(devices * _CORES + cores) + (fit.table.tasks_held[view.rows] << 40)
    return key
