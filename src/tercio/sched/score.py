"""Preference among nodes that fit: smaller is better. One column per need, as integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tercio.model.queue import Policy
from tercio.sched.feasible import Fit, View
from tercio.sched.need import Mode
from tercio.sched.table import UNLIMITED, Ints

RowScore = Callable[[Fit, int], int]

_CORES = 1 << 20
_MILLI = 1 << 14


def rating(policy: Policy) -> Callable[[Fit, View], Ints]:
    """Return the score that the policy asks for."""
    return spread if policy.placement.pack == "spread" else best_fit


def row_rating(policy: Policy) -> RowScore:
    """Return the score that the policy asks for, of one row, for tasks of whole devices."""
    return spread_row if policy.placement.pack == "spread" else best_fit_row


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


def best_fit_row(fit: Fit, row: int) -> int:
    """`best_fit` of one row, for tasks of whole devices or of none."""
    table = fit.table
    cpus = table.cpus_free.item(row)
    cores: int = 0 if cpus >= UNLIMITED // 2 else max(0, min(cpus // 1000, _CORES - 1))
    devices: int = sum(table.untouched[:, row].tolist())
    return devices * _MILLI * _CORES + cores


def spread_row(fit: Fit, row: int) -> int:
    """`spread` of one row."""
    table = fit.table
    devices: int = sum(table.untouched[:, row].tolist())
    cores: int = max(0, min(table.cpus_free.item(row) // 1000, _CORES - 1))
    held: int = table.tasks_held.item(row)
    return -(devices * _CORES + cores) + (held << 40)
