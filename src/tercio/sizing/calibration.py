"""The calibration as a value: fitted factors and residual rows, to and from JSON.

The shipped file was made by `tercio size calibrate` on the published tables. From tables whose
licence covers facts only (energy) it holds the fitted factors alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.sizing import calibrate_serve, calibrate_train, regression
from tercio.sizing.calibrate_serve import (
    ENERGY_PRIORS,
    RANGE_COLUMNS,
    TPOT_PRIORS,
    TPOT_RESIDUAL,
    TTFT_PRIORS,
    TTFT_RESIDUAL,
    ServeModel,
)
from tercio.sizing.calibrate_train import RESIDUAL, TrainModel
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.regression import Array, Covariates, RangeFactors, Residual, ResidualSpec
from tercio.sizing.tables_memory import read_memory
from tercio.sizing.tables_train import Row
from tercio.sizing.validate_memory import MemoryMargin, computed_bytes, learn_margin
from tercio.sizing.validate_serve import (
    folds_of,
    held_out_energy,
    read_energy_set,
    read_serve_set,
    select,
    taught_ttft,
)
from tercio.sizing.validate_train import read_train_set, train_folds


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything fitted. `date` is the version of the file."""

    date: str
    train: TrainModel
    serve: ServeModel
    memory: MemoryMargin


class ResidualFile(msgspec.Struct, frozen=True, kw_only=True):
    """A residual process on disk: features, label columns and weights."""

    features: list[list[float]]
    labels: list[list[str]]
    weights: list[float]


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON form. Parameters go by name: a file of another version is refused by name."""

    date: str
    train_parameters: dict[str, float]
    train_residual: ResidualFile
    train_ranges: RangeFactors
    tpot_parameters: dict[str, float]
    tpot_residual: ResidualFile
    tpot_ranges: RangeFactors
    ttft_parameters: dict[str, float]
    ttft_residual: ResidualFile
    ttft_ranges: RangeFactors
    energy_parameters: dict[str, float]
    energy_range_log: float
    memory: MemoryMargin


def _pack(residual: Residual) -> ResidualFile:
    return ResidualFile(
        features=[[round(float(v), 4) for v in row] for row in residual.rows.features],
        labels=[list(column) for column in residual.rows.labels],
        weights=[round(float(v), 6) for v in residual.weights],
    )


def _unpack(spec: ResidualSpec, stored: ResidualFile) -> Residual:
    rows = Covariates(
        features=np.array(stored.features), labels=tuple(tuple(column) for column in stored.labels)
    )
    return Residual(
        spec=spec, rows=rows, weights=np.array(stored.weights), inverse=spec.inverse(rows)
    )


def _named(names: Sequence[str], theta: Array) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in zip(names, theta, strict=True)}


def _ordered(names: Sequence[str], stored: Mapping[str, float], part: str) -> Array:
    missing = [name for name in names if name not in stored]
    if missing:
        raise UserError(
            f"the calibration file lacks {part} parameter {missing[0]!r}",
            field=part,
            hint="make it anew with `tercio size calibrate`",
        )
    return np.array([stored[name] for name in names])


def encode(calibration: Calibration) -> bytes:
    """The calibration as JSON."""
    train, serve = calibration.train, calibration.serve
    return msgspec.json.encode(
        CalibrationFile(
            date=calibration.date,
            train_parameters=_named(calibrate_train.NAMES, train.theta),
            train_residual=_pack(train.residual),
            train_ranges=train.ranges,
            tpot_parameters=_named(tuple(TPOT_PRIORS), serve.tpot_theta),
            tpot_residual=_pack(serve.tpot_residual),
            tpot_ranges=serve.tpot_ranges,
            ttft_parameters=_named(tuple(TTFT_PRIORS), serve.ttft_theta),
            ttft_residual=_pack(serve.ttft_residual),
            ttft_ranges=serve.ttft_ranges,
            energy_parameters=_named(tuple(ENERGY_PRIORS), serve.energy_theta),
            energy_range_log=serve.energy_range_log,
            memory=calibration.memory,
        )
    )


def decode(raw: bytes) -> Calibration:
    """The calibration of a JSON file. Raises UserError where it is not one."""
    try:
        stored = msgspec.json.decode(raw, type=CalibrationFile)
    except msgspec.DecodeError as error:
        raise UserError(f"not a calibration file: {error}", field="calibration") from None
    return Calibration(
        date=stored.date,
        train=decode_train(stored),
        serve=ServeModel(
            tpot_theta=_ordered(tuple(TPOT_PRIORS), stored.tpot_parameters, "tpot"),
            tpot_residual=_unpack(TPOT_RESIDUAL, stored.tpot_residual),
            ttft_theta=_ordered(tuple(TTFT_PRIORS), stored.ttft_parameters, "ttft"),
            ttft_residual=_unpack(TTFT_RESIDUAL, stored.ttft_residual),
            energy_theta=_ordered(tuple(ENERGY_PRIORS), stored.energy_parameters, "energy"),
            tpot_ranges=stored.tpot_ranges,
            ttft_ranges=stored.ttft_ranges,
            energy_range_log=stored.energy_range_log,
        ),
        memory=stored.memory,
    )


def decode_train(stored: CalibrationFile) -> TrainModel:
    """The training predictor of a decoded file."""
    return TrainModel(
        theta=_ordered(calibrate_train.NAMES, stored.train_parameters, "train"),
        residual=_unpack(RESIDUAL, stored.train_residual),
        ranges=stored.train_ranges,
    )


def _fit_train(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    kernels: GemmTable,
    fits: CollectiveFits,
) -> TrainModel:
    sample = read_train_set(catalogue, tables, kernels=kernels, fits=fits)
    if not sample.observations:
        raise UserError("no training rows to calibrate on", field="data")
    held = calibrate_train.held_out(sample.table, sample.log_seconds, train_folds(sample, "model"))
    return calibrate_train.fit_model(sample.table, sample.log_seconds, held=held)


def _fit_serve(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    kernels: GemmTable,
    fits: CollectiveFits,
) -> ServeModel:
    sample = read_serve_set(catalogue, tables, kernels=kernels, fits=fits)
    energy = read_energy_set(catalogue, tables, kernels=kernels, fits=fits)
    if sample is None or energy is None:
        raise UserError("no serving or energy rows to calibrate on", field="data")
    groups = sample.groups()
    weights = calibrate_serve.group_weights(groups)
    rows = np.arange(len(groups))
    held = calibrate_serve.held_out_tpot(sample.table, sample.log_tpot, weights, folds_of(groups))
    theta = calibrate_serve.fit_tpot(sample.table, sample.log_tpot, rows, weights)
    error = sample.log_tpot - calibrate_serve.tpot_log(theta, sample.table)
    residual = regression.fit_residual(TPOT_RESIDUAL, sample.table.covariates, error)
    taught = taught_ttft(sample)
    table, target = select(sample.table, taught), sample.log_ttft[taught]
    light = [groups[i] for i in taught]
    step_s = np.exp(held.log_value[taught])
    held_ttft = calibrate_serve.held_out_ttft(table, step_s, target, folds_of(light))
    own_step_s = np.exp(
        residual.apply(calibrate_serve.tpot_log(theta, table), table.covariates).log_value
    )
    theta_ttft = calibrate_serve.fit_ttft(table, own_step_s, target, np.arange(target.size))
    error_ttft = target - calibrate_serve.ttft_log(theta_ttft, table, own_step_s)
    residual_ttft = regression.fit_residual(TTFT_RESIDUAL, table.covariates, error_ttft)
    energy_groups = [o.model_group for o in energy.observations]
    energy_error = energy.log_joules - held_out_energy(energy, energy_groups)
    return ServeModel(
        tpot_theta=theta,
        tpot_residual=residual,
        tpot_ranges=regression.learn_ranges(
            residual, error, sample.log_tpot, held, columns=RANGE_COLUMNS
        ),
        ttft_theta=theta_ttft,
        ttft_residual=residual_ttft,
        ttft_ranges=regression.learn_ranges(
            residual_ttft, error_ttft, target, held_ttft, columns=RANGE_COLUMNS
        ),
        energy_theta=calibrate_serve.fit_energy(
            energy.table, energy.log_joules, np.arange(energy.log_joules.size)
        ),
        energy_range_log=regression.quantile(np.abs(energy_error), 0.8),
    )


def _fit_memory(catalogue: Catalogue, tables: Mapping[str, Sequence[Row]]) -> MemoryMargin:
    observations, _ = read_memory(catalogue, tables.get("memory_measured", ()))
    scored = [o for o in observations if o.is_scored]
    measured = np.array([o.peak_bytes or 0.0 for o in scored])
    errors = np.log(measured / computed_bytes(scored)) if scored else np.zeros(0)
    return learn_margin(errors, [o.framework for o in scored])


def fit_calibration(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    date: str,
) -> Calibration:
    """Fits everything on the given tables; ranges come from held-out errors."""
    return Calibration(
        date=date,
        train=_fit_train(catalogue, tables, kernels, fits),
        serve=_fit_serve(catalogue, tables, kernels, fits),
        memory=_fit_memory(catalogue, tables),
    )
