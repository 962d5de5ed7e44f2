from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tercio.errors import UserError
from tercio.sizing.calibration import Calibration, decode, encode
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.metrics import Gate, Metric, RowResult, Scored, judge, metric_of
from tercio.sizing.validate import COLUMNS, Report, pooled_coverage, validate

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


def metric(**fields: object) -> Metric:
    return msgspec.convert(
        {"table": "t", "target": "x", "holdout": "model", "rows": 4, "used": 4, "excluded": {},
         "groups": 2, "baseline": {}, **fields},
        Metric,
    )  # fmt: skip


def test_a_gate_without_a_value_is_missed() -> None:
    gate = Gate(at_most={"mape_ratio": 0.1}, at_least={"share_ratio": 0.5})
    assert judge(metric(mape_ratio=0.05, share_ratio=0.9), gate).passes is True
    assert judge(metric(mape_ratio=0.15, share_ratio=0.9), gate).passes is False
    assert judge(metric(mape_ratio=0.05), gate).passes is False
    assert judge(metric(share_ratio=0.9), gate).passes is False
    assert judge(metric(), None).passes is None


def test_error_fields_are_row_weighted() -> None:
    scored = Scored(
        measured=np.array([1.0, 2.0, 4.0]), predicted=np.array([1.1, 2.0, 2.0]),
        low=np.array([0.9, 1.9, 1.0]), high=np.array([1.3, 2.1, 3.0]),
    )  # fmt: skip
    found = metric_of(
        scored, table="t", target="x", holdout="model", rows=3, excluded={}, groups=["a", "a", "b"],
        baseline={},
    )  # fmt: skip
    assert found.mape_ratio == pytest.approx((0.1 + 0 + 0.5) / 3)
    assert found.coverage_80_ratio == pytest.approx(2 / 3)
    assert found.bias_ratio == pytest.approx((0.1 - 0.5) / 3)
    assert (found.used, found.groups, found.within_20_ratio) == (3, 2, pytest.approx(2 / 3))


def test_coverage_counts_only_rows_that_were_not_fitted_on() -> None:
    def row(inside: bool, seen: bool) -> RowResult:
        return RowResult(
            table="t", target="x", holdout="none", group="g", name="n", measured=1.0, predicted=1.0,
            low=0.9 if inside else 1.1, high=1.2, is_seen=seen,
        )  # fmt: skip

    mixed = [row(True, False)] * 8 + [row(False, False)] * 2 + [row(False, True)] * 5
    found = pooled_coverage(mixed, holdout="none")
    assert found.coverage_80_ratio == pytest.approx(0.8)
    assert found.passes is True
    assert pooled_coverage([row(True, True)] * 9, holdout="none").passes is None


def test_a_missing_column_names_file_and_column(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits
) -> None:
    row = dict.fromkeys(COLUMNS["train_torchtitan"], "")
    del row["async_tp"]
    with pytest.raises(UserError, match=r"train_torchtitan\.csv has no column 'async_tp'"):
        validate(
            catalogue, {"train_torchtitan": [row]}, kernels=kernels, fits=fits, calibration=None
        )


def test_no_tables_are_all_absent_and_no_gate_is_missed(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits
) -> None:
    report, rows = validate(catalogue, {}, kernels=kernels, fits=fits, calibration=None)
    assert [absent.table for absent in report.absent] == list(COLUMNS)
    assert rows == []


def test_calibration_survives_its_file(calibration: Calibration) -> None:
    again = decode(encode(calibration))
    assert again.train.theta == pytest.approx(calibration.train.theta)
    assert again.serve.tpot_residual.weights == pytest.approx(
        calibration.serve.tpot_residual.weights
    )
    with pytest.raises(UserError, match="not a calibration file"):
        decode(b"{}")


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
