"""How many nodes a workload needs for a wait that people accept: bisection over replays.

The workload is replayed on clusters of equal nodes through the live scheduler. More nodes wait
less but for rare inversions of the schedule, so the smallest cluster that holds the target is
found by doubling and bisection; every size that was tried is part of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.model.node import NodeSpec
from tercio.twin.policies import Discipline
from tercio.twin.replay import run
from tercio.twin.result import JobRecord, TwinResult, percentile
from tercio.twin.stats import size_class
from tercio.twin.trace import Trace


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster that was tried.

    Attributes:
        nodes, devices: of the cluster.
        wait_s: the percentile asked for, over jobs that ended.
        mean_wait_s: over the same jobs.
        utilization_ratio: devices held over devices, from first submit to last end.
        never_fit: jobs larger than the cluster.
        is_enough: whether all jobs fit and the wait is held.
    """

    nodes: int
    devices: int
    wait_s: float
    mean_wait_s: float
    utilization_ratio: float
    never_fit: int
    is_enough: bool


class FleetSize(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest cluster that holds the target, and what was tried.

    Attributes:
        best: that cluster.
        tried: every size, rising.
        load_devices: devices in use on average over the submits, if nobody waited.
        peak_devices: most devices in use at one instant, if nobody waited.
        binds: what keeps it from being one node smaller, in words.
    """

    best: Size
    tried: tuple[Size, ...]
    load_devices: float
    peak_devices: int
    binds: str


def size_fleet(
    trace: Trace,
    discipline: Discipline,
    nodes_of: Callable[[int], Sequence[NodeSpec]],
    *,
    wait_s: float,
    quantile: float = 0.95,
    seed: int = 0,
    tell: Callable[[Size], None] | None = None,
) -> FleetSize:
    """Find the smallest number of equal nodes on which a workload waits no longer than asked.

    Args:
        trace: the workload; every job may run on these nodes.
        discipline: who comes when.
        nodes_of: a cluster of so many nodes.
        wait_s: longest wait at the quantile, in seconds, at least 0.
        quantile: of jobs, such as 0.95.
        seed: of the replays.
        tell: told each size tried.

    Raises:
        UserError: the trace has no job, or a job needs a larger node.
    """
    if not trace.jobs:
        raise UserError("the trace has no job that asks for a device", field="trace")
    each = len(nodes_of(1)[0].devices)
    widest = max(job.devices_per_task for job in trace.jobs)
    if widest > each:
        raise UserError(
            f"a task of the trace asks for {widest} devices, and a node has {each}",
            field="per_node",
            hint=f"give --per-node {widest}",
        )
    tries = _Tries(trace, discipline, nodes_of, wait_s, quantile, seed, tell, {}, {})
    load, peak = _load(trace)
    low, high = 0, max(math.ceil(load / each), 1)  # low is too few
    while not tries.is_enough(high):
        low, high = high, high * 2
        if low * each > 2 * peak + max(job.devices for job in trace.jobs) * 2:
            raise UserError(
                f"even {low * each:,} devices do not hold the wait",
                field="wait",
                hint="the policy itself makes jobs wait; try another --policy",
            )
    while high - low > 1:
        middle = (low + high) // 2
        if tries.is_enough(middle):
            high = middle
        else:
            low = middle
    return FleetSize(
        best=tries.sizes[high],
        tried=tuple(tries.sizes[count] for count in sorted(tries.sizes)),
        load_devices=load,
        peak_devices=peak,
        binds=_binds(trace, tries.results.get(low), quantile),
    )


class _Tries(NamedTuple):
    """Replays by number of nodes, each made once."""

    trace: Trace
    discipline: Discipline
    nodes_of: Callable[[int], Sequence[NodeSpec]]
    wait_s: float
    quantile: float
    seed: int
    tell: Callable[[Size], None] | None
    results: dict[int, TwinResult]
    sizes: dict[int, Size]

    def is_enough(self, count: int) -> bool:
        """Whether so many nodes hold the wait."""
        if count not in self.sizes:
            result = run(self.trace, self.nodes_of(count), self.discipline, seed=self.seed)
            self.results[count] = result
            self.sizes[count] = _size(result, count, self.wait_s, self.quantile)
            if self.tell is not None:
                self.tell(self.sizes[count])
        return self.sizes[count].is_enough


def _size(result: TwinResult, nodes: int, wait_s: float, quantile: float) -> Size:
    waits = [job.wait_s or 0.0 for job in result.jobs if job.end_s is not None]
    found_s = max(_at(waits, quantile), 0.0)
    sums = result.summary
    return Size(
        nodes=nodes,
        devices=result.devices,
        wait_s=found_s,
        mean_wait_s=sums.mean_wait_s,
        utilization_ratio=sums.utilization_ratio,
        never_fit=sums.never_fit,
        is_enough=not sums.never_fit and not sums.unfinished and found_s <= wait_s,
    )


def _at(waits: Sequence[float], quantile: float) -> float:
    return percentile(np.array(waits), 100 * quantile) if waits else 0.0


def _load(trace: Trace) -> tuple[float, int]:
    """Devices in use, were there enough for all: the mean over the submits, and the most."""
    first_s, last_s = trace.jobs[0].submit_s, trace.jobs[-1].submit_s
    longest_s = max(job.run_s for job in trace.jobs)
    span_s = max(last_s - first_s, longest_s, 1.0)
    steps = [(job.submit_s, job.devices) for job in trace.jobs]
    steps += [(job.submit_s + job.run_s, -job.devices) for job in trace.jobs]
    used = peak = 0.0
    for _, change in sorted(steps):
        used += change
        peak = max(peak, used)
    return sum(job.devices * job.run_s for job in trace.jobs) / span_s, math.ceil(peak - 1e-6)


def _binds(trace: Trace, below: TwinResult | None, quantile: float) -> str:
    """Why one node less is not enough."""
    if below is None:
        return "nothing: one node is enough"
    largest = max(job.devices for job in trace.jobs)
    if below.summary.never_fit:
        return f"the largest job: it asks for {largest:,} devices at once"
    classes: dict[str, list[JobRecord]] = {}
    for job in below.jobs:
        if job.end_s is not None:
            classes.setdefault(size_class(job.devices), []).append(job)
    waits = {name: _at([j.wait_s or 0.0 for j in jobs], quantile) for name, jobs in classes.items()}
    worst = max(waits, key=lambda name: waits[name])
    part = len(classes[worst]) / sum(map(len, classes.values()))
    return f"the wait: longest for jobs of {worst} devices, {part:.0%} of the jobs"
