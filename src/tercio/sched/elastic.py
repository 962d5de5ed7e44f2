"""Sizes and device types of elastic jobs by their throughput: who gains most from what.

Each job has options (device type, tasks) with a measured rate. The rates of a job are put
beside its least rate, as in Sia (Jayaram Subramanya et al., SOSP 2023, section 3.3), a change of
a running job is discounted by its restart, and a power p below 1 makes the first devices of a job
worth more than further ones. Chosen is at most one option for each job, so that the total is as
large as possible and no type is used beyond what there is.

That is a multiple-choice knapsack with one constraint for each type. It is solved by prices:
each type has a price for a device, every job takes the option that is worth most to it after
paying, and prices move until demand meets supply (Lagrangian relaxation with subgradient steps).
What that leaves open is settled by exchanges: a job takes a better option that is free, or that
another one frees and loses less by it.
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
"""Passes in which jobs take better options that are free, and then trade in pairs."""

TRADES: Final = 64
"""Most exchanges between two jobs in one pass."""

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
    """Give out what there is at these prices, then let jobs exchange."""
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
    """Let one job have more and another less, as long as both together gain; whether any."""
    has_changed = False
    for _ in range(TRADES):
        pair = _best_pair(value, size, kind, free, chosen)
        if pair is None:
            break
        for job, option in pair:
            free[kind[job, chosen[job]]] += size[job, chosen[job]]
            free[kind[job, option]] -= size[job, option]
            chosen[job] = option
        has_changed = True
    return has_changed


def _best_pair(
    value: Floats, size: Ints, kind: Ints, free: Ints, chosen: Ints
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return who takes which option and who gives way to which, (job, option) each, or None."""
    rows = np.arange(len(value))
    held, held_kind = size[rows, chosen][:, None], kind[rows, chosen][:, None]
    is_same = kind == held_kind
    gain = value - value[rows, chosen][:, None]
    short = size - np.where(is_same, held, 0) - free[kind]
    is_taking = (gain > _LEAST_GAIN) & (short > 0)
    if not is_taking.any():
        return None
    most = int(short[is_taking].max())
    freed = held - np.where(is_same, size, 0)
    is_giving = (freed > 0) & (value >= 0) & (is_same | (size <= free[kind]))
    # What it costs each job at least to free so many devices of the type that it has.
    loss: Floats = np.full((len(value), most + 1), np.inf)
    np.minimum.at(loss, (np.nonzero(is_giving)[0], np.minimum(freed, most)[is_giving]),
                  -gain[is_giving])  # fmt: skip
    loss = np.minimum.accumulate(loss[:, ::-1], axis=1)[:, ::-1]
    best, found = _LEAST_GAIN, None
    for number in range(len(free)):
        takers, options = np.nonzero(is_taking & (kind == number))
        if not len(takers):
            continue
        own = np.where(held_kind == number, loss, np.inf)
        first = own.argmin(axis=0)
        least = own[first, np.arange(most + 1)]
        own[first, np.arange(most + 1)] = np.inf
        wanted = short[takers, options]
        paid = np.where(first[wanted] == takers, own.min(axis=0)[wanted], least[wanted])
        total = gain[takers, options] - paid
        at = int(total.argmax())
        if total[at] > best:
            best, found = float(total[at]), (number, int(takers[at]), int(options[at]))
    if found is None:
        return None
    number, taker, option = found
    is_giving &= (held_kind == number) & (freed >= short[taker, option])
    is_giving[taker] = False
    giver, less = divmod(int(np.where(is_giving, gain, -np.inf).argmax()), value.shape[1])
    return (taker, option), (giver, less)
