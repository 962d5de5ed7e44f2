"""Slow ranks are found, noise is not; hangs are told by the job's own rhythm."""

import numpy as np
import pytest

from tercio.health.hang import (
    DeviceReading,
    HangWatch,
    Phase,
    culprit_ranks,
    is_spin_wait,
    odd_stacks,
)
from tercio.health.straggler import (
    Mitigation,
    ShiftWatch,
    Straggler,
    StragglerWatch,
    due_mitigation,
    z_limit,
)


@pytest.mark.parametrize(("ranks", "limit"), [(8, 3.7), (64, 4.2), (512, 4.6), (4096, 5.0)])
def test_limit_grows_with_the_ranks(ranks: int, limit: float) -> None:
    assert z_limit(ranks, false_alarm_ratio=0.001) == pytest.approx(limit, abs=0.07)


def own_times(seed: int, *, ranks: int, steps: int, noise: float, slow: float = 1.0) -> np.ndarray:
    """Own compute times with noise, 1 % hiccups of +50 % and a rank bias of 0.5 %."""
    rng = np.random.default_rng(seed)
    bias = rng.normal(1, 0.005, ranks)
    bias[0] *= slow
    times = bias * rng.normal(1, noise, (steps, ranks))
    return times * np.where(rng.random((steps, ranks)) < 0.01, 1 + rng.exponential(0.5), 1)


def found(times: np.ndarray) -> list[Straggler]:
    watch = StragglerWatch(times.shape[1], role="stage0")
    return [s for row in times for s in watch.add_step(row)]


@pytest.mark.parametrize("ranks", [8, 64, 512])
def test_ten_percent_slow_rank_is_found_in_two_windows(ranks: int) -> None:
    for seed in range(10):
        got = found(own_times(seed, ranks=ranks, steps=40, noise=0.02, slow=1.10))
        assert [(s.rank, s.step) for s in got] == [(0, 40)]


@pytest.mark.parametrize("ranks", [8, 64, 512])
def test_noise_raises_no_alarm(ranks: int) -> None:
    assert not [
        s for seed in range(20) for s in found(own_times(seed, ranks=ranks, steps=60, noise=0.05))
    ]


def test_hiccup_of_one_window_is_no_straggler() -> None:
    times = own_times(1, ranks=16, steps=60, noise=0.02)
    times[20:40, 3] *= 1.5
    assert found(times) == []


def test_silent_rank_and_equal_ranks_are_no_stragglers() -> None:
    times = np.ones((40, 8))
    times[:, 2] = np.nan
    assert found(times) == []
    assert found(np.full((40, 4), np.nan)) == []
    with pytest.raises(ValueError, match="3 ranks"):
        StragglerWatch(4, role="x").add_step(np.ones(3))


def test_shift_of_the_whole_job_is_found_and_its_onset_known() -> None:
    rng = np.random.default_rng(7)
    watch = ShiftWatch()
    assert not any(watch.add_step(float(rng.normal(1, 0.02))) for _ in range(400))
    alarms = [watch.step for _ in range(100) if watch.add_step(float(rng.normal(1.1, 0.02)))]
    assert alarms
    assert alarms[0] < 430
    assert watch.onset_step is not None
    assert 395 <= watch.onset_step <= 405


def test_mitigation_is_due_when_the_loss_has_paid_for_it() -> None:
    ladder = (Mitigation(name="rebalance", cost_s=60), Mitigation(name="replace", cost_s=900))
    assert due_mitigation(59, ladder) is None
    assert due_mitigation(60, ladder) == ladder[0]
    assert due_mitigation(2000, ladder) == ladder[1]


def test_hang_deadline_is_learned_per_phase() -> None:
    watch = HangWatch(started_s=0)
    assert not watch.is_hung(1799)
    assert watch.is_hung(1801)
    watch.note_progress(Phase.STEP, at_s=100)
    assert watch.deadline_s() == 600
    for step in range(1, 5):
        watch.note_progress(Phase.STEP, at_s=100 + 30 * step)
    assert watch.deadline_s() == 150
    watch.note_progress(Phase.CHECKPOINT, at_s=225)
    assert watch.deadline_s() == 1800
    watch.note_progress(Phase.STEP, at_s=300)
    assert (watch.deadline_s(), watch.last_progress_s) == (150, 300)
    assert watch.is_hung(451)


def test_fast_steps_do_not_make_a_hair_trigger() -> None:
    watch = HangWatch(started_s=0)
    for step in range(10):
        watch.note_progress(Phase.STEP, at_s=0.1 * step)
    assert watch.deadline_s() == 60


@pytest.mark.parametrize(
    ("last", "culprits"),
    [
        ({0: 808, 1: 807, 2: 808}, (1,)),
        ({0: 808, 1: None, 2: 807}, (1,)),
        ({0: 808, 1: 808}, ()),
        ({0: None, 1: None}, ()),
        ({}, ()),
    ],
)
def test_culprit_is_behind_or_silent(
    last: dict[int, int | None], culprits: tuple[int, ...]
) -> None:
    assert culprit_ranks(last) == culprits


def test_spin_wait_is_full_utilisation_without_power() -> None:
    spin = DeviceReading(
        utilization_ratio=1, tensor_ratio=0.0, power_w=150, idle_power_w=75, limit_power_w=700
    )
    work = DeviceReading(
        utilization_ratio=1, tensor_ratio=None, power_w=600, idle_power_w=75, limit_power_w=700
    )
    assert is_spin_wait([spin] * 8)
    assert not is_spin_wait([spin] * 7 + [work])
    assert not is_spin_wait([])


def test_odd_stacks_are_the_suspects() -> None:
    assert odd_stacks({0: "a", 1: "a", 2: "b", 3: "a"}) == (2,)
    assert odd_stacks({0: "a", 1: "a"}) == ()
