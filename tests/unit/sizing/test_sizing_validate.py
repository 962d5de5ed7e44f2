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
from tercio.sizing.validate import COLUMNS, pooled_coverage, validate

Tables = dict[str, list[dict[str, str]]]


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


@pytest.mark.parametrize("is_packaged", [False, True])
def test_tables_without_a_readable_row_are_no_crash_and_pass_no_gate(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    is_packaged: bool,
) -> None:
    empty = {name: [dict.fromkeys(columns, "")] for name, columns in COLUMNS.items()}
    report, rows = validate(
        catalogue,
        {**empty, "train_torchtitan": []},
        kernels=kernels,
        fits=fits,
        calibration=calibration if is_packaged else None,
    )
    assert rows == []
    assert not any(found.passes for found in report.metrics)
