"""`validate`: every table against the predictors, with gates, goals and baselines.

Two ways to calibrate. `folds` learns from the given tables without the group it predicts;
`packaged` uses the shipped calibration and learns nothing from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.sizing import metrics
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.metrics import Gate, Metric, RowResult
from tercio.sizing.tables_train import Row
from tercio.sizing.validate_memory import validate_memory
from tercio.sizing.validate_serve import (
    BASELINE,
    read_energy_set,
    read_serve_set,
    validate_energy,
    validate_latency,
)
from tercio.sizing.validate_train import read_train_set, validate_train
from tercio.sizing.validate_vendor import validate_disaggregated, validate_vendor

# The columns each table must have. Others are ignored.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "train_llm_foundry": (
        "model",
        "seq_len",
        "n_gpus",
        "gpu",
        "precision",
        "mp_mode",
        "fsdp_sharding",
        "act_ckpt",
        "microbatch_per_gpu",
        "grad_accum",
        "tokens_per_s",
        "mfu_flag",
    ),
    "train_nvidia_nemo": (
        "model",
        "system",
        "n_gpus",
        "precision",
        "task",
        "gbs",
        "mbs",
        "seq_len",
        "tp",
        "pp",
        "cp",
        "vp",
        "ep",
        "fsdp",
        "tokens_per_s_per_gpu",
        "kernels",
        "release",
        "source",
    ),
    "train_nvidia_dgxc_recipes": (
        "workload",
        "recipe",
        "precision",
        "gpu",
        "n_gpus",
        "seq_len",
        "tp",
        "pp",
        "cp",
        "ep",
        "vp",
        "fsdp",
        "mbs",
        "gbs",
        "tokens_per_s",
    ),
    "train_torchtitan": (
        "model",
        "gpu",
        "n_gpus",
        "tp",
        "pp",
        "cp",
        "seq_len",
        "local_batch",
        "act_ckpt",
        "torch_compile",
        "precision",
        "async_tp",
        "pp_schedule",
        "tokens_per_s_per_gpu",
    ),
    "train_megatron_and_papers": (
        "model",
        "heads",
        "hidden",
        "layers",
        "vocab",
        "seq_len",
        "gpu",
        "n_gpus",
        "tp",
        "pp",
        "interleave",
        "micro_batch",
        "global_batch",
        "precision",
        "act_recompute",
        "zero",
        "tflops_per_gpu",
        "mfu_pct",
        "iter_time_s",
        "extra",
    ),
    "memory_measured": (
        "kind",
        "model",
        "params_b",
        "method",
        "precision",
        "gpu",
        "n_gpus",
        "zero_or_fsdp",
        "tp",
        "pp",
        "seq_len",
        "micro_batch",
        "act_ckpt",
        "offload",
        "framework",
        "peak_mem",
        "unit",
        "note",
    ),
    "fit_train_configs_nvidia_dgxc": (
        "recipe",
        "model_size",
        "gpu",
        "n_gpus",
        "precision",
        "seq_len",
        "layers",
        "fsdp",
        "tp",
        "pp",
        "cp",
        "ep",
        "vp",
        "mbs",
    ),
    "fit_inference_configs_nvidia_dgxc": (
        "recipe",
        "gpu",
        "isl",
        "osl",
        "max_num_tokens",
        "quant",
        "tp",
        "pp",
        "ep",
        "attn_dp",
    ),
    "inference_serving_inferencex": (
        "id",
        "model_path",
        "system",
        "backend",
        "backend_version",
        "precision",
        "mode",
        "isl",
        "osl",
        "concurrency",
        "batch_size",
        "tp_size",
        "attention_dp_size",
        "moe_tp_size",
        "moe_ep_size",
        "decode_batch_size",
        "decode_num_workers",
        "decode_tp_size",
        "decode_attention_dp_size",
        "decode_moe_tp_size",
        "decode_moe_ep_size",
        "gemm_quant_mode",
        "ttft_ms",
        "tpot_ms",
        "measured",
        "dup_group",
    ),
    "inference_throughput_vendor": (
        "model",
        "gpu",
        "tp",
        "pp",
        "precision",
        "engine",
        "isl",
        "osl",
        "load",
        "tokens_per_s",
        "metric",
    ),
    "inference_energy_mlenergy_llm": (
        "model",
        "task",
        "params_b",
        "active_params_b",
        "weight_precision",
        "gpu",
        "n_gpus",
        "tp",
        "ep",
        "dp",
        "max_num_seqs",
        "energy_per_token_j",
    ),
}
OPTIONAL = (BASELINE,)


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was not there."""

    table: str
    status: str = "absent"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a validation. `passes` is false when any gate is missed."""

    schema: str = "tercio/v1"
    kind: str = "SizingValidation"
    catalogue_date: str
    calibration: str
    metrics: Sequence[Metric]
    absent: Sequence[Absent]
    passes: bool = msgspec.field(name="pass")


def check_columns(name: str, rows: Sequence[Row]) -> None:
    """Raise UserError naming the file and the first needed column that it lacks."""
    if not rows:
        return
    for column in COLUMNS.get(name, ()):
        if column not in rows[0]:
            raise UserError(
                f"{name}.csv has no column {column!r}",
                field=column,
                hint=f"the file needs: {', '.join(COLUMNS[name])}",
            )


def pooled_coverage(rows: Sequence[RowResult], *, holdout: str) -> Metric:
    """Share of all held-out rows inside their 80 % range; rows that were fitted on do not count."""
    fresh = [row for row in rows if not row.is_seen]
    inside = np.array([row.low <= row.measured <= row.high for row in fresh], dtype=float)
    metric = Metric(
        table="all",
        target="range_80",
        holdout=holdout,
        rows=len(rows),
        used=len(fresh),
        excluded={"fitted on": len(rows) - len(fresh)},
        groups=len({(row.table, row.target) for row in fresh}),
        baseline={},
        coverage_80_ratio=float(inside.mean()) if inside.size else None,
    )
    gate = Gate(at_least={"coverage_80_ratio": 0.75}, at_most={"coverage_80_ratio": 0.85})
    # On the tables that the shipped calibration was fitted on, coverage says nothing.
    return metrics.judge(metric, gate) if 2 * inside.size > len(rows) else metric


def validate(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration | None,
) -> tuple[Report, list[RowResult]]:
    """Predicts every row of every table and judges the errors.

    `tables` maps file stems to rows; a missing one is reported absent. With a `calibration` nothing
    is learned from the rows.
    """
    for name, rows in tables.items():
        check_columns(name, rows)
    found: list[Metric] = []
    results: list[RowResult] = []

    def collect(part: tuple[list[Metric], list[RowResult]]) -> None:
        found.extend(part[0])
        results.extend(part[1])

    train = read_train_set(catalogue, tables, kernels=kernels, fits=fits)
    collect(validate_train(train, model=calibration.train if calibration else None))
    collect(validate_memory(catalogue, tables, margin=calibration.memory if calibration else None))
    served = calibration.serve if calibration else None
    latency = read_serve_set(catalogue, tables, kernels=kernels, fits=fits)
    if latency is not None:
        collect(validate_latency(latency, model=served))
        collect(
            validate_disaggregated(
                catalogue, tables, latency, kernels=kernels, fits=fits, model=served
            )
        )
        collect(
            validate_vendor(catalogue, tables, latency, kernels=kernels, fits=fits, model=served)
        )
    energy = read_energy_set(catalogue, tables, kernels=kernels, fits=fits)
    if energy is not None:
        collect(validate_energy(energy, model=served))
    ranged = [
        row for row in results if row.target not in ("disaggregated_tpot_s", "max_tokens_per_s")
    ]
    found.append(pooled_coverage(ranged, holdout="model" if calibration is None else "none"))
    return (
        Report(
            catalogue_date=catalogue.date,
            calibration="folds" if calibration is None else f"packaged {calibration.date}",
            metrics=found,
            absent=[Absent(table=name) for name in COLUMNS if name not in tables],
            passes=all(metric.passes is not False for metric in found),
        ),
        results,
    )
