"""How often a job is told to save: `checkpoint.every`, or the optimum where that is `auto`.

`auto` is Daly's optimum for the nodes that the attempt runs on. Their failure rate is what this
cluster has seen, with the rate of a large training fleet as prior; the time that a save takes is
taken as the grace, as that is the time in which the job has to be able to save.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.health.checkpoint import advise_interval, estimate_failure_rate, job_mttf_s
from tercio.model.job import JobSpec

FLEET_RATE_PER_DAY: Final = 6.5e-3
"""Failures per node-day of a 16,000-GPU research cluster (Kokolis et al., arXiv 2410.21680)."""

RESTART_S: Final = 300.0
_SAVE_MIN_S: Final = 1.0
_DAY_S: Final = 86_400.0


class Wear(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """What nodes have gone through.

    Attributes:
        failures: nodes that were lost for good, so that their tasks were.
        node_s: time that nodes have been known, up to `at_s`.
        nodes: known since then.
        at_s: of the last change.
    """

    failures: int = 0
    node_s: float = 0.0
    nodes: int = 0
    at_s: float = 0.0

    def count(self, at_s: float, *, nodes: int, failures: int = 0) -> None:
        """Note that so many nodes are known from now on, and that so many have just failed."""
        self.node_s += self.nodes * max(0.0, at_s - self.at_s)
        self.at_s = max(self.at_s, at_s)
        self.nodes = nodes
        self.failures += failures

    def rate_per_day(self, at_s: float) -> float:
        """Failures to expect per node-day."""
        known_s = self.node_s + self.nodes * max(0.0, at_s - self.at_s)
        return estimate_failure_rate(
            failures=self.failures,
            node_days=known_s / _DAY_S,
            prior_rate_per_day=FLEET_RATE_PER_DAY,
        )


def with_interval(spec: JobSpec, *, node_count: int, wear: Wear, at_s: float) -> JobSpec:
    """Return the job with the interval that its tasks are told.

    Nothing is told to a job that leaves it to `auto` and names no `checkpoint.path`: it does
    not say that it saves at all.
    """
    checkpoint = spec.checkpoint
    if checkpoint.every_s is not None or checkpoint.path is None:
        return spec
    advice = advise_interval(
        save_s=max(checkpoint.grace_s, _SAVE_MIN_S),
        restart_s=RESTART_S,
        mttf_s=job_mttf_s(
            node_count=max(node_count, 1), failures_per_node_day=wear.rate_per_day(at_s)
        ),
    )
    told = msgspec.structs.replace(checkpoint, every_s=float(round(advice.interval_s)))
    return msgspec.structs.replace(spec, checkpoint=told)
