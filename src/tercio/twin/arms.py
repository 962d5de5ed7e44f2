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


def run_arms(
    plans: Sequence[Plan],
    workload_of: Callable[[int], Trace],
    *,
    seeds: int,
    world: World,
    faults: Callable[[Sequence[NodeSpec], Trace, int], Sequence[Fault]],
    prices: Prices,
    weights: Mapping[str, float],
    until_s: float | None = None,
    profiles: ProfileBook | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run every arm on every workload.

    Args:
        plans: the arms; the first is the baseline.
        workload_of: the workload of each seed, the same for every arm.
        seeds: how many workloads.
        world: how engines and tasks behave.
        faults: of nodes, by cluster, workload and seed.
        prices: for energy and cost.
        weights: of queues, for the fairness error.
        until_s: stop so long after the first submit.
        profiles: by which jobs that name one advance.
        tell: told the runs done and the runs in all.
    """
    figures: list[list[Figures]] = [[] for _ in plans]
    firsts: list[Arm] = []
    for seed in range(seeds):
        workload = workload_of(seed)
        for number, plan in enumerate(plans):
            keeper = SpanKeeper([node.name for node in plan.nodes])
            result = run(
                workload, plan.nodes, plan.discipline(workload), seed=seed, world=world,
                faults=faults(plan.nodes, workload, seed), until_s=until_s, observers=(keeper,),
                profiles=profiles,
            )  # fmt: skip
            spans = keeper.finish(_last_s(result))
            counts = [len(node.devices) for node in plan.nodes]
            figures[number].append(
                measure(result, spans, node_devices=counts, prices=prices, weights=weights)
            )
            if seed == 0:
                firsts.append(_arm(plan, result, spans))
            if tell is not None:
                tell(seed * len(plans) + number + 1, seeds * len(plans))
    return [
        Outcome(figures=tuple(found), arm=arm) for found, arm in zip(figures, firsts, strict=True)
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
