"""The rules of `twin.rules` as checks of `testing.rounds`, and what scenarios ask beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tercio.model.ids import JobId
from tercio.model.snapshot import RunningJob, Snapshot
from tercio.sched.plan import Plan
from tercio.testing.rounds import Rounds
from tercio.testing.spending import check_limits
from tercio.twin import rules
from tercio.twin.rules import leaf_groups, size_bounds, waiting_of

__all__ = [
    "ALL", "additions", "capacity", "evictions_enable", "explained", "gangs", "leaf_groups",
    "owners", "places", "same_without_memory", "size_bounds", "use_of", "waiting_of",
]  # fmt: skip

Check = Callable[[Rounds, Snapshot, Plan], None]


def _check(rule: rules.Rule) -> Check:
    return lambda _, snapshot, plan: rule(snapshot, plan)


capacity = _check(rules.capacity)
places = _check(rules.places)
gangs = _check(rules.gangs)
additions = _check(rules.additions)
evictions_enable = _check(rules.evictions_enable)
explained = _check(rules.explained)


def same_without_memory(rounds: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Rule 8: a scheduler that remembers nothing comes to the same plan."""
    rules.same_without_memory(snapshot, plan, rounds.policy, rounds.now_s, rounds.seed)


def owners(rounds: Rounds, snapshot: Snapshot, plan: Plan) -> None:
    """Limits of users and tenants hold."""
    check_limits(rounds.policy.limits, snapshot, plan, rounds.now_s, rounds.submitted())


ALL = (capacity, places, gangs, additions, evictions_enable, explained, owners, same_without_memory)


def use_of(running: Mapping[JobId, RunningJob], queue: str) -> int:
    """Thousandths of devices that a queue and its sub-queues hold, stopping jobs left out."""
    return sum(
        share.milli
        for job in running.values()
        if (job.queue == queue or job.queue.startswith(f"{queue}/")) and not job.is_stopping
        for task in job.tasks
        for share in task.devices
    )
