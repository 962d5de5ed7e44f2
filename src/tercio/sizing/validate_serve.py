"""Validation of serving latency and energy: folds by model and system, with public baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.sizing import calibrate_serve as calibrate
from tercio.sizing import metrics
from tercio.sizing.calibrate_serve import ServeModel, ServeTable
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.metrics import Gate, Metric, RowResult, Scored
from tercio.sizing.regression import Array, Fold, Index, Prediction
from tercio.sizing.serve import running_batch
from tercio.sizing.tables_serve import (
    EnergyObservation,
    ServeObservation,
    read_energy,
    read_inferencex,
)
from tercio.sizing.tables_train import Row, number

SERVING = "inference_serving_inferencex"
ENERGY = "inference_energy_mlenergy_llm"
BASELINE = "baseline_aiconfigurator_0.8.0_predictions"

# The first token at up to this load per attention rank teaches the first-token model.
TTFT_TAUGHT_LOAD = 16.0
TTFT_SCORED_LOAD = 4.0


class ServeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Aggregated serving rows in one order, with their columns and baseline predictions."""

    observations: tuple[ServeObservation, ...]
    table: ServeTable
    log_tpot: Array
    log_ttft: Array
    excluded: Mapping[str, int]
    row_count: int
    baseline_tpot_s: Array
    baseline_ttft_s: Array

    def groups(self) -> list[str]:
        """Hold-out group of every row."""
        return [o.group for o in self.observations]


def read_serve_set(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
) -> ServeSet | None:
    """Reads the serving table and, where present, AIConfigurator's predictions for its rows.

    None where the table is absent or holds no readable row.
    """
    if SERVING not in tables:
        return None
    observations, excluded = read_inferencex(catalogue, tables[SERVING])
    held = [o for o in observations if running_batch(o.case) > 0]
    if len(held) < len(observations):
        excluded["weights leave no cache"] = len(observations) - len(held)
    if not held:
        return None
    table = calibrate.tabulate([o.case for o in held], table=kernels, fits=fits)
    known: dict[str, tuple[float, float]] = {}
    for row in tables.get(BASELINE, ()):
        tpot, ttft = number(row["aic080_pred_tpot_ms"]), number(row["aic080_pred_ttft_ms"])
        if tpot:
            known[row["id"]] = (tpot / 1e3, (ttft or np.nan) / 1e3)
    nothing = (np.nan, np.nan)
    return ServeSet(
        observations=tuple(held),
        table=table,
        log_tpot=np.log([o.tpot_s for o in held]),
        log_ttft=np.array([np.log(o.ttft_s) if o.ttft_s else np.nan for o in held]),
        excluded=excluded,
        row_count=len(tables[SERVING]),
        baseline_tpot_s=np.array([known.get(o.row_id, nothing)[0] for o in held]),
        baseline_ttft_s=np.array([known.get(o.row_id, nothing)[1] for o in held]),
    )


def folds_of(groups: Sequence[str]) -> list[Fold]:
    """One fold per group: itself predicted, itself left out."""
    rows: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        rows.setdefault(group, []).append(i)
    return [(np.array(r, dtype=np.intp), np.array(r, dtype=np.intp)) for r in rows.values()]


def taught_ttft(sample: ServeSet) -> Index:
    """Positions of the rows that teach the first-token model: lightly loaded, unqueued."""
    chosen = [
        i
        for i, o in enumerate(sample.observations)
        if o.ttft_s is not None
        and o.case.concurrency / o.case.attention_dp <= TTFT_TAUGHT_LOAD
        and o.ttft_s < 20.0
    ]
    return np.array(chosen, dtype=np.intp)


def select(table: ServeTable, rows: Index) -> ServeTable:
    """The table of some rows."""
    index = rows
    return ServeTable(
        decode={k: v[index] for k, v in table.decode.items()},
        prompt={k: v[index] for k, v in table.prompt.items()},
        flags={k: v[index] for k, v in table.flags.items()},
        backend=table.backend[index],
        covariates=msgspec.structs.replace(
            table.covariates,
            features=table.covariates.features[index],
            labels=tuple(tuple(column[i] for i in index) for column in table.covariates.labels),
        ),
    )


def _score(target: Array, prediction: Prediction, half: Array, rows: Index) -> Scored:
    value = prediction.log_value[rows]
    return Scored(
        measured=np.exp(target[rows]),
        predicted=np.exp(value),
        low=np.exp(value - half[rows]),
        high=np.exp(value + half[rows]),
    )


def _against(name: str, theirs: Array, scored: Scored) -> dict[str, float]:
    """Another predictor on the rows it answers, and ours on the same rows."""
    both = np.isfinite(theirs)
    if not both.any():
        return {}
    found = {
        f"{name}_{k}": v for k, v in metrics.summary(theirs[both], scored.measured[both]).items()
    }
    ours = metrics.summary(scored.predicted[both], scored.measured[both])
    found |= {f"ours_same_rows_{k}": v for k, v in ours.items()}
    return found | {f"{name}_rows": float(both.sum())}


def _roofline(sample: ServeSet) -> Array:
    """Seconds per token of a plain roofline: weights and cache once per step, nothing else."""
    work = sample.table.decode
    return np.asarray(work["gemm_s"] + work["expert_s"] + work["cache_s"] + work["prefill_s"])


def validate_latency(
    sample: ServeSet, *, model: ServeModel | None
) -> tuple[list[Metric], list[RowResult]]:
    """Time per output token and compute time to the first token."""
    groups = sample.groups()
    everything = np.arange(len(groups))
    if model is None:
        weights = calibrate.group_weights(groups)
        tpot = calibrate.held_out_tpot(sample.table, sample.log_tpot, weights, folds_of(groups))
        z = (sample.log_tpot - tpot.log_value) / tpot.deviation
        half = metrics.range_factors(z, groups) * tpot.deviation
    else:
        tpot = model.log_tpot(sample.table)
        half = model.tpot_ranges.half_width(model.tpot_residual.rows, sample.table.covariates, tpot)
    # The group is the pair of model and system.
    holdout = "model" if model is None else "none"
    known = everything[np.array([o.is_precision_known for o in sample.observations], dtype=bool)]
    scored = _score(sample.log_tpot, tpot, half, known)
    if model is not None:
        seen = model.tpot_residual.has_seen(sample.table.covariates)[known]
        scored = msgspec.structs.replace(scored, seen=seen)
    excluded = {**sample.excluded, "precision not stated": len(groups) - known.size}
    baseline = _against("aiconfigurator", sample.baseline_tpot_s[known], scored)
    baseline |= {
        f"roofline_{k}": v
        for k, v in metrics.summary(_roofline(sample)[known], scored.measured).items()
    }
    found = [
        metrics.metric_of(
            scored,
            table=SERVING,
            target="tpot_s",
            holdout=holdout,
            rows=sample.row_count,
            excluded=excluded,
            groups=[groups[i] for i in known],
            baseline=baseline,
            gate=Gate(at_most={"median_ape_ratio": 0.15, "mape_ratio": 0.25}),
            goal={"median_ape_ratio": 0.12, "mape_ratio": 0.20},
        )
    ]
    rows = metrics.results_of(
        scored,
        table=SERVING,
        target="tpot_s",
        holdout=holdout,
        groups=[groups[i] for i in known],
        names=[sample.observations[i].row_id for i in known],
    )
    more, more_rows = _validate_ttft(sample, tpot, model=model, holdout=holdout)
    return found + more, rows + more_rows


def _validate_ttft(
    sample: ServeSet, tpot: Prediction, *, model: ServeModel | None, holdout: str
) -> tuple[list[Metric], list[RowResult]]:
    taught = taught_ttft(sample)
    chosen = [sample.observations[i] for i in taught]
    groups = [o.group for o in chosen]
    if not chosen:
        return [], []
    table, target = select(sample.table, taught), sample.log_ttft[taught]
    if model is None:
        step_s = np.exp(tpot.log_value[taught])
        ttft = calibrate.held_out_ttft(table, step_s, target, folds_of(groups))
        z = (target - ttft.log_value) / ttft.deviation
        half = metrics.range_factors(z, groups) * ttft.deviation
    else:
        ttft = model.log_ttft(table)
        half = model.ttft_ranges.half_width(model.ttft_residual.rows, table.covariates, ttft)
    light = np.array(
        [
            i
            for i, o in enumerate(chosen)
            if o.is_precision_known and o.case.concurrency <= TTFT_SCORED_LOAD
        ],
        dtype=np.intp,
    )
    scored = _score(target, ttft, half, light)
    if model is not None:
        scored = msgspec.structs.replace(
            scored, seen=model.ttft_residual.has_seen(table.covariates)[light]
        )
    left = sample.row_count - light.size - sum(sample.excluded.values())
    metric = metrics.metric_of(
        scored,
        table=SERVING,
        target="compute_ttft_s",
        holdout=holdout,
        rows=sample.row_count,
        excluded={**sample.excluded, "precision not stated or concurrency above 4": left},
        groups=[groups[i] for i in light],
        baseline=_against("aiconfigurator", sample.baseline_ttft_s[taught[light]], scored),
        gate=Gate(at_most={"median_ape_ratio": 0.30}),
        goal={"median_ape_ratio": 0.20},
    )
    rows = metrics.results_of(
        scored,
        table=SERVING,
        target="compute_ttft_s",
        holdout=holdout,
        groups=[groups[i] for i in light],
        names=[chosen[i].row_id for i in light],
    )
    return [metric], rows


class EnergySet(msgspec.Struct, frozen=True, kw_only=True):
    """Energy rows of the text tasks in one order, with their columns."""

    observations: tuple[EnergyObservation, ...]
    table: ServeTable
    log_joules: Array
    excluded: Mapping[str, int]
    row_count: int


def read_energy_set(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
) -> EnergySet | None:
    """Reads the energy table; None where it is absent or holds no readable row."""
    if ENERGY not in tables:
        return None
    observations, excluded = read_energy(catalogue, tables[ENERGY])
    held = [o for o in observations if running_batch(o.case) > 0]
    if len(held) < len(observations):
        excluded["weights leave no cache"] = len(observations) - len(held)
    if not held:
        return None
    return EnergySet(
        observations=tuple(held),
        table=calibrate.tabulate([o.case for o in held], table=kernels, fits=fits),
        log_joules=np.log([o.joules_per_token for o in held]),
        excluded=excluded,
        row_count=len(tables[ENERGY]),
    )


def held_out_energy(sample: EnergySet, groups: Sequence[str]) -> Array:
    """Log joules per token of each group from a fit without it."""
    everything = np.arange(len(groups))
    value = np.full(len(groups), np.nan)
    for rows, left_out in folds_of(groups):
        theta = calibrate.fit_energy(
            sample.table, sample.log_joules, np.setdiff1d(everything, left_out)
        )
        value[rows] = calibrate.energy_log(theta, sample.table)[rows]
    return value


def validate_energy(
    sample: EnergySet, *, model: ServeModel | None
) -> tuple[list[Metric], list[RowResult]]:
    """Energy per output token of the text tasks, held out by model; by system it is printed."""
    found: list[Metric] = []
    rows: list[RowResult] = []
    for holdout in ("model", "system") if model is None else ("none",):
        by_system = holdout == "system"
        groups = [o.system_group if by_system else o.model_group for o in sample.observations]
        value = held_out_energy(sample, groups) if model is None else model.log_energy(sample.table)
        half = np.full(value.size, model.energy_range_log if model else 0.0)
        if model is None:
            half = metrics.range_factors(sample.log_joules - value, groups)
        prediction = Prediction(log_value=value, deviation=half)
        scored = _score(sample.log_joules, prediction, half, np.arange(value.size))
        found.append(
            metrics.metric_of(
                scored,
                table=ENERGY,
                target="joules_per_token",
                holdout=holdout,
                rows=sample.row_count,
                excluded=sample.excluded,
                groups=groups,
                baseline=_constant_power(sample, groups),
                gate=None if by_system else Gate(at_most={"median_ape_ratio": 0.25}),
                goal={} if by_system else {"median_ape_ratio": 0.20},
            )
        )
        rows += metrics.results_of(
            scored,
            table=ENERGY,
            target="joules_per_token",
            holdout=holdout,
            groups=groups,
            names=[
                f"{o.case.shape.name} {o.task} {o.case.concurrency:g}" for o in sample.observations
            ],
        )
    return found, rows


def _constant_power(sample: EnergySet, groups: Sequence[str]) -> dict[str, float]:
    """A plain guess: 70 % of the board limit over the roofline time, scaled by the others."""
    work = sample.table.decode
    plain = 0.7 * sample.table.flags["watts_per_row"]
    plain = plain * (work["gemm_s"] + work["expert_s"] + work["cache_s"] + work["prefill_s"])
    measured = np.exp(sample.log_joules)
    labels = np.array(list(groups))
    scale = np.ones(measured.size)
    for group in dict.fromkeys(groups):
        others = labels != group
        if others.any():
            scale[labels == group] = np.median(measured[others] / plain[others])
    return {f"roofline_power_{k}": v for k, v in metrics.summary(plain * scale, measured).items()}
