"""`tercio size fleet`, from a log to a number of GPUs and what they cost."""

from __future__ import annotations

import json

import pytest

ROWS = "".join(f"2017-10-02 00:00:00,600,8,0,{i}\n" for i in range(6))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + ROWS)
    return str(path)


def test_from_a_log_to_gpus_and_their_price(tercio, log):
    argv = ("size", "fleet", "--trace", log, "--gpus", "H100", "--wait-p95", "10m")
    answer = tercio(*argv, "-o", "json")
    assert answer.code == 0, answer.err
    body = json.loads(answer.out)
    assert (body["kind"], body["best"]["devices"]) == ("FleetSize", 24)
    assert body["usd_per_month"] == pytest.approx(body["price"]["usd_h"] * 24 * 730)
    assert body["catalogue_date"]
    told = tercio(*argv).out
    assert "24 H100-SXM5-80GB in 3 nodes" in told
    assert "USD a month" in told


def test_a_gpu_nobody_knows_is_named(tercio, log):
    answer = tercio("size", "fleet", "--trace", log, "--gpus", "H10", "--wait-p95", "1h")
    assert answer.code == 3
    assert "H10" in answer.err
