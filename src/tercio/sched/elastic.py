"""Sizes and device types of elastic jobs by their throughput: who gains most from what.

Each job has options (device type, tasks) with a measured rate. The rates of a job are put
beside its least rate, as in Sia (Jayaram Subramanya et al., SOSP 2023, section 3.3), a change of
a running job is discounted by its restart, and a power p below 1 makes the first devices of a job
worth more than further ones. Chosen is at most one option for each job, so that the total is as
large as possible and no type is used beyond what there is.

That is a multiple-choice knapsack with one constraint for each type. It is solved by prices:
each type has a price for a device, every job takes the option that is worth most to it after
paying, and prices move until demand meets supply (Lagrangian relaxation with subgradient steps).
What that leaves open is settled by exchanges between jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROUNDS: Final = 60
"""Price steps; the last ones move prices by a hundredth of the first."""

EXCHANGES: Final = 4
"""Passes over all jobs in which each may take a better option that is free."""

UNSERVED: Final = 1.1
"""What a job without devices costs, where one at its least rate costs 1."""

_LEAST_GAIN: Final = 1e-12

NOTHING: Final = -1


class Option(NamedTuple):
    """One way to run a job: number of its device type, devices, tasks and worth."""

    kind: int
    devices: int
    tasks: int
    worth: float


def worth(rate: float, least_rate: float, exponent: float, kept: float = 1.0) -> float:
    """Return what a rate is worth to a job, from 0 for nothing.

    Args:
        rate: of this option.
        least_rate: the least of all options of the job.
        exponent: p; below 0 the cost (rate over least)^p against `UNSERVED`, above 0 the power.
        kept: part of the time that is left after a restart, 0 to 1.
    """
    normal = kept * rate / least_rate
    if exponent > 0:
        return float(normal**exponent)
    if normal <= 0:
        return 0.0
    return max(UNSERVED - float(normal**exponent), 0.0)


def kept_part(ran_s: float, moves: int, restart_s: float) -> float:
    """Return the discount of a move, as in Sia: what restarts leave of a job's time, with one more.

    Args:
        ran_s: how long it has held devices in all its attempts, in seconds.
        moves: how often it was moved.
        restart_s: what a move costs, in seconds.
    """
    total_s = ran_s + restart_s
    return 1.0 if total_s <= 0 else max(ran_s - moves * restart_s, 0.0) / total_s


def allot(jobs: Sequence[Sequence[Option]], supply: Sequence[int]) -> list[int]:
    """Choose an option for each job, `NOTHING` for none.

    Args:
        jobs: options of each job, earlier jobs first among equals.
        supply: devices of each type.
    """
    if not jobs or not supply:
        return [NOTHING] * len(jobs)
    width = max(len(options) for options in jobs)
    count = len(jobs)
    value: Floats = np.zeros((count, width + 1))  # the last column is to have nothing
    size: Ints = np.zeros((count, width + 1), np.int64)
    kind: Ints = np.zeros((count, width + 1), np.int64)
    for at, options in enumerate(jobs):
        value[at, len(options) : width] = -1.0
        for number, option in enumerate(options):
            is_there = option.devices <= supply[option.kind]
            value[at, number] = option.worth if is_there else -1.0
            size[at, number], kind[at, number] = option.devices, option.kind
    free = np.array(supply, np.int64)
    prices = _prices(value, size, kind, free)
    chosen = _settle(value, size, kind, free, prices)
    return [NOTHING if at == width else int(at) for at in chosen]


def _prices(value: Floats, size: Ints, kind: Ints, supply: Ints) -> Floats:
    """Prices of a device by type at which demand is near supply."""
    kinds = len(supply)
    rows = np.arange(len(value))
    prices: Floats = np.zeros(kinds)
    scale = float(value.max()) / max(1.0, float(size[value > 0].min(initial=1)))
    capacity = np.maximum(supply, 1)
    for step in range(ROUNDS):
        best = (value - prices[kind] * size).argmax(axis=1)
        demand = np.bincount(kind[rows, best], size[rows, best], kinds)
        move = scale * 0.3 * 0.93**step
        prices = np.maximum(prices + move * np.clip((demand - supply) / capacity, -1.0, 1.0), 0.0)
    return prices


def _settle(value: Floats, size: Ints, kind: Ints, supply: Ints, prices: Floats) -> Ints:
    """Give out what there is at these prices, then let jobs take better options that are free."""
    nothing = value.shape[1] - 1
    free = supply.copy()
    chosen: Ints = np.full(len(value), nothing, np.int64)
    surplus = value - prices[kind] * size
    for at in np.argsort(-surplus.max(axis=1), kind="stable").tolist():
        allowed = size[at] <= free[kind[at]]
        best = int(np.where(allowed, surplus[at], -np.inf).argmax())
        chosen[at] = best
        free[kind[at, best]] -= size[at, best]
    for _ in range(EXCHANGES):
        _improve(value, size, kind, free, chosen)
        if not _trade(value, size, kind, free, chosen):
            break
    return chosen


def _improve(value: Floats, size: Ints, kind: Ints, free: Ints, chosen: Ints) -> bool:
    """Apply the best change of one job again and again, each with what is free; whether any."""
    rows = np.arange(len(value))
    has_changed = False
    for _ in range(len(value)):
        now = size[rows, chosen]
        own = np.where(kind == kind[rows, chosen][:, None], now[:, None], 0)
        gain = np.where(size <= free[kind] + own, value - value[rows, chosen][:, None], -1.0)
        at = int(gain.argmax())
        job, option = divmod(at, value.shape[1])
        if gain[job, option] <= 1e-12:
            break
        free[kind[job, chosen[job]]] += size[job, chosen[job]]
        free[kind[job, option]] -= size[job, option]
        chosen[job] = option
        has_changed = True
    return has_changed


def _trade(value: Floats, size: Ints, kind: Ints, free: Ints, chosen: Ints) -> bool:
    """Let one job have more while another has less, as long as both together gain; whether any."""
    rows = np.arange(len(value))
    has_changed = False
    for _ in range(len(value)):
        held, held_kind = size[rows, chosen], kind[rows, chosen]
        worth_now = value[rows, chosen]
        is_same = kind == held_kind[:, None]
        net = size - np.where(is_same, held[:, None], 0)
        gain = value - worth_now[:, None]
        short = net - free[kind]
        is_taking = (gain > _LEAST_GAIN) & (short > 0)
        best, pair = _LEAST_GAIN, None
        for k in range(len(free)):
            takers = np.argwhere(is_taking & (kind == k))
            if not len(takers):
                continue
            freed = np.where(held_kind[:, None] == k, held[:, None] - np.where(is_same, size, 0), 0)
            fits = is_same | (size <= free[kind])
            givers = np.argwhere((freed > 0) & fits & (value >= 0))
            if not len(givers):
                continue
            total = gain[takers[:, 0], takers[:, 1]][:, None] + gain[givers[:, 0], givers[:, 1]]
            is_possible = (
                freed[givers[:, 0], givers[:, 1]] >= short[takers[:, 0], takers[:, 1]][:, None]
            )
            is_possible &= takers[:, 0][:, None] != givers[:, 0]
            total = np.where(is_possible, total, -np.inf)
            at = int(total.argmax())
            taker, giver = divmod(at, len(givers))
            if total[taker, giver] > best:
                best, pair = float(total[taker, giver]), (takers[taker], givers[giver])
        if pair is None:
            break
        for job, option in pair:
            free[kind[job, chosen[job]]] += size[job, chosen[job]]
            free[kind[job, option]] -= size[job, option]
            chosen[job] = option
        has_changed = True
    return has_changed
