"""Runs of several arms over the same workloads, with what a comparison needs of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tercio.model.node import NodeSpec
from tercio.twin.faults import Fault
from tercio.twin.plots import Arm
from tercio.twin.policies import Discipline
from tercio.twin.progress.book import ProfileBook
from tercio.twin.replay import run
from tercio.twin.result import TwinResult
from tercio.twin.spans import Span, SpanKeeper
from tercio.twin.stats import Figures, Prices, measure
from tercio.twin.trace import Trace
from tercio.twin.world import World

_LEVELS = ("rack", "block", "zone")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: a policy on a cluster.

    Attributes:
        name: for people, unique.
        discipline: makes the policy for a workload.
        nodes: the cluster.
    """

    name: str
    discipline: Callable[[Trace], Discipline]
    nodes: tuple[NodeSpec, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one arm by seed, and its first run whole."""

    figures: tuple[Figures, ...]
    arm: Arm


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        plans: the arms; the first is the baseline.
        workload_of: the workload of each seed, the same for every arm.
        seeds: how many workloads.
        world: how engines and tasks behave.
        faults: of nodes, by cluster, workload and seed.
        prices: for energy and cost.
        weights: of queues, for the fairness error.
        until_s: stop so long after the first submit.
        profiles: by which jobs that name one advance.
    """

    plans: Sequence[Plan]
    workload_of: Callable[[int], Trace]
    seeds: int
    world: World
    faults: Callable[[Sequence[NodeSpec], Trace, int], Sequence[Fault]]
    prices: Prices
    weights: Mapping[str, float]
    until_s: float | None = None
    profiles: ProfileBook | None = None

    def runs(self) -> list[tuple[int, int]]:
        """Return seed and number of the arm of every run, in order."""
        return [(seed, arm) for seed in range(self.seeds) for arm in range(len(self.plans))]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run, and the whole of it for the first workload."""

    figures: Figures
    arm: Arm | None


class Latest:
    """Makes a workload once for all arms that see it one after another."""

    def __init__(self, make: Callable[[int], Trace]) -> None:
        self._make = make
        self._known: tuple[int, Trace] | None = None

    def __call__(self, seed: int) -> Trace:
        """Return the workload of a seed."""
        if self._known is None or self._known[0] != seed:
            self._known = (seed, self._make(seed))
        return self._known[1]

    def __reduce__(self) -> tuple[type[Latest], tuple[Callable[[int], Trace]]]:
        """Send how it is made to another process, and not what was made."""
        return (Latest, (self._make,))


def run_one(setting: Setting, which: tuple[int, int]) -> Run:
    """Run one arm on one workload; runs may be done in any order, or side by side."""
    seed, number = which
    plan, workload = setting.plans[number], setting.workload_of(seed)
    keeper = SpanKeeper([node.name for node in plan.nodes])
    result = run(
        workload, plan.nodes, plan.discipline(workload), seed=seed, world=setting.world,
        faults=setting.faults(plan.nodes, workload, seed), until_s=setting.until_s,
        observers=(keeper,), profiles=setting.profiles,
    )  # fmt: skip
    spans = keeper.finish(_last_s(result))
    counts = [len(node.devices) for node in plan.nodes]
    figures = measure(
        result, spans, node_devices=counts, prices=setting.prices, weights=setting.weights
    )
    return Run(figures=figures, arm=_arm(plan, result, spans) if seed == 0 else None)


def run_arms(setting: Setting, tell: Callable[[int, int], None] | None = None) -> list[Outcome]:
    """Run every arm on every workload; `tell` is told the runs done and the runs in all."""
    found: list[Run] = []
    whole = setting.runs()
    for which in whole:
        found.append(run_one(setting, which))
        if tell is not None:
            tell(len(found), len(whole))
    return outcomes(setting, found)


def outcomes(setting: Setting, runs: Sequence[Run]) -> list[Outcome]:
    """Put the runs, which come in the order of `Setting.runs`, together by arm."""
    count = len(setting.plans)
    return [
        Outcome(figures=tuple(run.figures for run in runs[number::count]), arm=first.arm)
        for number, first in enumerate(runs[:count])
        if first.arm is not None
    ]


def _arm(plan: Plan, result: TwinResult, spans: Sequence[Span]) -> Arm:
    level = next((at for at in _LEVELS if any(at in node.labels for node in plan.nodes)), None)
    return Arm(
        name=plan.name,
        result=result,
        spans=spans,
        nodes=[str(node.name) for node in plan.nodes],
        node_devices=[len(node.devices) for node in plan.nodes],
        domains=[node.labels.get(level, str(node.name)) for node in plan.nodes] if level else (),
    )


def _last_s(result: TwinResult) -> float:
    ends = [job.end_s for job in result.jobs if job.end_s is not None]
    course = result.course.at_s
    return max([*ends, float(course[-1]) if len(course) else 0.0])
