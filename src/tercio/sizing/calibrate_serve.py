"""The calibrated serving predictors: time per output token, time to the first, energy per token.

Each is a sum of mechanisms with log multipliers under physical priors. The two times add a residual
process; the energy predictor is its few fitted factors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from tercio.sizing.serve import BACKENDS, PromptWork, ServeCase, ServeWork, decode_work, prompt_work
from tercio.sizing.train import GemmTimer, gemm_timer

DECODE_FIELDS = tuple(field for field in ServeWork.__struct_fields__ if field != "batch")
PROMPT_FIELDS = PromptWork.__struct_fields__
REFERENCE_MONTHS = 12.0


# Label columns: harness and engine, model, device.
RANGE_COLUMNS = (1, 4, 3)


def _each(name: str, prior: float, scale: float) -> dict[str, tuple[float, float]]:
    return {f"{name}_{backend}": (prior, scale) for backend in BACKENDS}


# name: (prior of the log multiplier, its scale). A captured graph overlaps reductions with little
# and launches half of a layer's small kernels for free; engines differ by tens of percent.
TPOT_PRIORS: dict[str, tuple[float, float]] = {
    "gemm": (0.0, 0.2),
    "expert": (0.3, 0.4),
    "cache": (0.1, 0.3),
    "head": (0.0, 0.4),
    "reduce": (-0.5, 0.5),
    "move": (0.0, 0.6),
    "layers": (-0.7, 0.7),
    "moe_layers": (0.0, 0.7),
    "step": (0.0, 0.7),
    "sequences": (-0.5, 0.7),
    "prefill": (0.3, 0.4),
    **_each("layers", 0.0, 0.2),
    **_each("sequences", 0.0, 0.2),
    **_each("prefill", 0.0, 0.2),
    **_each("reduce", 0.0, 0.2),
    "gemm_fp4": (0.2, 0.3),
    "expert_fp4": (0.2, 0.3),
    "months": (-0.005, 0.005),
    "harness": (0.1, 0.15),
    **_each("all", 0.0, 0.1),
}

TTFT_PRIORS: dict[str, tuple[float, float]] = {
    "gemm": (0.2, 0.2),
    "expert": (0.5, 0.4),
    "attention": (0.2, 0.3),
    "reduce": (-0.3, 0.5),
    "layers": (-1.0, 0.7),
    "step": (-0.5, 0.7),
    "tokens": (-0.5, 0.7),
    "queue": (-2.0, 0.7),
    "wait": (-1.0, 0.7),
    **_each("step", 0.0, 0.4),
    **_each("tokens", 0.0, 0.4),
    **_each("all", 0.0, 0.2),
    **_each("queue", 0.0, 0.4),
    "harness": (0.3, 0.4),
    "months": (-0.01, 0.01),
    "gemm_fp4": (0.2, 0.3),
}

# Power of each mechanism as a share of the board limit: memory traffic draws 70 to 80 %, arithmetic
# all of it, waiting a third; multiplied by the time multiplier of the mechanism.
ENERGY_PRIORS: dict[str, tuple[float, float]] = {
    "gemm": (-0.2, 0.5),
    "expert": (-0.4, 0.5),
    "cache": (-0.2, 0.5),
    "head": (-0.2, 0.5),
    "reduce": (-1.2, 0.5),
    "move": (-0.7, 0.5),
    "layers": (0.0, 0.5),
    "moe_layers": (-0.3, 0.5),
    "step": (0.0, 0.5),
    "sequences": (-0.5, 0.5),
    "prefill": (0.1, 0.5),
    "fp8": (0.0, 0.2),
    "blackwell": (0.0, 0.2),
    "moe": (0.0, 0.2),
    "attention_dp": (0.0, 0.5),
    "mamba": (0.0, 0.3),
}

# A local term of 20 %, a broad one of 20 %, 6 % for every shared engine, system, model and pair.
TPOT_RESIDUAL = ResidualSpec(local=0.2, broad=0.2, label=0.06, noise=0.05)
TTFT_RESIDUAL = ResidualSpec(local=0.3, broad=0.3, label=0.1, noise=0.08)


class ServeTable(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of many replicas: nominal work, flags, backend indicator (n, 3), covariates."""

    decode: dict[str, Array]
    prompt: dict[str, Array]
    flags: dict[str, Array]
    backend: Array
    covariates: Covariates

    def by_backend(self, theta: dict[str, float], name: str) -> Array:
        """The multiplier `name` of each row's engine."""
        return np.asarray(self.backend @ np.array([theta[f"{name}_{b}"] for b in BACKENDS]))


def tabulate(cases: Sequence[ServeCase], *, table: GemmTable, fits: CollectiveFits) -> ServeTable:
    """Columns of cases. Raises UserError where a replica cannot hold its weights."""
    timers: dict[str, GemmTimer] = {}

    def timer(case: ServeCase) -> GemmTimer:
        return timers.setdefault(case.gpu.name, gemm_timer(table, case.gpu))

    decode = [decode_work(case, time=timer(case), fits=fits) for case in cases]
    prompt = [prompt_work(case, time=timer(case), fits=fits) for case in cases]
    flags = {
        "fp4": [c.precision == "fp4" for c in cases],
        "fp8": [c.precision == "fp8" for c in cases],
        "months": [c.release_months - REFERENCE_MONTHS for c in cases],
        "harness": [c.harness == "single-model" for c in cases],
        "blackwell": [c.gpu.architecture.startswith("Blackwell") for c in cases],
        "moe": [c.shape.is_moe for c in cases],
        "attention_dp": [c.attention_dp > 1 for c in cases],
        "mamba": [c.shape.mamba_layers > 0 for c in cases],
        "waiting": [max(c.concurrency - 1.0, 0.0) for c in cases],
        "watts_per_row": [
            c.gpus * (c.gpu.tdp_w or 0.0) / w.batch for c, w in zip(cases, decode, strict=True)
        ],
    }
    return ServeTable(
        decode={field: np.array([getattr(w, field) for w in decode]) for field in DECODE_FIELDS},
        prompt={field: np.array([getattr(w, field) for w in prompt]) for field in PROMPT_FIELDS},
        flags={name: np.array(values, dtype=float) for name, values in flags.items()},
        backend=np.array([[c.backend == b for b in BACKENDS] for c in cases], dtype=float),
        covariates=Covariates(
            features=np.array([case_features(c) for c in cases]), labels=case_labels(cases)
        ),
    )


def case_features(case: ServeCase) -> list[float]:
    """Physical features over the length at which the residual changes."""
    shape, gpu = case.shape, case.gpu

    def log(value: float) -> float:
        return float(np.log(max(value, 1e-9)))

    return [
        log(case.concurrency / case.attention_dp) / 1.2,
        log(case.isl) / 1.2,
        log(case.osl) / 1.5,
        log(case.tp) / 0.9,
        log(shape.hidden),
        log(shape.layers),
        float(shape.is_moe) / 0.7,
        log(1 + shape.experts) / 3.0,
        float(case.precision == "fp4"),
        float(case.precision == "bf16"),
        (case.backend == "trtllm") / 1.2,
        (case.backend == "sglang") / 1.2,
        log(gpu.bandwidth()) / 0.5,
        log(gpu.flops("bf16")),
        log(case.attention_dp),
        log(case.moe_ep),
        float(shape.is_mla),
        case.release_months / 8.0,
    ]


def case_labels(cases: Sequence[ServeCase]) -> tuple[tuple[str, ...], ...]:
    """Harness, engine, system, model and their pairs."""
    return (
        tuple(c.harness for c in cases),
        tuple(f"{c.harness} {c.backend}" for c in cases),
        tuple(c.backend for c in cases),
        tuple(c.gpu.name for c in cases),
        tuple(c.shape.name for c in cases),
        tuple(f"{c.backend} {c.gpu.name}" for c in cases),
        tuple(f"{c.shape.name} {c.backend}" for c in cases),
    )


def _named(theta: Array, priors: dict[str, tuple[float, float]]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(priors, theta, strict=True)}


def tpot_parts(theta: Array, table: ServeTable) -> dict[str, Array]:
    """Seconds per output token by part; their sum is the prediction of the mechanism."""
    t, work, flag = _named(theta, TPOT_PRIORS), table.decode, table.flags
    exp = np.exp
    software = exp(
        table.by_backend(t, "all") + t["months"] * flag["months"] + t["harness"] * flag["harness"]
    )
    parts = {
        "gemm_s": exp(t["gemm"] + t["gemm_fp4"] * flag["fp4"]) * work["gemm_s"],
        "expert_s": exp(t["expert"] + t["expert_fp4"] * flag["fp4"]) * work["expert_s"],
        "cache_s": exp(t["cache"]) * work["cache_s"],
        "head_s": exp(t["head"]) * work["head_s"],
        "reduce_s": exp(t["reduce"] + table.by_backend(t, "reduce")) * work["reduce_s"],
        "move_s": exp(t["move"]) * work["move_s"],
        "layers_s": exp(table.by_backend(t, "layers"))
        * (exp(t["layers"]) * work["layers_s"] + exp(t["moe_layers"]) * work["moe_layers_s"]),
        "step_s": exp(t["step"]) * work["step_s"],
        "sequences_s": exp(t["sequences"] + table.by_backend(t, "sequences")) * work["sequences_s"],
        "prefill_s": exp(t["prefill"] + table.by_backend(t, "prefill")) * work["prefill_s"],
    }
    return {name: np.asarray(software * value) for name, value in parts.items()}


def tpot_log(theta: Array, table: ServeTable) -> Array:
    """Log seconds per output token."""
    return np.asarray(np.log(sum(tpot_parts(theta, table).values())))


def ttft_log(theta: Array, table: ServeTable, step_s: Array) -> Array:
    """Log seconds to the first token at low load: prefill, part of a step, fixed costs."""
    t, work, flag = _named(theta, TTFT_PRIORS), table.prompt, table.flags
    exp = np.exp
    compute = (
        exp(t["gemm"] + t["gemm_fp4"] * flag["fp4"]) * work["gemm_s"]
        + exp(t["expert"]) * work["expert_s"]
        + exp(t["attention"]) * work["attention_s"]
        + exp(t["reduce"]) * work["reduce_s"]
    )
    compute = compute * (1.0 + exp(t["queue"] + table.by_backend(t, "queue")) * flag["waiting"])
    fixed = t["step"] + table.by_backend(t, "step") + t["harness"] * flag["harness"]
    total = (
        compute
        + exp(t["layers"]) * work["layers_s"]
        + exp(fixed) * work["step_s"]
        + exp(t["tokens"] + table.by_backend(t, "tokens")) * work["tokens_s"]
        + exp(t["wait"]) * step_s
    )
    return np.asarray(np.log(total) + table.by_backend(t, "all") + t["months"] * flag["months"])


ENERGY_TERMS = tuple(name for name in ENERGY_PRIORS if f"{name}_s" in DECODE_FIELDS)


def energy_log(theta: Array, table: ServeTable) -> Array:
    """Log joules per output token: board power x time of each mechanism over the batch."""
    t, flag = _named(theta, ENERGY_PRIORS), table.flags
    watt_seconds = sum(np.exp(t[name]) * table.decode[f"{name}_s"] for name in ENERGY_TERMS)
    shift = sum(
        t[name] * flag[name] for name in ("fp8", "blackwell", "moe", "attention_dp", "mamba")
    )
    return np.asarray(np.log(watt_seconds * flag["watts_per_row"]) + shift)


def fit_additive(
    model: Callable[[Array], Array],
    priors: dict[str, tuple[float, float]],
    target: Array,
    rows: Index,
    *,
    weights: Array,
    noise: float,
) -> Array:
    """Log multipliers of one predictor from the rows `rows`."""
    prior = np.array([value for value, _ in priors.values()])
    scale = np.array([value for _, value in priors.values()])
    return regression.fit_parameters(
        lambda theta: model(theta)[rows],
        target[rows],
        start=prior,
        prior=prior,
        prior_scale=scale,
        weights=weights[rows],
        noise=noise,
    )


def group_weights(groups: Sequence[str]) -> Array:
    """Row weights that damp groups of more than 100 rows: (100 / size)^(1/2)."""
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group] = sizes.get(group, 0) + 1
    return np.array([(100.0 / max(sizes[group], 100)) ** 0.5 for group in groups])


def fit_tpot(table: ServeTable, target: Array, rows: Index, weights: Array) -> Array:
    """Multipliers of the time per output token."""
    return fit_additive(
        lambda theta: tpot_log(theta, table), TPOT_PRIORS, target, rows, weights=weights, noise=0.15
    )


def fit_ttft(table: ServeTable, step_s: Array, target: Array, rows: Index) -> Array:
    """Multipliers of the time to the first token."""
    return fit_additive(
        lambda theta: ttft_log(theta, table, step_s),
        TTFT_PRIORS,
        target,
        rows,
        weights=np.ones(target.size),
        noise=0.25,
    )


def fit_energy(table: ServeTable, target: Array, rows: Index) -> Array:
    """Multipliers of the energy per token."""
    return fit_additive(
        lambda theta: energy_log(theta, table),
        ENERGY_PRIORS,
        target,
        rows,
        weights=np.ones(target.size),
        noise=0.2,
    )


def held_out_tpot(
    table: ServeTable, target: Array, weights: Array, folds: Sequence[Fold]
) -> Prediction:
    """Log time per output token of each fold from a fit without it."""

    def base(rows: Index) -> Array:
        return tpot_log(fit_tpot(table, target, rows, weights), table)

    return regression.held_out(TPOT_RESIDUAL, table.covariates, target, folds, base)


def held_out_ttft(
    table: ServeTable, step_s: Array, target: Array, folds: Sequence[Fold]
) -> Prediction:
    """Log time to the first token of each fold from a fit without it."""

    def base(rows: Index) -> Array:
        return ttft_log(fit_ttft(table, step_s, target, rows), table, step_s)

    return regression.held_out(TTFT_RESIDUAL, table.covariates, target, folds, base)


class ServeModel(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted serving predictors. Ranges turn deviations into 80 % ranges."""

    tpot_theta: Array
    tpot_residual: Residual
    ttft_theta: Array
    ttft_residual: Residual
    energy_theta: Array
    tpot_ranges: RangeFactors
    ttft_ranges: RangeFactors
    energy_range_log: float

    def log_tpot(self, table: ServeTable) -> Prediction:
        """Log seconds per output token."""
        return self.tpot_residual.apply(tpot_log(self.tpot_theta, table), table.covariates)

    def log_ttft(self, table: ServeTable) -> Prediction:
        """Log seconds to the first token without queueing."""
        step_s = np.exp(self.log_tpot(table).log_value)
        return self.ttft_residual.apply(ttft_log(self.ttft_theta, table, step_s), table.covariates)

    def log_energy(self, table: ServeTable) -> Array:
        """Log joules per output token."""
        return energy_log(self.energy_theta, table)
