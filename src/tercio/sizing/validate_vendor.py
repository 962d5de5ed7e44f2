"""Printed only: disaggregated serving and the vendors' maximum-throughput tables.

Both are predicted by the time-per-token model taught on aggregated rows of other groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.sizing import calibrate_serve as calibrate
from tercio.sizing import metrics, regression
from tercio.sizing.calibrate_serve import TPOT_RESIDUAL, ServeModel, ServeTable
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.families import family, family_shape
from tercio.sizing.kernels import GemmTable
from tercio.sizing.metrics import Metric, RowResult, Scored
from tercio.sizing.regression import Array, Index, Prediction
from tercio.sizing.serve import ServeCase, cache_bytes_per_sequence, cache_pool_bytes, running_batch
from tercio.sizing.tables_serve import engine_months, serve_family
from tercio.sizing.tables_train import Row, count_of, network_share, number, scale_up_domain
from tercio.sizing.validate_serve import SERVING, ServeSet

VENDOR = "inference_throughput_vendor"

# Sequences that the vendors' benchmark programs keep in flight at most.
MAX_IN_FLIGHT = 2048.0


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """One row that is predicted without a gate."""

    name: str
    group: str
    case: ServeCase
    measured: float


def predict_others(
    sample: ServeSet,
    cases: Sequence[ServeCase],
    groups: Sequence[str],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: ServeModel | None,
    has_prefill: bool,
) -> Prediction:
    """Log seconds per token of cases, each from aggregated rows outside its group."""
    table = calibrate.tabulate(cases, table=kernels, fits=fits)
    if not has_prefill:
        table = msgspec.structs.replace(
            table, decode={**table.decode, "prefill_s": np.zeros(len(cases))}
        )
    if model is not None:
        return model.log_tpot(table)
    taught = sample.groups()
    weights = calibrate.group_weights(taught)
    value, deviation = np.zeros(len(cases)), np.zeros(len(cases))
    own = np.array(taught)
    # Groups that nothing was taught on share one fit.
    labels = np.array([group if group in taught else "" for group in groups])
    for group in dict.fromkeys(labels.tolist()):
        rows = np.flatnonzero(own != group)
        theta = calibrate.fit_tpot(sample.table, sample.log_tpot, rows, weights)
        error = (sample.log_tpot - calibrate.tpot_log(theta, sample.table))[rows]
        residual = regression.fit_residual(TPOT_RESIDUAL, _covariates(sample.table, rows), error)
        predicted = residual.apply(calibrate.tpot_log(theta, table), table.covariates)
        chosen = labels == group
        value[chosen], deviation[chosen] = predicted.log_value[chosen], predicted.deviation[chosen]
    return Prediction(log_value=value, deviation=deviation)


def _covariates(table: ServeTable, rows: Index) -> regression.Covariates:
    index = rows
    return regression.Covariates(
        features=table.covariates.features[index],
        labels=tuple(tuple(column[i] for i in index) for column in table.covariates.labels),
    )


def read_disaggregated(
    catalogue: Catalogue, rows: Sequence[Row]
) -> tuple[list[Printed], dict[str, int]]:
    """Decode workers of disaggregated rows: their devices, and their share of the concurrency."""
    found: list[Printed] = []
    excluded: dict[str, int] = {}
    seen: set[str] = set()
    for row in rows:
        reason = ""
        tpot, isl, osl = number(row["tpot_ms"]), number(row["isl"]), number(row["osl"])
        if row["mode"] != "disagg":
            reason = "aggregated"
        elif row["dup_group"] and row["dup_group"] in seen:
            reason = "repeat of an earlier row"
        seen.add(row["dup_group"])
        workers = count_of(row["decode_num_workers"])
        batch = number(row["decode_batch_size"]) or (number(row["concurrency"]) or 0.0) / workers
        if not reason and (not tpot or not isl or not osl or batch < 1):
            reason = "no TPOT or load"
        if reason:
            excluded[reason] = excluded.get(reason, 0) + 1
            continue
        case = _decode_case(catalogue, row, isl or 0.0, osl or 0.0, batch)
        if case is None:
            excluded["model or layout unknown"] = excluded.get("model or layout unknown", 0) + 1
            continue
        group = f"{serve_family(row['model_path'])} {row['system']}"
        found.append(Printed(name=row["id"], group=group, case=case, measured=(tpot or 0.0) / 1e3))
    return found, excluded


def _decode_case(
    catalogue: Catalogue, row: Row, isl: float, osl: float, batch: float
) -> ServeCase | None:
    try:
        shape, gpu = catalogue.model(row["model_path"]), catalogue.gpu(row["system"])
    except UserError:
        return None
    tp, dp = count_of(row["decode_tp_size"]), count_of(row["decode_attention_dp_size"])
    if dp > 1:
        tp = max(tp // dp, 1)
    if shape.heads % tp:
        return None
    precision = {"fp8": "fp8", "fp4": "fp4"}.get(row["precision"], "fp8")
    case = ServeCase(
        shape=shape,
        gpu=gpu,
        isl=isl,
        osl=osl,
        concurrency=batch,
        tp=tp,
        attention_dp=dp,
        moe_tp=count_of(row["decode_moe_tp_size"]),
        moe_ep=count_of(row["decode_moe_ep_size"]),
        precision=precision,
        kv_format="fp8",
        backend=row["backend"],
        is_block_scaled="block" in row["gemm_quant_mode"],
        release_months=engine_months(row["measured"], row["backend"], row["backend_version"]),
        harness="inferencex",
        domain=scale_up_domain(gpu),
        nic_bytes_per_s=network_share(gpu),
    )
    return case if running_batch(case) > 0 else None


def _printed_metric(
    printed: Sequence[Printed],
    predicted: Array,
    half: Array,
    *,
    table: str,
    target: str,
    holdout: str,
    rows: int,
    excluded: Mapping[str, int],
) -> tuple[list[Metric], list[RowResult]]:
    measured = np.array([p.measured for p in printed])
    scored = Scored(
        measured=measured,
        predicted=predicted,
        low=predicted * np.exp(-half),
        high=predicted * np.exp(half),
    )
    groups = [p.group for p in printed]
    metric = metrics.metric_of(
        scored,
        table=table,
        target=target,
        holdout=holdout,
        rows=rows,
        excluded=excluded,
        groups=groups,
        baseline={},
    )
    results = metrics.results_of(
        scored,
        table=table,
        target=target,
        holdout=holdout,
        groups=groups,
        names=[p.name for p in printed],
    )
    return [metric], results


def validate_disaggregated(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    sample: ServeSet,
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: ServeModel | None,
) -> tuple[list[Metric], list[RowResult]]:
    """Time per token of disaggregated decode workers."""
    printed, excluded = read_disaggregated(catalogue, tables[SERVING])
    if not printed:
        return [], []
    prediction = predict_others(
        sample,
        [p.case for p in printed],
        [p.group for p in printed],
        kernels=kernels,
        fits=fits,
        model=model,
        has_prefill=False,
    )
    return _printed_metric(
        printed,
        np.exp(prediction.log_value),
        1.28 * prediction.deviation,
        table=SERVING,
        target="disaggregated_tpot_s",
        holdout="none" if model else "model",
        rows=len(tables[SERVING]),
        excluded=excluded,
    )


def read_vendor(catalogue: Catalogue, rows: Sequence[Row]) -> tuple[list[Printed], dict[str, int]]:
    """Maximum-throughput rows of TensorRT-LLM at the largest batch that the cache holds."""
    found: list[Printed] = []
    excluded: dict[str, int] = {}

    def drop(reason: str) -> None:
        excluded[reason] = excluded.get(reason, 0) + 1

    for row in rows:
        speed, isl, osl = number(row["tokens_per_s"]), number(row["isl"]), number(row["osl"])
        shape = family_shape(catalogue, row["model"])
        tp, pp = count_of(row["tp"]), count_of(row["pp"])
        if row["engine"] != "TensorRT-LLM":
            drop("metric as the vendor defines it")
            continue
        if pp > 1:
            drop("pipeline parallel")
            continue
        try:
            gpu = catalogue.gpu(row["gpu"])
        except UserError:
            drop("GPU unknown")
            continue
        if shape is None or not speed or not isl or not osl or shape.heads % tp:
            drop("model unknown or no throughput")
            continue
        case = ServeCase(
            shape=shape,
            gpu=gpu,
            isl=isl,
            osl=osl,
            concurrency=1.0,
            tp=tp,
            moe_tp=tp,
            precision={"FP8": "fp8", "FP4": "fp4"}.get(row["precision"], "bf16"),
            kv_format="fp8" if row["precision"] != "FP16" else "bf16",
            backend="trtllm",
            release_months=1.0,
            harness="inferencex",
            domain=scale_up_domain(gpu),
            nic_bytes_per_s=network_share(gpu),
        )
        pool = cache_pool_bytes(case)
        if pool <= 0:
            drop("weights leave no cache")
            continue
        held = cache_bytes_per_sequence(case, isl + 0.5 * osl)
        case = msgspec.structs.replace(case, concurrency=max(1.0, min(MAX_IN_FLIGHT, pool / held)))
        group = f"{family(row['model'])} {row['gpu']}"
        found.append(
            Printed(
                name=f"{row['model']} {row['gpu']} tp{tp}", group=group, case=case, measured=speed
            )
        )
    return found, excluded


def validate_vendor(
    catalogue: Catalogue,
    tables: Mapping[str, Sequence[Row]],
    sample: ServeSet,
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: ServeModel | None,
) -> tuple[list[Metric], list[RowResult]]:
    """Maximum output tokens per second: the running batch over its time per token."""
    if VENDOR not in tables:
        return [], []
    printed, excluded = read_vendor(catalogue, tables[VENDOR])
    if not printed:
        return [], []
    prediction = predict_others(
        sample,
        [p.case for p in printed],
        [p.group for p in printed],
        kernels=kernels,
        fits=fits,
        model=model,
        has_prefill=True,
    )
    batch = np.array([running_batch(p.case) for p in printed])
    return _printed_metric(
        printed,
        batch / np.exp(prediction.log_value),
        1.28 * prediction.deviation,
        table=VENDOR,
        target="max_tokens_per_s",
        holdout="none" if model else "model",
        rows=len(tables[VENDOR]),
        excluded=excluded,
    )
