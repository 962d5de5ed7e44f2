"""The calibrated training predictor: multipliers on the mechanisms of `train.py`, plus a residual.

Every multiplier has a prior at its physical value, so that a mechanism without data keeps it. The
residual is a Gaussian process over physical features. `TrainModel.predict` answers for any case;
`held_out` predicts rows from a fit that has seen nothing of their group.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tercio.sizing import regression
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.regression import (
    Array,
    Covariates,
    Fold,
    Index,
    Prediction,
    RangeFactors,
    Residual,
    ResidualSpec,
)
from tercio.sizing.train import GemmTimer, StepWork, gemm_timer, step_work
from tercio.sizing.train_plan import TrainCase

FRAMEWORKS = (
    "megatron_bridge",
    "automodel",
    "nemo_recipe",
    "megatron_core",
    "megatron_papers",
    "zero_papers",
    "titan_compile",
    "titan_eager",
    "foundry_amp",
    "foundry_pure",
)

# name: (prior of the log multiplier, its scale). Sources of priors that are not 0: products next to
# attention and communication run below their isolated rate and cannot beat it (dense); grouped
# products less so (expert); eager norms and routing move more than the fused minimum (elementwise,
# routing); prefetch hides most of a gather or sync (gather, sync); FlashAttention-2 reaches 35 % of
# a Hopper's peak where it reaches 60 % of an Ampere's, arXiv 2407.08608 (attention_hopper); ZeRO-3
# of 2021 moved bytes at a fraction of the link rate, SC21 table 2 (gather_2021).
PRIORS: dict[str, tuple[float, float]] = {
    "dense_bf16": (0.15, 0.08),
    "dense_fp8": (0.15, 0.08),
    "dense_mxfp8": (0.15, 0.08),
    "dense_nvfp4": (0.15, 0.08),
    "expert_bf16": (0.3, 0.4),
    "expert_fp8": (0.3, 0.4),
    "expert_mxfp8": (0.3, 0.4),
    "attention": (0.0, 0.3),
    "elementwise": (0.3, 0.3),
    "routing": (0.5, 0.4),
    "head": (0.0, 0.4),
    "launch": (0.0, 0.5),
    "tensor": (0.0, 0.5),
    "tensor_async": (-0.7, 0.5),
    "expert_move": (0.0, 0.5),
    "gather": (-0.5, 0.5),
    "sync": (-0.5, 0.5),
    "bubble": (0.0, 0.3),
    "release": (-0.01, 0.02),
    "hopper": (0.1, 0.15),
    "blackwell": (0.1, 0.15),
    "attention_blackwell": (0.0, 0.3),
    "attention_hopper": (0.2, 0.3),
    "scores": (0.0, 0.4),
    "gather_2021": (1.0, 0.5),
} | {
    # Without torch.compile norms and activations run unfused: 10 to 15 % of a step.
    f"framework_{name}": (0.12 if name == "titan_eager" else 0.0, 0.1)
    for name in FRAMEWORKS
}

NAMES = tuple(PRIORS)
PRIOR = np.array([PRIORS[name][0] for name in NAMES])
PRIOR_SCALE = np.array([PRIORS[name][1] for name in NAMES])

# Reference software age of the release trend, months after 2025-01.
REFERENCE_MONTHS = 18.0

WORK_FIELDS = tuple(
    field for field in StepWork.__struct_fields__ if field not in ("tokens", "model_flops")
)


class CaseTable(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of many cases, ready for vector arithmetic. `work` maps StepWork fields to (n,)."""

    work: dict[str, Array]
    flags: dict[str, Array]
    framework: Array
    covariates: Covariates
    tokens_per_gpu: Array


def tabulate(cases: Sequence[TrainCase], works: Sequence[StepWork]) -> CaseTable:
    """Turns cases and their nominal work into columns."""
    work = {field: np.array([getattr(w, field) for w in works]) for field in WORK_FIELDS}
    flags: dict[str, list[float]] = {}
    for case in cases:
        architecture = case.gpu.architecture
        values = {
            "bf16": case.plan.precision == "bf16",
            "fp8": case.plan.precision == "fp8",
            "mxfp8": case.plan.precision == "mxfp8",
            "nvfp4": case.plan.precision == "nvfp4",
            "hopper": architecture == "Hopper",
            "blackwell": architecture.startswith("Blackwell"),
            "async_tp": case.plan.has_async_tp,
            "zero_2021": case.framework == "zero_papers",
            "months": (case.release_months - REFERENCE_MONTHS)
            * (case.framework in ("megatron_bridge", "automodel")),
            "clock": case.plan.clock_ratio,
        }
        for name, value in values.items():
            flags.setdefault(name, []).append(float(value))
    return CaseTable(
        work=work,
        flags={name: np.array(values) for name, values in flags.items()},
        framework=np.array(
            [[c.framework == name for name in FRAMEWORKS] for c in cases], dtype=float
        ),
        covariates=Covariates(
            features=np.array([case_features(case) for case in cases]),
            labels=(
                tuple(c.framework for c in cases),
                tuple(c.gpu.name for c in cases),
                tuple(c.shape.name for c in cases),
                tuple(f"{c.framework} {c.gpu.name}" for c in cases),
            ),
        ),
        tokens_per_gpu=np.array(
            [w.tokens / c.plan.gpus for c, w in zip(cases, works, strict=True)]
        ),
    )


def case_features(case: TrainCase) -> list[float]:
    """Physical features divided by the length over which the residual is expected to change."""
    plan, shape, gpu = case.plan, case.shape, case.gpu

    def log(value: float) -> float:
        return float(np.log(max(value, 1e-9)))

    return [
        log(shape.hidden),
        log(shape.layers) / 1.5,
        log(plan.micro_batch * plan.seq / plan.cp) / 1.5,
        log(plan.seq) / 1.2,
        log(plan.gpus) / 2.5,
        float(plan.recompute == "full"),
        (plan.precision == "bf16") / 0.8,
        (plan.precision == "nvfp4") / 1.2,
        log(plan.tp) / 1.5,
        log(plan.pp) / 1.5,
        log(plan.ep) / 2.0,
        log(1 + shape.experts) / 3.0,
        float(shape.is_moe),
        float(shape.mamba_layers > 0),
        log(gpu.flops("bf16") / gpu.bandwidth()) / 0.4,
        log(gpu.flops("bf16")) / 1.2,
        float(plan.sharding == "zero3"),
        float(plan.is_lora),
        case.release_months / 12.0,
        case.framework.startswith("foundry") / 1.5,
        case.framework.startswith("titan") / 1.5,
    ]


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Calibrated seconds of a step by part, arrays of (n,). They add up to `total_s`."""

    compute_s: Array
    launch_s: Array
    tensor_s: Array
    expert_s: Array
    context_s: Array
    bubble_s: Array
    pipeline_s: Array
    sync_s: Array
    optimizer_s: Array
    total_s: Array


def mechanism(theta: Array, table: CaseTable) -> StepParts:
    """Seconds per part for the log multipliers `theta`, software factor included.

    Launches hide behind kernels and both behind the larger (power mean, 4); expert exchange and
    gradient traffic overlap with compute in part (power means 1.5 and 2.5).
    """
    t = dict(zip(NAMES, theta, strict=True))
    work, flag = table.work, table.flags
    exp = np.exp
    dense = sum(exp(t[f"dense_{p}"]) * flag[p] for p in ("bf16", "fp8", "mxfp8", "nvfp4"))
    expert = exp(t["expert_bf16"]) * flag["bf16"] + exp(t["expert_fp8"]) * flag["fp8"]
    expert = expert + exp(t["expert_mxfp8"]) * (flag["mxfp8"] + flag["nvfp4"])
    chip = exp(t["hopper"] * flag["hopper"] + t["blackwell"] * flag["blackwell"]) / flag["clock"]
    core = t["attention"] + t["attention_hopper"] * flag["hopper"]
    core = exp(core + t["attention_blackwell"] * flag["blackwell"]) / flag["clock"]
    kernels = (
        chip * (dense * work["dense_s"] + expert * work["expert_s"])
        + core * work["attention_s"]
        + exp(t["elementwise"]) * work["elementwise_s"]
        + exp(t["routing"]) * work["routing_s"]
        + exp(t["head"]) * work["head_s"]
        + exp(t["scores"]) * work["scores_s"]
    )
    busy = _power_mean(kernels, exp(t["launch"]) * work["launch_s"], 4.0)
    launch = busy - kernels
    tensor = exp(t["tensor"] + t["tensor_async"] * flag["async_tp"]) * work["tensor_s"]
    inner = busy + tensor + work["context_s"]
    exchanged = _power_mean(inner, exp(t["expert_move"]) * work["expert_move_s"], 1.5)
    bubble = exchanged * exp(t["bubble"]) * work["bubble_ratio"]
    piped = exchanged + bubble + work["pipeline_s"]
    moved = exp(t["gather"]) * work["weight_gather_s"] + exp(t["sync"]) * work["gradient_sync_s"]
    moved = moved * exp(t["gather_2021"] * flag["zero_2021"])
    synced = _power_mean(piped, moved, 2.5)
    software = table.framework @ np.array([t[f"framework_{name}"] for name in FRAMEWORKS])
    scale = exp(software + t["release"] * flag["months"])
    total = synced + work["optimizer_s"]
    return StepParts(
        compute_s=scale * kernels,
        launch_s=scale * launch,
        tensor_s=scale * tensor,
        expert_s=scale * (exchanged - inner),
        context_s=scale * work["context_s"],
        bubble_s=scale * bubble,
        pipeline_s=scale * work["pipeline_s"],
        sync_s=scale * (synced - piped),
        optimizer_s=scale * work["optimizer_s"],
        total_s=scale * total,
    )


def _power_mean(first: Array, second: Array, power: float) -> Array:
    """A smooth maximum of two arrays of non-negative seconds."""
    top = np.maximum(np.maximum(first, second), 1e-30)
    return np.asarray(top * ((first / top) ** power + (second / top) ** power) ** (1.0 / power))


# A local term of 15 %, a broad one of 18 %, and 5 % each for a shared framework, device, model and
# framework-on-device; repeats of one configuration differ by about 4 %.
RESIDUAL = ResidualSpec(local=0.15, broad=0.18, label=0.05, noise=0.04)


def fit_multipliers(table: CaseTable, log_seconds: Array, rows: Index) -> Array:
    """Log multipliers from the measured rows `rows`."""

    def predicted(theta: Array) -> Array:
        return np.asarray(np.log(mechanism(theta, table).total_s)[rows])

    return regression.fit_parameters(
        predicted,
        log_seconds[rows],
        start=PRIOR,
        prior=PRIOR,
        prior_scale=PRIOR_SCALE,
        weights=np.ones(rows.size),
    )


def held_out(table: CaseTable, log_seconds: Array, folds: Sequence[Fold]) -> Prediction:
    """Log step seconds of each fold from a fit that has seen none of it."""

    def base(rows: Index) -> Array:
        theta = fit_multipliers(table, log_seconds, rows)
        return np.asarray(np.log(mechanism(theta, table).total_s))

    return regression.held_out(RESIDUAL, table.covariates, log_seconds, folds, base)


class TrainModel(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted predictor. `ranges` turns a deviation into half of an 80 % range of the log."""

    theta: Array
    residual: Residual
    ranges: RangeFactors

    def log_seconds(self, table: CaseTable) -> Prediction:
        """Log step seconds of new cases."""
        base = np.log(mechanism(self.theta, table).total_s)
        return self.residual.apply(base, table.covariates)

    def half_width(self, table: CaseTable, prediction: Prediction) -> Array:
        """Half-width of the 80 % range of each log value."""
        return self.ranges.half_width(self.residual.rows, table.covariates, prediction)


# Label columns: where the software stands, and the pair that makes a case near to measured ones.
RANGE_COLUMNS = (0, 2, 1)


def fit_model(table: CaseTable, log_seconds: Array, *, held: Prediction) -> TrainModel:
    """Fits multipliers and residual on all rows; `held` is their held-out prediction by model."""
    theta = fit_multipliers(table, log_seconds, np.arange(log_seconds.size))
    error = log_seconds - np.log(mechanism(theta, table).total_s)
    residual = regression.fit_residual(RESIDUAL, table.covariates, error)
    ranges = regression.learn_ranges(residual, error, log_seconds, held, columns=RANGE_COLUMNS)
    return TrainModel(theta=theta, residual=residual, ranges=ranges)


def nominal_work(
    cases: Sequence[TrainCase], table: GemmTable, fits: CollectiveFits
) -> list[StepWork]:
    """Step work of many cases; kernel times are looked up once per device and shape."""
    timers: dict[str, GemmTimer] = {}
    works = []
    for case in cases:
        timer = timers.setdefault(case.gpu.name, gemm_timer(table, case.gpu))
        works.append(step_work(case.shape, case.gpu, case.plan, time=timer, fits=fits))
    return works
