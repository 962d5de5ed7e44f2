"""Validation of training speed: folds by model and by system, ranking, and the plain baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.sizing import architecture as arch
from tercio.sizing import metrics
from tercio.sizing.calibrate_train import CaseTable, TrainModel, held_out, nominal_work, tabulate
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.metrics import Gate, Metric, RowResult, Scored
from tercio.sizing.regression import Array, Fold, Prediction
from tercio.sizing.tables_papers import read_papers
from tercio.sizing.tables_train import (
    ReadResult,
    Row,
    TrainObservation,
    read_dgxc,
    read_llm_foundry,
    read_nemo,
    read_torchtitan,
)

READERS = {
    "train_llm_foundry": read_llm_foundry,
    "train_nvidia_nemo": read_nemo,
    "train_nvidia_dgxc_recipes": read_dgxc,
    "train_torchtitan": read_torchtitan,
    "train_megatron_and_papers": read_papers,
}

GATES: Mapping[tuple[str, str], Gate] = {
    ("train_llm_foundry", "model"): Gate(at_most={"mape_ratio": 0.08}),
    ("train_llm_foundry", "system"): Gate(at_most={"mape_ratio": 0.25}),
    ("train_nvidia_nemo", "model"): Gate(at_most={"mape_ratio": 0.25}),
    ("train_nvidia_nemo", "system"): Gate(at_most={"mape_ratio": 0.30}),
}
GOALS: Mapping[tuple[str, str], float] = {
    ("train_llm_foundry", "model"): 0.06,
    ("train_llm_foundry", "system"): 0.15,
    ("train_nvidia_nemo", "model"): 0.18,
    ("train_nvidia_nemo", "system"): 0.20,
    ("train_nvidia_dgxc_recipes", "model"): 0.15,
    ("train_torchtitan", "model"): 0.15,
    ("train_megatron_and_papers", "model"): 0.15,
}


class TrainSet(msgspec.Struct, frozen=True, kw_only=True):
    """All observations of the training tables in one order, with their columns."""

    observations: tuple[TrainObservation, ...]
    table: CaseTable
    log_seconds: Array
    reads: Mapping[str, ReadResult]
    row_counts: Mapping[str, int]

    def of(self, name: str) -> Array:
        """Positions of one table's observations."""
        return np.array(
            [i for i, o in enumerate(self.observations) if o.table == name], dtype=np.intp
        )


def read_train_set(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
) -> TrainSet:
    """Reads every training table that is present."""
    reads = {
        name: reader(catalogue, tables[name]) for name, reader in READERS.items() if name in tables
    }
    observations = tuple(o for read in reads.values() for o in read.observations)
    cases = [o.case for o in observations]
    table = tabulate(cases, nominal_work(cases, kernels, fits))
    speeds = np.array([o.tokens_per_s_per_gpu for o in observations])
    return TrainSet(
        observations=observations,
        table=table,
        log_seconds=np.log(table.tokens_per_gpu / speeds),
        reads=reads,
        row_counts={name: len(tables[name]) for name in reads},
    )


def group_of(observation: TrainObservation, holdout: str) -> str:
    """The hold-out group of a row within its table."""
    return observation.model_group if holdout == "model" else observation.system_group


def train_folds(sample: TrainSet, holdout: str) -> list[Fold]:
    """Each group of each table, left out together with every row of the same model or device.

    A model that appears in two tables is held out of both, so nothing of it is learned.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    keys: list[str] = []
    for i, o in enumerate(sample.observations):
        rows.setdefault((o.table, group_of(o, holdout)), []).append(i)
        keys.append(o.case.shape.name if holdout == "model" else o.case.gpu.name)
    folds: list[Fold] = []
    for members in rows.values():
        same = {keys[i] for i in members}
        left_out = sorted({*members, *(i for i, key in enumerate(keys) if key in same)})
        folds.append((np.array(members, dtype=np.intp), np.array(left_out, dtype=np.intp)))
    return folds


def mfu_baseline(sample: TrainSet, positions: Array, holdout: str) -> dict[str, float]:
    """Median MFU by device and precision from the other groups, as a plain guess would use.

    Held out by system, the median of all other devices.
    """
    chosen = [sample.observations[int(i)] for i in positions]
    flops = np.array(
        [arch.training_flops_per_token(o.case.shape, tokens=float(o.case.plan.seq)) for o in chosen]
    )
    peak = np.array([o.case.gpu.flops(o.case.plan.precision) for o in chosen])
    speed = np.array([o.tokens_per_s_per_gpu for o in chosen])
    mfu = speed * flops / peak
    groups = np.array([group_of(o, holdout) for o in chosen])
    kinds = np.array([f"{o.system_group} {o.case.plan.precision}" for o in chosen])
    guess = np.full(speed.size, np.nan)
    for i in range(speed.size):
        others = groups != groups[i]
        same = others & (kinds == kinds[i])
        pool = mfu[same] if same.any() else mfu[others]
        if pool.size:
            guess[i] = float(np.median(pool)) * peak[i] / flops[i]
    known = np.isfinite(guess)
    found = metrics.summary(guess[known], speed[known])
    return {f"median_mfu_{key}": value for key, value in found.items()}


def _scored(sample: TrainSet, prediction: Prediction, positions: Array, half: Array) -> Scored:
    """Speeds of one table with their ranges; `half` is the half-width of the log range."""
    log_speed = np.log(sample.table.tokens_per_gpu) - prediction.log_value
    measured = np.array([sample.observations[int(i)].tokens_per_s_per_gpu for i in positions])
    return Scored(
        measured=measured,
        predicted=np.exp(log_speed[positions]),
        low=np.exp((log_speed - half)[positions]),
        high=np.exp((log_speed + half)[positions]),
    )


def _half_widths(sample: TrainSet, prediction: Prediction, holdout: str) -> Array:
    """Half-widths of the 80 % ranges, each table's factor from its other groups."""
    z = (sample.log_seconds - prediction.log_value) / prediction.deviation
    half = np.zeros(z.size)
    for name in sample.reads:
        positions = sample.of(name)
        groups = [group_of(sample.observations[int(i)], holdout) for i in positions]
        half[positions] = metrics.range_factors(z[positions], groups)
    return np.asarray(half * prediction.deviation)


def ranking_metric(
    sample: TrainSet, prediction: Prediction, *, holdout: str, gate: Gate | None
) -> Metric:
    """How often the predicted best of a group is within 10 % of the true best.

    Groups share model, system, device count, precision and sequence; those whose best is more than
    10 % above the worst count. Equal predictions share the pick. The baseline picks at random.
    """
    members: dict[tuple[str, str], list[int]] = {}
    for i, o in enumerate(sample.observations):
        members.setdefault((o.table, o.rank_group), []).append(i)
    right: list[float] = []
    random: list[float] = []
    for rows in members.values():
        speed = np.array([sample.observations[i].tokens_per_s_per_gpu for i in rows])
        if speed.max() <= 1.1 * speed.min():
            continue
        guess = (np.log(sample.table.tokens_per_gpu) - prediction.log_value)[rows]
        best = guess >= guess.max() - 1e-9
        close = speed >= speed.max() / 1.1
        right.append(float(np.mean(close[best])))
        random.append(float(np.mean(close)))
    metric = Metric(
        table="train_*",
        target="ranking",
        holdout=holdout,
        rows=len(sample.observations),
        used=len(right),
        excluded={"group within 10 %": len(members) - len(right)},
        groups=len(right),
        share_ratio=float(np.mean(right)) if right else None,
        goal={"share_ratio": 0.9},
        baseline={"random_share_ratio": round(float(np.mean(random)), 4)} if random else {},
    )
    return metrics.judge(metric, gate)


def validate_train(
    sample: TrainSet, *, model: TrainModel | None
) -> tuple[list[Metric], list[RowResult]]:
    """Metrics and rows of all training tables. With `model` nothing is learned from the sample."""
    found: list[Metric] = []
    rows: list[RowResult] = []
    if not sample.observations:
        return found, rows
    holdouts = ("model", "system") if model is None else ("none",)
    for holdout in holdouts:
        grouping = "model" if holdout == "none" else holdout
        if model is None:
            prediction = held_out(sample.table, sample.log_seconds, train_folds(sample, holdout))
            half = _half_widths(sample, prediction, holdout)
        else:
            prediction = model.log_seconds(sample.table)
            half = model.half_width(sample.table, prediction)
        for name, read in sample.reads.items():
            positions = sample.of(name)
            groups = [group_of(sample.observations[int(i)], grouping) for i in positions]
            scored = _scored(sample, prediction, positions, half)
            if model is not None:
                seen = model.residual.has_seen(sample.table.covariates)[positions]
                scored = msgspec.structs.replace(scored, seen=seen)
            key = (name, grouping)
            found.append(
                metrics.metric_of(
                    scored,
                    table=name,
                    target="tokens_per_s_per_gpu",
                    holdout=holdout,
                    rows=sample.row_counts[name],
                    excluded=read.excluded,
                    groups=groups,
                    baseline=mfu_baseline(sample, positions, grouping),
                    gate=GATES.get(key),
                    goal={"mape_ratio": GOALS[key]} if key in GOALS else {},
                )
            )
            names = [
                f"{o.case.shape.name} {o.case.gpu.name} x{o.case.plan.gpus} {o.case.plan.precision}"
                for o in (sample.observations[int(i)] for i in positions)
            ]
            rows += metrics.results_of(
                scored,
                table=name,
                target="tokens_per_s_per_gpu",
                holdout=holdout,
                groups=groups,
                names=names,
            )
        if grouping == "model":
            gate = Gate(at_least={"share_ratio": 0.75})
            found.append(ranking_metric(sample, prediction, holdout=holdout, gate=gate))
    return found, rows
