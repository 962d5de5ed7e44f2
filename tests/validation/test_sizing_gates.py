"""The gates of `tercio size validate` on public tables, and what may not reach a prediction."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.validate import Report, validate

Tables = dict[str, list[dict[str, str]]]

# What was measured in each table: none of it may reach a prediction.
MEASURED = {
    "train_llm_foundry": ("tokens_per_s", "seqs_per_s", "mfu_pct", "tokens_per_s_per_gpu"),
    "train_nvidia_nemo": ("tokens_per_s_per_gpu", "model_tflops_per_gpu", "step_time_s"),
    "train_nvidia_dgxc_recipes": ("tokens_per_s", "step_time_s", "mfu_pct", "tflops_per_gpu"),
    "train_torchtitan": ("tokens_per_s_per_gpu", "peak_mem_gib"),
    "inference_serving_inferencex": ("tpot_ms", "ttft_ms", "tok_s_user", "derived_output_tok_s"),
    "inference_energy_mlenergy_llm": (
        "energy_per_token_j", "energy_per_request_j", "output_tok_per_s", "avg_power_w_all_gpus",
        "avg_batch_size", "avg_output_len", "median_itl_ms",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folds(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, measured: Tables
) -> Report:
    return validate(catalogue, measured, kernels=kernels, fits=fits, calibration=None)[0]


def test_every_gate_holds_on_held_out_groups(folds: Report) -> None:
    missed = [(m.table, m.target, m.holdout) for m in folds.metrics if m.passes is False]
    gated = [m for m in folds.metrics if m.gate is not None]
    assert missed == []
    assert len(gated) == 13
    assert folds.passes


def test_the_report_has_the_contract_s_fields(folds: Report) -> None:
    body = msgspec.json.decode(msgspec.json.encode(folds))
    assert {"schema", "kind", "catalogue_date", "calibration", "metrics", "pass"} <= set(body)
    wanted = {
        "table", "target", "holdout", "rows", "used", "excluded", "groups", "mape_ratio",
        "median_ape_ratio", "p90_ape_ratio", "bias_ratio", "within_20_ratio", "coverage_80_ratio",
        "baseline", "gate", "pass",
    }  # fmt: skip
    for found in body["metrics"]:
        assert wanted <= set(found)
        assert found["holdout"] in ("model", "system", "none")


def test_predictions_beat_the_plain_guess_where_one_is_printed(folds: Report) -> None:
    by_key = {(m.table, m.target, m.holdout): m for m in folds.metrics}
    for table in ("train_llm_foundry", "train_nvidia_nemo"):
        found = by_key[(table, "tokens_per_s_per_gpu", "model")]
        assert (found.mape_ratio or 1.0) < 0.6 * found.baseline["median_mfu_mape_ratio"]
    first = by_key[("inference_serving_inferencex", "compute_ttft_s", "model")]
    ours = first.baseline["ours_same_rows_median_ape_ratio"]
    assert ours < first.baseline["aiconfigurator_median_ape_ratio"]


def test_measured_columns_never_reach_a_packaged_prediction(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, measured: Tables,
    calibration: Calibration,
) -> None:  # fmt: skip
    stream = np.random.default_rng(7)
    shuffled: Tables = {}
    for name, rows in measured.items():
        copies = [dict(row) for row in rows]
        for column in MEASURED.get(name, ()):
            values = [row.get(column, "") for row in rows]
            # Blank stays blank: a row is left out for a missing reading, not for its value.
            filled = [i for i, value in enumerate(values) if value]
            for i, j in zip(filled, stream.permutation(filled), strict=True):
                copies[i][column] = values[j]
        shuffled[name] = copies

    def predictions(tables: Tables) -> list[tuple[str, str, str, float]]:
        kept = {name: tables[name] for name in MEASURED if name in tables}
        _, rows = validate(catalogue, kept, kernels=kernels, fits=fits, calibration=calibration)
        light = [r for r in rows if r.target != "compute_ttft_s"]
        return [(r.table, r.target, r.name, r.predicted) for r in light]

    assert predictions(shuffled) == predictions(measured)
