"""Packing on Alibaba's openb trace beside the policies of the FGD paper.

`python -m bench packing` runs everything (about ten minutes of CPU); without a name, as a part
of `make bench`, three seeds of the default list.
"""

from __future__ import annotations

import statistics

from bench.sched import openb
from bench.sched.baselines import POLICIES, PUBLISHED_AT_100, allocated
from bench.table import Row

LISTS = ("default", "cpu050", "gpushare40", "gpuspec10", "multigpu30")
PUBLISHED_FGD = {"default": 95.23, "cpu050": 95.00, "gpushare40": 93.96, "gpuspec10": 94.66,
                 "multigpu30": 96.36}  # fmt: skip
SEEDS = range(42, 52)
NOTES = (
    "Per cent of all devices that are allocated when the arrived requests reach 100 %; mean and "
    "standard deviation over seeds. FGD and the others are written anew after the paper's "
    "simulator; `published` is what the paper's repository gives for ten seeds. Ours is the live "
    "scheduler, one cycle per arrival, with `pack: fragmentation`; its ratio of the two measures "
    "was chosen on other resamplings (seeds 1000 to 1009) than those judged here (0 to 9)."
)


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {deviation:.2f}"


def _beside(name: str, pods: list[openb.Pod], seeds: range) -> tuple[Row, list[float]]:
    """Ours beside FGD on one list; also the CPU seconds of each of our runs."""
    runs = [openb.run(pods, seed) for seed in seeds]
    fgd = [allocated("FGD", pods, seed)[0] for seed in seeds]
    others = f"FGD here {_spread(fgd)}"
    if name in PUBLISHED_FGD:
        others += f", published {PUBLISHED_FGD[name]:.2f}"
    bar = "95.5" if name == "default" else "FGD"
    return Row(name, _spread([run[0] for run in runs]), bar, others), [run[2] for run in runs]


def _table(lists: tuple[str, ...], seeds: range, resamplings: int) -> list[Row]:
    spent: list[float] = []
    rows = []
    for name in lists:
        row, seconds = _beside(name, openb.read_pods(name), seeds)
        rows.append(row)
        spent += seconds
    for at in range(resamplings):
        source = LISTS[at % len(LISTS)]
        pods = openb.resample(openb.read_pods(source), at)
        rows.append(_beside(f"{source}, resampled {at}", pods, range(at, at + 1))[0])
    seconds = f"{statistics.median(spent):.1f} s"
    rows.append(Row("CPU of one run, about 10,800 decisions, 1,213 nodes", seconds, "3 s",
                    "the paper's simulator 600 s and more"))  # fmt: skip
    return rows


def _others(seeds: range) -> list[Row]:
    pods = openb.read_pods("default")
    rows = []
    for policy in POLICIES:
        found = [allocated(policy, pods, seed)[0] for seed in seeds]
        rows.append(Row(policy, _spread(found), "", f"published {PUBLISHED_AT_100[policy]:.2f}"))
    return rows


def _missing() -> list[tuple[str, list[Row], str]]:
    return [("Packing", [], "The trace is not at hand: set TERCIO_SHARED.")]


def tables() -> list[tuple[str, list[Row], str]]:
    """Three seeds of the default list."""
    if not openb.trace_dir().exists():
        return _missing()
    return [("Packing, three seeds", _table(("default",), SEEDS[:3], 0), NOTES)]


def full_tables() -> list[tuple[str, list[Row], str]]:
    """Every list, ten seeds, ten resamplings, every policy."""
    if not openb.trace_dir().exists():
        return _missing()
    return [
        ("Packing", _table(LISTS, SEEDS, 10), NOTES),
        ("Packing policies written anew, default list", _others(SEEDS), ""),
    ]
