"""`tercio twin`: a trace in, sums out."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

HEAD = "timestamp,duration,num_gpus,gpu_time,cluster\n"
ROWS = (
    "2017-10-02 00:00:00,100,8,0,a\n"
    "2017-10-02 00:00:10,50,4,0,a\n"
    "2017-10-02 00:00:20,10,4,0,a\n"
    "2017-10-02 00:00:20,10,4,0,b\n"
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress((HEAD + ROWS).encode()))
    return str(path)


def replay(tercio, trace: str, *more: str) -> dict[str, float]:  # type: ignore[no-untyped-def]
    answer = tercio("twin", "replay", trace, "--filter", "cluster=a", "-o", "json", *more)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_the_sums_are_those_of_the_trace(tercio, trace: str) -> None:  # type: ignore[no-untyped-def]
    """8 devices: the first job has them for 100 s, then the two others run side by side."""
    body = replay(tercio, trace, "--cluster", "1x8", "--policy", "fifo")
    assert body["jobs"] == 3
    assert body["mean_jct_s"] == pytest.approx((100 + 140 + 90) / 3)
    assert body["mean_wait_s"] == pytest.approx((0 + 90 + 80) / 3)
    assert body["p99_wait_s"] == 90
    assert body["makespan_s"] == 150
    assert body["utilization_ratio"] == pytest.approx((800 + 200 + 40) / (8 * 150))
    assert body["evictions"] == 0
    assert body["events"] > 0
    assert body["cpu_s"] >= 0


def test_shortest_first_and_until(tercio, trace: str) -> None:  # type: ignore[no-untyped-def]
    body = replay(tercio, trace, "--cluster", "1x8", "--policy", "fifo", "--until", "120s")
    assert (body["jobs"], body["unfinished"]) == (2, 1)


def test_a_policy_file_and_records(tercio, trace: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    policy = tmp_path / "policy.yaml"
    policy.write_text("queues: {default: {}}\n", encoding="utf-8")
    records = tmp_path / "jobs.csv"
    body = replay(
        tercio, trace, "--cluster", "2x8", "--policy", str(policy), "--records", str(records)
    )
    assert body["mean_wait_s"] == 0
    rows = list(csv.DictReader(records.read_text(encoding="utf-8").splitlines()))
    assert [row["state"] for row in rows] == ["succeeded"] * 3


def test_a_page_for_people(tercio, trace: str) -> None:  # type: ignore[no-untyped-def]
    answer = tercio("twin", "replay", trace, "--cluster", "1x4", "--policy", "fifo")
    assert answer.code == 0
    assert "3 ended, 1 can never fit" in answer.out
    assert "1 node, 4 devices" in answer.out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--policy", "fifp"), "fifo"),
        (("--filter", "clutser=a"), "cluster"),
        (("--filter", "cluster"), "COLUMN=VALUE"),
        (("--filter", "cluster=zz"), "passes"),
        (("--faults", "mena=3d"), "mean"),
        (("--cluster", "0x8"), "8x8"),
    ],
)
def test_mistakes_are_named(tercio, trace: str, options: tuple[str, str], word: str) -> None:  # type: ignore[no-untyped-def]
    line = ["--cluster", "1x8", *options] if options[0] != "--cluster" else list(options)
    answer = tercio("twin", "replay", trace, *line)
    assert answer.code == 2
    assert word in answer.err
