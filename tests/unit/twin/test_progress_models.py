"""Progress models: formulas against hand-made numbers, profiles against recorded ones."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tercio.cli.twin_files import load_profiles
from tercio.errors import UserError
from tercio.twin.progress.application import measured_rows, normal_placement
from tercio.twin.progress.book import ProfileBook, Rates
from tercio.twin.progress.goodput import (
    Measured,
    StepModel,
    efficiency,
    fit_step_model,
    gain,
    local_batches,
)
from tercio.twin.progress.tables import read_application, read_gavel_rates
from tercio.twin.traces.source import Source

SHARED = Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces"
needs_profiles = pytest.mark.skipif(
    not (SHARED / "sia-workloads").is_dir(), reason="the public profiles are not at hand"
)
MODEL = StepModel(
    alpha_c=0.1, beta_c=0.01, alpha_n=0.2, beta_n=0.02, alpha_r=0.05, beta_r=0.004, gamma=2.0
)


@cache
def sia() -> ProfileBook:
    return load_profiles(SHARED / "sia-workloads" / "profiles")


def test_a_step_joins_compute_and_network_by_a_power_mean() -> None:
    assert MODEL.step_s(1, 1, 10) == pytest.approx(0.2)
    assert MODEL.step_s(1, 4, 10) == pytest.approx((0.2**2 + 0.058**2) ** 0.5)
    assert MODEL.step_s(2, 4, 10) == pytest.approx((0.2**2 + 0.24**2) ** 0.5)
    assert MODEL.step_s(2, 4, 10, accumulated=3) == pytest.approx(0.6 + (0.04 + 0.0576) ** 0.5)


def test_efficiency_falls_with_the_batch_and_the_less_noise_the_faster() -> None:
    # phi = 128 * 2 / 1: (256 + 128) / (256 + 512).
    assert efficiency(512, initial_batch=128, grad_sqr=1.0, grad_var=2.0) == 0.5
    assert efficiency(128, initial_batch=128, grad_sqr=3.0, grad_var=0.1) == 1.0
    assert efficiency(512, initial_batch=128, grad_sqr=1.0, grad_var=0.0) == 0.25
    assert gain(512, initial_batch=128, grad_sqr=1.0, grad_var=0.0) == 1.0
    assert gain(512, initial_batch=128, grad_sqr=0.0, grad_var=1.0) == 4.0


def test_a_batch_is_split_into_equal_passes() -> None:
    assert local_batches(512, 4, local_batch_max=128) == (128, 0)
    assert local_batches(512, 4, local_batch_max=100) == (64, 1)


def test_parameters_are_found_again_from_exact_steps() -> None:
    rows = [
        Measured(
            nodes=nodes, replicas=replicas, local_batch=batch,
            step_s=MODEL.step_s(nodes, replicas, batch),
            sync_s=MODEL.step_s(nodes, replicas, batch) - MODEL.grad_s(batch),
        )
        for nodes, replicas in ((1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 16))
        for batch in (8, 16, 32)
    ]  # fmt: skip
    fitted = fit_step_model(rows)
    assert fitted.gamma == pytest.approx(2.0)
    for row in rows:
        predicted = fitted.step_s(row.nodes, row.replicas, row.local_batch)
        assert predicted == pytest.approx(row.step_s, rel=1e-6)


def test_placements_are_alike_up_to_rotation() -> None:
    assert normal_placement((4, 0, 2, 4)) == (2, 4, 4)


def test_rates_lie_between_measured_sizes_and_nowhere_else() -> None:
    rates = Rates(together={1: 2.0, 4: 8.0}, apart={2: 1.0, 4: 4.0})
    assert rates.at(2) == pytest.approx(4.0)
    assert rates.at(8) is None
    assert rates.at(4, is_apart=True) == 4.0
    book = ProfileBook(rates={"m": {"V100": rates}})
    assert book.units_per_s("m", "V100", (2, 2)) == 4.0
    assert book.units_per_s("m", "V100", (4,)) == 8.0
    assert book.units_per_s("m", "K80", (4,)) is None
    assert book.device_types("m") == ("V100",)


@needs_profiles
def test_recorded_steps_come_back_exactly() -> None:
    bert = sia().applications["bert"]
    # placements-aws.csv, first row; validation-12.csv is the smallest batch.
    assert bert.steps_by_type["T4"].times_s((1,), 4) == (0.45532354712486267, 0.013738612174987792)
    assert (bert.initial_batch, bert.epochs, bert.restart_s) == (12, 2, 120.0)


@needs_profiles
@pytest.mark.parametrize("model", ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"])
def test_the_steps_of_a_whole_run_follow_from_the_gradient_noise(model: str) -> None:
    """Recorded training runs at larger batches took so many updates; the formula says how many."""
    application = sia().applications[model]
    errors = []
    for batch, run in application.runs.items():
        recorded = run[application.epochs - 1].steps
        errors.append(abs(application.steps_to_finish(batch) / recorded - 1))
    # The noise of a detector's gradient is the least steady within an epoch.
    bounds = (0.10, 0.60) if model == "yolov3" else (0.05, 0.25)
    assert median(errors) < bounds[0]
    assert max(errors) < bounds[1]


@needs_profiles
@pytest.mark.parametrize("kind", ["T4", "A100", "RTX2080Ti"])
def test_the_fitted_step_time_is_near_what_was_measured(kind: str) -> None:
    errors = []
    for model in ("bert", "cifar10", "deepspeech2", "imagenet", "yolov3"):
        rows = measured_rows(sia().applications[model].steps_by_type[kind])
        fitted = fit_step_model(rows)
        errors += [
            abs(fitted.step_s(row.nodes, row.replicas, row.local_batch) / row.step_s - 1)
            for row in rows
        ]
    assert median(errors) < 0.12


@needs_profiles
def test_faster_devices_and_larger_gangs_advance_faster() -> None:
    book = sia()
    for model in ("bert", "imagenet", "yolov3"):
        t4 = book.units_per_s(model, "T4", (4,))
        a100 = book.units_per_s(model, "A100", (4,))
        alone = book.units_per_s(model, "T4", (1,))
        assert t4 is not None
        assert a100 is not None
        assert alone is not None
        assert alone < t4 < a100


@needs_profiles
def test_published_rates_are_read() -> None:
    book = load_profiles(SHARED / "gavel")
    rate = book.units_per_s("ResNet-18 (batch size 64)", "V100", (4,))
    assert rate == 95.58814453205626
    assert set(book.device_types("ResNet-50 (batch size 16)")) == {"V100", "P100", "K80"}


def test_a_broken_profile_is_refused_with_its_line() -> None:
    files = {
        "validation-8.csv": Source(
            name="v.csv", text="progress,iteration,metric,grad_sqr,grad_var\n1,1,0,x,1\n"
        )
    }
    with pytest.raises(UserError, match=r"v\.csv:2: grad_sqr: 'x'"):
        read_application("m", files)
    with pytest.raises(UserError, match="no validation"):
        read_application("m", {})
    with pytest.raises(UserError, match="not a throughput table"):
        read_gavel_rates(Source(name="t", text="{]"))
    with pytest.raises(UserError, match="no job type"):
        read_gavel_rates(Source(name="t", text='{"v100": {"ResNet": {"null": 1.0}}}'))
