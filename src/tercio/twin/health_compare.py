"""Several health policies on the same fleet: what each lost, and how sure the difference is.

Every policy meets the same troubles in every life, so that a difference is taken within each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tercio.health.policy import HealthPolicy
from tercio.twin.compare import Difference, paired_difference
from tercio.twin.health_fleet import Fleet, Loss, live, mean_loss


class PolicyLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy came to: means over the lives.

    Attributes:
        policy: its name.
        figures: by name, those of `Loss` with `lost_h`.
        difference: of `lost_h` from the first policy; None for the first.
    """

    policy: str
    figures: Mapping[str, float]
    difference: Difference | None = None


def compare_health(
    fleet: Fleet,
    policies: Mapping[str, HealthPolicy],
    *,
    lives: int,
    seed: int = 0,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[PolicyLoss, ...]:
    """Let a fleet live several times under every policy; the first one is the baseline.

    Args:
        fleet: what it is and meets.
        policies: by name.
        lives: how many, each with troubles of its own.
        seed: of the first life.
        tell: told the lives done and in all.
    """
    whole = lives * len(policies)
    losses: list[list[Loss]] = []
    for policy in policies.values():
        found: list[Loss] = []
        for life in range(lives):
            found.append(live(fleet, policy, seed=seed + life))
            if tell is not None:
                tell(len(losses) * lives + len(found), whole)
        losses.append(found)
    first = [loss.lost_h for loss in losses[0]]
    return tuple(
        PolicyLoss(
            policy=name,
            figures=mean_loss(found),
            difference=None
            if number == 0
            else paired_difference(first, [loss.lost_h for loss in found], is_low_better=True),
        )
        for number, (name, found) in enumerate(zip(policies, losses, strict=True))
    )
