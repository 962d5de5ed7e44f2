"""FIFO and SJF on the Philly export, against the values of two foreign simulators."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from tercio.cli.twin_input import load_trace
from tercio.formats.cluster import read_cluster
from tercio.twin.policies import built_in
from tercio.twin.replay import run

FOLDER = Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces" / "philly-2017"
WINDOW = ("timestamp>=2017-10-01", "timestamp<2017-12-01")


def cases() -> list[dict[str, str]]:
    path = FOLDER / "golden_fifo_sjf.csv"
    if not path.exists():
        return []
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def check(case: dict[str, str]) -> None:
    filters = (*WINDOW, f"cluster={case['vc']}")
    trace = load_trace(str(FOLDER / "philly_jobs.csv.gz"), filters)
    nodes = read_cluster(f"{case['nodes']}x{case['gpus_per_node']}")
    result = run(trace, nodes, built_in(case["policy"], trace.jobs))
    sums = result.summary
    assert sums.jobs == int(case["jobs"])
    assert round(sums.mean_jct_s, 3) == float(case["avg_jct_s"])
    assert round(sums.mean_wait_s, 3) == float(case["avg_queue_s"])
    assert sums.max_wait_s == float(case["max_queue_s"])


@pytest.mark.skipif(not cases(), reason="the Philly export is not at hand: set TERCIO_SHARED")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case['vc']}-{case['nodes']}-{case['policy']}",
            marks=[] if case["vc"] == "103959" else [pytest.mark.full],
        )
        for case in cases()
    ],
)
def test_golden_values(case: dict[str, str]) -> None:
    """Mean completion time and wait to three decimals, and the longest wait."""
    check(case)
