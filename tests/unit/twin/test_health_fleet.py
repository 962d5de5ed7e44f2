"""Health policies on fleets with known truth."""

from __future__ import annotations

import pytest

from tercio.health.history import WaveRule
from tercio.health.policy import HealthPolicy, Mode, Repairs
from tercio.twin.health_fleet import Fleet, Loss, live, mean_loss

ACT = HealthPolicy(mode=Mode.ACT, repairs=Repairs.COMMAND)
SHADOW = HealthPolicy()


def mean(fleet: Fleet, policy: HealthPolicy, seeds: int) -> dict[str, float]:
    return mean_loss([live(fleet, policy, seed=seed) for seed in range(seeds)])


def test_healthy_nodes_are_left_alone_by_repeat_and_lemon_rules():
    """A fifth of the fleet may have a fifth of the one false alarm a month."""
    found = mean(Fleet(nodes=200), ACT, 20)
    assert found["strikes"] == pytest.approx(200 * 30 * 6.5e-3, rel=0.15)
    assert found["quarantines"] > 5
    assert found["soft_quarantines"] <= 0.2


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_thousand_healthy_nodes_meet_at_most_one_such_quarantine_a_month():
    assert mean(Fleet(), ACT, 20)["soft_quarantines"] <= 1.0


def test_lemons_are_found_and_acting_saves_device_hours():
    fleet = Fleet(nodes=100, lemon_ratio=0.05, lemon_factor=40.0)
    acting, watching = mean(fleet, ACT, 4), mean(fleet, SHADOW, 4)
    assert acting["lost_h"] < 0.7 * watching["lost_h"]
    assert watching["quarantines"] == 0
    assert acting["lemons_found"] > 0.5 * acting["lemons"] > 0


def test_a_bad_release_is_told_as_a_wave_and_drains_nobody():
    fleet = Fleet(nodes=100, days=8.0, release_day=2.0)
    blind = HealthPolicy(mode=Mode.ACT, repairs=Repairs.COMMAND, wave=WaveRule(nodes_min=10_000))
    seeing, not_seeing = mean(fleet, ACT, 1), mean(fleet, blind, 1)
    assert seeing["wrong_quarantines"] == seeing["breakers"] == 0, "also when it has passed"
    assert not_seeing["breakers"] >= 1, "the breaker is what is left"
    assert seeing["lost_h"] < not_seeing["lost_h"]


def test_equal_seeds_live_equal_lives():
    fleet = Fleet(nodes=50, lemon_ratio=0.1)
    assert live(fleet, ACT, seed=3) == live(fleet, ACT, seed=3)
    assert isinstance(live(fleet, ACT, seed=4), Loss)
