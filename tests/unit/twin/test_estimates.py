"""Start estimates in a replay: told, settled, learnt from, and reported."""

from __future__ import annotations

import json

import pytest

from tercio.formats.cluster import read_cluster
from tercio.twin.estimates import EstimateKeeper
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.trace import Trace, TraceJob

NODES = read_cluster("1x4")


def busy(count: int = 40) -> Trace:
    """Jobs of a whole node, a minute apart, each of ten minutes: each waits for the others."""
    jobs = tuple(
        TraceJob(id=f"j{n}", submit_s=600.0 * n, run_s=900.0, limit_s=900.0, devices_per_task=4)
        for n in range(count)
    )
    return Trace(jobs=jobs, source="t", kind="t")


def test_what_jobs_were_told_is_settled_and_reported():
    keeper, trace = EstimateKeeper(), busy()
    told = run(trace, NODES, built_in("easy", trace.jobs), observers=(keeper,), estimates=True)
    plain = run(trace, NODES, built_in("easy", trace.jobs))
    starts = [job.start_s for job in told.jobs]
    assert starts == [job.start_s for job in plain.jobs], "telling changes no decision here"
    whole, *_ = keeper.accuracy().rows
    assert whole.key == "all"
    assert whole.jobs == len(keeper.outcomes) > 10
    assert whole.inside_ratio + whole.early_ratio + whole.late_ratio == pytest.approx(1.0)
    assert whole.error_s <= whole.wait_s
    waits = sorted(each.wait_s for each in keeper.outcomes)
    assert waits[-1] <= max(job.wait_s for job in told.jobs)


def test_the_command_prints_them(tmp_path, capfdbinary):
    from tercio.cli.main import run as main

    path = tmp_path / "log.swf"
    line = "{n} {at} 0 900 4 -1 -1 4 900 -1 1 3 1 -1 2 -1 -1 -1\n"
    path.write_text("".join(line.format(n=n + 1, at=600 * n) for n in range(30)))
    words = ["twin", "replay", str(path), "--cluster", "1x4", "--policy", "easy", "--estimates"]
    assert main([*words, "-o", "json"]) == 0
    body = json.loads(capfdbinary.readouterr().out)
    assert body["estimates"]["rows"][0]["key"] == "all"
    assert main(words) == 0
    out = capfdbinary.readouterr().out.decode()
    assert "start estimates" in out
    assert "INSIDE" in out
    assert main([*words[:-2], "srtf", "--estimates"]) == 2
    assert b"tells no starts" in capfdbinary.readouterr().err
    assert main([*words[:-1], "-o", "json"]) == 0
    assert "estimates" not in json.loads(capfdbinary.readouterr().out)
