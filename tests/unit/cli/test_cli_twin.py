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


MISSING = [
    ("replay", "absent.csv", "--cluster", "1x8"),
    ("replay", "{trace}", "--cluster", "absent.yaml"),
    ("replay", "{trace}", "--cluster", "1x8", "--policy", "absent.yaml"),
    ("replay", "{trace}", "--cluster", "1x8", "--faults", "absent.csv"),
    ("replay", "--model", "absent.json", "--cluster", "1x8"),
    ("compare", "absent.csv", "--cluster", "1x8"),
    ("fit", "absent.csv"),
    ("run", "--from", "absent.json"),
]


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_a_missing_file_is_told_alike(tercio, trace: str, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    answer = tercio("twin", *(word.format(trace=trace) for word in words))
    assert answer.code == 3, answer.err
    assert "error: there is no file" in answer.err
    assert "absent" in answer.err
    assert "\nhint: " in answer.err


UNWRITABLE = [
    ("replay", "{trace}", "--cluster", "1x8", "--records"),
    ("compare", "{trace}", "--cluster", "1x8", "--html"),
    ("fit", "{trace}", "--to"),
]


@pytest.mark.parametrize("words", UNWRITABLE, ids=" ".join)
def test_a_target_is_refused_before_the_work(  # type: ignore[no-untyped-def]
    tercio, trace: str, tmp_path: Path, words: tuple[str, ...], monkeypatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the trace was read")

    monkeypatch.setattr("tercio.cli.twin_files.open_trace", read)
    given = [word.format(trace=trace) for word in words]
    for target in (tmp_path, tmp_path / "none" / "out"):
        answer = tercio("twin", *given, str(target))
        assert answer.code == 2, answer.err
        assert f"cannot write {target}" in answer.err


@pytest.mark.parametrize("usd", ["-3", "nan", "inf"])
def test_a_price_is_a_number_of_at_least_zero(tercio, trace: str, usd: str) -> None:  # type: ignore[no-untyped-def]
    answer = tercio("twin", "compare", trace, "--cluster", "1x8", "--usd-per-device-hour", usd)
    assert answer.code == 2
    assert f"--usd-per-device-hour {usd} is no price" in answer.err
